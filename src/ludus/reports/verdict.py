"""The bottleneck of a run. Promise: pure, and every verdict names its figures and the next move.

trainer busy     ─▶ trainer, loading, saving; turns if max_staleness is 0
trainer idle     ─▶ what the sessions do meanwhile: places, stragglers, environments, or they
                    generate: queue, cache, engine; host if the engine is idle too
neither          ─▶ balanced
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ludus.reports.timeline import Span, merged

Name = Literal[
    "unknown", "saving", "loading", "turns", "trainer", "places", "stragglers", "environments", "queue", "cache", "engine", "host",
    "balanced",
]  # fmt: skip
NOTABLE = 0.25
"""Share of the trainer's time that is worth a remark."""
MOST = 0.5
FEW = 0.4
"""Below this share of the possible sessions, the others wait for the slowest of their group."""
SELDOM = 0.2
"""An engine that waits for its GPU less than this share of its time often keeps the GPU waiting."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The limits in the run file."""

    max_sessions: int
    """Capacity of the buffer in groups, times the group size."""
    max_staleness: int
    max_running: int
    in_process: bool = True
    """All environments run in this process."""
    on_gpu: bool = False
    session_processes: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    name: Name
    text: str


def verdict(parts: Sequence[Span], *, setting: Setting) -> Verdict:
    whole = merged(parts)
    if not whole.seconds:
        return Verdict("unknown", "No second of training has been recorded.")
    training, loading, saving, idle = (whole.trainer[name] for name in ("training", "loading", "saving", "idle"))
    if saving >= NOTABLE and saving >= max(training, loading, idle):
        return Verdict(
            "saving",
            f"The trainer spends {saving:.0%} of the time on checkpoints and on waiting for the last evaluation. Raise "
            "store.checkpoint_every or evaluation.every.",
        )
    if setting.max_staleness == 0 and min(training + loading, idle) >= NOTABLE / 2:
        return Verdict(
            "turns",
            f"Training ({training + loading:.0%}) and playing ({idle:.0%}) take turns, because pipeline.max_staleness is 0. "
            "With 1 or more they overlap.",
        )
    if loading >= NOTABLE and loading >= max(training, idle):
        return Verdict(
            "loading",
            f"Publishing and loading versions takes {loading:.0%} of the trainer's time, training itself {training:.0%}. "
            "Raise pipeline.groups_per_step, so that there are fewer versions.",
        )
    if idle >= NOTABLE:
        return _waited_for(merged(parts, while_idle=True), idle=idle, setting=setting)
    if training >= MOST:
        return Verdict(
            "trainer",
            f"The trainer is the bottleneck: it trains {training:.0%} of the time and waits {idle:.0%}, with "
            f"{whole.ready:.1f} groups ready; the engine computes {whole.busy:.0%}. Give the trainer its own device "
            "(`devices`) or more trainer.threads, raise trainer.microbatch_tokens, or train on fewer tokens per step.",
        )
    return Verdict(
        "balanced",
        f"There is no single bottleneck: the trainer trains {training:.0%}, loads {loading:.0%} and waits {idle:.0%} of the "
        f"time; the engine computes {whole.busy:.0%}.",
    )


def _waited_for(meanwhile: Span, *, idle: float, setting: Setting) -> Verdict:
    """`meanwhile` averages over the seconds in which the trainer was idle."""
    alive, waits = meanwhile.num_sessions, f"The trainer waits {idle:.0%} of the time for sessions"
    if not alive:
        return Verdict("unknown", f"{waits}, but no session was playing: look at the run's events.")
    generating, environment, place = (meanwhile.sessions[name] / alive for name in meanwhile.sessions)
    if place >= FEW:
        return Verdict(
            "places",
            f"{waits}; {place:.0%} of these wait for a place on a worker. Raise workers.num or workers.slots, or add workers "
            "to the controller.",
        )
    if alive < FEW * setting.max_sessions:
        return Verdict(
            "stragglers",
            f"{waits}; only {alive:.1f} of {setting.max_sessions} are still playing, and these stragglers hold up their "
            "groups. Raise pipeline.max_staleness, so that other groups play meanwhile, or lower rollout.turn_timeout_s or "
            "rollout.max_turns.",
        )
    if environment >= MOST:
        where = 'run them in other processes (at = "workers")' if setting.in_process else "add workers"
        return Verdict(
            "environments",
            f"{waits}; their environments are busy {environment:.0%} of that, the engine {meanwhile.busy:.0%}. Raise "
            f"pipeline.max_staleness or pipeline.groups_per_step, so that more sessions play at once, or {where}.",
        )
    if generating >= MOST:
        return _generating(meanwhile, waits=f"{waits}, which generate {generating:.0%} of that", setting=setting)
    return Verdict(
        "balanced",
        f"{waits}, which generate {generating:.0%} of that and are in their environments {environment:.0%}; neither is the "
        "bottleneck. More concurrent sessions (pipeline.max_staleness, pipeline.groups_per_step) use both better.",
    )


def _generating(meanwhile: Span, *, waits: str, setting: Setting) -> Verdict:
    busy, hits = meanwhile.busy + meanwhile.pause, meanwhile.hit_rate
    if busy < MOST:
        return Verdict(
            "host",
            f"{waits}, but the engine computes only {busy:.0%}: the bottleneck is this process's own Python, between engine "
            f"and environments.{_elsewhere(setting)}",
        )
    if setting.on_gpu and 0 < meanwhile.device < SELDOM * meanwhile.busy:  # 0: not measured
        return Verdict(
            "host",
            f"{waits}; the engine is busy {busy:.0%}, but waits for its GPU only {meanwhile.device / meanwhile.busy:.0%} of "
            f"that: the GPU waits for this process's own Python.{_elsewhere(setting)}",
        )
    if meanwhile.waiting >= NOTABLE * max(1.0, meanwhile.running):
        return Verdict(
            "queue",
            f"{waits}: {meanwhile.waiting:.0f} requests queue behind {meanwhile.running:.0f} running ones. Raise "
            f"engine.max_running ({setting.max_running} now).",
        )
    if hits is not None and hits < MOST and meanwhile.computed > meanwhile.tokens:
        return Verdict(
            "cache",
            f"{waits}. The engine is busy {busy:.0%} and computes more prompt tokens than it generates: its cache held only "
            f"{hits:.0%} of them. Raise engine.max_cached (engine.memory on a GPU), so that the cache keeps sessions between "
            "their turns.",
        )
    return Verdict(
        "engine",
        f"{waits}: the engine is the bottleneck, busy {busy:.0%} with {meanwhile.running:.0f} sequences at once. Use a faster "
        "device, more engine.threads on a CPU, a smaller model or fewer tokens per turn.",
    )


def _elsewhere(setting: Setting) -> str:
    """Advice to move work into other processes."""
    if not setting.session_processes:
        return " Play sessions in another process: pipeline.session_processes = 1."
    return ' Run environments in other processes (at = "workers").' if setting.in_process else ""
