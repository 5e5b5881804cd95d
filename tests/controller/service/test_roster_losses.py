"""What the roster makes of workers that come, go and come back, of leases that run out, and of its
own restart.
"""

import pytest

from ludus.controller.service.roster import Again, End, Expire, Found, Lose, Place, Roster
from ludus.errors import ControllerFailed, WorkerLost
from tests.controller.rosters import HEARTBEAT_S, ask, opened, roster_with, seat


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
    assert End(
        wish.session_id, "failed", "worker w1 was lost: its connection broke and it did not come back"
    ) in roster.tick(15)


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


# ------------------------------------------------------------------------------ leases and restarts


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
    wish = ask("mase", wait_s=1000)
    assert roster.ask(wish, now=1) == []
    assert roster.tick(19.9) == []
    [refuse] = roster.tick(20)
    assert (refuse.session_id, refuse.status) == (wish.session_id, 404)
