import random

import pytest

from ludus.environments import Reply, make, tool, wrap
from ludus.environments.author import snake_case
from ludus.errors import ConfigError
from ludus.types import Action, ToolCall
from tests.environments.authored import Adder, Echo


def started(author, *, index=0, seed=0, **options):
    environment = wrap(author, options=options)
    session = environment.open(environment.tasks("train")[index], seed=seed)
    return session, session.start()


def call(name, **arguments):
    return Action(tool_calls=(ToolCall(name, arguments, id="c1"),))


def test_the_docstring_is_the_system_message_and_setup_gives_the_first_prompt():
    _, first = started(Adder, index=3)
    assert [(m.role, m.content) for m in first.messages] == [("system", "Add the numbers."), ("user", "3 and 1")]
    assert [t.name for t in first.tools] == ["answer", "note"]


def test_a_tool_result_comes_back_as_a_tool_message():
    session, _ = started(Adder, index=3)
    seen = session.act(call("note", text="ab", times=2))
    assert (seen.messages[0].role, seen.messages[0].content) == ("tool", "abab")
    assert (seen.messages[0].tool_call_id, seen.messages[0].name) == ("c1", "note")
    assert (seen.reward, seen.done, seen.invalid) == (0.0, False, False)


def test_calls_of_one_turn_are_carried_out_in_order_until_done():
    session, _ = started(Adder, index=3)
    calls = (ToolCall("note", {"text": "x"}), ToolCall("answer", {"value": 4}), ToolCall("note", {"text": "never"}))
    seen = session.act(Action(tool_calls=calls))
    assert [m.content for m in seen.messages] == ["x", "right"]
    assert (seen.reward, seen.done) == (1, True)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Action(content="four"), "no tool call. tools: answer, note"),
        (Action(problem="missing brace"), "bad tool call: missing brace"),
        (call("anser", value=4), "no tool 'anser'. tools: answer, note. Did you mean 'answer'?"),
        (call("answer", value="4"), "value: got '4', expected a valid integer"),
        (call("answer"), "value is missing; expected integer"),
        (call("answer", valu=4), "value is missing; expected integer; unknown argument valu; expected value."),
    ],
)
def test_what_cannot_be_carried_out_is_explained_and_marked_invalid(action, message):
    session, _ = started(Adder)
    seen = session.act(action)
    assert seen.invalid
    assert not seen.done
    assert seen.messages[0].content.startswith(message)


def test_the_session_goes_on_after_an_invalid_action():
    session, _ = started(Adder)
    session.act(Action(content="?"))
    assert session.act(session.solve()).reward == 1


def test_a_text_environment_gets_the_accepted_text():
    session, _ = started(Echo)
    assert session.act(Action(content=" Red \n")).reward == 1.0


def test_a_text_environment_refuses_what_it_does_not_list():
    session, _ = started(Echo)
    seen = session.act(Action(content="green"))
    assert (seen.invalid, seen.messages[0].content) == (True, "say one of: red, blue")


def test_a_tool_call_in_a_text_environment_is_refused():
    session, _ = started(Echo)
    assert session.act(call("answer", value=1)).invalid


def test_a_session_is_single_use():
    session, _ = started(Echo)
    session.act(Action(content="red"))
    with pytest.raises(RuntimeError, match="single use"):
        session.act(Action(content="red"))


def test_ids_are_stable_and_an_author_may_give_them():
    class Named(Echo):
        tasks = {"train": [{"word": "red", "id": "first"}, {"word": "blue"}], "test": []}

    assert [task.id for task in wrap(Named).tasks("train")] == ["named/train/first", "named/train/1"]
    assert wrap(Named).tasks("nowhere") == []


def test_what_setup_does_to_its_data_stays_in_its_session():
    class Greedy(Echo):
        """Empties its data."""

        tasks = {"train": [{"words": ["red"]}]}

        def setup(self, task, rng):
            return task["words"].pop()

    environment = wrap(Greedy)
    task = environment.tasks("train")[0]
    assert [environment.open(task, seed=s).start().messages[1].content for s in range(2)] == ["red", "red"]


def test_options_are_the_constructors_keywords():
    environment = wrap(Echo, options={"loud": True})
    assert environment.options == {"loud": True, "width": 3}
    _, first = started(Echo, loud=True)
    assert first.messages[1].content == "RED"


