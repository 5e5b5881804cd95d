"""`ludus eval` and `ludus eval compare`. Imports what is heavy inside, so that `ludus --help` stays quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from ludus.config import RunConfig

DEFAULT = "run"
"""The command that `ludus eval ...` means where no other is named."""

RunFile = Annotated[Path | None, typer.Argument(help="A TOML run file; optional.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Overrides such as rollout.max_tokens=4096.", show_default=False)
]
Model = Annotated[
    str,
    typer.Option(
        help="A folder, a pulled model, a hub name, a run, a checkpoint's folder, or the URL of an OpenAI-compatible endpoint."
    ),
]
Tokenizer = Annotated[
    str, typer.Option(help="With a URL that returns token ids: the model's folder or name, for its tokenizer.")
]
Environments = Annotated[str, typer.Option(help="Names, module:Class or file.py, with commas between; or all.")]
Name = Annotated[str, typer.Option(help="The run's name; its folder is runs/NAME.")]


class _Group(TyperGroup):
    """`ludus eval ARGUMENTS` is `ludus eval run ARGUMENTS`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in self.commands or args[0] in ("-h", "--help"))
        return super().parse_args(ctx, args if named or not args else [DEFAULT, *args])


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    help="Success on held-out tasks, with counts and 95 % intervals. `ludus eval run --help` lists the options, and `run` may be left out.",
)


@app.command(DEFAULT)
def run(
    run_file: RunFile = None,
    overrides: Overrides = None,
    model: Model = "",
    tokenizer: Tokenizer = "",
    environments: Environments = "",
    split: Annotated[str, typer.Option(help="Which tasks; evaluation.split, which is test by default.")] = "",
    attempts: Annotated[int | None, typer.Option(help="Per task; evaluation.attempts.")] = None,
    tasks: Annotated[int | None, typer.Option(help="Per environment; evaluation.num_tasks.")] = None,
    name: Name = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved run and stop.")] = False,
) -> None:
    """Play held-out tasks and report success with intervals. The same command goes on where it stopped."""
    from ludus.cli.progress import Progress
    from ludus.cli.train import finish_dry_run, interruptible
    from ludus.errors import ConfigError
    from ludus.evaluation.page import NAME
    from ludus.launch.evaluate import evaluate_model

    given = {"split": split, "attempts": attempts, "num_tasks": tasks}
    keys = [f"evaluation.{key}={value}" for key, value in given.items() if value not in ("", None)]
    if model and not name:
        from ludus.launch.names import slug

        name = f"eval-{slug(model)}"
    config = resolve(
        run_file,
        [*(overrides or []), *keys],
        command="eval",
        model=model,
        tokenizer=tokenizer,
        environments=environments,
        name=name,
    )
    if config.engine.kind == "embedded" and config.model.name == "tiny":
        raise ConfigError("model 'tiny' is untrained and made anew by every run; --model names what is to be evaluated")
    if dry_run:
        finish_dry_run(config, trains=False)
    report = interruptible(evaluate_model(config, listeners=[Progress(config)]))
    print_report(report)
    print(f"Report: {config.folder / NAME}.md\nTrajectories: ludus trajectories {config.folder}")


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="An evaluation: its folder, or its name under runs/.")],
    b: Annotated[str, typer.Argument(help="Another one, on the same tasks.")],
) -> None:
    """What B gains over A, pair by pair. On the same tasks and attempts, with intervals; saved in A's folder."""
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
            f"{folder.path} holds no trajectories of split {split!r}; expected an evaluation (`ludus eval`) with store.trajectories on"
        )
    last = max(each.step for each in stored)
    return [each.trajectory for each in stored if each.step == last]


def resolve(
    run_file: Path | None,
    overrides: list[str],
    *,
    command: str,
    model: str,
    tokenizer: str,
    environments: str,
    name: str,
) -> RunConfig:
    """The run that the options ask for, on top of the run file, if any. What a person wrote as an override comes last."""
    from ludus.cli.unread import refuse_unread
    from ludus.config import load_config
    from ludus.launch.names import model_keys, named_environments

    if run_file is not None and "=" in str(run_file):  # overrides alone
        overrides, run_file = [str(run_file), *overrides], None
    keys = [f"name={name}"] if name else []
    keys += model_keys(model, tokenizer=tokenizer) if model else []
    chosen = named_environments(environments, tell=lambda line: print(line, file=sys.stderr)) if environments else {}
    without = ("model", "engine") if model else ()
    config = load_config(run_file, [*keys, *overrides], without=without, environments=chosen)
    refuse_unread(overrides, command=command)
    return config.only(chosen) if chosen else config


def print_report(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from ludus.evaluation.page import rate

    table = Table(title="Success on held-out tasks (95 % interval)")
    table.add_column("environment")
    for column in ("success", "reward", "turns", "unscored", "n"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in report["environments"]:
        success = rate(row["success"], row["success_low"], row["success_high"])
        means = [
            "" if row[key] is None else format(row[key], form) for key, form in (("reward", ".2f"), ("turns", ".1f"))
        ]
        table.add_row(row["environment"], success, *means, str(row["num_unscored"]), str(row["num_trajectories"]))
    num = sum(row["num_trajectories"] for row in report["environments"])
    table.add_row("mean", rate(*report["mean_success"]), "", "", "", str(num), style="bold")
    Console().print(table)
    if num_unscored := sum(row["num_unscored"] for row in report["environments"]):
        print(f"{num_unscored} attempts ended unscored; the same command plays them again.")
