"""The environment that the README shows is at most 20 lines, sound, and can be trained on."""

import asyncio
import re
from pathlib import Path

from ludus.checks import check
from ludus.config import load_config
from ludus.environments import make
from ludus.launch.train import train
from ludus.store.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
CLIMB = ROOT / "examples" / "climb.py"


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


def test_the_readme_shows_exactly_this_environment_and_this_run_file():
    assert code_blocks("python") == [CLIMB.read_text()]
    assert code_blocks("toml") == [CLIMB.with_suffix(".toml").read_text()]
    assert len(CLIMB.read_text().splitlines()) <= 20


def test_the_check_finds_nothing_wrong_and_nothing_to_warn_of():
    report = check(make("climb", source=str(CLIMB)))
    assert report.findings == (), str(report)


def test_it_trains(tmp_path):
    smaller = ["rollout.group_size=2", "rollout.max_turn_tokens=4", "pipeline.groups_per_step=1", "pipeline.steps=2"]
    untrained = ["algorithm.filter=none", "evaluation.every=0", "store.tensorboard=false"]
    here = [f"environments.climb.source={CLIMB}", f"store.folder={tmp_path}"]
    config = load_config(CLIMB.with_suffix(".toml"), [*smaller, *untrained, *here])
    result = asyncio.run(train(config))
    assert result["finished"]
    assert result["version"] == 2
    assert [line["step"] for line in RunFolder.open(config.folder).metrics()] == [1, 2]


def test_every_file_the_readme_names_exists():
    links = re.findall(
        r"\]\(([\w/.]+)\)|`((?:tests|examples|docs|src|configs)/[\w/.]*)`", (ROOT / "README.md").read_text()
    )
    assert links
    assert [path for pair in links for path in pair if path and not (ROOT / path).exists()] == []
