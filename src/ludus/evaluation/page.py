"""An evaluation, or a comparison of two, as JSON, Markdown and a plot.

Promise: no rate without its n and interval.

RUN/evaluation.json  RUN/evaluation.md  RUN/plots/evaluation.png"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.evaluation.compare import Comparison, mean_difference
from ludus.evaluation.statistics import to_json
from ludus.reports import plots
from ludus.reports.report import table
from ludus.store.lines import naming_failure
from ludus.store.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
NAME = "evaluation"


def write_evaluation(folder: RunFolder, report: Mapping[str, Any], *, about: Mapping[str, Any]) -> Path:
    """Writes the three files; returns the path of the Markdown."""
    rows: list[Row] = report["environments"]
    plot = folder.plots / f"{NAME}.png"
    plots.draw(plot, [_rates(rows)], height=1.1 + 0.3 * len(rows))
    whole = {**about, **report}
    return _write(folder.path / NAME, whole, markdown=evaluation_page(whole, plot=f"plots/{plot.name}"))


def evaluation_page(report: Mapping[str, Any], *, plot: str = "") -> str:
    stops = sorted({stop for row in report["environments"] for stop in row["stops"]})
    counts = {name: sum(row["stops"].get(name, 0) for row in report["environments"]) for name in stops}
    note = "Success is pass@1; 95 % intervals, clustered by task. Unscored sessions failed in the environment or engine and do not count."
    parts = [
        f"# Evaluation of {report['model']}",
        _settings(report),
        evaluation_table(report),
        note,
        f"![success by environment]({plot})" if plot else "",
        _categories(report["categories"]),
        "## Stops\n\n" + _stop_table(report["environments"], counts),
        _failures(report["failures"]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def evaluation_table(report: Mapping[str, Any]) -> str:
    """One row per environment, and their mean."""
    rows = [_result_cells(row["environment"], row) for row in report["environments"]]
    num = sum(row["num_trajectories"] for row in report["environments"])
    mean = ["mean", rate(*report["mean_success"]), *[""] * 6, str(num)]
    return table(_HEADING, [*rows, _bold(mean)])


_HEADING = ("environment", "success", "pass@k", "reward", "turns", "tokens", "invalid", "unscored", "n")


def write_comparison(folder: Path, comparisons: Sequence[Comparison], *, a: str, b: str) -> Path:
    """Writes FOLDER/NAME.json, .md and .png; returns the path of the Markdown."""
    path = folder / f"compare-{Path(b).name}"
    plots.draw(path.with_name(path.name + ".png"), [_gaps(comparisons)], height=1.1 + 0.3 * len(comparisons))
    mean = mean_difference(comparisons)
    data = {"a": a, "b": b, "mean_difference": mean, "environments": [each.to_dict() for each in comparisons]}
    page = "\n\n".join(
        (f"# {b} against {a}", comparison_table(comparisons), _PAIRED, f"![difference]({path.name}.png)\n")
    )
    return _write(path, data, markdown=page)


_PAIRED = (
    "The difference is B minus A, over tasks, on attempts that both have played; 95 % intervals by Bonett and Price. p is McNemar's exact "
    "test on the tasks that one does better on."
)


def comparison_table(comparisons: Sequence[Comparison]) -> str:
    heading = ("environment", "A", "B", "difference", "reward", "better, worse", "p", "tasks", "pairs")
    rows = [
        (
            each.environment,
            _share(each.success_a),
            _share(each.success_b),
            rate(*each.difference, sign=True),
            interval(*each.reward_difference, sign=True),
            f"{each.wins}, {each.losses}",
            f"{each.p:.3f}",
            str(each.num_tasks),
            str(each.num_pairs) + (f" ({each.num_unpaired} attempts unpaired)" if each.num_unpaired else ""),
        )
        for each in comparisons
    ]
    tasks, pairs = sum(each.num_tasks for each in comparisons), sum(each.num_pairs for each in comparisons)
    mean = ("mean", "", "", rate(*mean_difference(comparisons), sign=True), "", "", "", str(tasks), str(pairs))
    return table(heading, [*rows, _bold(mean)])


def _bold(cells: Sequence[str]) -> list[str]:
    return [f"**{cell}**" if cell else "" for cell in cells]


def _settings(report: Mapping[str, Any]) -> str:
    where = f" at {report['endpoint']}" if report.get("endpoint") else ""
    words = "in tokens" if report["words"] == "tokens" else "in text"
    return (
        f"`{report['model']}`{where}, played {words}. Split `{report['split']}`, {report['attempts']} attempts at each of at most "
        f"{report['num_tasks']} tasks per environment, temperature {report['temperature']:g}, seed {report['seed']}."
    )


def _categories(rows: Sequence[Row]) -> str:
    cells = [_result_cells(f"{row['environment']}: {row['category']}", row) for row in rows]
    return "## By category\n\n" + table(_HEADING, cells) if cells else ""


def _stop_table(rows: Sequence[Row], counts: Mapping[str, int]) -> str:
    body = [[row["environment"], *(str(row["stops"].get(stop, 0)) for stop in counts)] for row in rows]
    return table(("environment", *counts), [*body, ["all", *map(str, counts.values())]])


def _failures(failures: Mapping[str, Mapping[str, int]]) -> str:
    rows = [(name, cause, str(count)) for name, causes in failures.items() for cause, count in causes.items()]
    return "## Causes of unscored sessions\n\n" + table(("environment", "cause", "sessions"), rows) if rows else ""


def _result_cells(name: str, row: Row) -> list[str]:
    largest = max(row["pass_at_k"], key=int, default=None)
    passes = ""
    if largest is not None:
        bounds = [row[f"pass_at_k{end}"][largest] for end in ("", "_low", "_high")]
        passes = f"k={largest}: {rate(*bounds)}"
    return [
        name,
        rate(row["success"], row["success_low"], row["success_high"]),
        passes,
        interval(row["reward"], row["reward_low"], row["reward_high"]),
        _number(row["turns"], ".1f"),
        _number(row["tokens"], ".0f"),
        _share(row["invalid_rate"]),
        str(row["num_unscored"]),
        f"{row['num_trajectories']} ({row['num_tasks']} tasks)",
    ]


def rate(value: float | None, low: float | None, high: float | None, *, sign: bool = False) -> str:
    if not (_known(value) and _known(low) and _known(high)):
        return "not known"
    form = "+.1%" if sign else ".1%"
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def interval(value: float | None, low: float | None, high: float | None, *, sign: bool = False) -> str:
    if not _known(value):
        return "not known"
    form = "+.2f" if sign else ".2f"
    spread = _known(low) and _known(high) and low != high  # else all alike, or a single task
    return f"{value:{form}} [{low:{form}}, {high:{form}}]" if spread else f"{value:{form}}"


def _share(value: float | None) -> str:
    return f"{value:.1%}" if _known(value) else "not known"


def _number(value: float | None, form: str) -> str:
    return format(value, form) if value is not None and _known(value) else "not known"


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _rates(rows: Sequence[Row]) -> plots.Panel:
    def panel(axes: Axes) -> None:
        known = [row for row in rows if _known(row["success"])]
        bars = [[row[f"success{end}"] for row in known] for end in ("", "_low", "_high")]
        plots.intervals(axes, [row["environment"] for row in known], *bars)
        axes.set_title("Success, 95 % intervals")
        axes.set_xlim(-0.02, 1.02)
        axes.xaxis.set_major_formatter("{x:.0%}")

    return panel


def _gaps(comparisons: Sequence[Comparison]) -> plots.Panel:
    def panel(axes: Axes) -> None:
        bars = [[each.difference[end] for each in comparisons] for end in range(3)]
        plots.intervals(axes, [each.environment for each in comparisons], *bars)
        axes.axvline(0, color=plots.INK, linestyle="--", linewidth=1.0)
        axes.set_title("Difference in success (B minus A), 95 % intervals")
        axes.xaxis.set_major_formatter("{x:+.0%}")

    return panel


def _write(path: Path, data: Mapping[str, Any], *, markdown: str) -> Path:
    page = path.with_name(path.name + ".md")
    with naming_failure("write", page):
        text = json.dumps(to_json(data), indent=1, ensure_ascii=False)
        path.with_name(path.name + ".json").write_text(text + "\n", encoding="utf-8")
        page.write_text(markdown, encoding="utf-8")
    return page
