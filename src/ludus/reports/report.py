"""A run as Markdown with plots. Promise: reads only the run folder, also of a crashed run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ludus.reports import plots
from ludus.reports.curves import LOSSES, Line, counts, curve, curves, step_s, tokens_per_s
from ludus.reports.profile import draw_timeline, figures, profile
from ludus.store.lines import naming_failure, number
from ludus.store.run_folder import RunFolder

Rows = Sequence[Sequence[str]]


def write_report(folder: RunFolder) -> Path:
    """Writes report.md and plots/*.png; returns the path of report.md."""
    problems: list[str] = []
    metrics = folder.metrics(report=problems.append)
    evaluations = _by_environment(folder.evaluations(report=problems.append))
    config = folder.config()
    cloning = any(event.get("kind") == "cloning" for event in folder.events(report=problems.append))
    steps = config.sft.steps if cloning else config.pipeline.steps
    sections = [
        f"# {config.name}",
        _overview(metrics, steps=steps, model=config.model.name),
        _held_out(folder, evaluations),
        _learning(folder, metrics),
        _staleness(folder, metrics, bound=config.pipeline.max_staleness),
        _time(folder, metrics),
        _health(folder, metrics),
        _optimizer(folder, metrics),
        "\n- ".join(["## Lines that could not be read\n", *problems]) if problems else "",
    ]
    with naming_failure("write", folder.report_file):
        folder.report_file.write_text("\n\n".join(section for section in sections if section) + "\n", encoding="utf-8")
    return folder.report_file


def _overview(metrics: Sequence[Line], *, steps: int, model: str) -> str:
    if not metrics:
        return f"Model `{model}`. No optimiser step has been recorded yet."
    timed = [(line, seconds) for line in metrics if (seconds := step_s(line)) > 0 and math.isfinite(seconds)]
    wall_s = sum(seconds for _, seconds in timed)
    tokens = sum(tokens_per_s(line) * seconds for line, seconds in timed)  # short steps weigh less
    trained = curve(metrics, "trajectories/trained").values.sum()
    facts = {
        "model": f"`{model}`",
        "optimiser steps": f"{metrics[-1]['step']} of {steps}",
        "training time": duration(wall_s) if wall_s else "",
        "generated": f"{tokens / wall_s:,.0f} tokens/s on average" if wall_s and math.isfinite(tokens) else "",
        "trajectories trained": f"{trained:,.0f}" if trained else "",
    }
    return table(("run", ""), [(name, value) for name, value in facts.items() if value])


def _held_out(folder: RunFolder, evaluations: Mapping[str, Sequence[Line]]) -> str:
    if not evaluations:
        return ""
    rows = []
    steps = {line["step"] for lines in evaluations.values() for line in lines}
    for name, lines in evaluations.items():
        shown = [lines[0], lines[-1]] if len(steps) > 1 else [lines[-1]]
        unscored = sum(int(line.get("num_unscored", 0)) for line in shown)
        n = f"{shown[-1].get('num_trajectories', '?')} ({shown[-1].get('num_tasks', '?')} tasks)"
        rows.append((name, *map(success_of, shown), n, str(unscored)))
    ends = sorted({min(steps), max(steps)})
    heading = ("environment", *(f"success at step {step}" for step in ends), "n", "unscored")
    note = "Held-out tasks; 95 % intervals. Unscored sessions were ended by the environment or a time limit and are not counted."
    image = _draw(folder, "held_out", [partial(plots.held_out, evaluations=evaluations)])
    return "\n\n".join(("## Held-out success", table(heading, rows), note, image))


def _learning(folder: RunFolder, metrics: Sequence[Line]) -> str:
    if not curves(metrics, "train/reward/"):
        return ""
    each = partial(plots.per_environment, metrics=metrics)
    reward = partial(each, prefix="train/reward/", title="Reward in training", label="mean reward")
    success = partial(each, prefix="train/success/", title="Success in training", label="success", scale="rate")
    return f"## Learning\n\n{_draw(folder, 'learning', [reward, success])}"


def _staleness(folder: RunFolder, metrics: Sequence[Line], *, bound: int) -> str:
    oldest = curve(metrics, "staleness/max").values
    if not len(oldest):
        return ""
    panels = [partial(panel, metrics=metrics, bound=bound) for panel in (plots.staleness, plots.staleness_histogram)]
    summary = f"Bound {bound}; oldest trained group {oldest.max():.0f}, mean {curve(metrics, 'staleness/mean').values.mean():.2f}."
    return f"## Staleness\n\n{summary}\n\n{_draw(folder, 'staleness', panels)}"


def _time(folder: RunFolder, metrics: Sequence[Line]) -> str:
    if not len(curve(metrics, "time/train_s")):
        return ""
    panels = [partial(panel, metrics=metrics) for panel in (plots.stacked_time, plots.time_shares)]
    note = "Trainer and sessions run at the same time. The sessions' seconds are summed over all concurrent sessions."
    parts = ["## Where the time went", note, _draw(folder, "time", panels, height=3.2)]
    if (made := profile(folder)) is not None:
        draw_timeline(made, into=folder.plots)
        parts[1:1] = [made.verdict.text, "![timeline](plots/timeline.png)", table(("", ""), figures(made))]
    return "\n\n".join(parts)


def _health(folder: RunFolder, metrics: Sequence[Line]) -> str:
    if not curves(metrics, "train/reward/"):
        return ""
    each = partial(plots.per_environment, label="share of turns", scale="share")
    invalid = partial(each, prefix="trajectories/invalid_rate/", title="Invalid actions")
    panels = [partial(panel, metrics=metrics) for panel in (plots.throughput, invalid, plots.losses_of_groups)]
    image = _draw(folder, "health", panels, height=2.8)
    found = [(what, counts(metrics, prefix)) for what, prefix in LOSSES.items()]
    rows = [(what, which, f"{total:,}") for what, totals in found for which, total in totals.items()]
    nothing = "No group was dropped, no session failed, no sequence forked."
    losses = table(("what", "which", "count"), rows) if rows else nothing
    kept = {name: f"{each.values.mean():.0%}" for name, each in curves(metrics, "groups/kept/").items()}
    shares = ", ".join(f"{name} {share}" for name, share in kept.items())
    note = f"\n\nShare of groups with different rewards, which carry gradient: {shares}." if kept else ""
    return f"## Health\n\n{image}\n\n{losses}{note}"


def _optimizer(folder: RunFolder, metrics: Sequence[Line]) -> str:
    wanted = ("optimizer/loss", "optimizer/entropy", "optimizer/grad_norm", "probe/gap")
    names = [name for name in wanted if len(curve(metrics, name))]
    if not names:
        return ""
    panels = [partial(plots.single, metrics=metrics, name=name) for name in names]
    return f"## Optimiser\n\n{_draw(folder, 'optimizer', panels, height=2.4)}"


def _draw(folder: RunFolder, name: str, panels: Sequence[plots.Panel], *, height: float = 3.0) -> str:
    """Draws plots/NAME.png; returns the Markdown that shows it."""
    plots.draw(folder.plots / f"{name}.png", panels, height=height)
    return f"![{name.replace('_', ' ')}](plots/{name}.png)"


def table(heading: Sequence[str], rows: Rows) -> str:
    texts = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (heading, *rows)]
    texts.insert(1, "| " + " | ".join(["---"] * len(heading)) + " |")
    return "\n".join(text.replace("\n", " ") for text in texts)


def success_of(result: Line) -> str:
    return estimate(*(result.get(key) for key in plots.SUCCESS))


def estimate(value: Any, low: Any = None, high: Any = None, *, form: str = ".1%") -> str:
    """ "80.0% [49.0%, 94.3%]"; without the interval where it is unknown or a single point."""
    value, low, high = number(value), number(low), number(high)
    if not math.isfinite(value):
        return "not known"
    spread = math.isfinite(low) and math.isfinite(high) and low != high
    return f"{value:{form}} [{low:{form}}, {high:{form}}]" if spread else f"{value:{form}}"


def duration(seconds: float) -> str:
    """The two largest units: 90 -> 1 min 30 s."""
    minutes, rest = divmod(int(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _by_environment(evaluations: Sequence[Line]) -> dict[str, list[dict[str, Any]]]:
    """{environment: its results by step}; of two evaluations of a step the later one counts."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for line in evaluations:
        for result in line.get("environments", ()):
            found.setdefault(result["environment"], {})[line["step"]] = {**result, "step": line["step"]}
    return {name: [by_step[step] for step in sorted(by_step)] for name, by_step in sorted(found.items())}
