import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.environments import make
from ludus.errors import ConfigError
from ludus.worlds.maze import Maze, carve, distances, find
from tests.worlds.playing import world

ROWS = ["S.o-o", "|...|", "o-o-o", "....|", "o-o-G"]


def maze(**options):
    session = Maze(size=3, **options)
    return session, session.setup({"map": ROWS}, random.Random(0))


@given(size=st.integers(2, 12), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_every_room_is_reached_and_in_one_way_only(size, seed):
    rows = carve(size, rng=random.Random(seed))
    assert len(distances(rows, (0, 0))) == size**2
    assert sum(row.count("-") + row.count("|") for row in rows) == size**2 - 1


@given(size=st.integers(2, 8), max_turns=st.integers(1, 40), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_the_goal_is_as_far_as_the_turns_allow_and_no_further(size, max_turns, seed):
    rows = Maze(size=size, max_turns=max_turns)._draw(random.Random(seed))["map"]
    way = distances(rows, find(rows, "G"))
    assert 1 <= way[find(rows, "S")] <= max_turns
    assert way[find(rows, "S")] == min(max_turns, max(way.values()))


def test_no_maze_is_in_two_splits_with_another_start_or_goal():
    drawn = [
        {"".join(task.data["map"]).replace("S", "o").replace("G", "o") for task in world("maze").tasks(split)}
        for split in ("train", "dev", "test")
    ]
    assert sum(map(len, drawn)) == len(set.union(*drawn)) == 1300


def test_a_wall_holds_the_walker_back_and_the_goal_pays_one():
    session, first = maze()
    assert first == "S.o-o |...| o-o-o ....| o-o-G\nat 0 0 up wall down 3 left wall right wall"
    assert session.act("right").text == "at 0 0 up wall down 3 left wall right wall"
    assert session.act("down").text == "at 1 0 up 4 down wall left wall right 2"
    assert [session.act(session.solve()).reward for _ in range(3)] == [0.0, 0.0, 1.0]


def test_the_local_view_shows_no_map_and_without_hints_no_distance():
    _, first = maze(view="local", hints=False)
    assert first == "goal 2 2\nat 0 0 up wall down open left wall right wall"


def test_an_unknown_view_is_refused():
    with pytest.raises(ConfigError, match="view"):
        make("maze", options={"view": "satellite"})
