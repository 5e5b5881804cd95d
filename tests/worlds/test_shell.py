import json
import logging
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from ludus.checks import check
from ludus.environments import make
from ludus.errors import EnvironmentFailed
from ludus.sandboxes import detect
from ludus.sandboxes.fake import FakeSandbox
from ludus.sandboxes.provider import Sandboxes
from ludus.sandboxes.sandbox import Finished
from ludus.types import Action, ToolCall
from ludus.worlds.shell import agentbench
from ludus.worlds.shell.families import PROBLEMS
from ludus.worlds.shell.problems import BASH
from ludus.worlds.shell.world import CUT_CHARS, shown
from tests.worlds.playing import contents, world

namespace = detect.driver("namespace")
needs_namespace = pytest.mark.skipif(not namespace.works, reason=f"no namespace sandbox: {namespace.says}")
ITEMS = Path(os.environ.get("LUDUS_DATA", "../shared/data")) / "agentbench" / "os_interaction"
needs_items = pytest.mark.skipif(not ITEMS.is_dir(), reason="no AgentBench items; LUDUS_DATA names their folder")


@pytest.fixture(scope="module")
def sandboxes():
    given = Sandboxes()
    yield given
    given.close()


def say(name, **arguments):
    return Action(tool_calls=(ToolCall(name, arguments),))


class Live:
    """A session in a sandbox of its own."""

    def __init__(self, environment, task, sandboxes, *, seed=0):
        self.sandbox = sandboxes.open("namespace", session=task.id)
        self.session = environment.open(task, seed=seed, sandbox=self.sandbox)

    def __enter__(self):
        try:
            self.first = self.session.start()
        except BaseException:
            self.sandbox.close()
            raise
        return self

    def __exit__(self, *_):
        self.session.close()
        self.sandbox.close()

    def bash(self, script):
        return self.session.act(say("bash_action", script=script)).messages[-1].content

    def solved(self):
        seen = [self.session.act(self.session.solve()) for _ in range(2)][-1]
        assert seen.done
        return seen.reward


def generated(draw, *, seed):
    """A task of one kind, as the world itself would make it."""
    environment = make("shell")
    task = environment.tasks("train")[0]
    return environment, type(task)(f"shell/train/{draw.__name__}", "shell", "train", draw(random.Random(seed)).plain())


@needs_namespace
def test_the_world_passes_its_own_check(sandboxes):
    report = check(world("shell"), num_tasks=2, sandboxes=sandboxes)
    assert not report.findings, str(report)


@needs_namespace
@pytest.mark.parametrize("draw", PROBLEMS, ids=lambda draw: draw.__name__)
def test_the_gold_script_finds_what_python_worked_out_and_doing_nothing_does_not(draw, sandboxes):
    environment, task = generated(draw, seed=1)
    with Live(environment, task, sandboxes) as live:
        assert live.solved() == 1.0
    with Live(environment, task, sandboxes) as live:
        assert live.session.act(say("finish_action", thought="done")).reward == 0.0


def test_train_dev_and_test_are_disjoint_and_hold_every_family():
    environment = world("shell")
    splits = [contents(environment, split) for split in ("train", "dev", "test")]
    assert all(splits)
    assert sum(map(len, splits)) == len(set.union(*splits))
    for split in ("train", "dev", "test"):
        families = Counter(task.data["family"] for task in environment.tasks(split))
        assert set(families) == {"files", "text", "permissions", "archives", "processes", "accounts"}


def test_no_prompt_holds_its_answer_or_its_gold_script():
    for task in world("shell").tasks("test"):
        description = task.data["description"]
        answer = task.data["answer"]
        assert answer not in description.replace(",", " ").replace(".", " ").split() or answer.isdigit()
        assert task.data["gold"] not in description


@needs_namespace
def test_what_never_ends_floods_or_kills_the_shell_is_told_and_the_session_goes_on(sandboxes):
    environment = make("shell", options={"command_s": 2.0})
    with Live(environment, environment.tasks("train")[0], sandboxes) as live:
        assert "[stopped after 2 s]" in live.bash("sleep 100")
        flood = live.bash("yes | head -c 100000")
        assert len(flood) < CUT_CHARS + 60
        assert flood.endswith("[cut: the output is longer]")
        assert "[exit code 3]\n[the shell ended" in live.bash("exit 3")
        assert "No space left" in live.bash("head -c 200000000 /dev/zero > big; rm big")
        assert "Read-only file system" in live.bash("echo x > /usr/x")
        assert live.bash("cat /etc/passwd").endswith("[exit code 1]")
        assert live.bash("echo \0") == "ludus: a command cannot hold a NUL character\n[exit code 126]".replace(
            "\n", "\n"
        )
        assert live.bash("") == "[no output]"
        assert live.bash("echo on") == "on"
        assert live.session.act(say("answer_action", answer="x" * 2**20)).reward == 0.0


