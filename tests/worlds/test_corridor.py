import random

import pytest

from ludus.environments import make
from ludus.errors import ConfigError
from ludus.worlds.corridor import SIGNS, Corridor, pair_at
from tests.worlds.playing import success, world


def corridor(**options):
    session = Corridor(**options)
    session.setup(session._draw(random.Random(0)), random.Random(0))
    return session


def other(move):
    return "right" if move == "left" else "left"


def walk(session, *steps):
    """Follows the signs for +1, defies them for -1."""
    replies = []
    for step in steps:
        replies.append(session.act(session.solve() if step > 0 else other(session.solve())))
    return replies


def outcomes(*, length, start, turns, on):
    """Chances of (coin, treasure) for one who goes on with chance `on`, worked out cell by cell."""
    here, coin, treasure = {start: 1.0}, 0.0, 0.0
    for _ in range(turns):
        following = dict.fromkeys(range(length + 1), 0.0)
        for cell, chance in here.items():
            following[cell + 1] += chance * on
            following[cell - 1] += chance * (1 - on)
        coin, treasure = coin + following.pop(0), treasure + following.pop(length)
        here = {cell: chance for cell, chance in following.items() if chance}
    return coin, treasure


def worth(cell, *, turns, length=12, coin=0.2):
    chances = outcomes(length=length, start=cell, turns=turns, on=0.5)
    return chances[0] * coin + chances[1]


def test_to_a_random_player_the_way_to_the_coin_looks_better():
    world = Corridor()
    left = world.max_turns - 1
    assert worth(world.start - 1, turns=left) > 1.2 * worth(world.start + 1, turns=left)


def test_the_treasure_is_worth_more_than_the_coin_to_those_who_know():
    end = walk(corridor(), *[1] * 10)[-1]
    assert (end.text, end.reward, end.done) == ("treasure", 1.0, True)
    end = walk(corridor(), -1, -1)[-1]
    assert (end.text, end.reward, end.done) == ("coin", 0.2, True)


def test_random_play_succeeds_as_often_as_the_arithmetic_says():
    expected = outcomes(length=12, start=2, turns=20, on=0.5)[1]
    assert 0.02 < expected < 0.05
    assert success(world("corridor"), mistakes=1.0, count=1000) == pytest.approx(expected, abs=0.022)


def test_longer_corridors_are_harder():
    chances = [outcomes(length=length, start=2, turns=2 * (length - 2), on=0.75)[1] for length in (6, 12, 24, 48)]
    assert chances == sorted(chances, reverse=True)


def test_distinct_states_counts_cells_and_not_turns():
    replies = walk(corridor(), 1, -1, 1, 1, -1)
    assert [reply.metrics["position"] for reply in replies] == [3, 2, 3, 4, 3]
    assert [reply.metrics["distinct_states"] for reply in replies] == [2, 2, 2, 3, 3]


def test_a_cell_always_reads_the_same():
    session = corridor()
    replies = walk(session, 1, 1, -1, 1)
    assert replies[1].text == replies[3].text
    assert replies[0].text == replies[2].text
    assert replies[0].text.startswith("cell 3 ")


@pytest.mark.parametrize("length", [4, 5, 12, 40])
def test_every_quarter_has_signs_of_its_own(length):
    pairs = [pair_at(cell, length=length) for cell in range(1, length)]
    assert pairs == sorted(pairs, key=SIGNS.index)
    assert len(set(pairs)) == min(4, length - 1)
    words = [word for pair in SIGNS for word in pair]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 12}, "not before the treasure"),
        ({"length": 3}, "length"),
        ({"coin": 1.0}, "coin"),
        ({"max_turns": 9}, "10 cells away"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make("corridor", options=options)
