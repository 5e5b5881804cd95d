"""Metrics for TensorBoard, without torch. Promise: a resumed run draws one curve, because repeated
steps are purged."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from ludus.store.lines import naming_failure
from ludus.store.run_folder import RunFolder


class TensorBoard:
    """Writes one event file per process, unbuffered and in the caller's thread."""

    def __init__(self, folder: RunFolder) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2  # here: it takes half a second
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        now = time.time()
        path = folder.tensorboard / f"events.out.tfevents.{now:.0f}.{socket.gethostname()}.{os.getpid()}"
        with naming_failure("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = RecordWriter(path.open("ab", buffering=0))
            self._write(self._event(wall_time=now, file_version="brain.Event:2"))
            if folder.resumed_at is not None:
                start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
                self._write(self._event(wall_time=now, step=folder.resumed_at + 1, session_log=start))

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def evaluation(self, step: int, report: Mapping[str, Any]) -> None:
        """Not shown: metrics have a name and a value, evaluations do not."""

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Not shown."""

    def close(self) -> None:
        self._writer.close()

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
