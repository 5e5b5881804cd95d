"""What a speculator drafts, and that no draft changes anything but the number of passes."""

from __future__ import annotations

import asyncio
import math
import random
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.engines.speculation import LONGEST, MOST, SURE, Speculator
from ludus.errors import EngineFailed
from ludus.types import Completion
from ludus.weights.memory import MemoryChannel
from tests.engines.examples import embedded, gap, small_llama, tokens, words

OPEN, NAME, CLOSE, END = 1, 2, 3, 4


def taught(*texts: list[int], times: int = MOST) -> Speculator:
    """After the first two tokens of each text, which are its prompt."""
    speculator = Speculator()
    for _ in range(times):
        for text in texts:
            speculator.learn(text, start=2)
    return speculator


def test_the_form_of_a_call_is_drafted_up_to_what_differs_and_from_there_to_the_end():
    speculator = taught(*[[8, 9, OPEN, NAME, argument, CLOSE, END] for argument in range(20, 40)])
    assert speculator.draft([7, 8, 9], most=LONGEST, stop_ids=(END,)) == (OPEN, NAME)
    assert speculator.draft([9, OPEN, NAME, 30], most=LONGEST, stop_ids=(END,)) == (CLOSE,), (
        "nobody needs what follows the end"
    )
    assert speculator.draft([9, OPEN, NAME, 30], most=LONGEST, stop_ids=()) == (CLOSE, END)
    assert speculator.draft([7, 8, 9], most=1, stop_ids=()) == (OPEN,)


def test_nothing_is_drafted_of_what_was_seen_too_seldom_or_comes_in_half_of_the_cases():
    assert taught([4, 5, 6], times=SURE - 1).draft([4, 5], most=LONGEST, stop_ids=()) == ()
    assert taught([4, 5, 6], times=SURE).draft([4, 5], most=LONGEST, stop_ids=()) == (6,)
    assert taught([4, 5, 6], [4, 5, 7]).draft([4, 5], most=LONGEST, stop_ids=()) == ()
    assert Speculator().draft([], most=LONGEST, stop_ids=()) == ()


def test_a_longer_past_knows_better_than_a_short_one():
    speculator = Speculator()
    for _ in range(MOST):
        speculator.learn([1, 4, 5, 6], start=3)
        speculator.learn([2, 4, 5, 7], start=3)
    assert speculator.draft([4, 5], most=1, stop_ids=()) == ()
    assert speculator.draft([1, 4, 5], most=1, stop_ids=()) == (6,)
    assert speculator.draft([2, 4, 5], most=1, stop_ids=()) == (7,)


def test_what_changed_is_unlearnt():
    speculator = taught([4, 5, 6])
    for _ in range(MOST):
        speculator.learn([4, 5, 7], start=2)
    assert speculator.draft([4, 5], most=1, stop_ids=()) == (7,)


@given(st.lists(st.lists(st.integers(0, 5), max_size=30), max_size=20), st.lists(st.integers(0, 5)), st.integers(0, 9))
def test_a_draft_is_never_longer_than_asked_and_never_holds_an_end(texts, ids, most):
    speculator = Speculator()
    for text in texts:
        speculator.learn(text, start=0)
    draft = speculator.draft(ids, most=most, stop_ids=(0, 1))
    assert len(draft) <= most
    assert not {0, 1} & set(draft)


# ------------------------------------------------------------------------------------------------ in the engine


class Inspired(Speculator):
    """Knows the truth, and tells it up to a random place; from there on it makes things up."""

    def __init__(self, truth: list[list[int]]) -> None:
        super().__init__()
        self.truth, self.rng = truth, random.Random(0)

    def draft(self, ids, *, most, stop_ids):
        (text,) = [text for text in self.truth if text[: len(ids)] == list(ids)][:1] or [list(ids)]
        right = text[len(ids) : len(ids) + self.rng.randint(0, most)]
        draft = [*right, *words(self.rng, 0, 3)][:most]
        return tuple(token for token in draft if token not in stop_ids)


def conversations(model, *, speculator) -> tuple[list[list[tuple[list[int], Completion]]], object]:
    """Of twelve sessions the turns, each with its prompt; and what the engine counted."""

    async def one(engine, number: int):
        rng, turns = random.Random(number), []
        ids = words(rng, 1, 40)
        for turn in range(4):
            sampling = tokens(
                rng.randint(1, 14), seed=number * 10 + turn, temperature=(0.0, 1.3)[number % 2], stop_ids=(5,)
            )
            completion = await engine.generate(ids, sampling=sampling, session_id=str(number))
            turns.append((ids, completion))
            ids = [*ids, *completion.ids, *words(rng, 1, 12)]
        return turns

    async def main():
        async with embedded(model, max_running=5, max_cached=7, prefill_tokens=16, max_tokens=200) as engine:
            engine._schedule.speculator = speculator
            return await asyncio.gather(*(one(engine, number) for number in range(12))), engine.stats()

    return asyncio.run(main())


def test_drafts_right_or_wrong_change_no_token_and_no_logprob():
    model = small_llama()
    plain, counted = conversations(model, speculator=None)
    assert counted.drafted == 0
    truth = [[*ids, *completion.ids] for session in plain for ids, completion in session]
    drafted, counted = conversations(model, speculator=Inspired(truth))
    assert 0 < counted.drafts_kept < counted.drafted, "some were right and some were not"
    for (_, expected), (_, got) in zip(chain.from_iterable(plain), chain.from_iterable(drafted), strict=True):
        assert (got.ids, got.stop) == (expected.ids, expected.stop)
        assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        assert got.versions == (0,) * len(got.ids)


def test_an_engine_learns_to_draft_what_its_model_repeats():
    model = small_llama()

    async def main():
        async with embedded(model, max_running=4, max_cached=8, max_tokens=200) as engine:
            for number in range(6):  # greedy, and so the same six times
                done = await engine.generate(
                    [3, 1, 4, 1, 5], sampling=tokens(30, temperature=0.0), session_id=str(number)
                )
            return done, engine.stats()

    done, counted = asyncio.run(main())
    assert counted.tokens == 180
    assert counted.drafts_kept > 30
    assert gap(model, [3, 1, 4, 1, 5], done) < 1e-4


class Rash(Speculator):
    def draft(self, ids, *, most, stop_ids):
        return (1,) * most


def test_logits_that_are_not_finite_leave_nothing_of_a_draft_behind():
    model, channel = small_llama(), MemoryChannel()
    channel.publish(4, {name: tensor * math.nan for name, tensor in model.state_dict().items()})
    channel.publish(5, model.state_dict())

    async def main():
        async with embedded(model, max_cached=2, max_running=2) as engine:
            engine._schedule.speculator = Rash()
            await engine.load(4, source=channel)
            with pytest.raises(EngineFailed, match="version 4"):
                await engine.generate([1, 2, 3], sampling=tokens(40), session_id="a")
            await engine.load(5, source=channel)
            engine._schedule.speculator = None
            calls = (engine.generate([7] * n, sampling=tokens(2), session_id=str(n)) for n in (2, 11))
            return await asyncio.gather(*calls)  # the short one reads beyond its end, where the draft was

    for completion in asyncio.run(main()):
        assert all(map(math.isfinite, completion.logprobs))


def test_a_deterministic_engine_drafts_nothing():
    async def main():
        async with embedded(small_llama(), deterministic=True, max_tokens=100) as engine:
            return engine._schedule.speculator

    assert asyncio.run(main()) is None
