"""The only writer of a run folder. Promise: when a method returns, what it was given is on disk and
every listener has been called."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from ludus.store.lines import LineFile
from ludus.store.run_folder import RunFolder
from ludus.store.trajectories import StoredTrajectory, stored_to_dict
from ludus.types import Trajectory

Listener = Callable[[str, Mapping[str, Any]], None]
"""Called as listener(kind, fields). `kind` is "metrics", "trajectory", "evaluation", the kind of an
event or, as the last call, "closed"."""
MAX_FILE_BYTES = 64 * 2**20
"""A larger trajectories file is followed by a new one, so that editors can still open it."""


class ListenerFailed(Exception):
    """Raised by a listener that the run can do without: reported as an event, not called again."""


class Recorder:
    """Writes the files of a locked RunFolder, and closes it. Not thread-safe."""

    def __init__(self, folder: RunFolder, *, trajectories: bool, listeners: Iterable[Listener] = ()) -> None:
        self.folder = folder
        self._listeners = list(listeners)
        names = ("metrics", "events", "evaluations", "timeline")
        self._files = {name: LineFile(getattr(folder, f"{name}_file")) for name in names}
        first_file = _next_file(folder)
        self._trajectories = LineFile(first_file) if trajectories else None
        if folder.resumed_at is not None:
            self.event("resumed", step=folder.resumed_at, file=first_file.name)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._write("metrics", "metrics", {"step": step, "time": _now(), **metrics})

    def event(self, kind: str, **fields: Any) -> None:
        self._write("events", kind, {"kind": kind, "time": _now(), **fields})

    def evaluation(self, step: int, report: Mapping[str, Any]) -> None:
        self._write("evaluations", "evaluation", {"step": step, "time": _now(), **report})

    def trajectory(self, trajectory: Trajectory, *, step: int, group_id: str, split: str = "train") -> None:
        stored = StoredTrajectory(trajectory, step=step, group_id=group_id, split=split)
        if self._trajectories is not None and self._trajectories.append(stored_to_dict(stored)) > MAX_FILE_BYTES:
            self._trajectories.close()
            self._trajectories = LineFile(_next_file(self.folder))
        self._notify("trajectory", {"trajectory": trajectory, "step": step, "split": split})

    def timeline(self, line: Mapping[str, Any]) -> None:
        """Writes one second of the timeline (reports/timeline.py); listeners do not get it."""
        self._files["timeline"].append(line)

    def close(self) -> None:
        try:
            self._notify("closed", {})
        finally:
            for file in (*self._files.values(), self._trajectories, self.folder):
                if file is not None:
                    file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, file: str, kind: str, line: Mapping[str, Any]) -> None:
        self._files[file].append(line)
        self._notify(kind, line)

    def _notify(self, kind: str, fields: Mapping[str, Any]) -> None:
        kept: list[Listener] = []
        failures: list[str] = []
        for listener in self._listeners:
            try:
                listener(kind, fields)
                kept.append(listener)
            except ListenerFailed as error:
                failures.append(str(error))
        self._listeners = kept
        for failure in failures:
            self.event("listener_failed", text=f"{failure}. The run continues without it.")


def _next_file(folder: RunFolder) -> Path:
    last = max((int(path.stem) for path in folder.trajectory_files()), default=-1)
    return folder.trajectories / f"{last + 1:05d}.jsonl"


def _now() -> float:
    return round(time.time(), 3)
