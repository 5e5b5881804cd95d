import os
import random
import shutil
import signal
from pathlib import Path

import pytest

pytest.importorskip("scienceworld", reason='sciworld needs scienceworld: pip install "ludus[worlds]"')
if shutil.which("java") is None:
    pytest.skip("sciworld needs Java: apt-get install default-jre-headless", allow_module_level=True)

from ludus.checks import check
from ludus.environments import make
from ludus.errors import ConfigError, EnvironmentFailed
from ludus.types import Action
from ludus.worlds.sciworld import simulator as simulators
from ludus.worlds.sciworld import world as sciworld
from ludus.worlds.sciworld.identity import patched_classes
from ludus.worlds.sciworld.world import SHORT, VARIATIONS, variations
from tests.worlds.playing import contents, patient, world

QUICK = {"experiments": ("lifespan-longest-lived",)}


@pytest.fixture
def session():
    environment = make("sciworld", options=QUICK)
    opened = environment.open(environment.tasks("test")[0], seed=0)
    opened.first = opened.start()
    yield opened
    opened.close()


def said(observation):
    return observation.messages[-1].content


def test_train_dev_and_test_share_no_variation():
    environment = world("sciworld")
    splits = [contents(environment, split) for split in ("train", "dev", "test")]
    assert all(splits)
    assert sum(map(len, splits)) == len(set.union(*splits))
    assert {task.data["experiment"] for task in environment.tasks("test")} == set(SHORT)
    for name, total in VARIATIONS.items():
        parts = [variations(name, split=split) for split in ("train", "dev", "test")]
        assert [number for part in parts for number in part] == list(range(total))


def test_the_splits_are_the_librarys_own():
    """One experiment whose number of variations four does not divide; 24 of the 30 were compared by hand."""
    simulator = simulators.POOL.take()
    simulator.load("identify-life-stages-1", 0)
    for split, name in (("train", "getVariationsTrain"), ("dev", "getVariationsDev"), ("test", "getVariationsTest")):
        assert list(simulator.call(name)) == list(variations("identify-life-stages-1", split=split))
    assert simulator.call("getTaskMaxVariations", "identify-life-stages-1") == VARIATIONS["identify-life-stages-1"]
    simulators.POOL.give_back(simulator)


def test_the_gold_path_earns_the_whole_reward_and_no_prompt_tells_it(session):
    seen = [session.first]
    session.act(Action(content="inventory"))  # the path is worked out later, and the simulator brought back to here
    while not seen[-1].done and len(seen) < 40:
        action = session.solve()
        assert action.content not in said(session.first).splitlines()
        seen.append(session.act(action))
    assert sum(observation.reward for observation in seen) == pytest.approx(1)
    assert seen[-1].metrics["success"] == 1


def test_the_gold_path_is_worked_out_once_and_a_session_goes_on_from_where_it_was(monkeypatch):
    monkeypatch.setattr(sciworld, "_PATHS", {})
    environment, loads, told = make("sciworld", options=QUICK), [], []
    load = simulators.Simulator.load
    monkeypatch.setattr(
        simulators.Simulator,
        "load",
        lambda self, *args, **options: loads.append(options) or load(self, *args, **options),
    )
    for seed in range(2):
        session = environment.open(environment.tasks("test")[1], seed=seed)
        seen = [session.start(), *(session.act(Action(content=command)) for command in ("inventory", "go hallway"))]
        while not seen[-1].done:
            seen.append(session.act(session.solve()))
        session.close()
        told.append([(said(observation), observation.reward) for observation in seen])
    assert loads == [{}, {"gold": True}, {}]
    assert told[0] == told[1]


def test_the_same_commands_are_answered_alike_however_often_a_variation_is_loaded():
    commands = ("open door to art studio", "look in art studio", "wait", "look in art studio")
    told = set()
    for split in range(4):
        environment = make("sciworld", options={"experiments": ("use-thermometer",)})
        session = environment.open(environment.tasks("test")[0], seed=split)
        session.start()
        told.add(tuple(said(session.act(Action(content=command))) for command in commands))
        session.close()
    assert len(told) == 1
    assert "wood cup" in told.pop()[1]


