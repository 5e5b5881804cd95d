import json
import subprocess
import sys

import pytest

pytest.importorskip("textworld", reason='household needs alfworld and textworld: pip install "ludus[worlds]"')
pytest.importorskip("fast_downward", reason='household needs the planner: pip install "ludus[worlds]"')

from ludus.environments import check, make
from ludus.errors import ConfigError, EnvironmentFailed
from ludus.types import Action, ToolCall
from ludus.worlds.household import rooms
from ludus.worlds.household.world import FOLDERS
from tests.worlds.playing import contents, patient, play, won, world


def generated():
    return world("household", games="generated")


def say(command):
    return Action(tool_calls=(ToolCall("take_action", {"action": command}),))


@pytest.fixture
def official(tmp_path, monkeypatch):
    """A folder like ALFWorld's, with one game in each split, made here."""
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    for number, (split, folder) in enumerate(FOLDERS.items()):
        game, said = rooms.make_game("pick_and_place_simple", split=split, number=number)
        game["grammar"] = game["grammar"].replace("UNKNOWN GOAL", said)
        for name, solvable in (("trial_1", True), ("trial_2", False), ("trial_movable", True)):
            at = tmp_path / "json_2.1.1" / folder / f"kind-{number}" / name
            at.mkdir(parents=True)
            (at / "game.tw-pddl").write_text(json.dumps({**game, "solvable": solvable}))
    return tmp_path


QUICK = ("look_at_obj_in_light", "pick_heat_then_place_in_recep", "pick_two_obj_and_place")
OTHERS = [pytest.param(kind, marks=patient) for kind in rooms.KINDS if kind not in QUICK]


@pytest.mark.parametrize("kind", [*QUICK, *OTHERS])
def test_the_planner_wins_a_game_of_every_kind(kind):
    environment = generated()
    task = next(task for task in environment.tasks("test") if task.data["kind"] == kind)
    seen = play(environment, task=task, seed=0)
    assert won(seen)
    assert [observation.reward for observation in seen[:-1]] == [0.0] * (len(seen) - 1)


def test_train_dev_and_test_share_no_game_and_no_room():
    environment = generated()
    splits = [contents(environment, split) for split in ("train", "dev", "test")]
    assert all(splits)
    assert sum(map(len, splits)) == len(set.union(*splits))
    problems = [
        {rooms.make_game(kind, split=split, number=n)[0]["pddl_problem"] for kind in rooms.KINDS for n in range(16)}
        for split in rooms.PLANS
    ]
    assert sum(map(len, problems)) == len(set.union(*problems)) == 3 * 16 * len(rooms.KINDS)
    plans = [{first + plan for first in (1, 201, 301, 401) for plan in part} for part in rooms.PLANS.values()]
    assert len(set.union(*plans)) == sum(map(len, plans)) == 120


def test_nobody_mistakes_a_generated_game_for_an_official_one(official):
    assert all(task.id.split("/")[2].startswith("generated-") for task in generated().tasks("test"))
    environment = make("household")
    assert [task.id for task in environment.tasks("test")] == ["household/test/alfworld-kind-2-trial_1"]
    assert [task.data["game"] for task in environment.tasks("train")] == ["train/kind-0/trial_1/game.tw-pddl"]


def test_an_official_game_is_played_from_its_file(official):
    environment = make("household", options={"games": "official"})
    seen = play(environment, task=environment.tasks("test")[0], seed=0)
    assert won(seen)
    assert "Your task is to: put" in seen[0].messages[-1].content


def test_a_half_downloaded_game_and_a_missing_folder_are_named(official, monkeypatch):
    environment = make("household", options={"games": "official"})
    task = environment.tasks("test")[0]
    (official / "json_2.1.1" / task.data["game"]).write_text('{"pddl_problem": "(def')
    with pytest.raises(EnvironmentFailed, match="downloaded whole"):
        environment.open(task, seed=0).start()
    monkeypatch.setenv("ALFWORLD_DATA", str(official / "nowhere"))
    with pytest.raises(ConfigError, match="run alfworld-download"):
        make("household", options={"games": "official"})


def test_a_command_that_is_not_possible_changes_nothing():
    environment = generated()
    session = environment.open(environment.tasks("train")[0], seed=0)
    commands = session.start().messages[-1].content.rpartition("commands: ")[2]
    for hostile in ("", "fly", "look\nlook", "x" * 2**20, "go to sofa 99", "\x00"):
        seen = session.act(say(hostile))
        assert seen.invalid
        assert seen.reward == 0
        assert seen.messages[-1].content.endswith(commands)
        assert len(seen.messages[-1].content) < len(commands) + 500
    assert not session.act(say("look")).invalid
    session.close()


def test_the_same_game_is_made_whatever_the_hash_seed():
    script = (
        "import hashlib; from ludus.worlds.household import rooms;"
        "print([hashlib.sha256(repr(rooms.make_game(k, split='dev', number=3)).encode()).hexdigest() for k in rooms.KINDS])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in "01"
    }
    assert len(runs) == 1


def test_the_users_home_and_variables_are_left_alone(tmp_path):
    script = (
        "import os; from ludus.worlds.household import rooms;"
        "rooms.make_game('pick_two_obj_and_place', split='dev', number=0); print(os.environ.get('ALFWORLD_DATA'))"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], env={"HOME": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert told.stdout == "None\n"
    assert not list(tmp_path.rglob("alfworld"))


def test_loading_textworld_leaves_the_global_random_state_alone():
    script = (
        "import numpy as np; before = np.random.get_state()[1].tobytes(); from ludus.worlds.household import package;"
        "package.new_game(); print(before == np.random.get_state()[1].tobytes())"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "True\n"


@patient
def test_the_world_passes_its_own_check():
    report = check(generated(), num_tasks=2)
    assert not report.findings, str(report)
