import hashlib
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.environments import make
from ludus.errors import ConfigError
from ludus.types import Action, ToolCall
from ludus.worlds import frozen_lake, kv_store
from tests.worlds.playing import contents, play, success, won, world

NAMES = (
    "frozen_lake", "guess", "kv_store", "bandit", "corridor", "countdown", "maze", "sokoban", "twenty_questions", "wordle",
)  # fmt: skip
"""The small worlds, meant for tiny models. Each of the larger ones has a test file of its own."""
HARDER = [
    ("frozen_lake", {"size": 8, "holes": 14}),
    ("frozen_lake", {"size": 5, "holes": 4, "slippery": 0.2}),
    ("guess", {"numbers": 60, "largest": 99}),
    ("guess", {"numbers": 1000, "largest": 5000}),
    ("kv_store", {"keys": 8, "changes": 6}),
    ("kv_store", {"hints": False}),
    ("bandit", {"arms": 3, "pulls": 10, "hints": False}),
    ("corridor", {"length": 40, "start": 5}),
    ("countdown", {"numbers": 4, "largest": 25, "target": 200}),
    ("maze", {"size": 5, "view": "local", "hints": False}),
    ("sokoban", {"size": 6, "boxes": 2, "hints": False}),
    ("twenty_questions", {"things": 20, "attributes": 4, "hints": False}),
    ("wordle", {"words": 20, "hints": False}),
]
MEDIOCRE = {"wordle": 0.8}
"""Where someone who errs every other turn does better than 65 %."""


@pytest.mark.parametrize(("name", "options"), [(name, {}) for name in NAMES] + HARDER)
def test_promise_10_train_dev_and_test_tasks_are_disjoint_and_distinct(name, options):
    environment = world(name, **options)
    splits = {split: contents(environment, split) for split in ("train", "dev", "test")}
    assert sum(map(len, splits.values())) == len(set.union(*splits.values()))
    for split, found in splits.items():
        assert len(found) == len(environment.tasks(split))
        assert len(found) >= (1 if (name, split, options.get("arms")) == ("bandit", "dev", 3) else 60)
    assert environment.tasks("no such split") == []


DRAWN = {
    "frozen_lake": "e1440f63", "guess": "53c44b71", "kv_store": "92f4478c", "bandit": "4b597983", "corridor": "fdb8ecc9",
    "countdown": "81dcb10c", "maze": "8a9e77aa", "sokoban": "d4f01365", "twenty_questions": "88c1ba02", "wordle": "45504b02",
}  # fmt: skip
"""The beginning of a hash of all train and test tasks: figures that were measured stand on them."""


@pytest.mark.parametrize("name", NAMES)
def test_the_train_and_test_tasks_are_those_that_figures_were_measured_on(name):
    environment = world(name)
    tasks = [(task.id, dict(task.data)) for split in ("train", "test") for task in environment.tasks(split)]
    assert hashlib.sha256(json.dumps(tasks, sort_keys=True).encode()).hexdigest()[:8] == DRAWN[name]


@pytest.mark.parametrize(
    ("name", "options"), [(name, {}) for name in NAMES] + [h for h in HARDER if "slippery" not in h[1]]
)
def test_the_solver_wins_dev_too_where_chance_has_no_part(name, options):
    environment = world(name, **options)
    for seed, task in enumerate(
        environment.tasks("dev")[-20:]
    ):  # the last ones are the neighbours' where a world is small
        assert won(play(environment, task=task, seed=seed)), task.id


@pytest.mark.parametrize(
    ("name", "options"), [(name, {}) for name in NAMES] + [h for h in HARDER if "slippery" not in h[1]]
)
def test_the_solver_always_wins_where_chance_has_no_part(name, options):
    environment = world(name, **options)
    for seed, task in enumerate(environment.tasks("test")[:60]):
        assert won(play(environment, task=task, seed=seed))


@pytest.mark.parametrize("name", NAMES)
def test_no_session_pays_more_than_one(name):
    environment = world(name)
    for seed, task in enumerate(environment.tasks("train")[:20]):
        for mistakes in (0.2, 1.0):
            assert sum(seen.reward for seen in play(environment, task=task, seed=seed, mistakes=mistakes)) <= 1 + 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_a_mediocre_player_is_mediocre_at_the_default_knobs(name):
    environment = world(name)
    assert 0.13 < success(environment, mistakes=0.5) < MEDIOCRE.get(name, 0.65)
    assert success(environment, mistakes=1.0) < 0.25


@pytest.mark.parametrize("name", NAMES)
def test_what_the_model_reads_is_short(name):
    environment = world(name)
    for seed, task in enumerate(environment.tasks("train")[:50]):
        first, *rest = play(environment, task=task, seed=seed, mistakes=0.5)
        assert sum(len(m.content.split()) for m in first.messages) <= 40
        assert all(len(m.content.split()) <= 16 for seen in rest for m in seen.messages)


