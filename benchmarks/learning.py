"""What each method of learning does on a small world, against the plain baseline at equal budget, over seeds and with intervals.

    cross_policy    an older copy of the policy speaks in a quarter of the turns (AgentRL), on the corridor with its deceptive coin
    scaling_inter   short sessions first, longer ones phase by phase, against short and long ones throughout, at equal numbers of turns
    starpo_s        only the groups with the greatest reward deviation are trained
    level_replay    tasks are drawn by learnability
    gigpo           turns from equal states are compared too
    archer          a critic of utterances, trained from a replay of turns; skipped where the preset is missing

In each case one thing differs between the arms. Where a method does not help, that is its figure: nothing here was tuned arm by arm.
Budgets count what was played, not what was trained: groups that a filter leaves out cost as much to play as others.

    python benchmarks/learning.py --workers 16 > learning.jsonl
    python benchmarks/learning.py --table learning.jsonl
"""

from __future__ import annotations

import random
from typing import Any

from arms import Case, main
from ludus.worlds.corridor import Corridor


class Anywhere(Corridor):
    """Say left or right. A treasure is ahead, a coin behind."""

    # The corridor, begun in any cell: the nearer the treasure, the easier the task. The coin is worthless, and ends the session.

    def __init__(self, *, length: int = 12) -> None:
        super().__init__(length=length, start=1, coin=0.0)

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.start = task["start"]
        return super().setup(task, rng)

    def _draw(self, rng: random.Random) -> dict[str, Any]:
        return {**super()._draw(rng), "start": rng.randrange(1, self.length)}


ANYWHERE = {"anywhere": {"source": f"{__file__}:Anywhere", "options": {"length": 12}}}
SHORT, MIDDLE, LONG = 4, 10, 22
POOR = {"mistakes": 0.8}
"""The player who is cloned first is right in six turns of ten."""

CASES = (
    Case(
        name="cross_policy",
        question="Corridor with a coin behind: more states, more success with an older copy speaking?",
        environments={"corridor": {"options": {"length": 12, "start": 2, "coin": 0.2}}},
        warm=POOR,
        arms={
            "current policy alone": {},
            "stale copy in 0.25 of turns": {"speakers": {"stale": 0.25, "stale_every": 4}},
        },
        budgets=(256, 512, 1024),
        outcomes=("success", "states"),
    ),
    Case(
        name="scaling_inter",
        question="Treasure up to 11 cells away: does a horizon that grows use its turns better than a fixed one?",
        environments=ANYWHERE,
        warm=POOR,
        arms={
            f"fixed {LONG}": {},
            f"fixed {SHORT}": {"horizons": {"anywhere": {"turns": [SHORT], "every": 1}}},
            f"{SHORT}, {MIDDLE}, {LONG}": {"horizons": {"anywhere": {"turns": [SHORT, MIDDLE, LONG], "every": 4}}},
        },
        budgets=(2500, 5000),
        unit="turns",
    ),
    Case(
        name="starpo_s",
        question="Starts at any distance: does training on the quarter of groups with the greatest deviation help?",
        environments=ANYWHERE,
        warm=POOR,
        arms={
            "all groups": {"algorithm": {"filter": "none"}},
            "top quarter": {"algorithm": {"filter": "top_share", "filter_share": 0.25}},
        },
        budgets=(128, 256, 512),
    ),
    Case(
        name="level_replay",
        question="Starts at any distance: does drawing tasks by learnability help?",
        environments=ANYWHERE,
        warm=POOR,
        arms={"uniform": {}, "replay": {"curriculum": {"tasks": "replay"}}},
        budgets=(128, 256, 512),
    ),
    Case(
        name="gigpo",
        question="Starts at any distance: does comparing turns from equal states help?",
        environments=ANYWHERE,
        warm=POOR,
        sections={"algorithm": {"filter": "none"}},
        arms={"group": {}, "gigpo": {"algorithm": {"advantage": "gigpo", "discount": 0.95}}},
        budgets=(128, 256, 512),
    ),
    Case(
        name="archer",
        question="Starts at any distance: does a critic of utterances help?",
        environments=ANYWHERE,
        warm=POOR,
        arms={"group": {}, "archer": {}},
        budgets=(128, 256, 512),
        preset="archer",
    ),
)

if __name__ == "__main__":
    main(CASES, about=__doc__)
