"""`ludus train`, `sft`, `evolve` and `quickstart`."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ludus.cli.options import DryRun, Overrides, RunFile, interruptible, resolve

if TYPE_CHECKING:
    from ludus.config import RunConfig
    from ludus.pipeline.loop import Loop

EvolveFile = Annotated[Path | None, typer.Argument(metavar="RUN_FILE", help="TOML run file with [evolve] and [sft].")]


def train(
    run_file: RunFile = None,
    overrides: Overrides = None,
    model: Annotated[
        str, typer.Option(help="Folder, pulled model, hub name, run, checkpoint folder, or tiny. Default: model.name.")
    ] = "",
    environments: Annotated[
        str, typer.Option(help="Comma-separated names, module:Class or file.py, added to those of the run file.")
    ] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Resume this run from its newest checkpoint.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Train a model with reinforcement learning.

    Takes a run file, or `--model M --environments A,B` alone. Device, dtype, batch sizes and the
    engine's memory are chosen for this machine; --dry-run prints them. Ctrl-C finishes the step and
    saves a checkpoint."""
    config = resolve(run_file, overrides, command="train", model=model, environments=environments, dry_run=dry_run)
    result = _train(config, resume=resume)
    if not result["finished"]:
        flags = {"--model": model, "--environments": environments}
        again = ["ludus", "train", *([str(run_file)] if run_file else []), *(overrides or [])]
        again += [part for flag, value in flags.items() if value for part in (flag, value)]
        print(f"Stopped at step {result['version']} with a checkpoint. Resume:  {shlex.join([*again, '--resume'])}")
        sys.exit(130)
    _print_evaluations(result)
    print(f"Model: {result['export']}\nReport: {result['report']}\nTrajectories: ludus trajectories {config.folder}")


def sft(run_file: RunFile = None, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Clone trajectories, or the environments' solvers, into a model (warm start)."""
    config = resolve(run_file, overrides, command="sft", dry_run=dry_run)
    result = _sft(config)
    print(f"Cloned {result['trajectories']} trajectories (success {result['success']:.0%}), loss {result['loss']:.3f}.")
    print(f"Model: {result['export']}\nTrain it:  ludus train ... model.name={result['export']}")


def evolve(run_file: EvolveFile = None, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Play, keep the successes, clone them, and repeat (AgentEvol)."""
    from ludus.launch.evolve import evolve as play_and_clone

    config = resolve(run_file, overrides, command="evolve", dry_run=dry_run)
    result = interruptible(play_and_clone, config)
    rates = ", ".join(f"{rate:.0%}" for rate in result["success"])
    print(f"Success while playing, by round: {rates}. Cloned {result['kept']} trajectories.\nModel: {result['export']}")


def quickstart(
    run_file: Annotated[Path, typer.Argument(metavar="RUN_FILE", help="TOML run file with an [sft] section.")] = Path(
        "configs/quickstart.toml"
    ),
    overrides: Overrides = None,
) -> None:
    """Train a tiny agent on three worlds on this CPU, in minutes.

    Clones a scripted policy that makes random mistakes, then trains the clone."""
    began = time.monotonic()
    config = _fresh_name(resolve(run_file, overrides, command="quickstart"))
    print("Warm start: cloning a scripted policy that makes random mistakes.")
    warm = _sft(config.model_copy(update={"name": f"{config.name}-sft"}))
    model = config.model.model_copy(update={"name": warm["export"]})
    print(
        f"Cloned {warm['trajectories']} trajectories; {warm['success']:.0%} succeeded. Starting reinforcement learning."
    )
    result = _train(config.model_copy(update={"model": model}), resume=False)
    if not result["finished"]:
        print(f"Stopped at step {result['version']}. Resume:  ludus train {config.folder}/config.toml --resume")
        sys.exit(130)
    _print_evaluations(result)
    print(f"Report: {result['report']}\nRead some trajectories:  ludus trajectories {config.folder}")
    line = {name: round(result[name]["mean_success"][0], 4) for name in ("before", "after")}
    print(json.dumps({**line, "train_s": round(time.monotonic() - began, 1)}))


def _fresh_name(config: RunConfig) -> RunConfig:
    """The first free name of quickstart, quickstart-2, ..., so that the command can be repeated."""
    number, renamed = 1, config
    while renamed.folder.exists() or renamed.folder.with_name(f"{renamed.name}-sft").exists():
        number += 1
        renamed = config.model_copy(update={"name": f"{config.name}-{number}"})
    return renamed


def _sft(config: RunConfig) -> dict[str, Any]:
    from ludus.launch.clone import sft as clone

    return interruptible(clone, config)


def _train(config: RunConfig, *, resume: bool) -> dict[str, Any]:
    from ludus.launch.train import train as train_run  # not in the event loop: Ctrl-C would wait

    return interruptible(train_run, config, resume=resume, on_loop=_stop_on_ctrl_c)


def _stop_on_ctrl_c(loop: Loop) -> None:
    """The first SIGINT or SIGTERM finishes the step and saves; the second one cancels."""
    running, task = asyncio.get_running_loop(), asyncio.current_task()

    def stop() -> None:
        if loop.stopped and task is not None:
            print("\nStopping at once.", file=sys.stderr)
            task.cancel()
            return
        print("\nStopping after this step; press Ctrl-C again to stop at once.", file=sys.stderr)
        loop.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(number, stop)


def _print_evaluations(result: dict[str, Any]) -> None:
    from ludus.cli.eval import print_evaluations

    reports = {name: result[name] for name in ("before", "after") if result.get(name)}
    if reports:
        names = reports if len(reports) > 1 else ("success",)
        print_evaluations(dict(zip(names, reports.values(), strict=True)), details={})
