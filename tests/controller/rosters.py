"""Asks, seats and rosters for tests of what the roster decides."""

import itertools

from ludus.controller.service.roster import Place, Roster, Seat
from ludus.controller.service.waiting import Ask

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
