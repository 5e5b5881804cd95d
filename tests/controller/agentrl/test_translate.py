from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.controller.agentrl.translate import (
    STATUSES,
    STOPS,
    action_of,
    answer_of,
    index_of,
    message_of,
    names_of,
    observation_of,
    passed,
    position_of,
    task_of,
    tasks_of,
    tools_of,
)
from ludus.errors import ConfigError, EnvironmentFailed
from ludus.openai_format import action_to_openai
from ludus.types import Action, Message, Observation, Stop, Task, Tool, ToolCall


def answer(status="running", *, reward=0.0, messages=({"role": "user", "content": "x"},), **more):
    return {"status": status, "finish": status != "running", "reward": reward, "messages": list(messages), **more}


def observed(*arguments, **named):
    return observation_of(answer(*arguments, **named), where="here")


@pytest.mark.parametrize(("status", "stop"), STOPS.items())
def test_every_status_is_a_stop(status, stop):
    if stop in (Stop.FAILED, Stop.CANCELLED):
        with pytest.raises(EnvironmentFailed, match=status):
            observed(status)
    else:
        observation = observed(status)
        assert observation.done
        assert observation.invalid is (stop is Stop.INVALID)
        assert observation.metrics == ({} if stop is Stop.DONE else {f"ended_{stop}": 1.0})


def test_every_stop_of_theirs_has_one_status_to_say():
    assert set(STATUSES) == set(STOPS.values())
    assert (STATUSES[Stop.FAILED], STATUSES[Stop.DONE]) == ("task error", "completed")


def test_a_status_that_nobody_knows_is_a_failure():
    with pytest.raises(EnvironmentFailed, match="melted"):
        observed("melted")


def test_a_win_that_is_called_invalid_is_a_win():
    won = observed("agent validation failed", reward=1)
    assert (won.done, won.invalid, won.reward, won.metrics) == (True, False, 1.0, {})
    assert passed(answer("agent invalid action", reward=1))["status"] == "completed"
    assert passed(answer("agent invalid action", reward=0))["status"] == "agent invalid action"
    assert passed(answer("task error", reward=1))["status"] == "task error"


def test_rewards_before_the_end_do_not_count():
    assert observed("running", reward=0.7).reward == 0
    assert observed("completed", reward=0.7).reward == 0.7


@pytest.mark.parametrize("reward", ["1", True, [1], float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_a_failure(reward):
    with pytest.raises(EnvironmentFailed, match="reward"):
        observed("completed", reward=reward)


def test_of_their_metrics_the_numbers_are_kept():
    assert observed("completed", metric={"score": 1, "trace": [1], "bad": float("nan")}).metrics == {"score": 1.0}


def test_a_history_that_is_sent_again_counts_only_from_the_last_action():
    first = (Message("system", "s"), Message("user", "u"))
    again = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
        {"role": "tool", "content": "t", "tool_call_id": "1"},
    ]
    assert [m.content for m in observation_of(answer(messages=again), first=first, where="").messages] == ["t"]
    assert [m.content for m in observation_of(answer(messages=again[3:]), first=first, where="").messages] == ["t"]


def test_content_may_come_in_parts_and_what_is_no_text_is_named():
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    assert message_of({"role": "developer", "content": parts}) == Message("system", "see\n[image_url]")
    assert message_of({"role": "user", "content": None}) == Message("user", "")


@pytest.mark.parametrize("raw", [{}, {"role": "king"}, "x", None, {"content": "x"}])
def test_what_is_no_message_is_a_failure(raw):
    with pytest.raises(EnvironmentFailed, match="message"):
        message_of(raw)


def test_tools_come_in_two_formats():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    openai = {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}
    anthropic = {"name": "g", "input_schema": schema}
    assert tools_of({"tools": [openai, anthropic]}) == (Tool("f", "d", schema), Tool("g", "", schema))
    assert tools_of({"tools": None}) == ()


def test_tasks_have_stable_ids_and_the_custom_one_is_not_listed():
    assert [task.id for task in tasks_of("kg-std", [0, 1, -1])] == ["kg-std/test/0", "kg-std/test/1"]
    assert task_of("kg-env_train", "a").split == "train"
    assert index_of(task_of("x", "a")) == "a"
    with pytest.raises(ConfigError, match="index"):
        index_of(Task("t", "e", "s", {}))


@pytest.mark.parametrize(("index", "position"), [(0, 0), (1, 1), ("e/test/b", 1), ("b", 1)])
def test_an_index_is_a_position_or_an_id(index, position):
    assert position_of(index, task_ids=["e/test/a", "e/test/b"]) == position


@pytest.mark.parametrize("index", [-1, 2, "c", "", True, None, 1.5])
def test_any_other_index_is_refused(index):
    with pytest.raises(ConfigError, match="no task"):
        position_of(index, task_ids=["e/test/a", "e/test/b"])


def test_our_environments_have_their_names():
    assert names_of("guess", ("train", "test")) == [
        ("guess", "test"),
        ("guess-std", "test"),
        ("guess-env_train", "train"),
    ]
    assert names_of("guess", ("train",)) == [("guess-env_train", "train")]


calls = st.builds(
    ToolCall,
    name=st.text(min_size=1, max_size=5),
    arguments=st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2),
    id=st.text(min_size=1, max_size=5),
)


@given(content=st.text(), tool_calls=st.lists(calls, max_size=3))
def test_an_action_comes_back_as_it_was_said(content, tool_calls):
    action = Action(content, tuple(tool_calls))
    assert action_of([action_to_openai(action)]) == action


def test_several_messages_are_one_action_and_a_call_may_lack_its_type():
    said = [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]},
    ]
    assert action_of(said) == Action("a", (ToolCall("f", {}, id="call_0"),))


@pytest.mark.parametrize("arguments", ["{", "[]", "3", "[" * 5000])
def test_arguments_that_cannot_be_read_are_a_problem(arguments):
    said = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}]}
    action = action_of([said])
    assert action.problem.startswith("f: arguments are")
    assert action.tool_calls[0].id == "1"


def test_every_call_is_answered_because_their_models_insist():
    action = Action(tool_calls=(ToolCall("f", {}, id="1"), ToolCall("g", {}, id="2")))
    observation = Observation((Message("tool", "done", tool_call_id="1"),))
    told = answer_of(observation, action=action, total=0.0, stop=None)["messages"]
    assert {(message["tool_call_id"], message["content"]) for message in told} == {
        ("1", "done"),
        ("2", "not carried out"),
    }


def test_an_answer_without_messages_gets_one_unless_it_is_the_last():
    assert answer_of(Observation(), total=0.0, stop=None)["messages"] == [{"role": "user", "content": ""}]
    assert answer_of(Observation(), total=0.0, stop=Stop.DONE)["messages"] == []
