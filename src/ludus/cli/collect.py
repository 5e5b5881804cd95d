"""`ludus collect`: data for warm starts."""

from __future__ import annotations

from typing import Annotated

import typer

from ludus.cli import options


def collect(
    run_file: options.RunFile = None,
    overrides: options.Overrides = None,
    environments: options.Environments = "",
    model: Annotated[str, typer.Option(help="Model that plays, as for `ludus eval`. Default: the solvers.")] = "",
    tokenizer: options.Tokenizer = "",
    num: Annotated[int | None, typer.Option(help="Number of trajectories. Default: sft.num_trajectories.")] = None,
    mistakes: Annotated[
        float | None,
        typer.Option(help="Probability from 0 to 1 that a solver plays a random valid action. Default: sft.mistakes."),
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the tasks to play.")] = "train",
    name: Annotated[
        str, typer.Option(help="Name of the run; its folder is runs/NAME. Default: the run file's, or collect.")
    ] = "",
    dataset: Annotated[
        bool, typer.Option("--dataset", help="Also write RUN/dataset, for Hugging Face `datasets`.")
    ] = False,
    dry_run: options.DryRun = False,
) -> None:
    """Store trajectories of solvers or of a model, for warm starts.

    `ludus sft ... sft.trajectories=RUN` clones them. Repeat the command to continue an interrupted
    collection."""
    from ludus.errors import ConfigError
    from ludus.launch.collect import collect as play

    if model and mistakes is not None:
        raise ConfigError(f"--mistakes {mistakes} is for solvers, and --model {model!r} plays instead. Leave one out")
    if tokenizer and not model:
        raise ConfigError("--tokenizer goes with --model URL; solvers need none")
    given = {"sft.num_trajectories": num, "sft.mistakes": mistakes}
    keys = [*(overrides or []), *(f"{key}={value}" for key, value in given.items() if value is not None)]
    named = {"model": model, "tokenizer": tokenizer, "environments": environments}
    if not name and (run_file is None or "=" in str(run_file)):
        name = "collect"
    config = options.resolve(run_file, keys, command="collect", name=name, dry_run=dry_run, **named)
    result = options.interruptible(play, config, solver=not model, split=split)
    if not result["trajectories"]:
        raise ConfigError(f"all {result['unscored']} sessions ended unscored; the latest cause: {result['failure']}")
    print(
        f"Collected {result['trajectories']} trajectories of {result['player']} in {result['words']}, "
        f"success {result['success']:.0%}, {result['unscored']} unscored."
    )
    if dataset:
        from ludus.store.dataset import write_dataset
        from ludus.store.run_folder import RunFolder

        trajectories = RunFolder.open(config.folder).read_trajectories()
        print(f"Dataset: {write_dataset(config.folder / 'dataset', trajectories)}")
    print(f"Clone them:  ludus sft ... sft.trajectories={config.folder}")
