"""Lines of metrics.jsonl as curves, for the report, its plots and the progress display."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ludus.store.lines import number

Line = Mapping[str, Any]
TRAINER_TIME = {
    "time/train_s": "training",
    "time/publish_s": "publishing and loading",
    "time/wait_s": "idle, waiting for groups",
}
SESSION_TIME = {"time/generate_s": "generating", "time/environment_s": "waiting for environments"}
LOSSES = {
    "group dropped, too stale": "groups/dropped_stale/",
    "group dropped, too few scored": "groups/dropped_small/",
    "session ended unscored": "trajectories/failed/",
    "fork": "trajectories/forks",
}
"""Prefixes of the metrics that count what was not trained, and forks."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    steps: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)

    def smoothed(self) -> np.ndarray:
        """Mean over a centred window of about 5 % of the run, which shrinks at both ends."""
        half = max(1, len(self) // 40)
        padded = np.concatenate(([0.0], np.cumsum(self.values)))
        ends = np.minimum(np.arange(len(self)) + half + 1, len(self))
        starts = np.maximum(np.arange(len(self)) - half, 0)
        return np.asarray((padded[ends] - padded[starts]) / (ends - starts))


def curve(metrics: Iterable[Line], name: str) -> Curve:
    """All finite values of one metric."""
    points = [(line["step"], value) for line in metrics if math.isfinite(value := number(line.get(name)))]
    steps, values = zip(*points, strict=True) if points else ((), ())
    return Curve(np.array(steps, dtype=float), np.array(values, dtype=float))


def curves(metrics: Sequence[Line], prefix: str) -> dict[str, Curve]:
    """By the rest of the name: curves(m, "train/reward/") -> {"guess": ..., "walk": ...}."""
    names = sorted({name for line in metrics for name in line if name.startswith(prefix)})
    found = {name.removeprefix(prefix): curve(metrics, name) for name in names}
    return {name: each for name, each in found.items() if len(each)}


def counts(metrics: Sequence[Line], prefix: str) -> dict[str, int]:
    """Totals over the run of the counts with this prefix, without zeros."""
    totals = {name: round(float(each.values.sum())) for name, each in curves(metrics, prefix).items()}
    return {name: total for name, total in totals.items() if total}


def step_s(line: Line) -> float:
    """Wall-clock seconds of one step in the trainer; NaN if they were not measured."""
    return sum(number(line.get(name)) for name in TRAINER_TIME)


def tokens_per_s(line: Line) -> float:
    measured = number(line.get("tokens/generated_per_s"))
    return measured if math.isfinite(measured) else number(line.get("tokens/generated")) / max(step_s(line), 1e-9)
