"""`ludus env`: list, new, check and play environments."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from ludus.controller.client.local import LocalClient
    from ludus.environments import Environment
    from ludus.types import Action, Observation, Tool

app = typer.Typer(help="List, write, check and play environments.", no_args_is_help=True)

NameOrSource = Annotated[str, typer.Argument(help="Registered name, file.py, file.py:Class or module:Class.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--options", "-o", help="Option of the environment as key=value, e.g. size=8. May be repeated."),
]

_ENVIRONMENT = '''"""An environment for Ludus: `ludus env check {name}.py`, `ludus env play {name}.py`."""

from ludus.environments import Reply, ToolCall, tool


class {cls}:
    """Add the two numbers."""

    max_turns = 3

    def tasks(self, split):
        return [{{"a": a, "b": b}} for a in range(10) for b in range(10) if ((a + b) % 5 == 0) == (split == "test")]

    def setup(self, task, rng):
        self.sum = task["a"] + task["b"]
        return f"{{task['a']}} and {{task['b']}}"

    @tool
    def answer(self, value: int):
        """Give the sum."""
        return Reply("right", reward=1, done=True) if value == self.sum else "wrong, try again"

    def solve(self):
        return ToolCall("answer", {{"value": self.sum}})
'''
_TEST = """from pathlib import Path

from ludus.checks import check
from ludus.environments import make


def test_{name}_is_sound():
    report = check(make("{name}", source=str(Path(__file__).with_name("{name}.py"))))
    assert report.ok, str(report)
"""


@app.command("list")
def list_environments() -> None:
    """List the built-in environments and those of installed packages."""
    from ludus.environments import make, names
    from ludus.environments.needs import needs_of
    from ludus.errors import LudusError

    for name in names():
        try:
            environment = make(name)
            first_line = (environment.description.splitlines() or [""])[0]
            knobs = ", ".join(f"{option}={_short(value)}" for option, value in environment.options.items())
            notes = [f"({knobs})"] * bool(knobs)
            notes += ["[isolation: process]"] * (needs_of(environment).isolation == "process")
            asks = ", ".join(getattr(environment, "capabilities", ()))
            notes += [f"[asks: {asks}]"] * bool(asks)
            typer.echo("  ".join([f"{name:16} {first_line}", *notes]))
        except LudusError as error:
            typer.echo(f"{name:16} broken: {error}")


@app.command()
def new(name: str, folder: Annotated[Path, typer.Option(help="Folder to write to.")] = Path()) -> None:
    """Write NAME.py, a working environment as a starting point, and test_NAME.py."""
    from keyword import iskeyword

    if not name.isidentifier() or name != name.lower() or iskeyword(name):
        _fail(f"name is {name!r}; expected a lower-case Python name such as my_game")
    cls = "".join(part.capitalize() for part in name.split("_"))
    texts = {folder / f"{name}.py": _ENVIRONMENT, folder / f"test_{name}.py": _TEST}
    if taken := [path for path in texts if path.exists()]:
        _fail(f"{taken[0]} exists; choose another name, or remove the file first")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(name=name, cls=cls))
        typer.echo(f"wrote {path}")
    typer.echo(f"next: ludus env check {folder / name}.py")


@app.command("check")
def check_environment(
    name: NameOrSource,
    options: Options = None,
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks to play per split.")] = 20,
) -> None:
    """Play an environment without a model and report its faults. Exits with 1 on errors."""
    from ludus.checks import check
    from ludus.sandboxes.provider import Sandboxes

    with closing(Sandboxes()) as sandboxes:
        report = check(_make(name, options), num_tasks=tasks, sandboxes=sandboxes)
    typer.echo(str(report))
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def play(
    name: NameOrSource,
    options: Options = None,
    player: Annotated[str, typer.Option(help="Who plays: person, random or solver.")] = "person",
    split: Annotated[str, typer.Option(help="Split of the task: train, dev or test.")] = "train",
    task: Annotated[int, typer.Option(help="Index of the task in the split.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the session's noise.")] = 0,
) -> None:
    """Play a session yourself, or watch a random player or the solver."""
    import asyncio

    from ludus.controller.client.local import LocalClient
    from ludus.errors import LudusError

    if player not in ("person", "random", "solver"):
        _fail(f"--player is {player!r}; expected person, random or solver")
    environment = _make(name, options)
    try:
        asyncio.run(_play(LocalClient([environment]), environment, player=player, split=split, index=task, seed=seed))
    except LudusError as error:
        _fail(str(error))
    except (EOFError, KeyboardInterrupt):
        typer.echo("\nstopped")


async def _play(
    client: LocalClient, environment: Environment, *, player: str, split: str, index: int, seed: int
) -> None:
    import random

    from ludus.checks.audit import written

    tasks = await client.tasks(environment.name, split)
    if not tasks:
        _fail(f"--split is {split!r}, in which {environment.name!r} has no tasks; try train or test")
    if not 0 <= index < len(tasks):
        _fail(f"--task is {index}; split {split!r} of {environment.name!r} has tasks 0 to {len(tasks) - 1}")
    session, rng, reward, turn = await client.open(tasks[index], seed=seed), random.Random(seed), 0.0, 0
    typer.echo(tasks[index].id)
    observation = await session.start()
    tools = observation.tools or ()
    _show(observation)
    while not observation.done and turn < (environment.max_turns or turn + 1):
        turn += 1
        if player == "person":
            action = _ask(tools)
        else:
            action = await session.solve(mistakes=float(player == "random"), rng=rng)
            typer.secho(f"> {written(action)}", fg="cyan")
        observation = await session.act(action)
        reward += observation.reward
        _show(observation)
    await client.close()
    typer.echo(f"{'done' if observation.done else 'out of turns'} after {turn} turns, reward {reward:g}")


def _ask(tools: tuple[Tool, ...]) -> Action:
    """A line from the person: text or, with tools, `name argument=value ...` in JSON."""
    from ludus.types import Action, ToolCall

    for tool in tools:
        typer.secho(
            f"  {tool.name} {' '.join(f'{name}=' for name in tool.parameters['properties'])}  {tool.description}",
            dim=True,
        )
    line = input("> ")
    if not tools or not line.strip():
        return Action(content=line)
    name, *words = line.split()
    named = dict(word.partition("=")[::2] for word in words)
    return Action(tool_calls=(ToolCall(name, {key: _value(text) for key, text in named.items()}),))


def _value(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _show(observation: Observation) -> None:
    from ludus.cli.conversation import visible

    for message in observation.messages:
        typer.echo(f"{message.role}: {visible(message.content)}")
    notes = ["invalid"] * observation.invalid + [f"reward {observation.reward:g}"] * bool(observation.reward)
    if notes:
        typer.secho(f"  [{', '.join(notes)}]", fg="yellow")


def _make(name_or_source: str, options: list[str] | None) -> Environment:
    from ludus.environments import make
    from ludus.environments.registry import locate
    from ludus.errors import ConfigError

    name, source = locate(name_or_source)
    try:
        return make(name, source=source, options=_parse(options or []))
    except ConfigError as error:
        _fail(str(error))


def _parse(options: list[str]) -> dict[str, Any]:
    import tomllib

    parsed: dict[str, Any] = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals:
            _fail(f"--options is {option!r}; expected key=value, e.g. size=8")
        try:
            parsed[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            parsed[key] = text
    return parsed


def _fail(message: str) -> NoReturn:
    typer.secho(message, fg="red", err=True)
    raise typer.Exit(1)
