"""Signs of a collapse by environment, while the run can be saved. Promise: `signs` is pure.

    success       fewer attempts succeed than at the best
    reward_std    attempts at one task earn the same: falls first (RAGEN's echo trap, 2504.20073)
    entropy       the policy hardly varies its output
    grad_norm     the gradient of the whole run grows: few runs recover
    repeats       a turn repeats its own text
    turn_tokens   turns grow long
    invalid       actions cannot be carried out

Each compares the median of the last `window` batches with that of the first few. Batches without
gradient count too: a collapsed policy gives nothing else. Where success has grown or is near 1,
reward_std and entropy fall because the policy learns, which is no sign."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from ludus.config import MonitorConfig
from ludus.store.lines import number

FIRST = 3
"""Batches to compare with. Few: a far too large learning rate ruins the policy by the fourth."""
SOLVED = 0.9
GROWN = 0.1
"""Success above SOLVED, or grown by GROWN, explains rewards and text that no longer vary."""
WHOLE_RUN = "the run"


@dataclass(frozen=True, slots=True)
class Watched:
    metric: str
    means: str
    falls: bool = False
    least: float = 0.0
    """For a metric that rises: values up to this are no sign."""
    slack: float = 1.0
    """For a metric that rises: factor on `monitor.rise`."""


SUCCESS = "train/success/"
WATCHED = {
    "success": Watched(SUCCESS, "fewer attempts succeed than before", falls=True),
    "reward_std": Watched("groups/reward_std/", "rewards of attempts at one task no longer differ", falls=True),
    "entropy": Watched("train/entropy/", "the policy hardly varies its output", falls=True),
    "repeats": Watched("train/repeats/", "turns repeat their own text", least=0.3),
    "turn_tokens": Watched("train/turn_tokens/", "turns grow long"),
    "invalid": Watched("trajectories/invalid_rate/", "actions cannot be carried out", least=0.5),
    # the fewer groups still differ, the larger their gradient: healthy runs reach 4 times the first
    "grad_norm": Watched("optimizer/grad_norm", "the gradient grows", slack=4.0),
}
"""By the name in reports; `metric` is listed in docs/metrics.md and ends with the environment."""


@dataclass(frozen=True, slots=True)
class Sign:
    name: str
    environment: str
    before: float
    now: float

    @property
    def text(self) -> str:
        when = "at best" if self.name == "success" else "at first"
        change = f"{self.before:.3g} {when}, {self.now:.3g} now"
        return f"sign of collapse in {self.environment}: {WATCHED[self.name].means} ({self.name} {change})"


def signs(
    history: Mapping[str, Seq[float]], *, config: MonitorConfig, best: Mapping[str, float] | None = None
) -> list[Sign]:
    """The signs in `history`, each metric's values by batch, once there are the first batches and a
    whole window to compare. `best` has the greatest median of success so far."""
    found = []
    for metric in sorted(name for name, values in history.items() if len(values) >= FIRST + config.window):
        for name, watched in WATCHED.items():
            if metric.startswith(watched.metric):
                before, now = _medians(history[metric], config.window)
                environment = metric.removeprefix(watched.metric) or WHOLE_RUN
                before = max(before, (best or {}).get(metric, before)) if name == "success" else before
                if _shows(name, before, now, config=config, grown=_grown(history, environment, config.window)):
                    found.append(Sign(name, environment, before, now))
    return found


def _medians(values: Seq[float], window: int) -> tuple[float, float]:
    return statistics.median(values[:FIRST]), statistics.median(values[-window:])


def _shows(name: str, before: float, now: float, *, config: MonitorConfig, grown: bool) -> bool:
    watched = WATCHED[name]
    if not watched.falls:
        return now > watched.least and now > watched.slack * config.rise * before
    return now < config.fall * before and not (grown and name != "success")


def _grown(history: Mapping[str, Seq[float]], environment: str, window: int) -> bool:
    success = history.get(f"{SUCCESS}{environment}", ())
    if len(success) < FIRST + window:
        return False
    before, now = _medians(success, window)
    return now >= min(SOLVED, before + GROWN)


class Monitor:
    """Keeps the first and last values of what it watches; reports a sign once, when it appears."""

    def __init__(self, config: MonitorConfig) -> None:
        self.config = config
        self._history: dict[str, list[float]] = {}
        self._best: dict[str, float] = {}
        self._shown: set[tuple[str, str]] = set()

    def look(self, metrics: Mapping[str, float]) -> list[Sign]:
        """The signs that are new with this batch."""
        watched = tuple(each.metric for each in WATCHED.values())
        for name, value in metrics.items():
            if name.startswith(watched):
                values = self._history.setdefault(name, [])
                values.append(number(value))
                if len(values) > FIRST + self.config.window:
                    del values[FIRST]
        found = signs(self._history, config=self.config, best=self._best)
        for name, values in self._history.items():
            if name.startswith(SUCCESS) and len(values) == FIRST + self.config.window:
                self._best[name] = max(self._best.get(name, 0.0), *_medians(values, self.config.window))
        before, self._shown = self._shown, {(sign.name, sign.environment) for sign in found}
        return [sign for sign in found if (sign.name, sign.environment) not in before]

    @property
    def lost(self) -> bool:
        """True with `monitor.stop` signs at once in one environment, those of the run included."""
        places = [environment for _, environment in self._shown]
        counts = [sum(at in (place, WHOLE_RUN) for at in places) for place in places]
        return bool(self.config.stop) and max(counts, default=0) >= self.config.stop

    def state(self) -> dict[str, Any]:
        history = {name: list(values) for name, values in self._history.items()}
        return {"history": history, "best": dict(self._best), "shown": sorted(self._shown)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._history = {name: list(values) for name, values in state["history"].items()}
        self._best = dict(state["best"])
        self._shown = {(name, environment) for name, environment in state["shown"]}