def test_an_unknown_option_is_answered_with_the_near_one():
    with pytest.raises(ConfigError, match=r"no option 'lod'. Did you mean 'loud'\? Known: loud, width"):
        wrap(Echo, options={"lod": True})


@pytest.mark.parametrize("options", [{"width": "wide"}, {"width": 0}])
def test_an_option_of_the_wrong_kind_is_a_config_error(options):
    with pytest.raises(ConfigError, match="width"):
        wrap(Echo, options=options)


def test_a_class_without_a_way_to_act_is_refused():
    class Silent:
        tasks = {"train": [{}]}

        def setup(self, task, rng):
            return ""

    with pytest.raises(ConfigError, match="neither; expected methods marked @tool"):
        wrap(Silent)


def test_a_class_without_setup_is_refused():
    with pytest.raises(ConfigError, match="has no setup"):
        wrap(type("Bare", (), {"tasks": {}, "act": lambda self, text: text}))


def test_metrics_and_rewards_of_one_turn_add_up():
    class Paid:
        """Pays."""

        tasks = {"train": [{}]}

        def setup(self, task, rng):
            return "go"

        @tool
        def work(self, hours: int):
            """Work."""
            return Reply("paid", reward=0.25 * hours, metrics={"hours": hours})

    session, _ = started(Paid)
    seen = session.act(Action(tool_calls=(ToolCall("work", {"hours": 1}), ToolCall("work", {"hours": 2}))))
    assert (seen.reward, dict(seen.metrics)) == (0.75, {"hours": 2})


def test_the_default_random_player_of_tools_plays_valid_actions():
    session, _ = started(Adder)
    rng = random.Random(0)
    assert not any(session.act(session.random_action(rng)).invalid for _ in range(2))


def test_players_that_an_author_did_not_write_are_missing_not_broken():
    class Plain:
        """Talk."""

        tasks = {"train": [{}]}

        def setup(self, task, rng):
            return "hello"

        def act(self, text):
            return "hm"

    session, _ = started(Plain)
    assert session.solve is None
    assert session.random_action is None


def test_a_tool_that_returns_nothing_is_named():
    class Mute(Adder):
        """Mute."""

        @tool
        def answer(self, value: int):
            """Say nothing."""

    session, _ = started(Mute)
    with pytest.raises(TypeError, match="answer returned NoneType; expected a str or a Reply"):
        session.act(call("answer", value=1))


def test_what_is_said_without_a_call_reaches_an_author_who_listens():
    class Listener(Adder):
        """Add."""

        def say(self, text):
            return Reply(f"heard {text}", reward=0.5, done=True)

    session, _ = started(Listener)
    assert session.act(Action(problem="not JSON")).invalid
    seen = session.act(Action(content=" the sum is 5 "))
    assert (seen.messages[0].content, seen.reward, seen.done) == ("heard the sum is 5", 0.5, True)


def test_the_seed_decides_the_noise_and_nothing_else():
    lake = make("frozen_lake", options={"slippery": 0.5})
    task = lake.tasks("train")[0]

    def walk(seed):
        session = lake.open(task, seed=seed)
        seen = [session.start()]
        while not seen[-1].done and len(seen) < 9:
            seen.append(session.act(Action(content="down")))
        return seen

    walks = [walk(seed) for seed in range(20)]
    assert walk(3) == walks[3]
    assert all(seen[0] == walks[0][0] for seen in walks)
    assert any(seen != walks[0] for seen in walks)


def test_class_names_become_environment_names():
    assert snake_case("FrozenLake") == "frozen_lake"
    assert snake_case("KvStore2") == "kv_store2"


def test_an_isolation_that_does_not_exist_is_refused_with_the_near_one():
    class Apart(Adder):
        isolation = "proces"

    with pytest.raises(
        ConfigError, match=r"'apart': isolation is 'proces'; expected one of none, process. Did you mean 'process'"
    ):
        wrap(Apart)


def test_a_reward_that_is_no_number_is_named_also_beside_others():
    class Generous(Adder):
        @tool
        def answer(self, value: int):
            """Give the answer."""
            return Reply("right", reward="lots", done=True)

    session, _ = started(Generous)
    with pytest.raises(TypeError, match=r"answer returned reward 'lots' \(str\); expected a number"):
        session.act(call("answer", value=1))
