import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.controller.service.limits import Rates
from ludus.errors import ControllerFailed


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def allowed(rates, client="ann"):
    try:
        rates.take(client)
    except ControllerFailed as error:
        return error.status != 429
    return True


@given(st.lists(st.floats(0, 3), max_size=60), st.floats(0.5, 20))
def test_no_more_than_the_rate_and_one_seconds_worth_in_any_stretch_of_time(pauses, max_rate):
    clock = Clock()
    rates = Rates(max_rate, clock=clock)
    taken = []
    for pause in pauses:
        clock.now += pause
        if allowed(rates):
            taken.append(clock.now)
    burst = max(1.0, max_rate)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + (taken[last] - taken[first]) * max_rate + 1e-6


def test_one_clients_haste_is_not_anothers():
    rates = Rates(2, clock=Clock())
    assert [allowed(rates) for _ in range(3)] == [True, True, False]
    assert allowed(rates, "bob")


def test_who_waits_may_call_again():
    clock = Clock()
    rates = Rates(1, clock=clock)
    assert allowed(rates)
    with pytest.raises(ControllerFailed, match="wait 1 s"):
        rates.take("ann")
    clock.now += 1
    assert allowed(rates)


def test_zero_is_no_limit():
    assert all(allowed(Rates(0)) for _ in range(1000))
