"""`ludus trajectories RUN` and `ludus report RUN`: a person looks at what happened. Promise: model text is shown, never interpreted."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from ludus.store.trajectories import StoredTrajectory

Record = Mapping[str, Any]
UNFOLDED = 10_000
"""Columns of the list, which is as wide as it needs: an id that was folded could neither be given to --show nor found by grep."""
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or its name under runs/.", show_default=False)]


def trajectories(
    run: Run,
    environment: Annotated[str, typer.Option(help="Only this environment.")] = "",
    step: Annotated[str, typer.Option(help='Only these optimiser steps: "7", "10:20", "10:" or ":20".')] = "",
    reward: Annotated[str, typer.Option(help='Only these rewards: ">=1", "<0.5", "0.2:0.8" or "0".')] = "",
    stop: Annotated[str, typer.Option(help="Only this stop: done, max_turns, invalid, failed, ...")] = "",
    split: Annotated[str, typer.Option(help="Only this split, e.g. train or test.")] = "",
    limit: Annotated[int, typer.Option(min=0, help="The newest so many; 0: all.")] = 20,
    show: Annotated[str, typer.Option(metavar="ID", help="Print this one as a conversation.")] = "",
    tokens: Annotated[
        bool, typer.Option("--tokens", help="With --show: the token sequences and what was sampled.")
    ] = False,
) -> None:
    """Find a run's trajectories, newest last, and read one as a conversation.

    The files are plain JSON lines: `jq 'select(.reward < 1) | .id' RUN/trajectories/*.jsonl` works too.
    """
    from rich.console import Console

    from ludus.store.run_folder import RunFolder

    folder, errors = RunFolder.open(run), Console(stderr=True)
    records = folder.records(
        report=lambda problem: errors.print(problem, style="yellow", markup=False, highlight=False)
    )
    if show:
        from ludus.cli.conversation import print_trajectory

        print_trajectory(_find(records, show), console=Console(), tokens=tokens)
        return
    texts = {"environment": environment, "stop": stop, "split": split}
    chosen, num_fitting, num_records = _choose(records, texts=texts, step=step, reward=reward, limit=limit)
    _print_table(chosen, num_fitting=num_fitting, num_records=num_records, console=Console(width=UNFOLDED))


def report(run: Run) -> None:
    """Write a run's report: report.md and plots/, inside the run's folder."""
    from ludus.reports.report import write_report
    from ludus.store.run_folder import RunFolder

    print(write_report(RunFolder.open(run)))


# ------------------------------------------------------------------------------------------------ choosing


def _choose(
    records: Iterable[Record], *, texts: Mapping[str, str], step: str, reward: str, limit: int
) -> tuple[list[Record], int, int]:
    """The newest `limit` records that fit, how many fit, and how many there are."""
    from ludus.errors import ConfigError, nearest

    steps, rewards = parse_range(step, option="--step"), parse_range(reward, option="--reward")
    asked = {key: text for key, text in texts.items() if text}
    seen: dict[str, set[str]] = {key: set() for key in asked}
    chosen: deque[Record] = deque(maxlen=limit or None)
    num_records = num_fitting = 0
    for record in records:
        num_records += 1
        for key, values in seen.items():
            values.add(str(record.get(key)))
        fits = all(record.get(key) == text for key, text in asked.items())
        if fits and steps(float(record.get("step", math.nan))) and rewards(float(record.get("reward", math.nan))):
            num_fitting += 1
            chosen.append(record)
    for key, text in asked.items():
        if num_records and text not in seen[key]:
            known = sorted(seen[key])
            raise ConfigError(
                f"no trajectory has {key} {text!r}.{nearest(text, known)} In this run: {', '.join(known)}."
            )
    return list(chosen), num_fitting, num_records


def parse_range(text: str, *, option: str) -> Callable[[float], bool]:
    """A test for "7", ">=1", "<0.5", "10:20" (both ends included), "10:" or ":20"; the empty text admits everything."""
    from ludus.errors import ConfigError

    text = text.strip()
    if not text:
        return lambda _: True
    number = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
    if found := re.fullmatch(rf"(>=|<=|>|<|=|==)?\s*({number})", text):
        bound = float(found[2])
        compare = _COMPARE[found[1] or "="]
        return lambda value: compare(value, bound)
    if (found := re.fullmatch(rf"({number})?:({number})?", text)) and text != ":":
        low, high = float(found[1] or -math.inf), float(found[2] or math.inf)
        return lambda value: low <= value <= high
    raise ConfigError(
        f'{option} is {text!r}; expected a number, a comparison such as ">=1", or a range such as "0.2:0.8"'
    )


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    "=": lambda a, b: math.isclose(a, b, abs_tol=1e-9),
    "==": lambda a, b: math.isclose(a, b, abs_tol=1e-9),
}


def _find(records: Iterable[Record], name: str) -> StoredTrajectory:
    """The newest trajectory of that id: a resumed run may have played it twice."""
    from ludus.errors import ConfigError, nearest
    from ludus.store.trajectories import stored_from_dict

    found, ids = None, []
    for record in records:
        ids.append(str(record.get("id")))
        found = record if ids[-1] == name else found
    if found is None:
        near = [each for each in ids if each.startswith(name)][:3]
        hint = f" Did you mean {', '.join(map(repr, near))}?" if near else nearest(name, ids)
        raise ConfigError(f"no trajectory {name!r} among {len(ids)}.{hint} Without --show the command lists them.")
    return stored_from_dict(found)


# ------------------------------------------------------------------------------------------------ table


def _print_table(chosen: list[Record], *, num_fitting: int, num_records: int, console: Console) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("id", "environment", "step", "split"):
        table.add_column(name, overflow="fold")
    for name in ("reward", "turns", "tokens"):
        table.add_column(name, justify="right")
    table.add_column("stop")
    for record in chosen:
        table.add_row(*_row(record))
    if chosen:
        console.print(table)
    shown = f"{len(chosen)} of {num_fitting} that fit" if num_fitting > len(chosen) else f"{num_fitting} fit"
    console.print(f"{shown}, {num_records} in all. --show ID reads one.", style="dim", highlight=False)


def _row(record: Record) -> list[Any]:
    from rich.text import Text

    from ludus.cli.conversation import visible

    tokens = sum(turn.get("num_tokens", 0) for turn in record.get("turns", ()))
    reward, stop = float(record.get("reward", math.nan)), str(record.get("stop"))
    stop += " (superseded)" if record.get("superseded") else ""
    texts = [record.get(key, "") for key in ("id", "environment", "step", "split")]
    texts += [f"{reward:g}", record.get("num_turns", ""), tokens, stop]
    style = "green" if record.get("success") else "red" if record.get("failure") else ""
    return [Text(visible(str(text)), style=style if index in (4, 7) else "") for index, text in enumerate(texts)]
