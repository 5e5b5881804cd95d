"""The report's plots, as PNG. Promise: colour-blind-safe colours, units on every axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ludus.reports.curves import LOSSES, SESSION_TIME, TRAINER_TIME, Curve, Line, counts, curve, curves, tokens_per_s
from ludus.reports.timeline import SESSIONS, TRAINER, Span
from ludus.store.lines import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The palette of Okabe and Ito; black is for text and bounds.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
MARKERS = "osD^vPX*"
DOT: dict[str, Any] = {"markersize": 5, "capsize": 2.5}
INK = "#333333"
IDLE = "#D0D0D0"
TRAINER_COLOURS = (COLOURS[0], COLOURS[2], IDLE)
SESSION_COLOURS = (COLOURS[1], COLOURS[3])
TIMELINE_COLOURS = {
    **dict(zip(TRAINER, (COLOURS[0], COLOURS[2], COLOURS[4], IDLE), strict=True)),
    **dict(zip(SESSIONS, (COLOURS[1], COLOURS[3], IDLE), strict=True)),
}
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "text.color"), INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "legend.fontsize": 8,
    "lines.linewidth": 1.8,
    "savefig.dpi": 150,
    "figure.constrained_layout.w_pad": 0.09,
    "figure.constrained_layout.h_pad": 0.07,
}
Panel = Callable[["Axes"], None]
"""A function of this module, with all arguments but the axes."""
Scale = Literal["free", "positive", "share", "rate"]
"""Range of the y axis: any numbers, from 0, per cent from 0, or 0 to 100 %."""
SUCCESS = ("success", "success_low", "success_high")
"""Keys of a result: the rate and its 95 % interval."""


def draw(path: Path, panels: Sequence[Panel], *, height: float = 3.0, column: bool = False) -> None:
    """Draws one row of panels into a PNG, or one column with a common x axis."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(8.4, height), layout="constrained")
        FigureCanvasAgg(figure)
        rows, columns = (len(panels), 1) if column else (1, len(panels))
        grid = figure.subplots(rows, columns, squeeze=False, sharex=column)
        for axes, panel in zip(np.ravel(grid), panels, strict=True):
            panel(axes)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Software": None})


def per_environment(
    axes: Axes, *, metrics: Sequence[Line], prefix: str, title: str, label: str, scale: Scale = "free"
) -> None:
    """One curve per environment."""
    for index, (name, each) in enumerate(curves(metrics, prefix).items()):
        _smoothed(axes, each, colour=COLOURS[index % len(COLOURS)], label=name)
    _finish(axes, title=title, label=label, scale=scale)


def held_out(axes: Axes, *, evaluations: Mapping[str, Sequence[Line]]) -> None:
    """Success on held-out tasks with 95 % intervals, shifted so that they do not overlap."""
    last = max((line["step"] for lines in evaluations.values() for line in lines), default=0)
    for index, (name, lines) in enumerate(evaluations.items()):
        aside = (index - (len(evaluations) - 1) / 2) * max(last, 1) * 0.012
        steps = np.array([line["step"] for line in lines], dtype=float) + aside
        middle, low, high = (np.array([number(line[key]) for line in lines]) for key in SUCCESS)
        spread = np.clip([middle - low, high - middle], 0, None)
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        axes.errorbar(steps, middle, yerr=spread, color=colour, marker=marker, elinewidth=1.1, label=name, **DOT)
    _finish(axes, title="Held-out success, 95 % intervals", label="success", scale="rate")