@needs_namespace
def test_what_the_agent_leaves_behind_cannot_make_the_check_pass(sandboxes):
    environment, task = generated(next(draw for draw in PROBLEMS if draw.__name__ == "set_mode"), seed=0)
    with Live(environment, task, sandboxes) as live:
        live.bash(
            "stat() { echo 700; }; export -f stat; export BASH_ENV=/work/e; echo 'exit 0' > e; echo 'exit 0' > .bashrc"
        )
        live.bash("mkdir -p bin; echo 'echo 700' > bin/stat; chmod +x bin/stat; export PATH=/work/bin:$PATH")
        assert live.session.act(say("finish_action", thought="")).reward == 0.0


def test_output_is_cut_at_eight_hundred_characters():
    assert shown(Finished(0, stdout="x" * 800), limit_s=1) == "x" * 800
    assert shown(Finished(0, stdout="x" * 801), limit_s=1) == "x" * 780 + "\n[cut: the output is longer]"


def test_an_init_script_that_fails_is_a_failure_and_never_a_reward():
    environment = world("shell")
    task = next(task for task in environment.tasks("train") if task.data["init"])
    broken = FakeSandbox(answers={" ".join([*BASH, task.data["init"]]): Finished(1, stderr="no room")})
    with pytest.raises(EnvironmentFailed, match="init script ended with 1 and said 'no room'"):
        environment.open(task, seed=0, sandbox=broken).start()


def test_a_half_downloaded_file_and_a_missing_folder_are_named(tmp_path):
    (tmp_path / "dev.json").write_text('[{"description": "x"')
    with pytest.raises(ValueError, match=r"dev\.json' cannot be read"):
        agentbench.load(str(tmp_path), split="dev")
    with pytest.raises(ValueError, match="does not exist"):
        agentbench.load(str(tmp_path / "nowhere"), split="test")


def test_an_item_whose_script_is_missing_is_left_out_and_named(tmp_path, caplog):
    item = {"description": "d", "create": {"init": {"file": "init/x.sh"}}, "evaluation": {"match": "1"}}
    (tmp_path / "dev.json").write_text(json.dumps([item, item | {"create": {}}]))
    with caplog.at_level(logging.WARNING):
        assert len(agentbench.load(str(tmp_path), split="dev")) == 1
    assert "init/x.sh" in caplog.text


@pytest.mark.parametrize(
    ("match", "answer", "right"),
    [
        ({"answer": "yes"}, " yes\n", True),
        ({"answer": "yes", "strip": False}, " yes\n", False),
        ({"regex": "[0-9]+$"}, "12", True),
        ({"regex": "[0-9]+$"}, "12a", False),
    ],
)
def test_an_answer_is_matched_as_agentbench_does(match, answer, right):
    assert agentbench.is_right({"match": match, "checks": []}, answer=answer, sandbox=FakeSandbox()) is right


@needs_items
def test_all_of_agentbenchs_items_are_loaded_but_those_that_name_what_is_not_there():
    environment = make("shell", options={"items": str(ITEMS)})
    assert environment.tasks("train") == []
    assert len(environment.tasks("dev")) == 21
    assert len(environment.tasks("test")) == 129
    assert len({task.id for split in ("dev", "test") for task in environment.tasks(split)}) == 150


@needs_items
@needs_namespace
def test_agentbenchs_items_that_keep_to_their_folder_are_solved_by_their_examples(sandboxes):
    environment = make("shell", options={"items": str(ITEMS / "data" / "7" / "bootstrap.json")})
    outcomes = Counter()
    for task in environment.tasks("test")[:24]:
        try:
            with Live(environment, task, sandboxes) as live:
                outcomes[live.solved()] += 1
        except EnvironmentFailed:
            outcomes["failed"] += 1
    assert outcomes[0.0] <= 1
    assert outcomes["failed"] <= 4, "they write to /home or /"
