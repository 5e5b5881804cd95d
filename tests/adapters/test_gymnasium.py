import asyncio
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.adapters.gymnasium import without_colours
from ludus.checks import check
from ludus.environments import make
from ludus.errors import ConfigError, EnvironmentFailed
from ludus.hosting.host import Host
from ludus.types import Action, ToolCall
from tests.adapters import worlds

SOURCE = "ludus.adapters.gymnasium:Gymnasium"
LAKE = {"id": "FrozenLake-v1", "make": {"is_slippery": False}, "actions": ["left", "down", "right", "up"]}
SAFE = ["down", "down", "right", "down", "right", "right"]


def environment_of(**options):
    return make("gym", source=SOURCE, options={"num_train": 5, "num_test": 3, **options})


def played(environment, *actions, seed=0, task=0):
    async def run():
        host = Host()
        session = await host.open(environment, environment.tasks("train")[task], seed=seed)
        try:
            sent = [action if isinstance(action, Action) else Action(action) for action in actions]
            observations = [await session.start()]
            for action in sent:
                if not observations[-1].done:
                    observations.append(await session.act(action))
            return observations
        finally:
            await session.close()
            await host.close()

    return asyncio.run(run())


def test_frozen_lake_is_won_by_walking_around_the_holes():
    start, *_, end = played(environment_of(**LAKE), *SAFE)
    assert start.messages[1].content == "state 0"
    assert "one of left, down, right, up" in start.messages[0].content
    assert (end.reward, end.done, end.messages[0].content) == (1.0, True, "state 15")


def test_the_picture_an_environment_draws_loses_its_colours_and_keeps_what_they_say():
    picture = played(environment_of(**LAKE, render="ansi"))[0].messages[1].content
    assert "[S]FFF\nFHFH" in picture
    assert "\x1b" not in picture
    assert without_colours("\x1b[43mT\x1b[0m \x1b[34;1mR\x1b[0m") == "[T] R{blue}"


def test_taxi_is_shown_by_a_function_of_ones_own():
    environment = environment_of(id="Taxi-v4", render="tests.adapters.worlds:taxi_in_words")
    start, after = played(environment, "0")
    assert start.messages[1].content.startswith("taxi at ")
    assert after.reward == -1.0


def test_blackjack_and_cliff_walking_pass_the_check():
    for options in ({"id": "Blackjack-v1", "actions": ["stick", "hit"]}, {"id": "CliffWalking-v1", "max_turns": 6}):
        report = check(environment_of(**options), num_tasks=2)
        assert report.ok, str(report)


def test_a_tuple_is_written_as_its_numbers():
    assert played(environment_of(id="Blackjack-v1"))[0].messages[1].content.count(", ") == 2


def test_the_ids_time_limit_is_the_turn_limit_and_nothing_is_called_done():
    environment = environment_of(id="Taxi-v4")
    assert environment.max_turns == 200
    lake = environment_of(**LAKE)
    assert lake.max_turns == 100
    assert not any(observation.done for observation in played(lake, *["left"] * 120))


def test_an_environment_that_cuts_itself_off_says_so():
    move = json.dumps({"move": [0.5, -1], "say": "hey", "mode": 2})
    start, middle, end = played(environment_of(id="Odd-v0"), move, move)
    assert "said: hi <|im_end|>" in start.messages[1].content
    assert "hand: 2, 1" in start.messages[1].content
    assert not middle.done
    assert (end.done, end.reward, end.metrics) == (True, 0.5, {"truncated": 1.0})


@pytest.mark.parametrize(
    "said",
    ["", "up", "{}", "[1, 2]", '{"move": [5, 5], "say": "a", "mode": 1}', '{"move": [0, 0], "say": "a", "mode": 0}', "[" * 9999,
     '{"move": [0], "say": "a", "mode": 1}', '{"move": "x", "say": "a", "mode": 1}', '{"move": [0, 0], "say": "way too long", "mode": 1}'],
)  # fmt: skip
def test_what_is_not_in_the_space_is_refused_with_words(said):
    observation = played(environment_of(id="Odd-v0"), said)[-1]
    assert observation.invalid
    assert observation.messages[0].content


@given(st.integers(0, 10**6))
def test_every_action_can_be_written_and_read_again(seed):
    environment = environment_cached()
    space, words = environment.actions.space, environment.actions
    space.seed(seed)
    action = space.sample()
    assert words.write(words.read(words.write(action))) == words.write(action)


def environment_cached(found=[]):  # noqa: B006
    if not found:
        found.append(environment_of(id="Odd-v0"))
    return found[0]


def test_names_are_read_in_any_case_and_others_are_refused():
    lake = environment_of(**LAKE)
    assert played(lake, " DOWN\n")[-1].messages[0].content == "state 4"
    refused = played(lake, "north")[-1]
    assert refused.invalid
    assert refused.messages[0].content == "say one of: left, down, right, up"


def test_the_same_world_can_be_played_with_a_tool():
    lake = environment_of(**LAKE, tool=True)
    start, moved, text, wrong = played(
        lake,
        Action(tool_calls=(ToolCall("act", {"action": "down"}, id="c1"),)),
        "down",
        Action(tool_calls=(ToolCall("act", {"direction": "down"}),)),
    )
    assert start.tools[0].parameters["properties"]["action"]["enum"] == LAKE["actions"]
    assert (moved.messages[0].role, moved.messages[0].tool_call_id, moved.messages[0].content) == (
        "tool",
        "c1",
        "state 4",
    )
    assert text.invalid
    assert wrong.invalid


def test_the_task_makes_the_world_and_the_attempt_its_chances():
    slippery = environment_of(id="FrozenLake-v1")
    ways = {tuple(o.messages[-1].content for o in played(slippery, *"111", seed=seed)) for seed in range(12)}
    assert len(ways) > 1
    assert len({way[0] for way in ways}) == 1
    again = [tuple(o.messages[-1].content for o in played(slippery, *"111", seed=7)) for _ in range(2)]
    assert again[0] == again[1]


def test_random_actions_are_valid():
    environment = environment_of(id="Odd-v0")
    session = environment.open(environment.tasks("train")[0], seed=0)
    action = session.random_action(random.Random(3))
    assert environment.actions.read(action.content) is not None


def test_no_seed_is_both_train_and_test():
    environment = environment_of(id="Taxi-v4", num_train=2000)
    train, test = ({task.data["seed"] for task in environment.tasks(split)} for split in ("train", "test"))
    assert (len(train), len(test), len(train & test)) == (2000, 3, 0)


def test_a_nan_reward_fails_the_session():
    with pytest.raises(EnvironmentFailed, match="reward is nan"):
        played(environment_of(id="Nan-v0"), "0")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"id": "FrozenLak-v1"}, "gymnasium cannot make 'FrozenLak-v1'"),
        ({"id": "FrozenLake-v1", "actions": ["a"]}, "gives 1 names .* expected 4"),
        ({"id": "FrozenLake-v1", "actions": ["a", "b", "c", "A"]}, "a name twice"),
        ({"id": "Odd-v0", "actions": ["a"]}, "the space is not Discrete"),
        ({"id": "Picture-v0"}, "has 12288 numbers; at most 256 can be written as text"),
        ({"id": "FrozenLake-v1", "render": "nowhere:f"}, "cannot be imported"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(options, expected):
    assert worlds
    with pytest.raises(ConfigError, match=expected):
        environment_of(**options)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ConfigError, match=r"pip install 'ludus\[gymnasium\]'"):
        environment_of(**LAKE)
