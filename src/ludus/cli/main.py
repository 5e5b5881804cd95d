"""The `ludus` command. Promise: `--help` is fast, because it imports no command's module."""

from __future__ import annotations

import os
import sys
import warnings
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from ludus import __version__


class Place(NamedTuple):
    """Where a command is, and its line in `ludus --help`. `app` is a group of commands."""

    module: str
    attribute: str
    help: str


COMMANDS = {
    "quickstart": Place("ludus.cli.train", "quickstart", "Train a tiny agent on three worlds on this CPU, in minutes."),
    "train": Place("ludus.cli.train", "train", "Train a model with reinforcement learning."),
    "sft": Place("ludus.cli.train", "sft", "Clone trajectories or solvers into a model (warm start)."),
    "evolve": Place("ludus.cli.train", "evolve", "Play, clone the successes, and repeat (AgentEvol)."),
    "eval": Place("ludus.cli.eval", "app", "Evaluate models on held-out tasks and compare them."),
    "collect": Place("ludus.cli.collect", "collect", "Store trajectories of solvers or models, for warm starts."),
    "env": Place("ludus.cli.env", "app", "List, write, check and play environments."),
    "serve": Place("ludus.cli.serve", "app", "Serve environments (controller, workers) or a model."),
    "models": Place("ludus.cli.models", "app", "List and pull known models."),
    "trajectories": Place("ludus.cli.trajectories", "trajectories", "Find and read the trajectories of a run."),
    "report": Place("ludus.cli.trajectories", "report", "Write the report of a run: Markdown with plots."),
    "profile": Place("ludus.cli.trajectories", "profile", "Show where the time of a run goes, and its bottleneck."),
    "doctor": Place("ludus.cli.doctor", "doctor", "List what works on this machine and what is missing."),
}

PLAIN = None
"""No markup in help texts: rich would parse [section] as markup, and slows down --help."""


class LazyGroup(TyperGroup):
    """Lists placeholders with their help texts, and imports a command when it is resolved."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # here, because typer would exit silently
            print("ludus: interrupted", file=sys.stderr)
            raise typer.Exit(130) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and command.name in COMMANDS:
            command = load(COMMANDS[command.name], name=command.name)
        return name, command, rest


def load(place: Place, *, name: str) -> Any:
    found = getattr(import_module(place.module), place.attribute)
    if place.attribute == "app":
        found.rich_markup_mode = PLAIN
        return typer.main.get_group(found)
    only = typer.Typer(add_completion=False, rich_markup_mode=PLAIN)
    only.command(name)(found)
    return typer.main.get_command(only)


app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=PLAIN,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _place in COMMANDS.items():
    app.command(_name, help=_place.help)(lambda: None)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"ludus {__version__}")
        raise typer.Exit


@app.callback()
def _ludus(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Train language-model agents with reinforcement learning, in many environments at once.

    `ludus COMMAND --help` describes a command."""


_default_format = warnings.formatwarning


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Our own warnings are for the user, so they come without the line of code."""
    if os.path.dirname(os.path.dirname(__file__)) in filename:
        return f"warning: {message}\n"
    return _default_format(message, category, filename, lineno, line)


def main() -> None:
    """The entry point. A LudusError or an OSError about a file becomes one message on stderr."""
    warnings.formatwarning = _format_warning
    try:
        app()
    except Exception as error:
        from ludus.errors import LudusError  # imports asyncio, which --help does not need

        named = isinstance(error, LudusError)
        if not (named or (isinstance(error, OSError) and error.filename)) or os.environ.get("LUDUS_DEBUG") == "1":
            raise
        move = "" if named else "; check its permissions and the free space (LUDUS_DEBUG=1 shows the traceback)"
        print(f"ludus: {type(error).__name__}: {error}{move}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("ludus: interrupted", file=sys.stderr)
        sys.exit(130)
