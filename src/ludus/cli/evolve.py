"""`ludus evolve`: a model learns from its own successes. Imports what is heavy inside, so that `ludus --help` stays quick."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

RunFile = Annotated[Path | None, typer.Argument(help="A TOML run file with [evolve] and [sft].", show_default=False)]
Overrides = Annotated[list[str] | None, typer.Argument(help="Overrides such as evolve.rounds=3.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved run and stop.")]


def evolve(run_file: RunFile = None, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Play, keep what succeeded, clone it, and again: AgentEvol's loop."""
    from ludus.cli.progress import Progress
    from ludus.cli.train import resolve
    from ludus.launch.evolve import evolve as play_and_clone

    config = resolve(run_file, overrides, command="evolve", dry_run=dry_run)
    result = asyncio.run(play_and_clone(config, listeners=[Progress(config)]))
    rates = ", ".join(f"{rate:.0%}" for rate in result["success"])
    print(f"Success while playing, by round: {rates}. Cloned {result['kept']} trajectories.\nModel: {result['export']}")
