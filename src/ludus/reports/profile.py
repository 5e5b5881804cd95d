"""The profile of a run: speed, timeline, bottleneck. Promise: reads only the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ludus.config import HERE, RunConfig
from ludus.reports import plots
from ludus.reports.curves import Line, curve
from ludus.reports.timeline import SESSIONS, TRAINER, Span, binned, merged, spans
from ludus.reports.verdict import Setting, Verdict, verdict
from ludus.store.run_folder import Report, RunFolder, warn

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 60
PEAK_TFLOPS = {
    "B200": 2250, "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H200": 989, "A100": 312, "A40": 150, "A10": 125, "L40S": 362, "L4": 121,
    "RTX 4090": 165, "RTX 3090": 71,
}  # fmt: skip
"""Vendors' figures for bfloat16 without sparsity; the first name in the device's name counts."""


@dataclass(frozen=True, slots=True)
class Profile:
    spans: Sequence[Span]
    whole: Span
    verdict: Verdict
    device: str
    training_use: float | None
    """Share of the device's peak while training (MFU); None if the peak is not known."""
    run_use: float | None
    """Share of the device's peak over the whole run, including generation."""
    trained_per_s: float | None
    """Batch tokens per second of training."""

    @property
    def pause_ms(self) -> float | None:
        """Pause of generation per load, in milliseconds."""
        return 1e3 * self.whole.pause * self.whole.seconds / self.whole.loads if self.whole.loads else None


def profile(folder: RunFolder, *, report: Report = warn) -> Profile | None:
    """The profile of a run; None if no second of training was recorded."""
    parts = spans(folder.timeline(report=report))
    if not parts:
        return None
    started = [event for event in folder.events(report=lambda _: None) if event.get("kind") == "started"]
    device, parameters = (started[-1].get(key) for key in ("device", "parameters")) if started else (None, None)
    return make_profile(
        parts,
        metrics=folder.metrics(report=lambda _: None),
        setting=setting_of(folder.config(), on_gpu=device not in (None, "cpu")),
        device=str(device or ""),
        parameters=int(parameters or 0),
    )


def make_profile(
    parts: Sequence[Span], *, metrics: Sequence[Line], setting: Setting, device: str, parameters: int
) -> Profile:
    whole = merged(parts)
    train_s, trained = (float(curve(metrics, name).values.sum()) for name in ("time/train_s", "tokens/batch"))
    training, running = 6.0 * parameters * trained, 2.0 * parameters * (whole.tokens + whole.computed)
    peak = next((1e12 * peak for name, peak in PEAK_TFLOPS.items() if name in device), 0.0)
    known = peak and parameters and train_s
    return Profile(
        spans=parts,
        whole=whole,
        verdict=verdict(parts, setting=setting),
        device=device,
        training_use=training / (peak * train_s) if known else None,
        run_use=(training + running) / (peak * whole.seconds) if known else None,
        trained_per_s=trained / train_s if train_s else None,
    )


def setting_of(config: RunConfig, *, on_gpu: bool = False) -> Setting:
    return Setting(
        max_sessions=config.pipeline.capacity * config.rollout.group_size,
        max_staleness=config.pipeline.max_staleness,
        max_running=config.engine.sized(on_gpu=on_gpu).max_running,
        in_process=all(section.at == HERE for section in config.environments.values()),
        on_gpu=on_gpu,
        session_processes=config.pipeline.processes(on_gpu=on_gpu),
    )


def draw_timeline(made: Profile, *, into: Path) -> Path:
    path = into / "timeline.png"
    plots.draw(path, plots.timeline(binned(made.spans, most=200)), height=6.0, column=True)
    return path


def figures(made: Profile) -> list[tuple[str, str]]:
    """(name, value) of every known figure."""
    whole = made.whole
    rows = [
        ("generated", f"{whole.tokens_per_s:,.0f} tokens/s" if whole.tokens else ""),
        ("trained", f"{made.trained_per_s:,.0f} tokens/s while training" if made.trained_per_s else ""),
        (
            "of the device's peak (MFU)",
            f"{made.training_use:.1%} while training, {made.run_use:.1%} of the run" if made.training_use and made.run_use else "",
        ),
        ("cache hit rate", f"{whole.hit_rate:.1%} of prompt tokens" if whole.hit_rate is not None else ""),
        ("engine busy", f"{whole.busy:.0%}" if whole.busy else ""),
        ("pause per load", f"{made.pause_ms:.1f} ms, {whole.loads:.0f} loads" if made.pause_ms is not None else ""),
        ("device", made.device),
    ]  # fmt: skip
    return [(name, value) for name, value in rows if value]


def timeline_text(made: Profile) -> str:
    """One row of bars per activity; a taller bar means a larger share of that time."""
    parts, whole = binned(made.spans, most=WIDTH), made.whole
    most = max(1.0, *(part.num_sessions for part in parts))
    fastest = max(1.0, *(part.tokens_per_s for part in parts))
    rows = [
        *((f"trainer {n}", [p.trainer[n] for p in parts], f"{whole.trainer[n]:.0%}") for n in TRAINER),
        *((f"sessions {n}", [p.sessions[n] / most for p in parts], f"{whole.sessions[n]:.1f}") for n in SESSIONS),
        ("engine busy", [p.busy for p in parts], f"{whole.busy:.0%}"),
        ("tokens/s", [p.tokens_per_s / fastest for p in parts], f"{whole.tokens_per_s:,.0f}"),
    ]
    width = max(len(name) for name, _, _ in rows)
    unit, scale = plots.time_unit(whole.seconds)
    end = f"{whole.seconds / scale:.3g} {unit}"
    axis = f"{'':{width}}  0{end:>{max(len(parts), len(end) + 2) - 1}}"
    return "\n".join([axis, *(f"{name:{width}}  {_bars(values)}  {mean}" for name, values, mean in rows)])


def _bars(values: Sequence[float]) -> str:
    """Values from 0 to 1 as bars; every value above 0 is visible."""
    steps = len(BARS) - 1
    return "".join(BARS[min(steps, max(round(value * steps), 1 if value > 1e-3 else 0))] for value in values)
