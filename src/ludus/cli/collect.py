"""`ludus collect`: data for warm starts. Imports what is heavy inside, so that `ludus --help` stays quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunFile = Annotated[Path | None, typer.Argument(help="A TOML run file; optional.", show_default=False)]
Overrides = Annotated[list[str] | None, typer.Argument(help="Overrides such as seed=7.", show_default=False)]


def collect(
    run_file: RunFile = None,
    overrides: Overrides = None,
    environments: Annotated[
        str, typer.Option(help="Names, module:Class or file.py, with commas between; or all.")
    ] = "",
    model: Annotated[
        str, typer.Option(help="Who plays, as for `ludus eval`; empty: the environments' own solvers.")
    ] = "",
    tokenizer: Annotated[
        str, typer.Option(help="With a URL that returns token ids: the model's folder or name, for its tokenizer.")
    ] = "",
    num: Annotated[int | None, typer.Option(help="Trajectories in all; sft.num_trajectories.")] = None,
    mistakes: Annotated[
        float | None, typer.Option(help="Chance that a solver plays a random valid action; sft.mistakes.")
    ] = None,
    split: Annotated[str, typer.Option(help="Which tasks.")] = "train",
    name: Annotated[str, typer.Option(help="The run's name; its folder is runs/NAME.")] = "",
    dataset: Annotated[
        bool, typer.Option("--dataset", help="Also write RUN/dataset, which Hugging Face's datasets loads.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved run and stop.")] = False,
) -> None:
    """Store what solvers, or a model, do. `ludus sft ... sft.trajectories=RUN` clones it."""
    from ludus.cli.eval import resolve
    from ludus.cli.progress import Progress
    from ludus.cli.train import finish_dry_run, interruptible
    from ludus.errors import ConfigError
    from ludus.launch.collect import collect as play

    if model and mistakes is not None:
        raise ConfigError(f"--mistakes {mistakes} is a solver's; {model!r} makes its own. Leave one of the two out.")
    if tokenizer and not model:
        raise ConfigError("--tokenizer goes with --model URL; solvers need none")
    given = {"sft.num_trajectories": num, "sft.mistakes": mistakes}
    keys = [f"{key}={value}" for key, value in given.items() if value is not None]
    config = resolve(
        run_file,
        [*(overrides or []), *keys],
        command="collect",
        model=model,
        tokenizer=tokenizer,
        environments=environments,
        name=name or ("" if run_file is not None and "=" not in str(run_file) else "collect"),
    )
    if dry_run:
        finish_dry_run(config, trains=False)
    result = interruptible(play(config, solver=not model, split=split, listeners=[Progress(config)]))
    if not result["trajectories"]:
        raise ConfigError(f"all {result['unscored']} sessions ended unscored; the latest cause: {result['failure']}")
    print(
        f"Collected {result['trajectories']} trajectories of {result['player']} in {result['words']}, "
        f"success {result['success']:.0%}, {result['unscored']} unscored."
    )
    if dataset:
        print(f"Dataset: {_write_dataset(config.folder)}")
    print(f"Clone them:  ludus sft ... sft.trajectories={config.folder}")


def _write_dataset(run: Path) -> Path:
    from ludus.store.dataset import write_dataset
    from ludus.store.run_folder import RunFolder

    return write_dataset(run / "dataset", RunFolder.open(run).read_trajectories())
