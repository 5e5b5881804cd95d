"""Metrics for TensorBoard, without torch. Promise: a resumed run draws one curve, because the steps that are made again are purged."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from ludus.store.lines import naming_failure


class TensorBoard:
    """One event file per process. Records are written at once and by the caller's thread, so that a failure has an owner."""

    def __init__(self, folder: Path, *, resumed_at: int | None = None) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2  # half a second that `ludus --help` must not pay
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        now = time.time()
        self._path = folder / f"events.out.tfevents.{now:.0f}.{socket.gethostname()}.{os.getpid()}"
        with naming_failure("write", self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = RecordWriter(self._path.open("ab", buffering=0))
        self._write(self._event(wall_time=now, file_version="brain.Event:2"))
        if resumed_at is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(self._event(wall_time=now, step=resumed_at + 1, session_log=start))

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def close(self) -> None:
        self._writer.close()

    def _write(self, event: object) -> None:
        with naming_failure("write", self._path):
            self._writer.write(event.SerializeToString())  # type: ignore[attr-defined]
