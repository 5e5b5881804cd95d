import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ludus.controller.roster import Again, End, Expire, Found, Lose, Place, Refuse, Roster, Seat
from ludus.controller.waiting import Ask, Waiting
from ludus.errors import ControllerFailed, WorkerLost

HEARTBEAT_S = 5.0
numbers = itertools.count()


def ask(environment="maze", *, client="ann", deadline=100.0, lease_s=60.0, session_id=None, request_id=None):
    number = next(numbers)
    session_id = session_id or f"s{number}"
    return Ask(
        session_id=session_id,
        key="key",
        client=client,
        request_id=request_id or f"r{number}",
        environment=environment,
        split="train",
        task_id=f"{environment}/train/0",
        deadline=deadline,
        lease_s=lease_s,
    )


def seat(worker_id="w1", *environments, slots=1, owner="cluster", **options):
    return Seat(worker_id, owner=owner, environments=frozenset(environments or ("maze",)), slots=slots, **options)


def roster_with(*seats, now=0.0):
    roster = Roster(heartbeat_s=HEARTBEAT_S, grace_s=5.0)
    for each in seats:
        roster.join(each, now=now)
    return roster


def opened(roster, wish, *, now=0.0):
    [place] = roster.ask(wish, now=now)
    assert isinstance(place, Place)
    assert roster.opened(wish.session_id, now=now)
    return place.worker_id


# ------------------------------------------------------------------------------------------------ placing and waiting


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
    late = ask(deadline=10.0)
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


# ------------------------------------------------------------------------------------------------ fairness


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
    assert_turns_are_taken([wish.environment for wish in order])
    for environment in "abc":
        assert_turns_are_taken([wish.client for wish in order if wish.environment == environment])
        for client in ("ann", "bob", "cat"):
            own = [w for w in order if (w.environment, w.client) == (environment, client)]
            assert own == [w for w in wishes if (w.environment, w.client) == (environment, client)]


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


# ------------------------------------------------------------------------------------------------ workers come and go


def test_a_lost_workers_open_sessions_fail_at_once_and_say_why():
    roster = roster_with(seat(slots=2))
    wish = ask()
    opened(roster, wish)
    decisions = roster.lost("w1", reason="killed", now=1)
    assert decisions == [Lose("w1", "killed"), End(wish.session_id, "failed", "worker w1 was lost: killed")]
    with pytest.raises(WorkerLost, match="worker w1 was lost: killed"):
        roster.find(wish.session_id, client="ann")


def test_sessions_that_were_being_opened_on_a_lost_worker_are_placed_elsewhere_before_all_others():
    roster = roster_with(seat("w1", slots=2), seat("w2", slots=1))
    first, second = ask(), ask()
    assert roster.ask(first, now=0) == [Place(first.session_id, "w1")]
    opened(roster, second)
    third, later = ask(), ask()
    assert roster.ask(third, now=0) == [Place(third.session_id, "w1")]
    roster.ask(later, now=0)
    roster.lost("w1", reason="killed", now=1)
    decisions = roster.ended(second.session_id, worker_id="w2", cause="closed")
    assert decisions[1] in [Place(first.session_id, "w2"), Place(third.session_id, "w2")]


def test_a_session_that_was_being_opened_on_a_lost_worker_goes_to_a_free_one_in_the_same_breath():
    roster = roster_with(seat("w1", slots=2), seat("w2", slots=1))
    wish = ask()
    assert roster.ask(wish, now=0) == [Place(wish.session_id, "w1")]
    decisions = roster.lost("w1", reason="killed", now=1)
    assert decisions == [Lose("w1", "killed"), Again(wish.session_id), Place(wish.session_id, "w2")]


def test_three_silent_heartbeats_and_a_worker_is_lost():
    roster = roster_with(seat())
    wish = ask()
    opened(roster, wish)
    roster.heard("w1", now=5)
    assert roster.tick(5 + 3 * HEARTBEAT_S - 0.1) == []
    lose, end = roster.tick(5 + 3 * HEARTBEAT_S)
    assert (lose.worker_id, end.cause) == ("w1", "failed")


