"""The script that writes the table of a model on all worlds puts it where it belongs, and nowhere else."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "docs" / "make_evaluation_table.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("make_evaluation_table", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_replaces_what_stands_between_the_markers(script, tmp_path):
    file = tmp_path / "README.md"
    file.write_text("a\n<!-- evaluation:table -->\nold\n<!-- /evaluation:table -->\nb\n")
    for page in ("| \\1 new |\n", "| newer |\n"):
        script._insert(file, page)
        assert file.read_text() == f"a\n<!-- evaluation:table -->\n{page}<!-- /evaluation:table -->\nb\n"


def test_a_file_without_the_markers_is_left_alone_and_told(script, tmp_path):
    file = tmp_path / "README.md"
    file.write_text("nothing here\n")
    with pytest.raises(SystemExit, match="has no place for the table"):
        script._insert(file, "| new |\n")
    assert file.read_text() == "nothing here\n"


def test_the_stops_of_all_worlds_are_told_together(script):
    report = {"environments": [{"stops": {"done": 1, "invalid": 3}}, {"stops": {"done": 4}}]}
    assert script._stops(report) == "done 5, invalid 3"
