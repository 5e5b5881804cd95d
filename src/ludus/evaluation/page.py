"""An evaluation, or a comparison of two, as JSON, Markdown and a plot.

Promise: no rate without its n and interval.

RUN/evaluation.json  RUN/evaluation.md  RUN/plots/evaluation.png"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ludus.evaluation.compare import Comparison, mean_difference
from ludus.evaluation.statistics import to_json
from ludus.reports import plots
from ludus.reports.report import estimate, success_of, table
from ludus.store.lines import naming_failure
from ludus.store.run_folder import RunFolder

Row = Mapping[str, Any]
NAME = "evaluation"


def write_evaluation(folder: RunFolder, report: Mapping[str, Any], *, about: Mapping[str, Any]) -> Path:
    """Writes the three files; returns the path of the Markdown."""
    rows: list[Row] = report["environments"]
    plot = folder.plots / f"{NAME}.png"
    bars = {row["environment"]: [row[key] for key in plots.SUCCESS] for row in rows if row["success"] is not None}
    panel = partial(plots.intervals, rows=bars, title="Success, 95 % intervals")
    plots.draw(plot, [panel], height=1.1 + 0.3 * len(rows))
    whole = {**about, **report}
    return _write(folder.path / NAME, whole, markdown=_page(whole, plot=f"plots/{plot.name}"))


def _page(report: Mapping[str, Any], *, plot: str) -> str:
    rows: list[Row] = report["environments"]
    stops = sorted({stop for row in rows for stop in row["stops"]})
    by_stop = [[row["stops"].get(stop, 0) for stop in stops] for row in rows]
    played = [(row["environment"], *map(str, counts)) for row, counts in zip(rows, by_stop, strict=True)]
    played.append(("all", *(str(sum(counts)) for counts in zip(*by_stop, strict=True))))
    categories = [_result_cells(f"{row['environment']}: {row['category']}", row) for row in report["categories"]]
    causes = [(name, why, str(num)) for name, found in report["failures"].items() for why, num in found.items()]
    where = f" at {report['endpoint']}" if report.get("endpoint") else ""
    parts = [
        f"# Evaluation of {report['model']}",
        f"`{report['model']}`{where}, played in {'tokens' if report['words'] == 'tokens' else 'text'}. Split "
        f"`{report['split']}`, {report['attempts']} attempts at each of at most {report['num_tasks']} tasks per "
        f"environment, temperature {report['temperature']:g}, seed {report['seed']}.",
        evaluation_table(report),
        _NOTE,
        f"![success by environment]({plot})",
        _section("By category", _HEADING, categories),
        _section("Stops", ("environment", *stops), played),
        _section("Causes of unscored sessions", ("environment", "cause", "sessions"), causes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(title: str, heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"## {title}\n\n{table(heading, rows)}" if rows else ""


def evaluation_table(report: Mapping[str, Any]) -> str:
    """One row per environment, and their mean."""
    rows = [_result_cells(row["environment"], row) for row in report["environments"]]
    num = sum(row["num_trajectories"] for row in report["environments"])
    mean = ["mean", estimate(*report["mean_success"]), *[""] * 6, str(num)]
    return table(_HEADING, [*rows, _bold(mean)])


_NOTE = (
    "Success is pass@1; 95 % intervals, clustered by task. Unscored sessions failed in the environment or engine and do "
    "not count."
)
_HEADING = ("environment", "success", "pass@k", "reward", "turns", "tokens", "invalid", "unscored", "n")


def write_comparison(folder: Path, comparisons: Sequence[Comparison], *, a: str, b: str) -> Path:
    """Writes FOLDER/NAME.json, .md and .png; returns the path of the Markdown."""
    path = folder / f"compare-{Path(b).name}"
    bars = {each.environment: each.difference for each in comparisons}
    title = "Difference in success (B minus A), 95 % intervals"
    panel = partial(plots.intervals, rows=bars, title=title, signed=True)
    plots.draw(path.with_name(path.name + ".png"), [panel], height=1.1 + 0.3 * len(bars))
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
            estimate(each.success_a),
            estimate(each.success_b),
            estimate(*each.difference, form="+.1%"),
            estimate(*each.reward_difference, form="+.2f"),
            f"{each.wins}, {each.losses}",
            f"{each.p:.3f}",
            str(each.num_tasks),
            str(each.num_pairs) + (f" ({each.num_unpaired} attempts unpaired)" if each.num_unpaired else ""),
        )
        for each in comparisons
    ]
    tasks, pairs = sum(each.num_tasks for each in comparisons), sum(each.num_pairs for each in comparisons)
    mean = ("mean", "", "", estimate(*mean_difference(comparisons), form="+.1%"), "", "", "", str(tasks), str(pairs))
    return table(heading, [*rows, _bold(mean)])


def _bold(cells: Sequence[str]) -> list[str]:
    return [f"**{cell}**" if cell else "" for cell in cells]


def _result_cells(name: str, row: Row) -> list[str]:
    largest = max(row["pass_at_k"], key=int, default=None)
    passes = ""
    if largest is not None:
        bounds = [row[f"pass_at_k{end}"][largest] for end in ("", "_low", "_high")]
        passes = f"k={largest}: {estimate(*bounds)}"
    return [
        name,
        success_of(row),
        passes,
        estimate(row["reward"], row["reward_low"], row["reward_high"], form=".2f"),
        estimate(row["turns"], form=".1f"),
        estimate(row["tokens"], form=".0f"),
        estimate(row["invalid_rate"]),
        str(row["num_unscored"]),
        f"{row['num_trajectories']} ({row['num_tasks']} tasks)",
    ]


def _write(path: Path, data: Mapping[str, Any], *, markdown: str) -> Path:
    page = path.with_name(path.name + ".md")
    with naming_failure("write", page):
        text = json.dumps(to_json(data), indent=1, ensure_ascii=False)
        path.with_name(path.name + ".json").write_text(text + "\n", encoding="utf-8")
        page.write_text(markdown, encoding="utf-8")
    return page