def test_a_worker_whose_link_broke_gets_nothing_new_and_keeps_what_it_has_when_it_returns_in_time():
    roster = roster_with(seat(slots=2))
    wish = ask()
    opened(roster, wish)
    roster.away("w1", now=10)
    waiting = ask()
    assert roster.ask(waiting, now=10) == []
    decisions, unknown = roster.join(seat(slots=2), running=[wish], now=12)
    assert decisions == [Place(waiting.session_id, "w1")]
    assert unknown == []
    assert roster.find(wish.session_id, client="ann").worker_id == "w1"


def test_a_worker_that_stays_away_is_lost_after_the_grace():
    roster = roster_with(seat())
    wish = ask()
    opened(roster, wish)
    roster.away("w1", now=10)
    assert roster.tick(14.9) == []
    assert End(wish.session_id, "failed", "worker w1 was lost: its link broke and it did not come back") in roster.tick(
        15
    )


def test_a_worker_with_nothing_to_lose_goes_at_once():
    roster = roster_with(seat())
    assert [type(d) for d in roster.away("w1", now=1)] == [Lose]
    assert roster.seats == {}


def test_a_worker_that_comes_back_without_a_session_has_lost_it():
    roster = roster_with(seat())
    wish = ask()
    opened(roster, wish)
    decisions, _ = roster.join(seat(), now=1)
    assert decisions == [End(wish.session_id, "failed", "worker w1 came back without it")]


def test_a_worker_that_was_given_up_is_told_to_close_what_ended_meanwhile():
    roster = roster_with(seat())
    wish = ask()
    opened(roster, wish)
    roster.lost("w1", reason="silent", now=20)
    _, unknown = roster.join(seat(), running=[wish], now=21)
    assert unknown == [wish.session_id]
    assert roster.seats["w1"].free == 1


def test_a_session_that_only_the_worker_knows_is_adopted_with_its_owner():
    roster = roster_with()
    wish = ask(client="bob")
    decisions, unknown = roster.join(seat(), running=[wish], now=0)
    assert (decisions, unknown) == ([], [])
    assert roster.find(wish.session_id, client="bob").worker_id == "w1"
    with pytest.raises(ControllerFailed, match="not yours") as failure:
        roster.find(wish.session_id, client="ann")
    assert failure.value.status == 403


def test_a_request_repeated_to_a_new_controller_finds_the_session_its_worker_brings():
    roster = roster_with()
    roster.restore([], now=0)
    old, again = ask(request_id="same"), ask(request_id="same")
    assert roster.ask(again, now=0) == []
    decisions, unknown = roster.join(seat(), running=[old], now=1)
    assert decisions == [Found(again.session_id, old.session_id)]
    assert unknown == []
    assert roster.requested("ann", "same") == old.session_id
    assert len(roster.waiting) == 0


def test_another_owner_cannot_take_a_workers_name():
    roster = roster_with(seat(owner="cluster"))
    with pytest.raises(ControllerFailed, match="belongs to 'cluster'") as failure:
        roster.join(seat(owner="thief"), now=1)
    assert failure.value.status == 403


def test_a_drained_worker_gets_nothing_until_it_is_undrained_and_stays_drained_when_it_joins_again():
    roster = roster_with(seat(slots=2))
    roster.drain("w1", draining=True)
    wish = ask()
    assert roster.ask(wish, now=0) == []
    assert roster.join(seat(slots=2), now=1)[0] == []
    assert roster.drain("w1", draining=False) == [Place(wish.session_id, "w1")]


def test_draining_an_unknown_worker_names_the_near_one():
    with pytest.raises(ControllerFailed, match="Did you mean 'w1'") as failure:
        roster_with(seat()).drain("w11", draining=True)
    assert failure.value.status == 404


def test_a_worker_that_drains_itself_gets_nothing():
    roster = roster_with(seat())
    roster.heard("w1", now=1, leaving=True)
    wish = ask()
    assert roster.ask(wish, now=1) == []
    assert roster.heard("w1", now=2, leaving=False) == [Place(wish.session_id, "w1")]


def test_a_worker_speaks_only_for_its_own_sessions():
    roster = roster_with(seat("w1"), seat("w2"))
    wish = ask()
    home = opened(roster, wish)
    other = {"w1": "w2", "w2": "w1"}[home]
    assert roster.ended(wish.session_id, worker_id=other, cause="closed") == []
    assert roster.find(wish.session_id, client="ann").worker_id == home


# ------------------------------------------------------------------------------------------------ leases and restarts


