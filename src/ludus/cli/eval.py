"""`ludus eval` and `ludus eval compare`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ludus.cli import options

DEFAULT = "run"
"""The subcommand of `ludus eval ...` if none is named."""
DETAILS = {"reward": ("reward", ".2f"), "turns": ("turns", ".1f"), "unscored": ("num_unscored", "d")}


class _Group(TyperGroup):
    """`ludus eval ARGUMENTS` is `ludus eval run ARGUMENTS`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or args[0] in ("-h", "--help"))
        return super().parse_args(ctx, args if named or not args else [DEFAULT, *args])


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    help="Evaluate a model on held-out tasks. `ludus eval run --help` lists the options; `run` can be left out.",
)


@app.command(DEFAULT)
def run(
    run_file: options.RunFile = None,
    overrides: options.Overrides = None,
    model: Annotated[
        str,
        typer.Option(
            help="Folder, pulled model, hub name, run, checkpoint or OpenAI-compatible URL. Default: the run's."
        ),
    ] = "",
    tokenizer: options.Tokenizer = "",
    environments: options.Environments = "",
    split: Annotated[str, typer.Option(help="Split of the tasks to play. Default: evaluation.split, test.")] = "",
    attempts: Annotated[int | None, typer.Option(help="Attempts per task. Default: evaluation.attempts.")] = None,
    tasks: Annotated[int | None, typer.Option(help="Tasks per environment. Default: evaluation.num_tasks.")] = None,
    name: Annotated[
        str, typer.Option(help="Name of the run; its folder is runs/NAME. Default: eval-MODEL, or the run file's.")
    ] = "",
    dry_run: options.DryRun = False,
) -> None:
    """Play held-out tasks and report success with 95 % intervals.

    Repeat the command to continue an interrupted evaluation."""
    from ludus.errors import ConfigError
    from ludus.evaluation.page import NAME
    from ludus.launch.evaluate import evaluate_model

    given = {"split": split, "attempts": attempts, "num_tasks": tasks}
    keys = [f"evaluation.{key}={value}" for key, value in given.items() if value not in ("", None)]
    keys = [*(overrides or []), *keys]
    if model and not name:
        from ludus.launch.names import slug

        name = f"eval-{slug(model)}"
    config = options.resolve(
        run_file, keys, command="eval", model=model, tokenizer=tokenizer, environments=environments, name=name
    )
    if config.engine.kind == "embedded" and config.model.name == "tiny":
        raise ConfigError("model 'tiny' is untrained and made anew by every run; --model names the model to evaluate")
    if dry_run:
        options.finish_dry_run(config, trains=False)
    report = options.interruptible(evaluate_model, config)
    print_evaluations({"success": report}, details=DETAILS)
    if num_unscored := sum(row["num_unscored"] for row in report["environments"]):
        print(f"{num_unscored} attempts ended unscored; the same command plays them again.")
    print(f"Report: {config.folder / NAME}.md\nTrajectories: ludus trajectories {config.folder}")


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="Evaluation A: its folder, or its name under runs/.")],
    b: Annotated[str, typer.Argument(help="Evaluation B, on the same tasks.")],
) -> None:
    """Compare evaluation B with evaluation A, task by task.

    Reports the paired difference with 95 % intervals, and writes it to A's folder."""
    from ludus.evaluation.compare import compare as compare_trajectories
    from ludus.evaluation.page import comparison_table, write_comparison
    from ludus.store.run_folder import RunFolder

    folders = [RunFolder.open(each) for each in (a, b)]
    comparisons = compare_trajectories(*(_evaluated(folder) for folder in folders))
    page = write_comparison(folders[0].path, comparisons, a=folders[0].path.name, b=folders[1].path.name)
    print(comparison_table(comparisons))
    print(f"\nA is {a}, B is {b}. Report: {page}")


def _evaluated(folder: Any) -> list[Any]:
    """Trajectories of the last evaluation in a run folder."""
    from ludus.errors import ConfigError

    split = folder.config().evaluation.split
    stored = [each for each in folder.read_trajectories() if each.split == split]
    if not stored:
        raise ConfigError(
            f"{folder.path} has no trajectories of split {split!r}; expected an evaluation (`ludus eval`) with "
            "store.trajectories on"
        )
    last = max(each.step for each in stored)
    return [each.trajectory for each in stored if each.step == last]


def print_evaluations(reports: Mapping[str, Any], *, details: Mapping[str, tuple[str, str]]) -> None:
    """Success in each of `reports`, and {heading: (key, format)} of the last, by environment."""
    from rich.console import Console
    from rich.table import Table

    from ludus.reports.report import estimate, success_of

    table = Table("environment", title="Success on held-out tasks (95 % interval)")
    for name in (*reports, *details, "n"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = list(reports.values())[-1]["environments"]
    for index, row in enumerate(rows):
        success = [success_of(report["environments"][index]) for report in reports.values()]
        cells = ["" if row[key] is None else format(row[key], form) for key, form in details.values()]
        table.add_row(row["environment"], *success, *cells, str(row["num_trajectories"]))
    means = [estimate(*report["mean_success"]) for report in reports.values()]
    num = sum(row["num_trajectories"] for row in rows)
    table.add_row("mean", *means, *[""] * len(details), str(num), style="bold")
    Console().print(table)
