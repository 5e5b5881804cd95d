"""Two environments whose rewards are 100-fold apart, in one run: does the quiet one learn?

Both show a number and a sign, in the same words, and ask for left or right; what means left in the one means right in the other, and which
one it is can be told by where the word `so` stands. So whatever is learnt, is learnt in the same weights: an optimiser that scales each
weight by itself (AdamW) cannot help the quiet one, as it can where environments have words of their own. `quiet` pays 1 for the right
answer. `loud` pays 100, and in one case of five pays the wrong one, so that its advantages do not die down while it is being learnt.
The player who is cloned first is right in 65 of 100 cases in `loud`, and guesses in `quiet`.

A mean-centred baseline (Dr. GRPO: no division by the group's deviation, `normalise = "none"`) spends nearly all of every step on `loud`.
Task advantage normalisation divides per environment. Another arm divides per group (GRPO), which hides the scale too.
Budget: equal numbers of played trajectories, half of them in each environment.

    python benchmarks/multitask.py --workers 2 > multitask.jsonl
    python benchmarks/multitask.py --table multitask.jsonl
"""

from __future__ import annotations

import random
from typing import Annotated, Any

from pydantic import Field

from arms import Case, main
from ludus.environments import Reply
from ludus.worlds.drawing import draw_tasks

EARLY, LATE = ("gate", "moss"), ("reed", "wolf")


class Quiet:
    """Say left or right."""

    actions = ("left", "right")
    max_turns = 1
    signs_left: tuple[str, ...] = EARLY
    form = "{number} {sign} so"
    pay, luck = 1.0, 0.0

    def __init__(self, *, known: Annotated[float, Field(ge=0, le=1)] = 1.0) -> None:
        """known: how often the solver is right; below 1 it is a player to clone."""
        self.known = known

    def tasks(self, split: str) -> list[dict[str, Any]]:
        return draw_tasks(_draw, split=split, seed=self.form)

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.sign, self.rng = task["sign"], rng
        return self.form.format(**task)

    def act(self, answer: str) -> Reply:
        right = answer == self._side()
        pays = self.rng.random() < (1 - self.luck if right else self.luck)
        text = "pays" if pays else "nothing"
        return Reply(text, reward=self.pay * pays, done=True, metrics={"success": float(right)})

    def solve(self) -> str:
        right = self.known == 1 or self.rng.random() < self.known
        return next(side for side in self.actions if (side == self._side()) == right)

    def _side(self) -> str:
        return self.actions[self.sign not in self.signs_left]


class Loud(Quiet):
    """Say left or right."""

    signs_left = LATE
    form = "so {number} {sign}"
    pay, luck = 100.0, 0.2


def _draw(rng: random.Random) -> dict[str, Any]:
    return {"number": rng.randrange(10, 100), "sign": rng.choice(EARLY + LATE)}


QUIET, LOUD = f"{__file__}:Quiet", f"{__file__}:Loud"

CASES = (
    Case(
        name="task_normalisation",
        question="Rewards 100-fold apart, mean-centred advantages: does the quiet environment learn?",
        environments={"quiet": {"source": QUIET}, "loud": {"source": LOUD}},
        novice={
            "quiet": {"source": QUIET, "options": {"known": 0.5}},
            "loud": {"source": LOUD, "options": {"known": 0.65}},
        },
        warm={"num_trajectories": 800, "steps": 100, "batch_tokens": 1024},
        sections={
            "algorithm": {"normalise": "none"},
            "trainer": {"lr": 1e-3},
            "evaluation": {"num_tasks": 200, "attempts": 4},
        },
        arms={
            "mean-centred": {},
            "group std": {"algorithm": {"normalise": "std"}},
            "task advantage normalisation": {"algorithm": {"task_normalise": "token"}},
        },
        budgets=(4096,),
        outcomes=("success/quiet", "success/loud"),
    ),
)

if __name__ == "__main__":
    main(CASES, about=__doc__)