def test_the_controller_keeps_the_leases_of_workers_that_do_not():
    roster = roster_with(seat(keeps_leases=False, slots=2), now=0)
    left, used = ask(lease_s=10), ask(lease_s=10)
    opened(roster, left)
    opened(roster, used)
    roster.heard("w1", now=9)
    roster.renew([used.session_id], now=9)
    assert roster.tick(10) == [Expire(left.session_id)]
    with pytest.raises(ControllerFailed, match="being closed"):
        roster.find(left.session_id, client="ann")
    assert roster.tick(18.9) == []
    assert roster.tick(19) == [Expire(used.session_id)]


def test_a_lease_does_not_run_out_while_a_call_runs():
    roster = roster_with(seat(keeps_leases=False), now=0)
    wish = ask(lease_s=10)
    opened(roster, wish)
    roster.sessions[wish.session_id].num_calls = 1
    for now in (10, 15, 20):
        roster.heard("w1", now=now)
        assert roster.tick(now) == []
    roster.sessions[wish.session_id].num_calls = 0
    assert roster.tick(30) == [Expire(wish.session_id)]


def test_leases_of_workers_that_keep_them_are_not_the_rosters_business():
    roster = roster_with(seat(), now=0)
    opened(roster, ask(lease_s=1))
    roster.heard("w1", now=100)
    assert roster.tick(100) == []


def test_after_a_restart_sessions_go_on_when_their_worker_returns_and_fail_when_it_does_not():
    roster = Roster(heartbeat_s=HEARTBEAT_S, grace_s=5.0)
    kept, lost = ask(), ask()
    roster.restore([(kept, "w1"), (lost, "w2")], now=0)
    decisions, unknown = roster.join(seat("w1"), running=[kept], now=3)
    assert (decisions, unknown) == ([], [])
    roster.heard("w1", now=19)
    assert [type(d) for d in roster.tick(20)] == [Lose, End]
    assert roster.find(kept.session_id, client="ann")
    with pytest.raises(WorkerLost):
        roster.find(lost.session_id, client="ann")


def test_after_a_restart_no_environment_is_called_unknown_before_workers_could_return():
    roster = Roster(heartbeat_s=HEARTBEAT_S, grace_s=5.0)
    roster.restore([], now=0)
    wish = ask("mase", deadline=1000)
    assert roster.ask(wish, now=1) == []
    assert roster.tick(19.9) == []
    [refuse] = roster.tick(20)
    assert (refuse.session_id, refuse.status) == (wish.session_id, 404)


# ------------------------------------------------------------------------------------------------ invariants

ENVIRONMENTS = ["a", "b"]


