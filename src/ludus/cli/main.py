"""The `ludus` command. Promise: help answers at once, because a command's module is imported only when the command is called."""

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
    """Where a command lives, and what `ludus --help` says about it without importing it. A place named `app` is a group of commands."""

    module: str
    attribute: str
    help: str


COMMANDS = {
    "quickstart": Place("ludus.cli.train", "quickstart", "A tiny agent learns three worlds on this CPU, in minutes."),
    "train": Place("ludus.cli.train", "train", "Train a model with reinforcement learning, from a run file."),
    "sft": Place("ludus.cli.train", "sft", "Clone trajectories or solvers into a model: a warm start."),
    "evolve": Place("ludus.cli.evolve", "evolve", "Play, clone one's own successes, and again (AgentEvol)."),
    "eval": Place("ludus.cli.eval", "app", "Success on held-out tasks; compares two models."),
    "collect": Place("ludus.cli.collect", "collect", "Store what solvers or an outside model do, for warm starts."),
    "env": Place("ludus.cli.env", "app", "List, write, check and play environments."),
    "serve": Place("ludus.cli.serve", "app", "Serve environments (controller, workers) or a model."),
    "models": Place("ludus.cli.models", "app", "List and pull known models."),
    "trajectories": Place(
        "ludus.cli.trajectories", "trajectories", "Find a run's trajectories, and read one as a conversation."
    ),
    "report": Place("ludus.cli.trajectories", "report", "Write a run's report: Markdown with plots."),
    "profile": Place("ludus.cli.profile", "profile", "Where a run's time goes, and what holds it up, in words."),
    "doctor": Place("ludus.cli.doctor", "doctor", "What works on this machine, and what is missing."),
}

PLAIN = None
"""Of all help texts: rich would swallow the [section] of a run file as markup, and importing it takes as long as all the rest of --help."""


class LazyGroup(TyperGroup):
    """Lists stand-ins with their help texts; imports the real command when it is resolved."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # here, because typer would make a silent exit of it
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
    """Ludus trains language-model agents with reinforcement learning: multi-turn, many environments at once, asynchronously."""


_told_by_python = warnings.formatwarning


def _told(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """A warning of ours is for the user, who need not know which line of ours it came from."""
    if os.path.dirname(os.path.dirname(__file__)) in filename:
        return f"warning: {message}\n"
    return _told_by_python(message, category, filename, lineno, line)


def main() -> None:
    """The entry point: a failure we named, or a file that cannot be used, is one message on stderr. LUDUS_DEBUG=1 shows the traceback."""
    warnings.formatwarning = _told
    try:
        app()
    except Exception as error:
        from ludus.errors import LudusError  # it imports asyncio, which help does not need

        named = isinstance(error, LudusError)
        if not (named or (isinstance(error, OSError) and error.filename)) or os.environ.get("LUDUS_DEBUG") == "1":
            raise
        move = "" if named else "; mend its permissions, or free space there (LUDUS_DEBUG=1 shows where it was wanted)"
        print(f"ludus: {type(error).__name__}: {error}{move}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("ludus: interrupted", file=sys.stderr)
        sys.exit(130)
