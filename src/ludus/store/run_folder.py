"""The folder of a run. Promise: it is never overwritten, and never has two writers.

config.toml              the resolved run
metrics.jsonl            one line per optimiser step
events.jsonl             started, resumed, checkpoint, publish, failures, ...
evaluations.jsonl        one line per evaluation on held-out tasks
timeline.jsonl           one line per second of training: activity of trainer, sessions and engine
trajectories/*.jsonl     every trajectory; a new file when one is full and after every resume
checkpoints/  export/  tensorboard/
report.md  plots/        written by `ludus report`
lock                     held by the writing process; the kernel frees it when that process dies
"""

from __future__ import annotations

import fcntl
import os
import warnings
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any, Self

from ludus.config import RunConfig, dump_config, load_config
from ludus.errors import ConfigError, StoreFailed, nearest
from ludus.store.lines import encode_line, naming_failure, read_lines
from ludus.store.trajectories import StoredTrajectory, stored_from_dict

Report = Callable[[str], None]


def warn(problem: str) -> None:
    warnings.warn(problem, stacklevel=2)


class RunFolder:
    """Paths and readers of a run. `create` and `resume` take the lock, `close` releases it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.events_file = path / "events.jsonl"
        self.evaluations_file = path / "evaluations.jsonl"
        self.timeline_file = path / "timeline.jsonl"
        self.report_file = path / "report.md"
        self.trajectories = path / "trajectories"
        self.export = path / "export"
        self.tensorboard = path / "tensorboard"
        self.plots = path / "plots"
        self.resumed_at: int | None = None
        self._lock: int | None = None

    @classmethod
    def create(cls, config: RunConfig) -> Self:
        """Makes and locks the folder of a new run."""
        folder = cls(config.folder)
        if folder.config_file.exists():
            raise ConfigError(
                f"{folder.path} already holds a run. Use another name (name=...), continue that run (`ludus train ... --resume`), "
                f"or delete it: rm -r {folder.path}"
            )
        folder._take_lock()
        _replace(folder.config_file, dump_config(config).encode())
        return folder

    @classmethod
    def resume(cls, config: RunConfig, *, step: int) -> Self:
        """Locks the folder of an existing run and cuts off metrics and evaluations after `step`.

        Trajectories are kept; readers mark those of the cut steps as superseded."""
        folder = cls.open(config.folder)
        folder._take_lock()
        _replace(folder.config_file, dump_config(config).encode())
        for path in (folder.metrics_file, folder.evaluations_file):
            _keep(path, until=step)
        folder.resumed_at = step
        return folder

    @classmethod
    def open(cls, run: str | Path, *, root: str | Path = "runs") -> Self:
        """Finds an existing run by its path, or by its name under `root`, for reading."""
        for path in (Path(run), Path(root) / run):
            if (path / "config.toml").is_file():
                return cls(path)
        known = sorted(path.parent.name for path in Path(root).glob("*/config.toml"))
        listing = f" Runs in {root}: {', '.join(known)}." if known else f" There are no runs in {root}."
        raise ConfigError(f"{str(run)!r} is not a run folder (no config.toml).{nearest(str(run), known)}{listing}")

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def config(self) -> RunConfig:
        return load_config(self.config_file)

    def _read(self, file: str, *, report: Report = warn) -> list[dict[str, Any]]:
        return list(read_lines(getattr(self, file), report=report))

    metrics = partialmethod(_read, "metrics_file")
    events = partialmethod(_read, "events_file")
    evaluations = partialmethod(_read, "evaluations_file")
    timeline = partialmethod(_read, "timeline_file")

    def records(self, *, report: Report = warn) -> Iterator[dict[str, Any]]:
        """Yields every trajectory as plain JSON, oldest first; those that a resumed run has played
        again have the key `superseded`."""
        resumes = [
            (event["file"], event["step"]) for event in self.events(report=report) if event.get("kind") == "resumed"
        ]
        played_again = self._played_again(first_file=min((file for file, _ in resumes), default=None))
        for path in self.trajectory_files():
            last_valid = min((step for file, step in resumes if path.name < file), default=None)
            for record in read_lines(path, report=report):
                cut = last_valid is not None and record.get("step", 0) > last_valid
                superseded = cut or played_again.get(record.get("id"), "") > path.name
                yield record | {"superseded": True} if superseded else record

    def _played_again(self, *, first_file: str | None) -> dict[Any, str]:
        """{id: last file with that trajectory}, from the first resume on. A group that finished
        after the checkpoint and was not trained has no cut step, but is played again."""
        files = [path for path in self.trajectory_files() if first_file is not None and path.name >= first_file]
        return {record.get("id"): path.name for path in files for record in read_lines(path, report=lambda _: None)}

    def read_trajectories(self, *, report: Report = warn) -> Iterator[StoredTrajectory]:
        """Yields every trajectory that is not superseded."""
        for record in self.records(report=report):
            if not record.get("superseded"):
                yield stored_from_dict(record)

    def trajectory_files(self) -> list[Path]:
        return sorted(self.trajectories.glob("[0-9][0-9][0-9][0-9][0-9].jsonl"))

    def _take_lock(self) -> None:
        path = self.path / "lock"
        with naming_failure("lock", path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(lock, 64).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise StoreFailed(
                f"{self.path} is being written by process {owner}. Wait until it ends, stop it, or use another name (name=...)."
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        self._lock = lock


def _keep(path: Path, *, until: int) -> None:
    kept = [line for line in read_lines(path, report=lambda _: None) if line.get("step", 0) <= until]
    if path.exists():
        _replace(path, b"".join(encode_line(line) for line in kept))


def _replace(path: Path, data: bytes) -> None:
    """Replaces a file as a whole: a reader sees the old or the new content."""
    beside = path.with_name(path.name + ".new")
    with naming_failure("write", path):
        beside.write_bytes(data)
        os.replace(beside, path)