class Storm(RuleBasedStateMachine):
    """Anything may happen, in any order. A model of what is really running on workers stands beside the roster."""

    asks = Bundle("asks")

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.roster = Roster(heartbeat_s=HEARTBEAT_S, grace_s=5.0)
        self.wishes = {}
        self.placed = {}
        """session -> worker, as the decisions said."""
        self.answered = set()
        """Sessions whose asker was told something."""

    def carry_out(self, decisions):
        for decision in decisions:
            match decision:
                case Place(session_id, worker_id):
                    assert session_id not in self.placed, "placed twice"
                    self.placed[session_id] = worker_id
                case Found():
                    raise AssertionError("nobody brings sessions of their own here")
                case Refuse(session_id, _, _):
                    assert session_id not in self.placed
                    self.answered.add(session_id)
                case End(session_id, _, _):
                    del self.placed[session_id]
                    self.answered.add(session_id)
                case Expire(session_id):
                    self.carry_out(self.roster.ended(session_id, worker_id=self.placed[session_id], cause="lease"))
                case Again(session_id):
                    del self.placed[session_id]
                case Lose(worker_id, _):
                    assert worker_id not in self.roster.seats

    @rule(
        target=asks,
        environment=st.sampled_from(ENVIRONMENTS),
        client=st.sampled_from(["ann", "bob"]),
        wait_s=st.sampled_from([0.0, 3.0, 50.0]),
    )
    def ask(self, environment, client, wait_s):
        wish = ask(environment, client=client, deadline=self.now + wait_s, lease_s=20.0)
        self.wishes[wish.session_id] = wish
        self.carry_out(self.roster.ask(wish, now=self.now))
        return wish.session_id

    @rule(session_id=asks)
    def open(self, session_id):
        self.roster.opened(session_id, now=self.now)

    @rule(session_id=consumes(asks))
    def end(self, session_id):
        if session_id in self.placed:
            self.carry_out(self.roster.ended(session_id, worker_id=self.placed[session_id], cause="closed"))
        else:
            self.carry_out(self.roster.withdraw(session_id))

    @rule(session_id=asks)
    def refuse_there(self, session_id):
        self.carry_out(self.roster.not_there(session_id))

    @rule(session_ids=st.lists(asks, max_size=3))
    def renew(self, session_ids):
        self.roster.renew(session_ids, now=self.now)

    @rule(
        worker_id=st.sampled_from(["w1", "w2"]),
        environments=st.sets(st.sampled_from(ENVIRONMENTS), min_size=1),
        slots=st.integers(1, 3),
        keeps_leases=st.booleans(),
        keeps_sessions=st.booleans(),
    )
    def join(self, worker_id, environments, slots, keeps_leases, keeps_sessions):
        there = [self.wishes[s] for s, w in self.placed.items() if w == worker_id] if keeps_sessions else []
        joining = seat(worker_id, *environments, slots=slots, keeps_leases=keeps_leases)
        decisions, unknown = self.roster.join(joining, running=there, now=self.now)
        assert unknown == []
        self.carry_out(decisions)

    @rule(worker_id=st.sampled_from(["w1", "w2"]), leaving=st.booleans())
    def beat(self, worker_id, leaving):
        self.carry_out(self.roster.heard(worker_id, now=self.now, leaving=leaving))

    @rule(worker_id=st.sampled_from(["w1", "w2"]))
    def break_link(self, worker_id):
        self.carry_out(self.roster.away(worker_id, now=self.now))

    @rule(worker_id=st.sampled_from(["w1", "w2"]))
    def lose(self, worker_id):
        self.carry_out(self.roster.lost(worker_id, reason="killed", now=self.now))

    @rule(worker_id=st.sampled_from(["w1", "w2"]), draining=st.booleans())
    def drain(self, worker_id, draining):
        if worker_id in self.roster.seats:
            self.carry_out(self.roster.drain(worker_id, draining=draining))

    @rule(seconds=st.sampled_from([0.1, 2.0, 6.0, 20.0]))
    def pass_time(self, seconds):
        self.now += seconds
        self.carry_out(self.roster.tick(self.now))

    @invariant()
    def books_agree_with_what_was_decided(self):
        assert {s: each.worker_id for s, each in self.roster.sessions.items()} == self.placed
        held = [s for each in self.roster.seats.values() for s in each.sessions]
        assert sorted(held) == sorted(self.placed), "every session has exactly one slot"

    @invariant()
    def nothing_waits_while_a_fit_worker_is_free(self):
        free = {name for each in self.roster.seats.values() if each.fit for name in each.environments}
        assert not {wish.environment for wish in self.roster.waiting} & free

    @invariant()
    def everyone_who_asked_waits_has_a_slot_or_was_told(self):
        lively = set(self.placed) | {wish.session_id for wish in self.roster.waiting}
        assert set(self.wishes) == lively | self.answered
        assert not lively & self.answered

    def teardown(self):
        for session_id in list(self.placed):
            if session_id in self.placed:
                self.carry_out(self.roster.ended(session_id, worker_id=self.placed[session_id], cause="closed"))
        for worker_id in list(self.roster.seats):
            self.carry_out(self.roster.lost(worker_id, reason="the end", now=self.now))
        self.carry_out(self.roster.tick(self.now + 1000))
        assert self.roster.sessions == {}
        assert len(self.roster.waiting) == 0
        assert self.roster.seats == {}


Storm.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
test_whatever_happens_the_books_balance = Storm.TestCase


def test_the_waiting_line_is_empty_after_everything_left_it():
    waiting = Waiting()
    wishes = [ask(environment, client=client) for environment in "ab" for client in "xy" for _ in range(3)]
    for wish in wishes:
        waiting.push(wish)
    assert waiting.counts() == {"a": 6, "b": 6}
    for wish in wishes[::2]:
        assert waiting.remove(wish.session_id) is wish
    while waiting.take(lambda _: True):
        pass
    assert (len(waiting), waiting.counts()) == (0, {})
