"""The run files of docs/environments.md load, and their environments can be made."""

import re
import tomllib
from pathlib import Path

import pytest

from ludus.config import RunConfig
from ludus.environments import make

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
SECTION = PAGE.read_text().partition("## Environments that others wrote")[2].partition("\n## ")[0]
RUN_FILES = [text for text in re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL) if "ludus.adapters." in text]


def test_every_adapter_has_a_run_file():
    assert {re.search(r"ludus\.adapters\.(\w+)", text)[1] for text in RUN_FILES} == {
        "agentgym",
        "gymnasium",
        "openenv",
        "mcp",
    }


@pytest.mark.parametrize("text", RUN_FILES)
def test_a_run_file_of_the_docs_is_valid(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tasks.jsonl").write_text(
        '{"split": "train", "prompt": "a", "answer": "b"}\n{"split": "test", "prompt": "c", "answer": "d"}\n'
    )
    config = RunConfig.model_validate({"name": "docs", **tomllib.loads(text)})
    for name, section in config.environments.items():
        environment = make(name, source=section.source, options=section.options)
        assert environment.tasks("train")
        assert environment.tasks("test")