def staleness(axes: Axes, *, metrics: Sequence[Line], bound: int) -> None:
    mean, largest = curve(metrics, "staleness/mean"), curve(metrics, "staleness/max")
    axes.fill_between(
        largest.steps, largest.values, step="mid", color=COLOURS[4], alpha=0.35, label="oldest group", linewidth=0
    )
    _line(axes, mean, mean.smoothed(), colour=COLOURS[0], label="mean over groups")
    axes.axhline(bound, color=INK, linestyle="--", linewidth=1.2, label=f"bound ({bound})")
    _finish(axes, title="Staleness of trained groups", label="optimiser steps", scale="positive")
    top = int(max(bound, *largest.values, 0))
    # room for the legend above the bound
    axes.set(ylim=(0, top * 1.25 + 0.4), yticks=range(0, top + 1, 1 + top // 8))


def staleness_histogram(axes: Axes, *, metrics: Sequence[Line], bound: int) -> None:
    oldest = curve(metrics, "staleness/max").values
    values, totals = np.unique(oldest.round(), return_counts=True)
    axes.bar(values, totals / max(1, totals.sum()), color=COLOURS[4], width=0.7)
    axes.axvline(bound + 0.5, color=INK, linestyle="--", linewidth=1.2)
    x = "staleness, optimiser steps"
    _finish(axes, title="Oldest group of a step", label="share of steps", scale="share", x=x)
    top = int(max(bound, *values, 0))
    axes.set(xlim=(-0.6, top + 0.6), xticks=range(0, top + 1, 1 + top // 8))
    axes.grid(axis="x", visible=False)


def stacked_time(axes: Axes, *, metrics: Sequence[Line]) -> None:
    """The trainer's seconds per step, by activity; `time_shares` beside it has the legend."""
    parts = [each for each in (curve(metrics, name) for name in TRAINER_TIME) if len(each)]
    if len({len(each) for each in parts}) == 1:
        steps, layers = parts[0].steps, np.array([each.smoothed() for each in parts])
        if len(steps) == 1:  # an area needs a width
            steps, layers = steps + np.array([-0.3, 0.3]), layers.repeat(2, axis=1)
        axes.stackplot(steps, layers, colors=TRAINER_COLOURS)
    _finish(axes, title="A step of the trainer", label="seconds per step", scale="positive")


def time_shares(axes: Axes, *, metrics: Sequence[Line]) -> None:
    """Trainer and sessions as two bars of 100 %, because they run at the same time."""
    for row, (names, colours) in enumerate(((TRAINER_TIME, TRAINER_COLOURS), (SESSION_TIME, SESSION_COLOURS))):
        totals = [curve(metrics, name).values.sum() for name in names]
        left, whole = 0.0, sum(totals) or 1.0
        for total, label, colour in zip(totals, names.values(), colours, strict=True):
            share = total / whole
            axes.barh(row, share, left=left, color=colour, height=0.55, label=label)
            if share > 0.08:
                ink = "white" if colour == COLOURS[0] else INK
                axes.text(left + share / 2, row, f"{share:.0%}", ha="center", va="center", color=ink)
            left += share
    axes.set_yticks([0, 1], ["trainer", "sessions"])
    axes.set(ylim=(1.6, -0.6), xlim=(0, 1), title="Where the time went")
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.grid(visible=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)


def timeline(parts: Sequence[Span]) -> list[Panel]:
    """Trainer, sessions and engine over the same clock, without gaps before a resume."""
    unit, scale = time_unit(sum(part.seconds for part in parts))
    edges = np.concatenate(([0.0], np.cumsum([part.seconds for part in parts]))) / scale
    stacked = partial(_stacked, edges=edges)
    trainer = {name: [part.trainer[name] for part in parts] for name in TRAINER}
    sessions = {name: [part.sessions[name] for part in parts] for name in SESSIONS}
    busy = {"generating": [part.busy for part in parts], "loading": [part.pause for part in parts]}

    def engine(axes: Axes) -> None:
        rate = axes.twinx()
        rate.stairs([part.tokens_per_s for part in parts], edges, color=INK, linewidth=1.2)
        rate.set(ylabel="tokens/s", ylim=(0, None))
        rate.grid(visible=False)
        rate.spines["right"].set_visible(True)
        stacked(axes, layers=busy, title="Engine", label="busy", share=True, line="tokens/s (right)")
        axes.set_xlabel(f"time, {unit}")

    return [
        partial(stacked, layers=trainer, title="Trainer", label="share of its time", share=True),
        partial(stacked, layers=sessions, title="Sessions", label="number"),
        engine,
    ]


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit for a duration, and its length in seconds."""
    return ("s", 1.0) if seconds < 180 else ("min", 60.0) if seconds < 3 * 3600 else ("h", 3600.0)


def _stacked(
    axes: Axes,
    *,
    edges: np.ndarray,
    layers: Mapping[str, Sequence[float]],
    title: str,
    label: str,
    share: bool = False,
    line: str = "",
) -> None:
    """Layers over time; `line` is the legend of a curve that is drawn apart."""
    floor = np.zeros(len(edges) - 1)
    for name, values in layers.items():
        top = floor + np.array(values)
        axes.stairs(top, edges, baseline=floor, fill=True, color=TIMELINE_COLOURS[name], label=name)
        floor = top
    if share:
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter("{x:.0%}")
    if line:
        axes.plot([], [], color=INK, label=line, linewidth=1.2)
    axes.set(title=title, ylabel=label)
    axes.margins(x=0)
    axes.grid(visible=False)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, borderaxespad=0.2)


def throughput(axes: Axes, *, metrics: Sequence[Line]) -> None:
    _smoothed(axes, curve([{"step": line["step"], "rate": tokens_per_s(line)} for line in metrics], "rate"))
    _finish(axes, title="Generated tokens", label="tokens/s", scale="positive")


def losses_of_groups(axes: Axes, *, metrics: Sequence[Line]) -> None:
    """Groups and sessions that were not trained, and forks, as running totals."""
    steps = np.array([line["step"] for line in metrics], dtype=float)
    for index, (label, prefix) in enumerate(LOSSES.items()):
        if counts(metrics, prefix):
            totals = np.cumsum([sum(number(v) for k, v in line.items() if k.startswith(prefix)) for line in metrics])
            _line(axes, Curve(steps, totals), totals, colour=COLOURS[index], label=label)
    _finish(axes, title="Not trained, and forks", label="total so far", scale="positive")
    axes.set_ylim(top=axes.get_ylim()[1] * 1.5)  # room for the legend above the curves


def single(axes: Axes, *, metrics: Sequence[Line], name: str) -> None:
    _smoothed(axes, curve(metrics, name))
    _finish(axes, title=name, label="")


def intervals(axes: Axes, *, rows: Mapping[str, Sequence[float]], title: str, signed: bool = False) -> None:
    """One row per name, from the top: a dot with its interval. A signed rate has a line at 0."""
    middle, low, high = np.array(list(rows.values()), dtype=float).reshape(-1, 3).T
    places, spread = np.arange(len(rows)), np.clip([middle - low, high - middle], 0, None)
    axes.errorbar(middle, places, xerr=spread, fmt="o", color=COLOURS[0], elinewidth=1.3, **DOT)
    axes.set_yticks(places, list(rows))
    axes.set(ylim=(len(rows) - 0.4, -0.6), title=title)
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_formatter("{x:+.0%}" if signed else "{x:.0%}")
    if signed:
        axes.axvline(0, color=INK, linestyle="--", linewidth=1.0)
    else:
        axes.set_xlim(-0.02, 1.02)


def _smoothed(axes: Axes, each: Curve, *, colour: str = COLOURS[0], label: str = "") -> None:
    """The values of all steps in a faint line, the running mean in a strong one."""
    axes.plot(each.steps, each.values, color=colour, alpha=0.25, linewidth=0.9)
    _line(axes, each, each.smoothed(), colour=colour, label=label)


def _line(axes: Axes, each: Curve, values: np.ndarray, *, colour: str, label: str) -> None:
    axes.plot(each.steps, values, color=colour, label=label or None, marker="o" if len(each) == 1 else None)


def _finish(axes: Axes, *, title: str, label: str, scale: Scale = "free", x: str = "optimiser step") -> None:
    axes.set(title=title, xlabel=x, ylabel=label)
    if scale in ("rate", "share"):
        axes.yaxis.set_major_formatter("{x:.0%}")
    if scale == "rate":
        axes.set_ylim(-0.03, 1.03)
    elif scale in ("share", "positive"):
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    left, right = axes.get_xlim()
    if right - left < 1:  # a single step
        axes.set_xlim((left + right) / 2 - 1, (left + right) / 2 + 1)
    axes.locator_params(axis="x", integer=True)
    if not axes.has_data():
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", va="center", color="#888888")
    elif axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best")