# ------------------------------------------------------------------------------------------------ frozen lake


def lake(rows, **options):
    session = frozen_lake.FrozenLake(size=len(rows), holes=0, **options)
    session.setup({"map": rows}, random.Random(0))
    return session


def test_the_goal_pays_one_and_a_hole_nothing():
    at_goal, at_hole = lake(["SH", "FG"]), lake(["SH", "FG"])
    assert not at_goal.act("down").done
    assert (at_goal.act("right").reward, at_hole.act("right").reward) == (1.0, 0.0)
    assert at_hole.act("left").text


def test_the_edge_holds_the_walker_back():
    walker = lake(["SF", "FG"], hints=False)
    assert walker.act("up").text == "at 0 0 up wall down ice left wall right ice"


def test_a_hint_says_how_many_steps_are_left_each_way():
    walker = lake(["SFF", "FHF", "FFG"])
    assert walker.act("right").text == "at 0 1 up wall down hole left 4 right 2"


def test_the_solver_goes_around_the_holes():
    walker = lake(["SHF", "FHF", "FFG"])
    assert [walker.act(walker.solve()).done for _ in range(4)] == [False, False, False, True]


def test_slippery_ice_slides_to_the_sides_only():
    moves = set()
    for seed in range(50):
        walker = frozen_lake.FrozenLake(size=3, holes=0, slippery=1.0)
        walker.setup({"map": ["SFF", "FFF", "FFG"]}, random.Random(seed))
        walker.at = (1, 1)
        walker.act("up")
        moves.add(walker.at)
    assert moves == {(1, 0), (1, 2)}


def test_too_many_holes_are_refused():
    with pytest.raises(ConfigError, match="room for 9"):
        make("frozen_lake", options={"holes": 10})


# ------------------------------------------------------------------------------------------------ guess


@given(numbers=st.integers(2, 200), offset=st.integers(0, 50), secret=st.integers(0, 199))
@settings(max_examples=60, deadline=None)
def test_bisection_finds_every_secret_within_the_turns(numbers, offset, secret):
    environment = make("guess", options={"numbers": numbers, "largest": numbers + 50})
    task = environment.tasks("train")[0]
    low = 1 + offset
    data = {"low": low, "high": low + numbers - 1, "secret": low + secret % numbers}
    seen = play(environment, task=type(task)(task.id, task.environment, task.split, data), seed=0)
    assert seen[-1].reward == 1


def test_the_interval_never_grows_and_always_holds_the_secret():
    environment = make("guess")
    for seed, task in enumerate(environment.tasks("train")[:40]):
        session = environment.open(task, seed=seed)
        session.start()
        low, high, rng = task.data["low"], task.data["high"], random.Random(seed)
        for _ in range(6):
            seen = session.act(Action(tool_calls=(ToolCall("guess", {"number": rng.randint(-5, 60)}),)))
            if seen.done:
                break
            numbers = [int(word) for word in re.findall(r"\d+", seen.messages[0].content)]
            new_low, new_high = numbers[0], numbers[-1]
            assert low <= new_low <= task.data["secret"] <= new_high <= high
            low, high = new_low, new_high


# ------------------------------------------------------------------------------------------------ key-value store


def store(now, wanted, **options):
    session = kv_store.KvStore(**options)
    session.setup({"store": now, "wanted": wanted}, random.Random(0))
    return session


def test_only_the_exact_state_is_right():
    session = store({"a": 1, "b": 2}, {"a": 1, "c": 2})
    assert session.commit() == kv_store.Reply("wrong", reward=0.0, done=True)
    session.move(key="b", to="c")
    assert session.commit().reward == 1.0


def test_what_still_differs_is_said_after_every_change():
    session = store({"a": 1, "b": 2}, {"a": 3, "c": 2})
    assert session.put(key="a", value=3) == "left b to c"
    assert session.delete(key="x") == "no x. left b to c"
    assert session.put(key="b", value=5) == "left b none, c=2"
    assert session.put(key="b", value=2) == "left b to c"
    assert session.move(key="b", to="c") == "left nothing"
    assert session.show() == "now a=3, c=2. left nothing"


def test_without_hints_one_has_to_look():
    session = store({"a": 1}, {"a": 3}, hints=False)
    assert session.put(key="a", value=2) == "ok"
    assert session.show() == "now a=2"


@given(seed=st.integers(0, 10_000), keys=st.integers(1, 13))
@settings(max_examples=60, deadline=None)
def test_every_task_needs_a_change_and_no_more_turns_than_changes(seed, keys):
    world = kv_store.KvStore(keys=keys, changes=keys)
    task = world._draw(random.Random(seed))
    world.setup(task, random.Random(0))
    assert task["store"] != task["wanted"]
    for _ in range(keys):
        call = world.solve()
        getattr(world, call.name)(**call.arguments)
    assert world.store == world.wanted
