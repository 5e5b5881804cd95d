"""Specs, seats and rosters for tests of what the roster decides."""

import itertools

from ludus.controller.records import SessionSpec
from ludus.controller.service.roster import Place, Roster, Seat
from ludus.types import Task

HEARTBEAT_S = 5.0
numbers = itertools.count()


def ask(environment="maze", *, client="ann", wait_s=100.0, lease_s=60.0, session_id=None, request_id=None):
    number = next(numbers)
    return SessionSpec(
        Task(f"{environment}/train/0", environment, "train"),
        seed=0,
        request_id=request_id or f"r{number}",
        lease_s=lease_s,
        wait_s=wait_s,
        session_id=session_id or f"s{number}",
        key="key",
        client=client,
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
