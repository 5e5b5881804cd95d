"""Logs as JSON lines, one event each. Promise: what happened is `event`, its facts are fields, and no secret is among them.

{"time": "2027-01-31T12:00:00.123Z", "level": "info", "event": "worker lost", "worker": "w1", "reason": "silent for 15 s"}
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": when, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log(logger: logging.Logger, event: str, *, level: int = logging.INFO, **facts: Any) -> None:
    logger.log(level, event, extra={"facts": facts})


def log_json_lines(*, level: int = logging.INFO, to: TextIO | None = None) -> None:
    """Everything this process logs, as JSON lines on stderr."""
    handler = logging.StreamHandler(to or sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
