"""`ludus train`, `sft` and `quickstart`. Imports what is heavy inside, so that `ludus --help` stays quick."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ludus.config import RunConfig
    from ludus.pipeline.loop import Loop

RunFile = Annotated[
    Path | None, typer.Argument(help="A TOML run file, e.g. configs/quickstart.toml.", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Overrides such as trainer.lr=1e-4 model.name=smollm2-135m.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved run and stop.")]


def train(
    run_file: RunFile = None,
    overrides: Overrides = None,
    model: Annotated[
        str, typer.Option(help="A folder, a pulled model, a hub name, a run or a checkpoint's folder; or tiny.")
    ] = "",
    environments: Annotated[
        str, typer.Option(help="Names, module:Class or file.py, with commas between, beside those of the run file.")
    ] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint of this run.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Train a model with reinforcement learning, from a run file, or with `--model M --environments A,B` from none.

    Device, dtype, batch sizes and the engine's memory are chosen by what is here; --dry-run prints them.
    """
    config = resolve(run_file, overrides, command="train", model=model, environments=environments, dry_run=dry_run)
    result = _train(config, resume=resume)
    if not result["finished"]:
        words = ["ludus", "train", *([str(run_file)] if run_file else []), *(overrides or [])]
        words += [word for flag in (("--model", model), ("--environments", environments)) if flag[1] for word in flag]
        again = shlex.join([*words, "--resume"])
        print(f"Stopped at step {result['version']}; nothing is lost. Go on with:  {again}")
        sys.exit(130)
    _print_evaluations(result)
    print(f"Model: {result['export']}\nReport: {result['report']}\nTrajectories: ludus trajectories {config.folder}")


