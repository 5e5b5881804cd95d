"""docs/worlds.md says what the worlds say of themselves, and what was measured, and nothing else between its markers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from ludus.environments.registry import BUILT_IN
from ludus.errors import LudusError
from ludus.worlds.needs import NEEDS

DOCS = Path(__file__).parent.parent / "docs"
CAPABILITIES = {"planning", "tool use", "memory", "reasoning", "collaboration", "self-improvement"}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_worlds", DOCS / "make_worlds.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_row_of_a_world_is_what_it_says_of_itself_now(script, name):
    try:
        row = script.declared_row(name)
    except LudusError as error:
        pytest.skip(str(error))
    written = script.rows_of(script.PAGE.read_text(encoding="utf-8"), "worlds")[name]
    assert written == row, "run python docs/make_worlds.py"
    asked = row.split(" | ")[2].split(", ")
    assert asked
    assert set(asked) <= CAPABILITIES


def test_every_world_has_its_figures_and_they_are_those_of_the_lines(script):
    lines = [json.loads(line) for line in script.MEASURED.read_text(encoding="utf-8").splitlines()]
    rows = script.rows_of(script.PAGE.read_text(encoding="utf-8"), "figures")
    assert list(rows) == list(BUILT_IN)
    assert list(rows.values()) == [script.measured_row(line) for line in lines]
    assert set(NEEDS) < set(BUILT_IN)


def test_a_table_takes_the_place_of_the_old_one_and_of_nothing_else(script):
    page = "a\n<!-- worlds:table -->\n<!-- /worlds:table -->\nb\n<!-- figures:table -->\nold\n<!-- /figures:table -->\n"
    for cell in ("x", "y"):
        page = script.with_table(page, "worlds", {"guess": f"| `guess` | {cell} |"})
    assert page.startswith(f"a\n<!-- worlds:table -->\n{script.HEADS['worlds']}\n|---|")
    assert page.endswith(
        "| `guess` | y |\n<!-- /worlds:table -->\nb\n<!-- figures:table -->\nold\n<!-- /figures:table -->\n"
    )
    assert script.rows_of(page, "worlds") == {"guess": "| `guess` | y |"}
