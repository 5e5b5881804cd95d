import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.environments import make
from ludus.errors import ConfigError
from ludus.worlds.grid import MOVES
from ludus.worlds.sokoban import Sokoban, after, draw, read, solution


def sokoban(rows, **options):
    session = Sokoban(size=len(rows), **options)
    return session, session.setup({"map": rows}, random.Random(0))


def fewest_moves(level, state):
    """Breadth first, without any foresight."""
    found, queue = {state: 0}, deque([state])
    while queue:
        here = queue.popleft()
        if here.boxes == level.goals:
            return found[here]
        for move in MOVES:
            if (new := after(level, here, move)) not in found:
                found[new] = found[here] + 1
                queue.append(new)
    return None


@given(size=st.integers(4, 7), boxes=st.integers(1, 2), pulls=st.integers(1, 5), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_every_level_can_be_solved_within_the_turns(size, boxes, pulls, seed):
    world = Sokoban(size=size, boxes=boxes, pulls=pulls, hints=False)
    level, state = read(world._draw(random.Random(seed))["map"])
    assert len(state.boxes) == boxes
    way = solution(level, state)
    assert 1 <= len(way) <= world.max_turns
    for move in way:
        state = after(level, state, move)
    assert state.boxes == level.goals


@given(seed=st.integers(0, 1000), moves=st.lists(st.sampled_from(list(MOVES)), max_size=12))
@settings(max_examples=40, deadline=None)
def test_the_solver_is_as_short_as_any_and_knows_when_it_is_stuck(seed, moves):
    level, state = read(Sokoban()._draw(random.Random(seed))["map"])
    for move in moves:
        state = after(level, state, move)
    way = solution(level, state)
    assert fewest_moves(level, state) == (None if way is None else len(way))


@given(seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_a_drawn_level_reads_back_as_itself(seed):
    rows = Sokoban(boxes=2, hints=False)._draw(random.Random(seed))["map"]
    assert draw(*read(rows)) == rows


def test_more_pulls_make_longer_solutions():
    def mean_moves(pulls):
        world, rng = Sokoban(size=7, pulls=pulls), random.Random(0)
        return sum(len(solution(*read(world._draw(rng)["map"]))) for _ in range(60)) / 60

    assert mean_moves(1) < mean_moves(3) < mean_moves(9)


def test_a_box_is_pushed_onto_its_goal():
    session, first = sokoban(["@$-.", "----", "----", "----"])
    assert first == "@$-. ---- ---- ----\nup wall down 3 left wall right 1"
    assert session.act("right").text == "-@$. ---- ---- ----\nup wall down 2 left 2 right 0"
    end = session.act("right")
    assert (end.text, end.reward, end.done) == ("solved", 1.0, True)


def test_a_move_that_changes_nothing_is_told():
    session, _ = sokoban(["@$$.", "----", "--.-", "----"], boxes=2, hints=False)
    assert session.act("right").text == "blocked\n@$$. ---- --.- ----"
    assert session.act("up").text == "blocked\n@$$. ---- --.- ----"
    assert session.act("down").text == "-$$. @--- --.- ----"


def test_a_box_in_a_corner_is_stuck():
    _, first = sokoban(["$---", "@---", "---.", "----"])
    assert first.endswith("up wall down stuck left wall right stuck")


def test_signs_on_a_goal_are_read():
    level, state = read(["+-*-", "-$--", "#---", "----"])
    assert level.goals == {(0, 0), (0, 2)}
    assert (state.player, state.boxes) == ((0, 0), {(0, 2), (1, 1)})
    assert (2, 0) not in level.floor


@pytest.mark.parametrize(
    ("options", "message"),
    [({"walls": 7}, "room for 6"), ({"boxes": 2}, "set hints = false"), ({"size": 3}, "size")],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make("sokoban", options=options)