def sft(run_file: RunFile = None, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Clone trajectories, or the environments' own solvers, into a model: a warm start."""
    config = resolve(run_file, overrides, command="sft", dry_run=dry_run)
    result = _sft(config)
    print(f"Cloned {result['trajectories']} trajectories (success {result['success']:.0%}), loss {result['loss']:.3f}.")
    print(f"Model: {result['export']}\nTrain it:  ludus train ... model.name={result['export']}")


def quickstart(
    run_file: Annotated[Path, typer.Argument(help="A run file with an [sft] section.")] = Path(
        "configs/quickstart.toml"
    ),
    overrides: Overrides = None,
) -> None:
    """A tiny agent learns three worlds on this machine's CPU: cloned from a mediocre player, then trained."""
    began = time.monotonic()
    config = _fresh_name(resolve(run_file, overrides, command="quickstart", dry_run=False))
    print("Warm start: cloning a player who knows the rules and plays badly.")
    warm = _sft(config.model_copy(update={"name": f"{config.name}-sft"}))
    model = config.model.model_copy(update={"name": warm["export"]})
    print(
        f"Cloned {warm['trajectories']} trajectories, of which {warm['success']:.0%} succeeded. Now reinforcement learning."
    )
    result = _train(config.model_copy(update={"model": model}), resume=False)
    if not result["finished"]:
        print(f"Stopped at step {result['version']}. Go on with:  ludus train {config.folder}/config.toml --resume")
        sys.exit(130)
    _print_evaluations(result)
    print(f"Report: {result['report']}\nRead some trajectories:  ludus trajectories {config.folder}")
    line = {"before": result["before"]["mean_success"][0], "after": result["after"]["mean_success"][0]}
    print(json.dumps({**{k: round(v, 4) for k, v in line.items()}, "train_s": round(time.monotonic() - began, 1)}))


def resolve(
    run_file: Path | None,
    overrides: list[str] | None,
    *,
    command: str,
    model: str = "",
    environments: str = "",
    dry_run: bool,
) -> RunConfig:
    """The run that a command was asked for. After a dry run's print it does not return."""
    from ludus.cli.unread import refuse_unread
    from ludus.config import load_config

    given = list(overrides or [])
    if run_file is not None and "=" in str(run_file):  # overrides alone: everything else keeps its default
        given, run_file = [str(run_file), *given], None
    chosen: dict[str, str] = {}
    if model or environments:
        from ludus.launch.names import model_keys, named_environments

        given = [*([f"model.name={model}"] if model == "tiny" else model_keys(model) if model else []), *given]
        chosen = named_environments(environments) if environments else {}
    config = load_config(run_file, given, environments=chosen)
    refuse_unread(given, command=command)
    if dry_run:
        finish_dry_run(config)
    return config


def finish_dry_run(config: RunConfig, *, trains: bool = True) -> None:
    from ludus.config import HERE, WORKERS, dump_config
    from ludus.launch.environments import make_environments

    make_environments(config, at=(HERE, WORKERS))  # names and options are checked too, where their code is ours
    print(dump_config(config), end="")
    if config.engine.kind == "embedded":
        from ludus.launch.devices import chosen
        from ludus.models.loading.load import locate

        print(
            "\n".join(["", "# On this machine:", *(f"#   {line}" for line in chosen(config, trains=trains))]),
            flush=True,
        )
        if config.model.name != "tiny":
            locate(config.model.name)  # a folder that is not here would end the run too
    raise typer.Exit


def _fresh_name(config: RunConfig) -> RunConfig:
    """The quickstart can be run again and again: quickstart, quickstart-2, ..."""
    for number in range(1, 10_000):
        name = config.name if number == 1 else f"{config.name}-{number}"
        renamed = config.model_copy(update={"name": name})
        if not renamed.folder.exists() and not renamed.folder.with_name(f"{name}-sft").exists():
            return renamed
    raise AssertionError("ten thousand quickstarts")


def _listeners(config: RunConfig) -> list[Any]:
    from ludus.cli.progress import Progress

    return [Progress(config)]


def _sft(config: RunConfig) -> dict[str, Any]:
    from ludus.launch.clone import sft as clone

    return interruptible(clone(config, listeners=_listeners(config)))


def _train(config: RunConfig, *, resume: bool) -> dict[str, Any]:
    # outside the loop, where a Ctrl-C would wait for it to be imported
    from ludus.launch.train import train as train_run

    return interruptible(train_run(config, resume=resume, listeners=_listeners(config), on_loop=_stop_on_ctrl_c))


def _stop_on_ctrl_c(loop: Loop) -> None:
    """The first Ctrl-C (or SIGTERM) finishes the step and saves; the second one interrupts."""
    running = asyncio.get_running_loop()
    task = asyncio.current_task()

    def stop() -> None:
        if loop.stopped and task is not None:
            print("\nStopping at once.", file=sys.stderr)
            task.cancel()
            return
        print("\nStopping after this step; press Ctrl-C again to stop at once.", file=sys.stderr)
        loop.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(number, stop)


def interruptible(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    try:
        return asyncio.run(work)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _print_evaluations(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    reports = {name: result[name] for name in ("before", "after") if result.get(name)}
    if not reports:
        return
    table = Table(title="Success on held-out tasks (95 % interval)")
    table.add_column("environment")
    for name in reports:
        table.add_column(name if len(reports) > 1 else "success", justify="right")
    table.add_column("n", justify="right")
    last = next(reversed(reports.values()))
    for row, environment in enumerate(last["environments"]):
        cells = [_rate(r["environments"][row], "success") for r in reports.values()]
        table.add_row(environment["environment"], *cells, str(environment["num_trajectories"]))
    mean = [_interval(*r["mean_success"]) for r in reports.values()]
    table.add_row("mean", *mean, str(sum(e["num_trajectories"] for e in last["environments"])), style="bold")
    Console().print(table)


def _rate(row: dict[str, Any], name: str) -> str:
    return _interval(row[name], row[f"{name}_low"], row[f"{name}_high"])


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    return "unknown" if value is None or low is None or high is None else f"{value:.1%} [{low:.1%}, {high:.1%}]"
