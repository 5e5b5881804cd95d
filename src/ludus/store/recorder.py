"""The one writer of a run folder. Promise: what a method was given is on disk, and told to every listener, when it returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from ludus.store.lines import LineFile
from ludus.store.run_folder import RunFolder
from ludus.store.trajectories import StoredTrajectory, stored_to_dict
from ludus.trackers.tensorboard import TensorBoard
from ludus.types import Trajectory

Listener = Callable[[str, Mapping[str, Any]], None]
"""Called as listener(kind, fields) with kind "metrics", "trajectory", "evaluation", an event's kind, or, at the very end, "closed"."""
MAX_FILE_BYTES = 64 * 2**20
"""A trajectories file that has grown past this is followed by the next one: editors and `jq` still open it."""


class Recorder:
    """Writes metrics, events, trajectories, evaluations and the timeline of a locked RunFolder, and closes it. For one thread."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        tensorboard: bool,
        trajectories: bool,
        listeners: Iterable[Listener] = (),
    ) -> None:
        self.folder = folder
        self._listeners = tuple(listeners)
        self._metrics = LineFile(folder.metrics_file)
        self._events = LineFile(folder.events_file)
        self._evaluations = LineFile(folder.evaluations_file)
        self._timeline = LineFile(folder.timeline_file)
        first_file = _next_file(folder)
        self._trajectories = LineFile(first_file) if trajectories else None
        self._tensorboard = TensorBoard(folder.tensorboard, resumed_at=folder.resumed_at) if tensorboard else None
        if folder.resumed_at is not None:
            self.event("resumed", step=folder.resumed_at, file=first_file.name)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        line = {"step": step, "time": _now(), **metrics}
        self._metrics.append(line)
        if self._tensorboard is not None:
            self._tensorboard.metrics(step, metrics)
        self._tell("metrics", line)

    def event(self, kind: str, **fields: Any) -> None:
        line = {"kind": kind, "time": _now(), **fields}
        self._events.append(line)
        self._tell(kind, line)

    def trajectory(self, trajectory: Trajectory, *, step: int, group_id: str, split: str = "train") -> None:
        stored = StoredTrajectory(trajectory, step=step, group_id=group_id, split=split)
        if self._trajectories is not None and self._trajectories.append(stored_to_dict(stored)) > MAX_FILE_BYTES:
            self._trajectories.close()
            self._trajectories = LineFile(_next_file(self.folder))
        self._tell("trajectory", {"trajectory": trajectory, "step": step, "split": split})

    def evaluation(self, step: int, report: Mapping[str, Any]) -> None:
        line = {"step": step, "time": _now(), **report}
        self._evaluations.append(line)
        self._tell("evaluation", line)

    def timeline(self, line: Mapping[str, Any]) -> None:
        """Who did what in the second that is over; see reports/timeline.py. No listener is told: none can be waiting for it."""
        self._timeline.append(line)

    def close(self) -> None:
        files = (
            self._metrics, self._events, self._evaluations, self._timeline, self._trajectories, self._tensorboard
        )  # fmt: skip
        for file in files:
            if file is not None:
                file.close()
        self.folder.close()
        self._tell("closed", {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, kind: str, fields: Mapping[str, Any]) -> None:
        for listener in self._listeners:
            listener(kind, fields)


def _next_file(folder: RunFolder) -> Path:
    last = max((int(path.stem) for path in folder.trajectory_files()), default=-1)
    return folder.trajectories / f"{last + 1:05d}.jsonl"


def _now() -> float:
    return round(time.time(), 3)
