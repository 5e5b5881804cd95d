"""Writes the tables of docs/worlds.md: `python docs/make_worlds.py [worlds.jsonl]`.

The first table is what the worlds say of themselves: the first sentence of their module, their tools, tasks and limits, and what they need
(src/ludus/worlds/needs.py). The second is what `benchmarks/worlds.py` measured; its lines are kept in docs/worlds.jsonl, and those of the
file that is given replace them, world by world. A world that cannot be made here keeps the row that it has.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from ludus.environments import make
from ludus.environments.registry import BUILT_IN
from ludus.errors import LudusError
from ludus.worlds.needs import NEEDS, Needs

PAGE = Path(__file__).with_name("worlds.md")
MEASURED = Path(__file__).with_name("worlds.jsonl")
HEADS = {
    "worlds": "| world | what it is | asks for | tools | train, dev, test tasks | turns | needs, and their licences |",
    "figures": "| world | turns/s here | through a worker | ratio | session start | world start | memory a session | random | solver |",
}


def declared_row(name: str) -> str:
    """What a world says of itself. LudusError where it cannot be made here."""
    world: Any = make(name)
    counts = ", ".join(str(len(world.tasks(split))) for split in ("train", "dev", "test"))
    tools = ", ".join(f"`{tool}`" for tool in world.tools) or "says text"
    cells = [
        f"`{name}`",
        _sentence(name),
        ", ".join(world.capabilities),
        tools,
        counts,
        str(world.max_turns),
        _needs(name),
    ]
    return _row(cells)


def measured_row(line: dict[str, Any]) -> str:
    name = line["case"].removeprefix("worlds/")
    cells = [f"`{name}`", f"{line['turns_per_s']:,}", f"{line['workers_turns_per_s']:,}", f"{line['ratio']}"]
    cells += [f"{line['session_start_ms']:g} ms", f"{line['world_start_s']:g} s", _memory(line["kib_per_session"])]
    return _row([*cells, *(f"{line[player]} of {line['tasks']}" for player in ("random", "solver"))])


def rows_of(page: str, table: str) -> dict[str, str]:
    """The rows that a page has, by world."""
    found = re.findall(r"^\| `(\w+)` \|.*\|$", _between(page, table), re.MULTILINE)
    lines = [line for line in _between(page, table).splitlines() if line.startswith("| `")]
    return dict(zip(found, lines, strict=True))


def with_table(page: str, table: str, rows: dict[str, str]) -> str:
    head = HEADS[table]
    lines = [head, "|" + "---|" * (head.count("|") - 1), *(rows[name] for name in BUILT_IN if name in rows)]
    old = f"<!-- {table}:table -->\n{_between(page, table)}<!-- /{table}:table -->"
    return page.replace(old, "\n".join([f"<!-- {table}:table -->", *lines, f"<!-- /{table}:table -->"]))


def main() -> None:
    lines = _lines(MEASURED) | (_lines(Path(sys.argv[1])) if sys.argv[1:] else {})
    MEASURED.write_text("".join(json.dumps(lines[name]) + "\n" for name in BUILT_IN if name in lines), encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    declared = rows_of(page, "worlds")
    for name in BUILT_IN:
        try:
            declared[name] = declared_row(name)
        except LudusError as error:
            print(f"{name}: its row stays as it was, because {error}", file=sys.stderr)
    page = with_table(page, "worlds", declared)
    PAGE.write_text(
        with_table(page, "figures", {name: measured_row(line) for name, line in lines.items()}), encoding="utf-8"
    )


def _lines(file: Path) -> dict[str, dict[str, Any]]:
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    return {line["case"].removeprefix("worlds/"): line for line in lines if "skipped" not in line}


def _between(page: str, table: str) -> str:
    found = re.search(rf"<!-- {table}:table -->\n(.*?)<!-- /{table}:table -->", page, re.DOTALL)
    if found is None:
        sys.exit(
            f"{PAGE} has no place for the table: <!-- {table}:table --> and <!-- /{table}:table --> on lines of their own"
        )
    return found[1]


def _sentence(name: str) -> str:
    text = " ".join((import_module(BUILT_IN[name].partition(":")[0]).__doc__ or "").split())
    return re.split(r"(?<=[.?])\s", text)[0].rstrip(".")


def _needs(name: str) -> str:
    needs = NEEDS.get(name, Needs())
    found = [f"{package.name} ({package.licence})" for package in needs.packages]
    found += [f"`{program.package}` ({program.licence})" for program in needs.programs]
    return ", ".join(found + ["a namespace sandbox"] * needs.namespace) or "nothing more"


def _memory(kib: float) -> str:
    return f"{kib / 1024:.0f} MiB" if kib >= 10240 else f"{kib:.0f} KiB"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


if __name__ == "__main__":
    main()
