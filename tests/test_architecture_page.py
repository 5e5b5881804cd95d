"""docs/architecture.md names files, functions and layers that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.test_layers import MAY_IMPORT, ROOT

PROJECT = Path(__file__).parent.parent
PAGE = PROJECT / "docs" / "architecture.md"
TEXT = PAGE.read_text(encoding="utf-8")
WALKS = re.findall(r"<!-- walk -->(.*?)<!-- /walk -->", TEXT, re.DOTALL)
STEPS = [step for walk in WALKS for step in re.findall(r"`([\w/]+\.py)` `([\w.]+)`", walk)]


def names_of(file: Path) -> set[str]:
    """Functions and classes at the top of a module, and `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def test_there_are_three_walks_and_each_has_steps():
    assert len(WALKS) == 3
    assert all(len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) >= 8 for walk in WALKS)


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_every_step_of_a_walk_names_a_function_that_exists(file, name):
    assert name in names_of(PROJECT / "src" / "ludus" / file)


def test_every_file_that_the_page_names_exists():
    source = PROJECT / "src" / "ludus"
    named = set(re.findall(r"`((?:[\w-]+/)+(?:[\w-]+\.\w+)?)`", TEXT))
    missing = [
        name for name in sorted(named) if not (PROJECT / name).exists() and not any(source.rglob(name.rstrip("/")))
    ]
    assert not missing


def test_the_table_of_layers_is_the_one_that_is_tested():
    rows = {
        folder: f"| `{folder}/` | {', '.join(f'`{name}`' for name in sorted(allowed)) or 'nothing else of ours'} |"
        for folder, allowed in MAY_IMPORT.items()
        if folder not in ROOT and folder != "cli"
    }
    table = re.search(r"<!-- layers -->\n(.*?)<!-- /layers -->", TEXT, re.DOTALL)
    assert table is not None
    expected = ["| folder | may import |", "|---|---|", *rows.values(), "| `cli/` | everything |"]
    assert table.group(1).splitlines() == expected, "\n".join(expected)
