"""The doctor's lines: each says what it found, and what to do where something is missing."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from ludus.cli import doctor
from ludus.cli.main import app
from ludus.errors import ConfigError
from ludus.sandboxes import detect
from ludus.worlds.needs import NEEDS

NAMES = ["python", "torch", "packages", "machine", "gpu", "process", "namespace", "container", *NEEDS]


@pytest.fixture(autouse=True)
def fresh():
    detect._namespace.cache_clear()
    yield
    detect._namespace.cache_clear()


def call(*arguments: str):
    return CliRunner().invoke(app, ["doctor", *arguments])


def test_every_part_has_a_line_and_what_a_run_needs_works_here():
    answer = call()
    assert [line.split()[0] for line in answer.output.splitlines()] == NAMES
    assert answer.exit_code == 0


def test_each_line_is_json_when_asked_for():
    lines = [json.loads(line) for line in call("--json").output.splitlines()]
    assert [line["name"] for line in lines] == NAMES
    assert all(bool(line["remedy"]) != line["works"] for line in lines)


def test_what_is_needed_and_does_not_work_is_exit_code_1(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/at/all")
    assert call().exit_code == 0
    answer = call("container")
    assert answer.exit_code == 1
    assert "no service answers at /nowhere/at/all -> " in answer.output


def test_an_unknown_name_is_answered_with_the_near_one():
    with pytest.raises(ConfigError, match="Did you mean 'namespace'"):
        CliRunner().invoke(app, ["doctor", "namespaces"], catch_exceptions=False)


def test_without_bubblewrap_it_says_what_to_install(monkeypatch):
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **more: None if name == "bwrap" else found(name, **more))
    line = detect.driver("namespace")
    assert not line.works
    assert "bubblewrap" in line.remedy


def test_without_a_container_service_it_says_how_to_get_one(monkeypatch):
    monkeypatch.setattr(detect, "sockets", list)
    monkeypatch.setattr(shutil, "which", lambda name, **more: "/usr/bin/podman" if name == "podman" else None)
    assert "podman system service" in detect.driver("container").remedy
    monkeypatch.setattr(shutil, "which", lambda name, **more: None)
    assert "install" in detect.driver("container").remedy


def test_a_world_that_lacks_a_package_or_a_program_says_what_to_install(monkeypatch):
    import importlib.util

    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **more: None if name == "java" else found(name, **more))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "scienceworld" else object())
    line = doctor._world("sciworld", namespace=True)
    assert (line.works, line.says) == (False, "missing: scienceworld, java")
    assert line.remedy == 'pip install "ludus[worlds]"; apt-get install default-jre-headless'
    assert doctor._world("household", namespace=True).works
    assert doctor._world("shell", namespace=False).remedy == "See the line namespace."


def test_a_gpu_with_a_torch_for_the_cpu_is_pointed_out(monkeypatch):
    import subprocess

    told = subprocess.CompletedProcess([], 0, stdout="NVIDIA H200, 143771 MiB\n", stderr="")
    monkeypatch.setattr(shutil, "which", lambda name, **more: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: told)
    monkeypatch.setattr(doctor, "_built_for", lambda: "")
    assert not doctor._gpu().works
    monkeypatch.setattr(doctor, "_built_for", lambda: "CUDA 12.8")
    assert doctor._gpu() == doctor.Line("gpu", True, "1 x NVIDIA H200, 143771 MiB")
