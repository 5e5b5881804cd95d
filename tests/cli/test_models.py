from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ludus.cli.models import app
from ludus.errors import ConfigError


def test_the_list_names_known_models_and_those_that_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_HOME", str(tmp_path))
    for name in ("qwen3-0.6b", "mine"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").write_text("{}")
    lines = CliRunner().invoke(app, ["list"], env={"COLUMNS": "200"}).stdout.splitlines()
    here = {line.split()[0] for line in lines if line.rstrip().endswith("yes")}
    assert here == {"qwen3-0.6b", "mine"}
    assert any(line.startswith("smollm2-135m") and "Apache-2.0" in line for line in lines)


def test_pulling_what_is_here_prints_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_HOME", str(tmp_path))
    folder = tmp_path / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert CliRunner().invoke(app, ["pull", "smollm2-135m"]).stdout.strip() == str(folder)


def test_pulling_an_unknown_model_is_a_named_error() -> None:
    with pytest.raises(ConfigError, match="is not known"):
        CliRunner().invoke(app, ["pull", "gpt5"], catch_exceptions=False)
