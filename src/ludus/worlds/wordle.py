"""Wordle with a short list: the secret is one of the listed words, fixed from the first guess on.

A guess is answered letter by letter (G in place, Y elsewhere in the word, . not in it) and, with
`hints`, with the words still possible. Splits are disjoint by secret. Guessing the word that
divides best wins every task within `max_turns`.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field

from ludus.environments import Reply
from ludus.worlds.drawing import draw_tasks
from ludus.worlds.files import word_lists

_LISTS = word_lists("wordle")
WORDS, DEV_WORDS = tuple(_LISTS["words"]), tuple(_LISTS["dev"])
"""The second are secrets of dev alone: nearly every one of the first is one of train or test."""


class Wordle:
    """Guess the word. G: in place, Y: elsewhere."""

    capabilities = ("reasoning", "memory")
    lists_answers = True

    def __init__(
        self,
        *,
        words: Annotated[int, Field(ge=2, le=40)] = 16,
        hints: bool = True,
        max_turns: Annotated[int, Field(ge=2)] = 3,
    ) -> None:
        """words: listed in a task; hints: list the words left; max_turns: guesses."""
        self.num_words, self.hints, self.max_turns = words, hints, max_turns

    def tasks(self, split: str) -> list[dict[str, Any]]:
        seed = f"wordle {self.num_words} {self.max_turns}"
        return draw_tasks(self._draw, split=split, seed=seed, apart="secret", spare=self._draw_dev)

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.words: tuple[str, ...] = tuple(task["words"])
        self.left, self.secret = self.words, task["secret"]
        return f"words {' '.join(self.words)}"

    def act(self, text: str) -> Reply:
        guess = text.lower()
        if guess not in self.words:
            return Reply("not in the list", invalid=True)
        if guess == self.secret:
            return Reply("found", reward=1.0, done=True)
        told = feedback(guess, self.secret)
        self.left = still_possible(self.left, guess=guess, told=told)
        return Reply(f"{told} left {' '.join(self.left)}" if self.hints else told)

    def solve(self) -> str:
        return best_guess(self.left)

    def random_action(self, rng: random.Random) -> str:
        return rng.choice(self.words)

    def _draw(self, rng: random.Random) -> dict[str, Any]:
        words = tuple(sorted(rng.sample(WORDS, self.num_words)))
        secrets = rng.sample(words, len(words))  # one always fits: the solver's first guess
        secret = next(secret for secret in secrets if guesses_needed(words, secret=secret) <= self.max_turns)
        return {"words": list(words), "secret": secret}

    def _draw_dev(self, rng: random.Random) -> dict[str, Any]:
        while True:
            secret = rng.choice(DEV_WORDS)
            words = tuple(sorted([secret, *rng.sample(WORDS, self.num_words - 1)]))
            if guesses_needed(words, secret=secret) <= self.max_turns:
                return {"words": list(words), "secret": secret}


@lru_cache(maxsize=1 << 17)
def feedback(guess: str, secret: str) -> str:
    """A repeated letter is Y only as often as the secret has it elsewhere."""
    spare = [there for here, there in zip(guess, secret, strict=True) if here != there]
    told = ""
    for here, there in zip(guess, secret, strict=True):
        told += "G" if here == there else "Y" if here in spare else "."
        if told[-1] == "Y":
            spare.remove(here)
    return told


def still_possible(words: tuple[str, ...], *, guess: str, told: str) -> tuple[str, ...]:
    return tuple(word for word in words if feedback(guess, word) == told)


@lru_cache(maxsize=4096)
def best_guess(words: tuple[str, ...]) -> str:
    """The word after whose answer the fewest possible words are left on average."""

    def left_after(guess: str) -> int:
        return sum(size**2 for size in Counter(feedback(guess, secret) for secret in words).values())

    return min(words, key=left_after)


def guesses_needed(words: tuple[str, ...], *, secret: str) -> int:
    guess, number = best_guess(words), 1
    while guess != secret:
        words = still_possible(words, guess=guess, told=feedback(guess, secret))
        guess, number = best_guess(words), number + 1
    return number
