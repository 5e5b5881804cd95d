import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.worlds.wordle import DEV_WORDS, WORDS, Wordle, feedback, guesses_needed
from tests.worlds.playing import world

LISTED = ["brain", "brand", "grand", "train"]


def wordle(secret, **options):
    session = Wordle(words=len(LISTED), **options)
    return session, session.setup({"words": LISTED, "secret": secret}, random.Random(0))


@pytest.mark.parametrize(
    ("guess", "secret", "told"),
    [
        ("train", "brain", ".GGGG"),
        ("abbey", "babes", "YYGG."),
        ("speed", "erase", "Y.YY."),
        ("allow", "label", "YYY.."),
        ("geese", "eerie", ".GY.G"),
        ("grand", "grand", "GGGGG"),
    ],
)
def test_a_letter_is_told_as_often_as_the_secret_has_it(guess, secret, told):
    assert feedback(guess, secret) == told


@given(st.sampled_from(WORDS), st.sampled_from(WORDS))
def test_feedback_accounts_for_every_letter_both_have(guess, secret):
    told = feedback(guess, secret)
    both = sum(min(guess.count(letter), secret.count(letter)) for letter in set(guess))
    assert told.count("G") + told.count("Y") == both
    assert [sign == "G" for sign in told] == [here == there for here, there in zip(guess, secret, strict=True)]


def test_the_words_are_five_letters_each_and_no_two_alike():
    assert all(len(word) == 5 and word.isalpha() and word.islower() for word in WORDS)
    assert all(before < after for before, after in pairwise(WORDS))


def test_no_secret_is_in_two_splits():
    splits = ("train", "dev", "test")
    secrets = [{task.data["secret"] for task in world("wordle").tasks(split)} for split in splits]
    assert sum(map(len, secrets)) == len(set.union(*secrets))
    assert all(len(found) > 20 for found in secrets)
    assert not set(DEV_WORDS) & set(WORDS)


def test_no_prompt_tells_the_secret():
    assert len({wordle(secret)[1] for secret in LISTED}) == 1


@given(
    secret=st.sampled_from(LISTED), guesses=st.lists(st.sampled_from(LISTED), max_size=6), noise=st.integers(0, 1000)
)
@settings(deadline=None)
def test_the_secret_is_fixed_whatever_is_guessed_and_never_ruled_out(secret, guesses, noise):
    session = Wordle(words=4, max_turns=9)
    session.setup({"words": LISTED, "secret": secret}, random.Random(noise))
    for guess in guesses:
        reply = session.act(guess)
        assert reply.done == (guess == secret)
        if reply.done:
            return
        told, _, *left = reply.text.split()
        assert told == feedback(guess, secret)
        assert secret in left


def test_what_is_left_is_told_and_without_hints_it_is_not():
    assert wordle("grand")[0].act("brain").text == ".GG.Y left grand"
    assert wordle("grand", hints=False)[0].act("brain").text == ".GG.Y"


def test_the_same_guess_again_tells_the_same():
    session, _ = wordle("grand", hints=False)
    assert session.act("BRAIN").text == session.act("brain").text


def test_a_word_that_is_not_listed_is_refused_and_tells_nothing():
    session, _ = wordle("grand")
    for word in ("crane", "", "brains", "?"):
        reply = session.act(word)
        assert (reply.text, reply.invalid, reply.reward) == ("not in the list", True, 0.0)
    assert session.left == tuple(LISTED)


@given(words=st.sets(st.sampled_from(WORDS), min_size=2, max_size=20), data=st.data())
@settings(max_examples=50, deadline=None)
def test_the_solver_finds_any_secret_in_no_more_guesses_than_words(words, data):
    listed = tuple(sorted(words))
    assert guesses_needed(listed, secret=data.draw(st.sampled_from(listed))) <= len(listed)