def test_things_are_found_by_their_own_number_and_not_by_one_that_java_makes_up():
    simulator = simulators.POOL.take()
    new = simulator._gateway.jvm.scienceworld.struct.EnvObject
    things = [new() for _ in range(3)]
    assert [thing.hashCode() for thing in things] == [thing.uuid() for thing in things]
    assert len({thing.hashCode() for thing in things}) == 3
    simulators.POOL.give_back(simulator)


def test_the_changed_class_is_written_once_and_mended_where_it_is_damaged(tmp_path):
    from scienceworld.constants import JAR_PATH

    folder = patched_classes(Path(JAR_PATH), cache=tmp_path)
    (file,) = (path for path in folder.rglob("*") if path.is_file())
    whole, when = file.read_bytes(), file.stat().st_mtime_ns
    assert patched_classes(Path(JAR_PATH), cache=tmp_path) == folder
    assert file.stat().st_mtime_ns == when
    file.write_bytes(whole[:100])
    patched_classes(Path(JAR_PATH), cache=tmp_path)
    assert file.read_bytes() == whole


def test_a_half_downloaded_package_is_a_named_failure(tmp_path):
    (tmp_path / "half.jar").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(EnvironmentFailed, match="install scienceworld again"):
        patched_classes(tmp_path / "half.jar", cache=tmp_path)


def test_a_wrong_decision_ends_the_session_and_takes_back_what_was_earned(session):
    rewards = [session.act(Action(content=command)).reward for command in ("open door to kitchen", "inventory")]
    end = session.act(Action(content="focus on air"))
    assert end.done
    assert sum(rewards) + end.reward == pytest.approx(0)
    assert end.metrics["success"] == 0


def test_what_a_task_has_from_its_start_is_not_paid():
    """In this one the agent stands in a room that it is to enter, which the library counts."""
    environment = make("sciworld", options={"experiments": ("use-thermometer",)})
    (task,) = (task for task in environment.tasks("dev") if task.data["variation"] == 270)
    session = environment.open(task, seed=0)
    session.start()
    seen = session.act(Action(content="?! blah"))
    assert (seen.reward, seen.invalid) == (0, True)
    assert seen.metrics["score"] > 0
    rewards = []
    while not rewards or not seen.done:
        seen = session.act(session.solve())
        rewards.append(seen.reward)
    assert sum(rewards) == pytest.approx(1)
    session.close()


def test_nonsense_is_answered_and_is_worth_nothing(session):
    for hostile in ("", "x" * 2**20, "\x00", "drop table; import os", "reset task", "look\naround\udc80"):
        observation = session.act(Action(content=hostile))
        assert observation.reward == 0
        assert not observation.done
    assert session.act(Action(content="")).invalid
    rng = random.Random(0)
    assert not any(session.act(session.random_action(rng)).reward > 0 for _ in range(3))


def test_a_dead_java_process_is_a_named_failure_and_the_next_session_gets_another():
    environment = make("sciworld", options=QUICK)
    task = environment.tasks("test")[0]
    dying = environment.open(task, seed=0)
    first = dying.start()
    os.kill(dying._session._author.simulator.process.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFailed, match="Java process failed"):
        dying.act(Action(content="inventory"))
    dying.close()
    other = environment.open(task, seed=1)
    assert other.start().messages == first.messages
    other.close()


def test_a_machine_without_java_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(sciworld, "POOL", simulators.Pool(simulators.Simulator))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    environment = make("sciworld")
    with pytest.raises(EnvironmentFailed, match="apt-get install default-jre-headless"):
        environment.open(environment.tasks("test")[0], seed=0).start()


def test_an_unknown_experiment_is_answered_with_the_near_one():
    with pytest.raises(ConfigError, match="Did you mean 'find-plant'"):
        make("sciworld", options={"experiments": ["find-plan"]})


@patient
def test_the_world_passes_its_own_check():
    report = check(world("sciworld"), num_tasks=3)
    assert not report.findings, str(report)
