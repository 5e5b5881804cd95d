"""The shipped Dockerfile and compose file run commands that exist. Nothing is built: that needs a registry."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from ludus.cli.main import COMMANDS, load
from ludus.config import load_config
from ludus.environments import registry

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"
INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "ARG", "ENV", "VOLUME", "ENTRYPOINT", "CMD"}
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (FOLDER / "Dockerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def must_parse(words: list[str]) -> None:
    """Raises where `ludus WORDS` would complain about its arguments; carries nothing out."""
    command, rest = load(COMMANDS[words[0]], name=words[0]), words[1:]
    if hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(words[0], list(rest))


@pytest.mark.parametrize("service", COMPOSE["services"])
def test_a_service_runs_a_command_of_ludus_with_options_that_it_has(service):
    must_parse(COMPOSE["services"][service]["command"])


def test_a_command_that_does_not_exist_would_be_found():
    with pytest.raises(KeyError):
        must_parse(["serves", "worker"])
    with pytest.raises(Exception, match="slot-count"):
        must_parse(["serve", "worker", "guess", "--slot-count", "3"])


def test_the_compose_file_has_all_three_and_no_secret():
    assert set(COMPOSE["services"]) == {"controller", "worker", "trainer"}
    for service in COMPOSE["services"].values():
        assert service["environment"]["LUDUS_TOKEN"].startswith("${LUDUS_TOKEN:?")
        assert "privileged" not in service
    assert set(COMPOSE["volumes"]) == {"controller", "runs"}


def test_what_the_compose_file_mounts_and_builds_from_exists():
    for service in COMPOSE["services"].values():
        assert (FOLDER / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (FOLDER / source).is_file()


def test_the_run_of_the_compose_file_is_a_run_at_its_controller():
    config = load_config(FOLDER / "run.toml")
    addresses = {section.at for section in config.environments.values()}
    assert addresses == {"http://controller:7100"}
    words = COMPOSE["services"]["controller"]["command"]
    assert words[words.index("--port") + 1] == "7100"
    assert set(config.environments) <= set(registry.names())
    assert config.store.folder in {volume.split(":")[1] for volume in COMPOSE["services"]["trainer"]["volumes"]}


def test_the_dockerfile_copies_what_there_is_and_starts_ludus():
    found = instructions()
    assert {name for name, _ in found} <= INSTRUCTIONS
    assert found[0][0] == "FROM"
    for name, rest in found:
        if name == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
    assert json.loads(dict(found)["ENTRYPOINT"]) == ["ludus"]
    must_parse(json.loads(dict(found)["CMD"]))
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert "3.11" in supported
    assert found[0][1].startswith("python:3.11")
