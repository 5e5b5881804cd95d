"""Who gets which slot, and who waits for how long."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ludus.controller.service.roster import Again, End, Place, Refuse
from ludus.controller.service.waiting import Session, Waiting
from tests.controller.rosters import ask, opened, roster_with, seat


def test_the_emptiest_fit_worker_is_picked():
    roster = roster_with(seat("big", slots=10), seat("small", slots=2), seat("other", "chess", slots=100))
    picked = [opened(roster, ask()) for _ in range(12)]
    assert picked.count("big") == 10
    assert picked.count("small") == 2
    assert picked[:3] == ["big", "small", "big"]


def test_a_full_roster_queues_and_the_next_free_slot_goes_to_who_waited_first():
    roster = roster_with(seat(slots=1))
    first, second, third = ask(), ask(), ask()
    opened(roster, first)
    assert roster.ask(second, now=0) == []
    assert roster.ask(third, now=0) == []
    decisions = roster.ended(first.session_id, worker_id="w1", cause="closed")
    assert decisions == [End(first.session_id, "closed", ""), Place(second.session_id, "w1")]


def test_who_waits_too_long_is_refused_with_the_reason():
    roster = roster_with(seat(slots=1))
    opened(roster, ask())
    late = ask(wait_s=10.0)
    roster.ask(late, now=0)
    roster.heard("w1", now=9)
    assert roster.tick(9.9) == []
    [refuse] = roster.tick(10.0)
    assert refuse.session_id == late.session_id
    assert refuse.status == 503
    assert "1 slots, 1 of them used" in refuse.message
    assert roster.requested("ann", late.request_id) is None, "the same request may be tried again"


def test_an_environment_that_no_worker_ever_had_is_refused_at_once_with_the_near_name():
    roster = roster_with(seat("w1", "maze"))
    [refuse] = roster.ask(ask("mase"), now=0)
    assert refuse.status == 404
    assert "'maze'" in refuse.message


def test_an_environment_whose_workers_are_gone_is_waited_for():
    roster = roster_with(seat("w1"))
    roster.lost("w1", reason="killed", now=1)
    wish = ask()
    assert roster.ask(wish, now=1) == []
    decisions, _ = roster.join(seat("w2"), now=2)
    assert decisions == [Place(wish.session_id, "w2")]


def test_a_withdrawn_request_leaves_the_queue():
    roster = roster_with(seat(slots=1))
    holder, wish = ask(), ask()
    opened(roster, holder)
    roster.ask(wish, now=0)
    assert roster.withdraw(wish.session_id) == [Refuse(wish.session_id, "the request was withdrawn", 410)]
    assert roster.ended(holder.session_id, worker_id="w1", cause="closed") == [End(holder.session_id, "closed", "")]


def test_a_worker_that_has_no_slot_after_all_is_believed_for_a_moment():
    roster = roster_with(seat("w1"))
    wish = ask()
    roster.ask(wish, now=0)
    assert roster.not_there(wish.session_id) == [Again(wish.session_id)]
    assert wish.session_id in roster.waiting
    assert roster.tick(1) == [Place(wish.session_id, "w1")]


# ----------------------------------------------------------------------------------------- fairness


def served(roster, wishes, *, held):
    """The order in which waiting asks get the one slot."""
    by_id = {wish.session_id: wish for wish in wishes}
    order = []
    while True:
        placed = [d for d in roster.ended(held.session_id, worker_id="w1", cause="closed") if isinstance(d, Place)]
        if not placed:
            return order
        [place] = placed
        held = by_id[place.session_id]
        order.append(held)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ann", "bob", "cat"])), max_size=40))
def test_environments_take_turns_and_within_them_clients_do(kinds):
    """As long as two of them both wait, neither is served twice before the other is served once."""
    roster = roster_with(seat("w1", "a", "b", "c", slots=1))
    held = ask("a")
    opened(roster, held)
    wishes = [ask(environment, client=client) for environment, client in kinds]
    for wish in wishes:
        roster.ask(wish, now=0)
    order = served(roster, wishes, held=held)
    assert sorted(w.session_id for w in order) == sorted(w.session_id for w in wishes)
    assert_turns_are_taken([wish.task.environment for wish in order])
    for environment in "abc":
        assert_turns_are_taken([wish.client for wish in order if wish.task.environment == environment])
        for client in ("ann", "bob", "cat"):
            own = [w for w in order if (w.task.environment, w.client) == (environment, client)]
            assert own == [w for w in wishes if (w.task.environment, w.client) == (environment, client)]


def assert_turns_are_taken(order):
    for one, other in itertools.permutations(set(order), 2):
        pair = [each for each in order if each in (one, other)]
        while_both_wait = pair[: len(pair) - next((i for i, e in enumerate(reversed(pair)) if e == other), len(pair))]
        # Up to the last `other`, `other` was always waiting: no two `one` in a row.
        assert (one, one) not in itertools.pairwise(while_both_wait), order


def test_a_client_with_a_thousand_requests_does_not_delay_another_clients_first():
    roster = roster_with(seat(slots=1))
    held = ask()
    opened(roster, held)
    many = [ask(client="greedy") for _ in range(1000)]
    for wish in many:
        roster.ask(wish, now=0)
    modest = ask(client="modest")
    roster.ask(modest, now=0)
    order = served(roster, [*many, modest], held=held)
    assert order.index(modest) <= 1


def test_the_waiting_line_is_empty_after_everything_left_it():
    waiting = Waiting()
    wishes = [Session(ask(environment, client=client)) for environment in "ab" for client in "xy" for _ in range(3)]
    for wish in wishes:
        waiting.push(wish)
    assert waiting.counts() == {"a": 6, "b": 6}
    for wish in wishes[::2]:
        assert waiting.remove(wish.id) is wish
    while waiting.take(lambda _: True):
        pass
    assert (len(waiting), waiting.counts()) == (0, {})
