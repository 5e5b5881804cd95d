"""An environment that declares a sandbox finds it at self.sandbox, started before setup and closed after close, whatever happens."""

import asyncio

import pytest

from ludus.controller.client.local import LocalClient
from ludus.environments.needs import demand
from ludus.environments.registry import wrap
from ludus.environments.tools import tool
from ludus.errors import ConfigError, EnvironmentFailed
from ludus.hosting.host import Host
from ludus.sandboxes.fake import FakeSandboxes
from ludus.sandboxes.sandbox import Need, Room
from ludus.types import Action, ToolCall


class Runs:
    """Runs what it is told."""

    sandbox = "namespace"
    tasks = {"train": [{"text": "hello"}], "test": [{"text": "bye"}]}

    def setup(self, task, rng):
        self.sandbox.write("input", task["text"])
        return "go"

    @tool
    def run(self, command: str):
        """Run a command."""
        return self.sandbox.run(command).stdout

    def close(self):
        self.sandbox.run("last")


class Trusting(Runs):
    sandbox = "none"

    def setup(self, task, rng):
        return "go"


class Roomy(Runs):
    sandbox = Need("process", room=Room(memory_mb=7))


class Misspelt(Runs):
    sandbox = "namespaces"


class Fails(Runs):
    def setup(self, task, rng):
        raise RuntimeError("no")


class Contained(Runs):
    sandbox = "container"
    image = "own:1"


def played(author, *, sandboxes, kind="none", image=""):
    async def play():
        environment = wrap(author, name="runs")
        demand(environment, kind, image=image)
        host = Host(sandboxes=sandboxes)
        try:
            session = await host.open(environment, environment.tasks("train")[0], seed=0, label="s1")
            await session.start()
            observation = await session.act(Action(tool_calls=(ToolCall("run", {"command": "ls"}),)))
            await session.close()
            return observation
        finally:
            await host.close()

    return asyncio.run(play())


def test_a_declared_sandbox_is_there_before_setup_and_closed_after_close():
    sandboxes = FakeSandboxes(answers={"ls": "input\n"})
    observation = played(Runs, sandboxes=sandboxes)
    ((need, session, sandbox),) = sandboxes.opened
    assert (need.kind, session) == ("namespace", "s1")
    assert observation.messages[0].content == "input\n"
    assert sandbox.files == {"input": b"hello"}
    assert sandbox.commands == ["ls", "last"]
    assert sandbox.num_closed == 1


def test_the_run_file_may_demand_more_and_never_gets_less():
    for kind, expected in (("container", "container"), ("process", "namespace"), ("none", "namespace")):
        sandboxes = FakeSandboxes(answers={"ls": ""})
        played(Runs, sandboxes=sandboxes, kind=kind)
        assert sandboxes.opened[0][0].kind == expected


def test_the_run_file_may_name_another_image():
    sandboxes = FakeSandboxes()
    played(Contained, sandboxes=sandboxes)
    played(Contained, sandboxes=sandboxes, image="other:2")
    played(Runs, sandboxes=sandboxes, kind="container", image="third:3")
    assert [need.image for need, _, _ in sandboxes.opened] == ["own:1", "other:2", "third:3"]


def test_what_else_an_environment_needs_is_kept_when_more_is_demanded():
    sandboxes = FakeSandboxes()
    played(Roomy, sandboxes=sandboxes, kind="namespace")
    assert sandboxes.opened[0][0] == Need("namespace", room=Room(memory_mb=7))


def test_a_demand_that_would_contain_nothing_is_refused():
    with pytest.raises(ConfigError, match="uses no sandbox"):
        demand(wrap(Trusting), "namespace")
    with pytest.raises(ConfigError, match="an image is for a container"):
        demand(wrap(Runs), "none", image="busybox")


def test_an_environment_that_makes_its_own_sandbox_is_taken_at_its_word():
    class Own:
        name, sandbox = "own", "process"

    demand(Own(), "process")
    with pytest.raises(ConfigError, match="makes its own, 'process'"):
        demand(Own(), "container")


def test_a_level_that_does_not_exist_is_refused_with_the_near_one():
    with pytest.raises(ConfigError, match="Did you mean 'namespace'"):
        wrap(Misspelt)


def test_a_sandbox_is_closed_when_setup_fails():
    sandboxes = FakeSandboxes()

    async def play():
        environment, host = wrap(Fails, name="runs"), Host(sandboxes=sandboxes)
        session = await host.open(environment, environment.tasks("train")[0], seed=0)
        with pytest.raises(EnvironmentFailed):
            await session.start()
        await session.close()
        await host.close()

    asyncio.run(play())
    assert sandboxes.opened[0][2].num_closed == 1


def test_a_sandbox_that_cannot_be_had_fails_the_session_by_name():
    with pytest.raises(EnvironmentFailed, match="the fake provider has none"):
        played(Runs, sandboxes=FakeSandboxes(fails=True))


def test_a_host_without_sandboxes_says_so():
    with pytest.raises(ConfigError, match="needs a sandbox"):
        played(Runs, sandboxes=None)


def test_a_client_refuses_at_the_start_what_the_machine_cannot_give(monkeypatch):
    from ludus.sandboxes import detect

    monkeypatch.setattr(detect, "driver", lambda kind: detect.Driver(kind, False, "not today", "Try tomorrow."))

    async def prepare():
        client = LocalClient([wrap(Runs)])
        try:
            await client.prepare()
        finally:
            await client.close()

    with pytest.raises(ConfigError, match="not today"):
        asyncio.run(prepare())
