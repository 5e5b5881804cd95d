"""Trackers behind one protocol. Promise: a failing tracker is reported once, never ends a run.

To add one, write a class with these methods and name it in TRACKERS, or as "module:Class"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ludus.config import StoreConfig
from ludus.errors import describe
from ludus.plugins import find
from ludus.store.recorder import Listener, ListenerFailed
from ludus.store.run_folder import RunFolder

TRACKERS = {"tensorboard": "ludus.trackers.tensorboard:TensorBoard"}


class Tracker(Protocol):
    """Constructed with the RunFolder. The run waits for each call; one that raises is the last."""

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of one optimiser step (docs/metrics.md)."""

    def evaluation(self, step: int, report: Mapping[str, Any]) -> None:
        """A line of evaluations.jsonl."""

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        """A line of events.jsonl: started, checkpoint, finished, ..."""

    def close(self) -> None:
        """The last call."""


@dataclass(frozen=True, slots=True, eq=False)
class TrackerListener:
    """A tracker as a listener of a Recorder."""

    name: str
    tracker: Tracker

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> None:
        try:
            if kind == "metrics":
                values = {name: value for name, value in fields.items() if name not in ("step", "time")}
                self.tracker.metrics(fields["step"], values)
            elif kind == "evaluation":
                self.tracker.evaluation(fields["step"], fields)
            elif kind == "closed":
                self.tracker.close()
            elif kind != "trajectory":
                self.tracker.event(kind, fields)
        except Exception as error:  # a border: a tracker may be anyone's code
            raise ListenerFailed(f"tracker {self.name!r} failed at {kind!r}: {describe(error)}") from error


def trackers_of(store: StoreConfig, folder: RunFolder) -> list[Listener]:
    """The trackers that a run file asks for, as listeners."""
    names = [*(["tensorboard"] if store.tensorboard else []), *store.trackers]
    return [make_tracker(name, folder) for name in names]


def make_tracker(name: str, folder: RunFolder) -> TrackerListener:
    """The tracker "tensorboard" or "module:Class", as a listener."""
    made = find(TRACKERS.get(name, name), key="store.trackers", known=TRACKERS, group="ludus.trackers")
    return TrackerListener(name, made(folder))
