import random

import pytest

pytest.importorskip("minigrid", reason='babyai needs minigrid: pip install "ludus[worlds]"')

from ludus.checks import check
from ludus.environments import make
from ludus.errors import ConfigError
from ludus.types import Action
from ludus.worlds import babyai
from ludus.worlds.babyai import LEVELS, MOVES
from tests.worlds.playing import play, won, world


def opened(level, *, seed=0):
    environment = world("babyai")
    task = next(t for t in environment.tasks("train") if t.data["level"] == level and t.data["seed"] == seed)
    session = environment.open(task, seed=0)
    return session, session.start()


def said(observation):
    return observation.messages[-1].content


def offered(observation):
    return said(observation).rpartition("actions: ")[2].split(", ")


def content(task):
    """All that tells one task from another: mission, map, and where the agent stands."""
    author = babyai.BabyAI()
    author.setup(dict(task.data), random.Random(0))
    grid = author.grid
    return grid.mission, grid.grid.encode().tobytes(), tuple(map(int, grid.agent_pos)), int(grid.agent_dir)


def test_the_world_passes_its_own_check():
    report = check(world("babyai"), num_tasks=10)
    assert not report.findings, str(report)


def test_the_bot_solves_a_task_of_every_level():
    environment = world("babyai")
    for task in environment.tasks("test")[: len(LEVELS)]:
        assert won(play(environment, task=task, seed=0)), task.id


def test_the_solver_finds_its_way_after_mistakes():
    environment = world("babyai")
    tasks = environment.tasks("train")[: 2 * len(LEVELS)]
    assert sum(won(play(environment, task=task, seed=i, mistakes=0.3)) for i, task in enumerate(tasks)) > 0.85 * len(
        tasks
    )


def test_no_map_and_mission_is_in_two_splits():
    environment = world("babyai")
    found = [{content(task) for task in environment.tasks(split)} for split in ("dev", "test", "train")]
    assert all(found)
    assert sum(map(len, found)) == len(set.union(*found)) == len(LEVELS) * 64


def test_every_action_that_a_prompt_offers_is_accepted():
    for level in LEVELS[::3]:
        session, seen = opened(level)
        for action in offered(seen):
            other, _ = opened(level)
            assert not other.act(Action(content=action)).invalid, action
        assert set(MOVES) < set(offered(seen)) or set(MOVES) == set(offered(seen))
        session.close()


def test_the_reward_is_paid_once_and_then_it_is_over():
    environment = world("babyai")
    seen = play(environment, task=environment.tasks("train")[0], seed=0)
    assert [observation.reward for observation in seen[:-1]] == [0.0] * (len(seen) - 1)
    assert (seen[-1].reward, seen[-1].done, seen[-1].metrics["success"]) == (1.0, True, 1.0)
    assert 0.1 < seen[-1].metrics["pace"] < 1.0


def test_going_to_a_thing_ends_before_it():
    session, seen = opened("GoToLocal")
    goal = next(action for action in offered(seen) if action.startswith("go to"))
    after = session.act(Action(content=goal))
    assert after.done or f"{goal.removeprefix('go to ')} 1 ahead" in said(after)


def test_what_is_not_offered_is_refused_and_changes_nothing():
    session, seen = opened("GoToObj")
    for hostile in ("go to the moon", "pickup", "", "x" * 2**20, "go to red ball 99\n\x00"):
        refused = session.act(Action(content=hostile))
        assert refused.invalid
        assert not refused.reward
    assert session.act(Action(content="turn left")).messages != seen.messages


def test_walking_into_a_wall_is_told():
    session, _ = opened("GoToObj")
    walked = [session.act(Action(content="move forward")) for _ in range(8)]
    assert any(said(observation).startswith("the way is blocked") for observation in walked if not observation.done)


def test_the_levels_print_nothing(capsys):
    for seed in range(4):
        opened("GoToSeqS5R2", seed=seed)
    assert capsys.readouterr().out == ""


def test_an_unknown_level_is_answered_with_the_near_one():
    with pytest.raises(ConfigError, match="Did you mean 'GoToLocal'"):
        make("babyai", options={"levels": ["GoToLocl"]})
