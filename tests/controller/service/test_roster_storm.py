"""Events in any order: the roster's books balance after every one of them."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ludus.controller.service.roster import Again, End, Expire, Found, Lose, Place, Refuse, Roster
from tests.controller.rosters import HEARTBEAT_S, ask, seat

ENVIRONMENTS = ["a", "b"]


class Storm(RuleBasedStateMachine):
    """Anything may happen, in any order. A model of what is really running on workers stands beside
    the roster.
    """

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
        wish = ask(environment, client=client, wait_s=wait_s, lease_s=20.0)
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
        assert not {session.environment for session in self.roster.waiting} & free

    @invariant()
    def everyone_who_asked_waits_has_a_slot_or_was_told(self):
        lively = set(self.placed) | {session.id for session in self.roster.waiting}
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
