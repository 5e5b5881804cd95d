import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.environments import make
from ludus.errors import ConfigError
from ludus.worlds.twenty_questions import ATTRIBUTES, NAMES, TwentyQuestions

THINGS = {
    "cup": ["red", "small", "round"],
    "hat": ["red", "large", "flat"],
    "key": ["blue", "small", "long"],
    "pot": ["green", "large", "round"],
}


def game(secret, **options):
    session = TwentyQuestions(things=len(THINGS), **options)
    return session, session.setup({"things": THINGS, "secret": secret}, random.Random(0))


def test_no_prompt_tells_the_secret():
    prompts = {game(secret)[1] for secret in THINGS}
    assert prompts == {"cup red small round, hat red large flat, key blue small long, pot green large round"}


@given(secret=st.sampled_from(list(THINGS)), data=st.data())
def test_the_oracle_tells_the_truth_and_never_rules_the_secret_out(secret, data):
    session, _ = game(secret)
    for _ in range(4):
        attribute = data.draw(st.sampled_from(session.attributes))
        value = data.draw(st.sampled_from(ATTRIBUTES[attribute]))
        said, _, left = session.ask(attribute=attribute, value=value).text.partition(", left ")
        assert (said == "yes") == (value in THINGS[secret])
        assert secret in left.split(", ")


def test_what_is_left_is_told_and_without_hints_it_is_not():
    assert game("cup")[0].ask(attribute="colour", value="red").text == "yes, left cup, hat"
    assert game("cup", hints=False)[0].ask(attribute="colour", value="red").text == "yes"


def test_an_answer_ends_the_session_right_or_wrong():
    right, wrong = game("cup")[0].answer(name="cup"), game("cup")[0].answer(name="hat")
    assert (right.text, right.reward, right.done) == ("right", 1.0, True)
    assert (wrong.text, wrong.reward, wrong.done) == ("wrong", 0.0, True)


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("ask", {"attribute": "price", "value": "red"}, "no attribute price. colour, size, shape"),
        ("ask", {"attribute": "weight", "value": "light"}, "no attribute weight. colour, size, shape"),
        ("ask", {"attribute": "size", "value": "red"}, "no size red. small, large"),
        ("answer", {"name": "moon"}, "no thing moon"),
    ],
)
def test_what_cannot_be_asked_is_refused_and_changes_nothing(tool, arguments, message):
    session, _ = game("cup")
    reply = getattr(session, tool)(**arguments)
    assert (reply.text, reply.invalid, reply.done, reply.reward) == (message, True, False, 0.0)
    assert session.left == list(THINGS)


@given(things=st.integers(2, 36), spare=st.integers(0, 3), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_halving_finds_every_drawn_thing_within_the_turns(things, spare, seed):
    session = TwentyQuestions(things=things, attributes=4, max_turns=(things - 1).bit_length() + 1 + spare)
    session.setup(session._draw(random.Random(seed)), random.Random(0))
    for _ in range(session.max_turns):
        call = session.solve()
        reply = getattr(session, call.name)(**call.arguments)
        if reply.done:
            break
    assert reply.reward == 1


def test_things_can_always_be_told_apart():
    world, rng = TwentyQuestions(things=18), random.Random(0)
    for _ in range(50):
        things = world._draw(rng)["things"]
        assert len({tuple(values) for values in things.values()}) == 18
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"things": 19}, "only 18 can differ"),
        ({"max_turns": 3}, "to tell 8 things apart and answer takes 4"),
        ({"attributes": 5}, "attributes"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make("twenty_questions", options=options)
