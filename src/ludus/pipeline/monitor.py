"""The signs of a collapse, per environment, told by name while there is still a run to save. Promise: `signs` is pure.

    reward_std    attempts at one task earn the same: nothing left to compare. Falls first (the echo trap of RAGEN, 2504.20073)
    entropy       the policy says one thing only
    grad_norm     the gradient grows: few runs come back from it. Of the whole run, not of one environment
    repeats       a turn repeats its own words
    turn_tokens   turns grow long
    invalid       actions cannot be carried out

Each compares the median of the last `window` steps with that of the first. What falls in an environment that is solved is no sign there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from ludus.config import MonitorConfig
from ludus.store.curves import number

SOLVED = 0.9
"""Success above this explains rewards that no longer differ, and words that no longer vary."""
WHOLE_RUN = "the run"


@dataclass(frozen=True, slots=True)
class Watched:
    metric: str
    falls: bool
    least: float
    """Of what rises: below this, it is no sign however much it rose."""
    means: str


WATCHED = {
    "reward_std": Watched(
        "groups/reward_std/", falls=True, least=0.0, means="attempts at one task earn ever more alike"
    ),
    "entropy": Watched("train/entropy/", falls=True, least=0.0, means="the policy hardly varies what it says"),
    "repeats": Watched("train/repeats/", falls=False, least=0.3, means="turns repeat their own words"),
    "turn_tokens": Watched("train/turn_tokens/", falls=False, least=0.0, means="turns grow long"),
    "invalid": Watched("trajectories/invalid_rate/", falls=False, least=0.5, means="actions cannot be carried out"),
    "grad_norm": Watched("optimizer/grad_norm", falls=False, least=0.0, means="the gradient grows"),
}
"""Named as it is told; `metric` is one of docs/metrics.md, with the environment's name after its slash."""
SUCCESS = "train/success/"


@dataclass(frozen=True, slots=True)
class Sign:
    name: str
    environment: str
    before: float
    now: float

    @property
    def text(self) -> str:
        change = f"{self.before:.3g} at first, {self.now:.3g} now"
        return f"sign of collapse in {self.environment}: {WATCHED[self.name].means} ({self.name} {change})"


def signs(history: Mapping[str, Seq[float]], *, config: MonitorConfig) -> list[Sign]:
    """`history`: by metric, its values in the order of steps. Silent until there are two whole windows to compare."""
    return [sign for name, watched in WATCHED.items() for sign in _signs(name, watched, history, config)]


def _signs(name: str, watched: Watched, history: Mapping[str, Seq[float]], config: MonitorConfig) -> Iterator[Sign]:
    for metric in sorted(history):
        if not metric.startswith(watched.metric) or len(history[metric]) < 2 * config.window:
            continue
        environment = metric.removeprefix(watched.metric) or WHOLE_RUN
        before = statistics.median(history[metric][: config.window])
        now = statistics.median(history[metric][-config.window :])
        if watched.falls:
            success = history.get(f"{SUCCESS}{environment}", ())[-config.window :]
            solved = bool(success) and statistics.median(success) >= SOLVED
            shown = not solved and now < config.fall * before
        else:
            shown = now > watched.least and now > config.rise * before
        if shown:
            yield Sign(name, environment, before, now)


class Monitor:
    """Remembers the first and the last window of what it watches, and tells a sign when it appears, not while it lasts."""

    def __init__(self, config: MonitorConfig) -> None:
        self.config = config
        self._history: dict[str, list[float]] = {}
        self._shown: set[tuple[str, str]] = set()

    def look(self, metrics: Mapping[str, float]) -> list[Sign]:
        """The signs that are new with this step."""
        watched = (SUCCESS, *(each.metric for each in WATCHED.values()))
        for name, value in metrics.items():
            if name.startswith(watched):
                values = self._history.setdefault(name, [])
                values.append(number(value))
                if len(values) > 2 * self.config.window:
                    del values[self.config.window]
        found = signs(self._history, config=self.config)
        before, self._shown = self._shown, {(sign.name, sign.environment) for sign in found}
        return [sign for sign in found if (sign.name, sign.environment) not in before]

    @property
    def lost(self) -> bool:
        """As many signs at once in one environment as `monitor.stop` names; what shows in the whole run counts in each."""
        if not self.config.stop:
            return False
        everywhere = sum(environment == WHOLE_RUN for _, environment in self._shown)
        places = {environment for _, environment in self._shown}
        counts = [sum(place == at for _, at in self._shown) + everywhere * (place != WHOLE_RUN) for place in places]
        return max(counts, default=0) >= self.config.stop

    def state(self) -> dict[str, Any]:
        return {"history": {name: list(values) for name, values in self._history.items()}, "shown": sorted(self._shown)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._history = {name: list(values) for name, values in state["history"].items()}
        self._shown = {(name, environment) for name, environment in state["shown"]}
