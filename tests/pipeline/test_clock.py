from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.pipeline import clock as clock_module
from ludus.pipeline.clock import Ledger, Timekeeper


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_ledger_counts_what_is_going_on_and_what_is_inside_it_once():
    clock = Clock()
    ledger = Ledger("wait", clock=clock)
    clock.now += 2
    with ledger.during("train"):
        clock.now += 3
        with ledger.during("load"):
            clock.now += 4
            assert ledger.spent() == {"wait": 2, "train": 3, "load": 4}
        clock.now += 1
    clock.now += 5
    assert ledger.spent() == {"wait": 7, "train": 4, "load": 4}


def test_a_ledger_goes_back_to_what_was_before_when_the_work_raises():
    clock = Clock()
    ledger = Ledger("wait", clock=clock)
    with pytest.raises(RuntimeError), ledger.during("train"):
        raise RuntimeError
    clock.now += 1
    assert ledger.spent() == {"wait": 1, "train": 0}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 10), st.booleans())))
def test_what_a_ledger_counts_adds_up_to_the_time_that_passed(turns):
    clock = Clock()
    ledger = Ledger("wait", clock=clock)
    for doing, seconds, reads in turns:
        with ledger.during(doing):
            clock.now += seconds
            if reads:
                ledger.spent()
    assert sum(ledger.spent().values()) == pytest.approx(clock.now - 100.0)


def test_totals_are_written_by_their_growth_and_levels_as_they_stand():
    clock, lines = Clock(), []
    totals, level = {"tokens": 10.0}, {"running": 4.0}
    keeper = Timekeeper(
        lines.append, totals={"engine": lambda: dict(totals)}, gauges={"requests": lambda: level}, clock=clock
    )
    clock.now += 1
    totals |= {"tokens": 25.0, "loads": 1.0}
    keeper.tick()
    clock.now += 0.5
    level["running"] = 0.0
    keeper.tick()
    keeper.tick()
    assert [{k: v for k, v in line.items() if k != "time"} for line in lines] == [
        {"seconds": 1.0, "engine": {"tokens": 15.0, "loads": 1.0}, "requests": {"running": 4.0}},
        {"seconds": 0.5, "engine": {}, "requests": {}},
    ], "and no line for no time"


def test_a_run_that_ends_within_the_second_still_has_it_written(monkeypatch):
    monkeypatch.setattr(clock_module, "EVERY_S", 3600.0)
    lines = []

    async def main():
        task = asyncio.create_task(Timekeeper(lines.append, totals={}, gauges={}).run())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(lines) == 1
    assert lines[0]["seconds"] > 0
