"""Lines of timeline.jsonl as spans of activity; docs/metrics.md explains the fields. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ludus.reports.curves import Line
from ludus.store.lines import number

TRAINER = {
    "training": ("train",),
    "loading": ("publish", "load", "probe"),
    "saving": ("save", "evaluate"),
    "idle": ("wait",),
}
"""Names shown to people, with the activities they cover."""
SESSIONS = {
    "generating": ("generating",),
    "in their environment": ("starting", "acting"),
    "waiting for a place": ("opening",),
}

SHARES = {"busy": "busy_s", "device": "device_s", "pause": "load_s"}
"""Shares of the time, with the engine's seconds they come from."""
COUNTS = {"loads": "loads", "tokens": "tokens", "computed": "prefill_computed", "reused": "prefill_reused"}
"""Counts of the engine."""
GAUGES = {"running": "requests", "waiting": "requests", "ready": "groups"}
"""Means, with their part of a line."""


@dataclass(frozen=True, slots=True)
class Span:
    """Some seconds of a run. Shares are of the time; sessions, requests and groups are means."""

    seconds: float
    trainer: Mapping[str, float] = field(default_factory=dict)
    """Share of the time, by the names of TRAINER."""
    sessions: Mapping[str, float] = field(default_factory=dict)
    """Number of sessions, by the names of SESSIONS."""
    busy: float = 0.0
    """Share of the time in which the engine computed."""
    device: float = 0.0
    """Share of the time in which the engine waited for its GPU."""
    pause: float = 0.0
    """Share of the time in which the engine was paused by a load."""
    loads: float = 0.0
    tokens: float = 0.0
    computed: float = 0.0
    reused: float = 0.0
    """Prompt tokens that were computed, and those that the cache held."""
    running: float = 0.0
    waiting: float = 0.0
    ready: float = 0.0

    @property
    def num_sessions(self) -> float:
        return sum(self.sessions.values())

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompt tokens that the cache held; None without prompt tokens."""
        prompts = self.computed + self.reused
        return self.reused / prompts if prompts else None


def spans(lines: Iterable[Line]) -> list[Span]:
    return [_span(line, number(line["seconds"])) for line in lines if number(line.get("seconds")) > 0]


def _span(line: Line, seconds: float) -> Span:
    trainer, sessions, engine = (line.get(name) or {} for name in ("trainer", "sessions", "engine"))
    return Span(
        seconds=seconds,
        trainer={name: _sum(trainer, parts) / seconds for name, parts in TRAINER.items()},
        sessions={name: _sum(sessions, parts) / seconds for name, parts in SESSIONS.items()},
        **{name: min(1.0, engine.get(key, 0.0) / seconds) for name, key in SHARES.items()},
        **{name: engine.get(key, 0) for name, key in COUNTS.items()},
        **{name: (line.get(part) or {}).get(name, 0) for name, part in GAUGES.items()},
    )


def _sum(counts: Mapping[str, float], names: Iterable[str]) -> float:
    return sum(counts.get(name, 0.0) for name in names)


def merged(parts: Sequence[Span], *, while_idle: bool = False) -> Span:
    """All spans as one: counts are added, the rest is averaged over (the trainer's idle) time."""
    seconds = [part.seconds * (part.trainer.get("idle", 0.0) if while_idle else 1.0) for part in parts]
    whole = sum(seconds)

    def mean(values: Iterable[float]) -> float:
        return sum(value * s for value, s in zip(values, seconds, strict=True)) / whole if whole else 0.0

    return Span(
        seconds=whole,
        trainer={name: mean(part.trainer.get(name, 0.0) for part in parts) for name in TRAINER},
        sessions={name: mean(part.sessions.get(name, 0.0) for part in parts) for name in SESSIONS},
        **{name: mean(getattr(part, name) for part in parts) for name in (*SHARES, *GAUGES)},
        **{name: sum(getattr(part, name) for part in parts) for name in COUNTS},
    )


def binned(parts: Sequence[Span], *, most: int) -> list[Span]:
    """Merges neighbours into at most `most` spans."""
    count = min(most, len(parts))
    edges = [round(index * len(parts) / count) for index in range(count + 1)] if count else []
    return [merged(parts[start:end]) for start, end in pairwise(edges)]
