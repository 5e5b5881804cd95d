"""The signs of a collapse, per environment, told by name while there is still a run to save. Promise: `signs` is pure.

    success       fewer attempts succeed than at the best
    reward_std    attempts at one task earn the same: nothing left to compare. Falls first (the echo trap of RAGEN, 2504.20073)
    entropy       the policy says one thing only
    grad_norm     the gradient grows: few runs come back from it. Of the whole run, not of one environment
    repeats       a turn repeats its own words
    turn_tokens   turns grow long
    invalid       actions cannot be carried out

Each compares the median of the last `window` batches with that of the first few, which the policy played as it came. Batches without any
gradient count too: a policy that is lost gives nothing else. Where success has grown, or is all there is to reach, deviation and entropy
fall by learning, and that is no sign.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from ludus.config import MonitorConfig
from ludus.store.lines import number

FIRST = 3
"""Batches that say what the run began with. Few: a learning rate 30 times too large has ruined the policy by the fourth."""
SOLVED = 0.9
GROWN = 0.1
"""Success above the one, or grown by the other, explains rewards that no longer differ, and words that no longer vary."""
WHOLE_RUN = "the run"


@dataclass(frozen=True, slots=True)
class Watched:
    metric: str
    falls: bool
    least: float
    """Of what rises: below this, it is no sign however much it rose."""
    means: str
    slack: float = 1.0
    """Of what rises: so many times `monitor.rise`."""


WATCHED = {
    "success": Watched("train/success/", falls=True, least=0.0, means="fewer attempts succeed than did"),
    "reward_std": Watched(
        "groups/reward_std/", falls=True, least=0.0, means="attempts at one task earn ever more alike"
    ),
    "entropy": Watched("train/entropy/", falls=True, least=0.0, means="the policy hardly varies what it says"),
    "repeats": Watched("train/repeats/", falls=False, least=0.3, means="turns repeat their own words"),
    "turn_tokens": Watched("train/turn_tokens/", falls=False, least=0.0, means="turns grow long"),
    "invalid": Watched("trajectories/invalid_rate/", falls=False, least=0.5, means="actions cannot be carried out"),
    # the fewer groups still differ, the larger the gradient of those that do: healthy runs reach four times what it was
    "grad_norm": Watched("optimizer/grad_norm", falls=False, least=0.0, means="the gradient grows", slack=4.0),
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
        when = "at best" if self.name == "success" else "at first"
        change = f"{self.before:.3g} {when}, {self.now:.3g} now"
        return f"sign of collapse in {self.environment}: {WATCHED[self.name].means} ({self.name} {change})"


def signs(
    history: Mapping[str, Seq[float]], *, config: MonitorConfig, best: Mapping[str, float] | None = None
) -> list[Sign]:
    """`history`: by metric, its values in the order of batches; `best`: of success, the greatest median so far, where it is no longer in
    the history. Silent until there are the first batches and a whole window to compare."""
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
    """Remembers the first and the last batches of what it watches, and tells a sign when it appears, not while it lasts."""

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
        self._remember_best()
        before, self._shown = self._shown, {(sign.name, sign.environment) for sign in found}
        return [sign for sign in found if (sign.name, sign.environment) not in before]

    def _remember_best(self) -> None:
        for name, values in self._history.items():
            if name.startswith(SUCCESS) and len(values) == FIRST + self.config.window:
                self._best[name] = max(self._best.get(name, 0.0), *_medians(values, self.config.window))

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
        history = {name: list(values) for name, values in self._history.items()}
        return {"history": history, "best": dict(self._best), "shown": sorted(self._shown)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._history = {name: list(values) for name, values in state["history"].items()}
        self._best = dict(state["best"])
        self._shown = {(name, environment) for name, environment in state["shown"]}
