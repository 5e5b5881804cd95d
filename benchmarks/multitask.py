"""Two environments whose rewards are 100-fold apart, in one run: does the quiet one learn?

`corridor` pays 1 at most. `loud` pays 100 or nothing, and pays by chance even to those who know the answer, so that its advantages never
die down: a mean-centred baseline (Dr. GRPO: no division by the group's deviation, `normalise = "none"`) then spends nearly all of
every step on it. Task advantage normalisation divides per environment. Another arm divides per group (GRPO), which hides the scale too.
Budget: equal numbers of played trajectories, half of them in each environment.

    python benchmarks/multitask.py --workers 16 > multitask.jsonl
    python benchmarks/multitask.py --table multitask.jsonl
"""

from __future__ import annotations

import random
from typing import Any

from arms import Case, main
from ludus.environments import Reply
from ludus.worlds.drawing import draw_tasks

SIGNS = {"left": ("gate", "moss", "reed", "wolf"), "right": ("ash", "dune", "kiln", "pine")}
PAY, KNOWING, GUESSING = 100.0, 0.9, 0.1
"""What is paid, and the chance of it after a right and a wrong answer."""


class Loud:
    """Three signs. Answer the last: left or right."""

    actions = ("left", "right")
    max_turns = 1

    def tasks(self, split: str) -> list[dict[str, Any]]:
        return draw_tasks(_draw, split=split, seed="loud")

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.signs, self.rng = task["signs"], rng
        return " ".join(self.signs)

    def act(self, answer: str) -> Reply:
        right = answer == self.solve()
        pays = self.rng.random() < (KNOWING if right else GUESSING)
        text = "pays" if pays else "nothing"
        return Reply(text, reward=PAY * pays, done=True, metrics={"success": float(right)})

    def solve(self) -> str:
        return next(answer for answer, signs in SIGNS.items() if self.signs[-1] in signs)


def _draw(rng: random.Random) -> dict[str, Any]:
    words = [sign for signs in SIGNS.values() for sign in signs]
    return {"signs": [rng.choice(words) for _ in range(3)]}


CASES = (
    Case(
        name="task_normalisation",
        question="Rewards 100-fold apart, mean-centred advantages: does the quiet environment learn?",
        environments={
            "corridor": {"options": {"length": 8, "start": 3, "coin": 0.0}},
            "loud": {"source": f"{__file__}:Loud"},
        },
        warm={"mistakes": 0.7},
        sections={"algorithm": {"normalise": "none"}, "trainer": {"lr": 1e-3}},
        arms={
            "mean-centred": {},
            "group std": {"algorithm": {"normalise": "std"}},
            "task advantage normalisation": {"algorithm": {"task_normalise": "token"}},
        },
        budgets=(512, 1536),
        outcomes=("success/corridor", "success/loud"),
    ),
)

if __name__ == "__main__":
    main(CASES, about=__doc__)
