"""Arguments that several commands share, and the run that they describe."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ludus.config import RunConfig

Result = dict[str, Any]
RunFile = Annotated[Path | None, typer.Argument(metavar="RUN_FILE", help="TOML run file; optional.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Keys to override, for example rollout.max_tokens=4096.")
]
Environments = Annotated[
    str, typer.Option(help="Comma-separated names, module:Class or file.py, or `all`. Default: those of the run file.")
]
Tokenizer = Annotated[
    str, typer.Option(help="Folder or name of the tokenizer of a --model URL that returns token ids. Default: text.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the resolved run and exit.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run, or its name under runs/.")]


def resolve(
    run_file: Path | None,
    overrides: list[str] | None,
    *,
    command: str,
    model: str = "",
    tokenizer: str = "",
    environments: str = "",
    name: str = "",
    dry_run: bool = False,
) -> RunConfig:
    """The run of a command: run file, then options, then overrides. A dry run exits here."""
    from ludus.cli.unread import refuse_unread
    from ludus.config import load_config

    given = list(overrides or [])
    if run_file is not None and "=" in str(run_file):  # overrides without a run file
        given, run_file = [str(run_file), *given], None
    plays = command in ("eval", "collect")
    keys, chosen = [f"name={name}"] if name else [], {}
    if model or environments:
        from ludus.launch.names import model_keys, named_environments

        if model:
            keys += ["model.name=tiny"] if model == "tiny" and not plays else model_keys(model, tokenizer=tokenizer)
        if environments:
            chosen = named_environments(environments, tell=lambda line: print(line, file=sys.stderr))
    without = ("model", "engine") if model and plays else ()
    config = load_config(run_file, [*keys, *given], without=without, environments=chosen)
    refuse_unread(given, command=command)
    config = config.only(chosen) if chosen and plays else config
    if dry_run:
        finish_dry_run(config, trains=not plays)
    return config


def finish_dry_run(config: RunConfig, *, trains: bool) -> None:
    """Checks and prints the resolved run, then exits."""
    from ludus.config import HERE, WORKERS, dump_config
    from ludus.launch.environments import make_environments

    make_environments(config, at=(HERE, WORKERS))  # checks names and options
    print(dump_config(config), end="")
    if config.engine.kind == "embedded":
        from ludus.launch.devices import chosen
        from ludus.models.loading.load import locate

        lines = ["", "# On this machine:", *(f"#   {line}" for line in chosen(config, trains=trains))]
        print("\n".join(lines), flush=True)
        if config.model.name != "tiny":
            locate(config.model.name)  # a missing folder would end the run too
    raise typer.Exit


def interruptible(work: Callable[..., Coroutine[Any, Any, Result]], config: RunConfig, **options: Any) -> Result:
    """Runs work(config, **options) with a display; a cancellation becomes a KeyboardInterrupt."""
    from ludus.cli.progress import Progress

    try:
        return asyncio.run(work(config, listeners=[Progress(config)], **options))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
