"""What each method of learning does on a small world, against the plain baseline at equal budget, over seeds and with intervals.

    cross_policy    an older copy of the policy speaks in a quarter of the turns (AgentRL), on the corridor with its deceptive coin;
                    and `cross_policy_collapse`, where short sessions first teach the policy to take the coin
    scaling_inter   short sessions first, longer ones phase by phase, against short and long ones throughout, at equal numbers of turns;
                    and `scaling_inter_far`, where a short horizon alone cannot do
    starpo_s        only the groups with the greatest reward deviation are trained
    level_replay    tasks are drawn by learnability
    gigpo           turns from equal states are compared too
    critics         PPO, GAE over turns (Agent-R1) and ArCHer, against GRPO

Every world here is a corridor. What makes it a case is the player who is cloned first: how often he is right, quarter by quarter. Where he
is right more often than not, a policy only has to become surer; where he is wrong, it has to change its mind, and can do so only where it
meets a reward. In each case one thing differs between the arms. A critic's settings are its preset's, a stale copy's the published ones.
Budgets count what was played, not what was trained: groups that a filter leaves out cost as much to play as others.

    python benchmarks/learning.py --workers 2 > learning.jsonl
    python benchmarks/learning.py --table learning.jsonl
"""

from __future__ import annotations

import random
from typing import Any

from arms import Case, main
from ludus.worlds.corridor import SIGNS, Corridor, pair_at

SURE = (1.0, 1.0, 1.0, 1.0)


class Learnt(Corridor):
    """Say left or right. A treasure is ahead, a coin behind."""

    # The corridor with a player to clone: in each quarter he is right with the chance `known`.

    def __init__(
        self,
        *,
        length: int = 12,
        start: int = 2,
        coin: float = 0.2,
        max_turns: int = 0,
        known: tuple[float, float, float, float] = SURE,
    ) -> None:
        super().__init__(length=length, start=start, coin=coin, max_turns=max_turns)
        self.known = known

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.whim = random.Random(rng.random())
        return super().setup(task, rng)

    def solve(self) -> str:
        quarter = SIGNS.index(pair_at(self.at, length=self.length))
        right = self.known == SURE or self.whim.random() < self.known[quarter]
        return next(move for move in self.actions if (move == self._way()) == right)


class Anywhere(Learnt):
    """Say left or right. A treasure is ahead, a coin behind."""

    # Begun in any cell: the nearer the treasure, the easier the task. The coin is worthless, and ends the session.

    def __init__(self, *, length: int = 8, known: tuple[float, float, float, float] = SURE) -> None:
        super().__init__(length=length, start=1, coin=0.0, known=known)

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.start = task["start"]
        return super().setup(task, rng)

    def _draw(self, rng: random.Random) -> dict[str, Any]:
        return {**super()._draw(rng), "start": rng.randrange(1, self.length)}


TEMPTING = {"length": 8, "start": 1, "coin": 0.3, "max_turns": 14}
MISLED = [0.4, 0.6, 0.6, 0.6]
"""Wrong more often than not next to the coin, right more often than not behind it."""
TEMPTED = [0.4, 0.8, 0.8, 0.8]
"""The same, and sure of the way once the coin is behind him."""

ANYWHERE = f"{__file__}:Anywhere"
HALF = [0.35, 0.35, 0.65, 0.65]
"""Knows the half next to the treasure somewhat, and is mistaken about the other."""
SHORT, MIDDLE, LONG = 4, 10, 22
LONG_WAY = {"anywhere": {"source": ANYWHERE, "options": {"length": 12}}}
POOR = {"mistakes": 0.8}
"""Who is cloned is right in six turns of ten, everywhere."""
SMALL = {"num_trajectories": 512, "steps": 140, "batch_tokens": 3072}

