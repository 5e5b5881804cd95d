"""Where a run's time goes, second by second: one line per second in the timeline.

The loop counts what the trainer does, the player what sessions do, the engine what it computed.
Once a second the timekeeper reads these counts and writes what was added."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ludus.rollout.context import Activity

EVERY_S = 1.0
Counts = Mapping[str, float]
Read = Callable[[], Counts]


class Ledger:
    """Seconds by activity of one worker that does one thing at a time."""

    def __init__(self, doing: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._activity = Activity(clock)
        self._activity.note("", doing)
        self.spent = self._activity.spent

    @contextmanager
    def during(self, doing: str) -> Iterator[None]:
        before = self._activity.doing("")
        self._activity.note("", doing)
        try:
            yield
        finally:
            self._activity.note("", before)


class Timekeeper:
    """Writes the timeline: the growth of `totals`, and `gauges` as they are."""

    def __init__(
        self,
        write: Callable[[Mapping[str, Any]], None],
        *,
        totals: Mapping[str, Read],
        gauges: Mapping[str, Read],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._totals, self._gauges, self._clock = write, totals, gauges, clock
        self._since = clock()
        self._before = {name: read() for name, read in totals.items()}

    async def run(self) -> None:
        """Until it is cancelled; the last, shorter interval is written too."""
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                self.tick()
        finally:
            self.tick()

    def tick(self) -> None:
        now = self._clock()
        if now <= self._since:
            return
        seconds = now - self._since
        line: dict[str, Any] = {"time": round(time.time() - seconds, 3), "seconds": round(seconds, 4)}
        for name, read in self._totals.items():
            after = read()
            line[name] = _rounded({key: value - self._before[name].get(key, 0) for key, value in after.items()})
            self._before[name] = after
        line |= {name: _rounded(read()) for name, read in self._gauges.items()}
        self._since = now
        self._write(line)


def _rounded(counts: Counts) -> dict[str, float]:
    """Without zeros: most activities do not happen in most seconds."""
    return {key: rounded for key, value in counts.items() if (rounded := round(value, 4))}
