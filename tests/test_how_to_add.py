"""docs/how-to-add.md: the two smallest examples run as they are printed, and what the page names exists."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from ludus.config import parse_config
from ludus.errors import ConfigError
from tests.e2e.runs import make_config, run

PAGE = Path(__file__).parent.parent / "docs" / "how-to-add.md"
TEXT = PAGE.read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", TEXT, re.DOTALL))
SECTIONS = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)]


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The page's modules, importable."""
    folder = tmp_path / "modules"
    folder.mkdir()
    for name, code in FILES.items():
        (folder / name).write_text(code)
    monkeypatch.syspath_prepend(folder)
    yield
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_a_method_and_a_tracker_of_the_page_are_used_by_a_run(written, blank_model, tmp_path):
    method, tracker = SECTIONS
    algorithm = {**method["algorithm"], "filter": "none"}
    config = make_config(tmp_path, blank_model, algorithm=algorithm, store=tracker["store"])
    folder = run(config)
    lines = [json.loads(line) for line in (folder.path / "lines.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert parse_config(tomllib.loads(folder.config_file.read_text())).algorithm.advantage == "my_method:by_rank"


def test_the_method_of_the_page_ranks_the_attempts_of_a_group(written):
    import my_method

    from tests.algorithms.examples import make_group

    advantages = my_method.by_rank(make_group([0.0, 1.0, 0.5]), my_method.Options(spread=2.0))
    assert advantages.tolist() == [-2.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"algorithm": {"advantage": "my_method:by_rnk"}}, "by_rank"),
        ({"algorithm": {"advantage": "my_method:by_rank", "spred": 1.0}}, "spread"),
        ({"curriculum": {"tasks": "my_method:Levels"}}, "there is no 'Levels' in it"),
        ({"engine": {"kind": "nowhere:make_engine"}}, "module 'nowhere' cannot be imported"),
    ],
)
def test_a_part_that_cannot_be_used_is_refused_when_the_run_file_is_read(written, section, message):
    with pytest.raises(ConfigError, match=message):
        parse_config({"environments": {"guess": {}}, **section})


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:src/ludus/)?[a-z_]+/(?:[\w/]+\.py)?)`", TEXT))))
def test_files_that_the_page_names_exist(name):
    root = PAGE.parent.parent
    assert (root / name).exists() or (root / "src" / "ludus" / name).exists()
