"""`ludus evolve`: a model clones its own successes. Heavy imports are inside, so that `ludus --help` is fast."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from ludus.cli.options import DryRun, Overrides, resolve

RunFile = Annotated[Path | None, typer.Argument(metavar="RUN_FILE", help="TOML run file with [evolve] and [sft].")]


def evolve(run_file: RunFile = None, overrides: Overrides = None, dry_run: DryRun = False) -> None:
    """Play, keep the successes, clone them, and repeat (AgentEvol)."""
    from ludus.cli.progress import Progress
    from ludus.launch.evolve import evolve as play_and_clone

    config = resolve(run_file, overrides, command="evolve", dry_run=dry_run)
    result = asyncio.run(play_and_clone(config, listeners=[Progress(config)]))
    rates = ", ".join(f"{rate:.0%}" for rate in result["success"])
    print(f"Success while playing, by round: {rates}. Cloned {result['kept']} trajectories.\nModel: {result['export']}")
