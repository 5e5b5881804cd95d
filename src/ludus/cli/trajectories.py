"""`ludus trajectories`, `report` and `profile`. Promise: model text is shown, never interpreted."""

from __future__ import annotations

import math
import operator
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ludus.cli.options import Run

if TYPE_CHECKING:
    from rich.console import Console

    from ludus.store.trajectories import StoredTrajectory

Record = Mapping[str, Any]
UNFOLDED = 10_000
"""Width of the list in columns: ids are never folded, so that they can be copied to --show."""


def trajectories(
    run: Run,
    environment: Annotated[str, typer.Option(help="Keep one environment. Default: all.")] = "",
    step: Annotated[str, typer.Option(help='Keep these steps: "7", "10:20", "10:" or ":20". Default: all.')] = "",
    reward: Annotated[str, typer.Option(help='Keep rewards: ">=1", "<0.5", "0.2:0.8" or "0". Default: all.')] = "",
    stop: Annotated[str, typer.Option(help="Keep one stop: done, max_turns, invalid, failed, ... Default: all.")] = "",
    split: Annotated[str, typer.Option(help="Keep one split, for example train or test. Default: all.")] = "",
    limit: Annotated[int, typer.Option(min=0, help="List at most this many, the newest; 0: all.")] = 20,
    show: Annotated[str, typer.Option(metavar="ID", help="Print one trajectory as a conversation.")] = "",
    tokens: Annotated[
        bool, typer.Option("--tokens", help="With --show: also token ids, and which are sampled.")
    ] = False,
) -> None:
    """List the trajectories of a run, newest last, or print one as a conversation.

    The files are JSON lines: `jq 'select(.reward < 1) | .id' RUN/trajectories/*.jsonl` works."""
    from rich.console import Console

    from ludus.store.run_folder import RunFolder

    folder, errors = RunFolder.open(run), Console(stderr=True)
    records = folder.records(report=partial(errors.print, style="yellow", markup=False, highlight=False))
    if show:
        from ludus.cli.conversation import print_trajectory

        print_trajectory(_find(records, show), console=Console(), tokens=tokens)
        return
    texts = {"environment": environment, "stop": stop, "split": split}
    chosen, num_fitting, num_records = _choose(records, texts=texts, step=step, reward=reward, limit=limit)
    _print_table(chosen, num_fitting=num_fitting, num_records=num_records, console=Console(width=UNFOLDED))


def report(run: Run) -> None:
    """Write the report of a run: RUN/report.md and RUN/plots/."""
    from ludus.reports.report import write_report
    from ludus.store.run_folder import RunFolder

    print(write_report(RunFolder.open(run)))


def profile(run: Run) -> None:
    """Show where the time of a run goes, its speed and its bottleneck.

    Also draws the timeline to RUN/plots/timeline.png. Works during the run."""
    from ludus.errors import ConfigError
    from ludus.reports.profile import draw_timeline, figures, timeline_text
    from ludus.reports.profile import profile as profile_of
    from ludus.store.run_folder import RunFolder

    folder = RunFolder.open(run)
    made = profile_of(folder)
    if made is None:
        raise ConfigError(
            f"{folder.path} has no timeline yet; `ludus train` writes one line per second of training to it"
        )
    rows = figures(made)
    width = max((len(name) for name, _ in rows), default=0)
    print(timeline_text(made), "", *(f"{name:{width}}  {value}" for name, value in rows), sep="\n")
    print(f"\n{made.verdict.text}\n", flush=True)  # before the plot: the folder may not be writable
    print(draw_timeline(made, into=folder.plots))


def _choose(
    records: Iterable[Record], *, texts: Mapping[str, str], step: str, reward: str, limit: int
) -> tuple[list[Record], int, int]:
    """(the newest `limit` matching records, number of matching records, number of records)."""
    from ludus.errors import ConfigError, nearest

    ranges = {"step": parse_range(step, option="--step"), "reward": parse_range(reward, option="--reward")}
    asked = {key: text for key, text in texts.items() if text}
    seen: dict[str, set[str]] = {key: set() for key in asked}
    chosen: deque[Record] = deque(maxlen=limit or None)
    num_records = num_fitting = 0
    for record in records:
        num_records += 1
        for key, values in seen.items():
            values.add(str(record.get(key)))
        fits = all(record.get(key) == text for key, text in asked.items())
        if fits and all(inside(float(record.get(key, math.nan))) for key, inside in ranges.items()):
            num_fitting += 1
            chosen.append(record)
    for key, text in asked.items():
        known = sorted(seen[key])
        if known and text not in known:
            raise ConfigError(
                f"no trajectory has {key} {text!r}.{nearest(text, known)} In this run: {', '.join(known)}."
            )
    return list(chosen), num_fitting, num_records


def parse_range(text: str, *, option: str) -> Callable[[float], bool]:
    """A predicate for "7", ">=1", "<0.5", "10:20" (ends included), "10:" or ":20"; "" is all."""
    from ludus.errors import ConfigError

    text = text.strip()
    if not text:
        return lambda _: True
    number = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
    if found := re.fullmatch(rf"(>=|<=|>|<|=|==)?\s*({number})", text):
        compare, bound = _COMPARE[found[1] or "="], float(found[2])
        return lambda value: compare(value, bound)
    if (found := re.fullmatch(rf"({number})?:({number})?", text)) and text != ":":
        low, high = float(found[1] or -math.inf), float(found[2] or math.inf)
        return lambda value: low <= value <= high
    raise ConfigError(f'{option} is {text!r}; expected a number, a comparison (">=1") or a range ("0.2:0.8")')


_close = partial(math.isclose, abs_tol=1e-9)
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "=": _close, "==": _close,
}  # fmt: skip


def _find(records: Iterable[Record], name: str) -> StoredTrajectory:
    """The newest trajectory with this id; a resumed run may have played it twice."""
    from ludus.errors import ConfigError, nearest
    from ludus.store.trajectories import stored_from_dict

    found, ids = None, []
    for record in records:
        ids.append(str(record.get("id")))
        found = record if ids[-1] == name else found
    if found is None:
        near = [each for each in ids if each.startswith(name)][:3]
        hint = f" Did you mean {', '.join(map(repr, near))}?" if near else nearest(name, ids)
        raise ConfigError(f"no trajectory {name!r} among {len(ids)}.{hint} The command without --show lists them.")
    return stored_from_dict(found)


def _print_table(chosen: list[Record], *, num_fitting: int, num_records: int, console: Console) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("id", "environment", "step", "split", "reward", "turns", "tokens", "stop"):
        table.add_column(name, overflow="fold", justify="right" if name in ("reward", "turns", "tokens") else "left")
    for record in chosen:
        table.add_row(*_row(record))
    if chosen:
        console.print(table)
    shown = f"{len(chosen)} of {num_fitting} that match" if num_fitting > len(chosen) else f"{num_fitting} match"
    console.print(f"{shown}, {num_records} in total. --show ID prints one.", style="dim", highlight=False)


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
