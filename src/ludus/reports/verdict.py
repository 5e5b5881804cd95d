"""What holds a run up, in words. Promise: pure, and every verdict names the figures it rests on and the next move.

trainer busy     ─▶ trainer, loading, saving; turns where max_staleness is 0
trainer idle     ─▶ what the sessions that it waits for do meanwhile: places, stragglers, environments, or they generate:
                    queue, cache, engine; host where even the engine is idle
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
"""A share of the trainer's time that is worth a remark."""
MOST = 0.5
FEW = 0.4
"""So few of the sessions that could play do play: the others have finished, and wait for the slowest of their group or batch."""
SELDOM = 0.2
"""Where an engine waits for its GPU no more of its time than this, the GPU often waits for it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the run file allows."""

    max_sessions: int
    """Slots times group size."""
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
        return Verdict("unknown", "No second of training has been recorded, so nothing can be said.")
    training, loading, saving, idle = (whole.trainer[name] for name in ("training", "loading", "saving", "idle"))
    if saving >= NOTABLE and saving >= max(training, loading, idle):
        return Verdict(
            "saving",
            f"The trainer spends {saving:.0%} of the time on checkpoints and on evaluations that are not over when the next is due: raise "
            "store.checkpoint_every or evaluation.every.",
        )
    if setting.max_staleness == 0 and min(training + loading, idle) >= NOTABLE / 2:
        return Verdict(
            "turns",
            f"Training ({training + loading:.0%}) and playing ({idle:.0%}) take turns, because pipeline.max_staleness is 0: with 1 or more "
            "they overlap.",
        )
    if loading >= NOTABLE and loading >= max(training, idle):
        return Verdict(
            "loading",
            f"Publishing and loading versions takes {loading:.0%} of the trainer's time, training itself {training:.0%}: raise "
            "pipeline.groups_per_step, so that a version is worth more.",
        )
    if idle >= NOTABLE:
        return _waited_for(merged(parts, while_idle=True), idle=idle, setting=setting)
    if training >= MOST:
        return Verdict(
            "trainer",
            f"The trainer is the bottleneck: it trains {training:.0%} of the time and waits {idle:.0%}, with {whole.ready:.1f} groups "
            f"ready for it; the engine computes {whole.busy:.0%}. Give it a device of its own (`devices`) or more trainer.threads, raise "
            "trainer.microbatch_tokens, or train on fewer tokens per step.",
        )
    return Verdict(
        "balanced",
        f"No part holds up the others: the trainer trains {training:.0%}, loads {loading:.0%} and waits {idle:.0%} of the time; the engine "
        f"computes {whole.busy:.0%}.",
    )


def _waited_for(meanwhile: Span, *, idle: float, setting: Setting) -> Verdict:
    """`meanwhile` averages over the seconds in which the trainer had nothing to do."""
    alive, waits = meanwhile.num_sessions, f"The trainer waits {idle:.0%} of the time for sessions"
    if not alive:
        return Verdict("unknown", f"{waits}, of which none was playing: look at the run's events.")
    generating, environment, place = (meanwhile.sessions[name] / alive for name in meanwhile.sessions)
    if place >= FEW:
        return Verdict(
            "places",
            f"{waits}; {place:.0%} of these wait for a place on a worker: raise workers.num or workers.slots, or add workers to the "
            "controller.",
        )
    if alive < FEW * setting.max_sessions:
        return Verdict(
            "stragglers",
            f"{waits}, of which only {alive:.1f} of {setting.max_sessions} are still playing: slow ones hold up their groups. Raise "
            "pipeline.max_staleness, so that others go on meanwhile, or lower rollout.turn_timeout_s or rollout.max_turns.",
        )
    if environment >= MOST:
        where = 'give them processes of their own (at = "workers")' if setting.in_process else "add workers"
        return Verdict(
            "environments",
            f"{waits}; their environments are busy {environment:.0%} of that, the engine {meanwhile.busy:.0%}: raise "
            f"pipeline.max_staleness or pipeline.groups_per_step, so that more of them play at once, or {where}.",
        )
    if generating >= MOST:
        return _generating(meanwhile, waits=f"{waits}, which generate {generating:.0%} of that", setting=setting)
    return Verdict(
        "balanced",
        f"{waits}, which generate {generating:.0%} of that and are in their environments {environment:.0%}: neither alone holds them up. "
        "More of them at once (pipeline.max_staleness, pipeline.groups_per_step) use both better.",
    )


def _generating(meanwhile: Span, *, waits: str, setting: Setting) -> Verdict:
    busy, hits = meanwhile.busy + meanwhile.pause, meanwhile.hit_rate
    if busy < MOST:
        return Verdict(
            "host",
            f"{waits}, and yet the engine computes only {busy:.0%}: this process's own Python, between engine and environments, is what "
            f"they wait for.{_elsewhere(setting)}",
        )
    if setting.on_gpu and 0 < meanwhile.device < SELDOM * meanwhile.busy:  # 0: not measured
        return Verdict(
            "host",
            f"{waits}; the engine is busy {busy:.0%}, but waits for its GPU only {meanwhile.device / meanwhile.busy:.0%} of that: this "
            f"process's own Python is what the GPU waits for.{_elsewhere(setting)}",
        )
    if meanwhile.waiting >= NOTABLE * max(1.0, meanwhile.running):
        return Verdict(
            "queue",
            f"{waits}: {meanwhile.waiting:.0f} requests queue behind {meanwhile.running:.0f} that run. Raise engine.max_running "
            f"({setting.max_running} now).",
        )
    if hits is not None and hits < MOST and meanwhile.computed > meanwhile.tokens:
        return Verdict(
            "cache",
            f"{waits}. The engine is busy {busy:.0%}, and computes prompts more than it generates: its cache held only {hits:.0%} of them. "
            "Raise engine.max_cached (engine.memory on a GPU), so that a session's next turn finds its last one.",
        )
    return Verdict(
        "engine",
        f"{waits}: the engine is the bottleneck, busy {busy:.0%} with {meanwhile.running:.0f} sequences at once. A faster device, more "
        "engine.threads on a CPU, a smaller model or fewer tokens per turn help.",
    )


def _elsewhere(setting: Setting) -> str:
    """What else can be done by other processes."""
    if not setting.session_processes:
        return " Play sessions in a process of their own: pipeline.session_processes = 1."
    return ' Put environments into processes of their own (at = "workers").' if setting.in_process else ""
