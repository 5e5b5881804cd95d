"""The current state of a run, collected from what its Recorder reports; `progress` draws it."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ludus.store.lines import number

if TYPE_CHECKING:
    from ludus.config import RunConfig

RECENT = 5
"""Number of steps over which shown rewards and success rates are averaged."""
REMEMBERED = 1000
"""Number of steps in a trend."""
BARS = "▁▂▃▄▅▆▇█"


class Scoreboard:
    """Updated by update(kind, fields), which is cheap because every trajectory calls it.

    The display's thread reads while the run's thread writes, so readers copy before they iterate.
    """

    def __init__(self, config: RunConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = config.name
        self.bound = config.pipeline.max_staleness
        self.phase = "preparing"
        self.step, self.steps = 0, 0
        self.metrics: Mapping[str, Any] = {}
        self.history: dict[str, deque[float]] = {}
        self.held_out: dict[str, str] = {}
        self.num_evaluating = config.evaluation.num_tasks * config.evaluation.attempts * len(config.environments)
        self.num_evaluated = 0
        self.num_trajectories = 0
        self.totals: Counter[str] = Counter()
        self._clock, self._began = clock, clock()
        self._step_times: deque[float] = deque(maxlen=21)

    def update(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "metrics":
            self._step(fields)
        elif kind == "trajectory":
            evaluated = fields["split"] != "train" or self.phase == "collecting"
            self.num_trajectories += not evaluated
            self.num_evaluated += evaluated
        elif kind == "evaluation":
            self._evaluated(fields)
        elif kind == "started":
            self._begin("training", step=fields["version"], steps=fields["steps"])
        elif kind in ("evaluating", "collecting"):
            self.phase, self.num_evaluating, self.num_evaluated = kind, fields["total"], fields["finished"]
        elif kind == "cloning":
            self._begin("cloning", step=0, steps=fields["steps"])

    @property
    def environments(self) -> list[str]:
        rewards = [name.partition("train/reward/") for name in list(self.history)]
        return sorted({name for _, found, name in rewards if found} | set(self.held_out))

    @property
    def is_playing(self) -> bool:
        """The run has no steps: `ludus eval`, `ludus collect`."""
        return self.phase in ("evaluating", "collecting")

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._began

    @property
    def left_s(self) -> float | None:
        """Estimated from the last steps; None before the first one."""
        if len(self._step_times) < 2:
            return None
        pace = (self._step_times[-1] - self._step_times[0]) / (len(self._step_times) - 1)
        return max(0.0, pace * (self.steps - self.step) - (self._clock() - self._step_times[-1]))

    def recent(self, name: str) -> float | None:
        """The mean over the last steps with this metric; not every batch has every environment."""
        values = list(self.history.get(name, ()))[-RECENT:]
        return sum(values) / len(values) if values else None

    def trend(self, name: str, *, low: float | None = None, high: float | None = None) -> str:
        return sparkline(list(self.history.get(name, ())), low=low, high=high)

    def total(self, prefix: str) -> int:
        return sum(count for name, count in list(self.totals.items()) if name.startswith(prefix))

    def _begin(self, phase: str, *, step: int, steps: int) -> None:
        self.phase, self.step, self.steps = phase, step, steps
        self._step_times.clear()
        self._step_times.append(self._clock())

    def _step(self, metrics: Mapping[str, Any]) -> None:
        self.step, self.metrics = int(metrics["step"]), metrics
        self._step_times.append(self._clock())
        for name, value in metrics.items():
            if name.startswith(("train/", "optimizer/loss")):
                self.history.setdefault(name, deque(maxlen=REMEMBERED)).append(number(value))
            elif name.startswith(("groups/dropped", "trajectories/failed/", "trajectories/forks")):
                self.totals[name] += int(value)

    def _evaluated(self, report: Mapping[str, Any]) -> None:
        self.num_evaluated = 0
        if len(self._step_times) == 1:  # an evaluation before the first step is not part of it
            self._step_times[0] = self._clock()
        for result in report.get("environments", ()):
            rates = [number(result.get(key)) for key in ("success", "success_low", "success_high")]
            low, high = (f"{rate:.0%}".rstrip("%") for rate in rates[1:])
            success = f"{rates[0]:.0%} [{low}, {high}]" if not math.isnan(rates[0]) else "unknown (no scored session)"
            self.held_out[result["environment"]] = f"{success} at step {report['step']}"


def sparkline(values: Iterable[float], *, low: float | None = None, high: float | None = None, width: int = 10) -> str:
    """The trend of a metric in `width` characters: [0, .5, 1] -> '▁▅█'."""
    values = [value for value in values if value == value]  # without NaN
    if not values:
        return ""
    edges = [round(index * len(values) / width) for index in range(width + 1)]
    pieces = [values[start:end] for start, end in pairwise(edges) if end > start]
    means = [sum(piece) / len(piece) for piece in pieces]
    low, high = min(means) if low is None else low, max(means) if high is None else high
    spread = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, max(0, int((mean - low) / spread * len(BARS))))] for mean in means)