CASES = (
    Case(
        name="cross_policy",
        question="Corridor begun next to a coin: more states, more success with somebody else speaking now and then?",
        environments={"corridor": {"options": TEMPTING}},
        novice={"corridor": {"source": f"{__file__}:Learnt", "options": {**TEMPTING, "known": MISLED}}},
        warm={"num_trajectories": 512, "steps": 120, "batch_tokens": 2048},
        sections={
            "pipeline": {"groups_per_step": 2},
            "trainer": {"lr": 5e-4},
            "evaluation": {"num_tasks": 200, "attempts": 4},
        },
        arms={
            "current policy alone": {},
            "stale copy in 0.25 of turns": {"cross_policy": {"stale": 0.25, "stale_every": 25}},
        },
        budgets=(1536,),
        outcomes=("success", "states"),
    ),
    Case(
        name="cross_policy_collapse",
        question="Sessions of two turns first, in which the coin is all there is: who finds the treasure when they grow longer?",
        environments={"corridor": {"options": TEMPTING}},
        novice={"corridor": {"source": f"{__file__}:Learnt", "options": {**TEMPTING, "known": TEMPTED}}},
        warm={"num_trajectories": 512, "steps": 120, "batch_tokens": 2048},
        sections={
            "pipeline": {"groups_per_step": 2},
            "trainer": {"lr": 5e-4},
            "horizons": {"corridor": {"turns": [2, 14], "every": 24}},
            "evaluation": {"num_tasks": 200, "attempts": 4},
        },
        arms={
            "current policy alone": {},
            "stale copy in 0.25 of turns": {"cross_policy": {"stale": 0.25, "stale_every": 25}},
            "first model in 0.5 of turns": {"cross_policy": {"reference": 0.5}},
        },
        budgets=(2048,),
        outcomes=("success", "states"),
    ),
    Case(
        name="scaling_inter",
        question="Treasure up to 11 cells away: does a horizon that grows use its turns better than a fixed one?",
        environments=LONG_WAY,
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
        name="scaling_inter_far",
        question="The same, where what is learnt near the treasure does not carry over: can a short horizon do it?",
        environments={"anywhere": {"source": ANYWHERE}},
        novice={"anywhere": {"source": ANYWHERE, "options": {"known": HALF}}},
        warm=SMALL,
        sections={"pipeline": {"groups_per_step": 4}, "trainer": {"lr": 1e-3}},
        arms={
            "fixed 14": {},
            "fixed 3": {"horizons": {"anywhere": {"turns": [3], "every": 1}}},
            "3, 6, 14": {"horizons": {"anywhere": {"turns": [3, 6, 14], "every": 4}}},
        },
        budgets=(2500, 5000),
        unit="turns",
    ),
    Case(
        name="starpo_s",
        question="Starts at any distance: does training on the quarter of groups with the greatest deviation help?",
        environments=LONG_WAY,
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
        environments=LONG_WAY,
        warm=POOR,
        arms={"uniform": {}, "replay": {"curriculum": {"tasks": "replay"}}},
        budgets=(128, 256, 512),
    ),
    Case(
        name="gigpo",
        question="Starts at any distance: does comparing turns from equal states help?",
        environments=LONG_WAY,
        warm=POOR,
        sections={"algorithm": {"filter": "none"}},
        arms={"group": {}, "gigpo": {"algorithm": {"advantage": "gigpo", "discount": 0.95}}},
        budgets=(128, 256, 512),
    ),
    Case(
        name="critics",
        question="Treasure up to 7 cells away: which critic learns more than GRPO from as many trajectories?",
        environments={"anywhere": {"source": ANYWHERE}},
        novice={"anywhere": {"source": ANYWHERE, "options": {"known": HALF}}},
        warm=SMALL,
        sections={"pipeline": {"groups_per_step": 4}, "trainer": {"lr": 1e-3}},
        arms={"GRPO": {}, "PPO": {}, "GAE over turns": {}, "ArCHer": {}},
        budgets=(512,),
        presets={"PPO": "ppo", "GAE over turns": "agent-r1", "ArCHer": "archer"},
    ),
)

if __name__ == "__main__":
    main(CASES, about=__doc__)
