from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.reports.timeline import binned, merged, spans

LINE = {
    "time": 1.0,
    "seconds": 2.0,
    "trainer": {"wait": 1.0, "train": 0.5, "publish": 0.1, "load": 0.2, "probe": 0.2},
    "sessions": {"generating": 6.0, "acting": 2.0, "starting": 1.0, "opening": 1.0},
    "engine": {"tokens": 100, "prefill_computed": 30, "prefill_reused": 90, "busy_s": 1.5, "load_s": 0.1, "loads": 2},
    "requests": {"running": 3},
    "groups": {"playing": 2, "ready": 1},
}
seconds = st.floats(0.01, 3.0)
share = st.floats(0.0, 1.0)
lines = st.builds(
    lambda s, wait, busy, tokens: {
        "seconds": s,
        "trainer": {"wait": wait * s, "train": (1 - wait) * s},
        "sessions": {"generating": 3 * busy * s},
        "engine": {"busy_s": busy * s, "tokens": tokens},
    },
    seconds,
    share,
    share,
    st.integers(0, 1000),
)


def test_a_line_becomes_shares_of_its_seconds():
    (span,) = spans([LINE])
    assert span.trainer == pytest.approx({"training": 0.25, "loading": 0.25, "saving": 0.0, "idle": 0.5})
    assert span.sessions == pytest.approx({"generating": 3.0, "in their environment": 1.5, "waiting for a place": 0.5})
    assert span.busy == pytest.approx(0.75)
    assert span.tokens_per_s == pytest.approx(50)
    assert span.hit_rate == pytest.approx(0.75)


def test_what_a_line_does_not_have_is_zero_and_a_line_without_time_is_none():
    (span,) = spans([{"seconds": 1.0}, {"seconds": 0.0, "engine": {"tokens": 5}}, {"time": 3.0}])
    assert span.tokens == span.num_sessions == 0
    assert span.hit_rate is None


@given(st.lists(lines, min_size=1, max_size=40), st.integers(1, 20))
def test_however_spans_are_put_together_they_hold_the_same_time_and_tokens(given_lines, most):
    parts = spans(given_lines)
    few = binned(parts, most=most)
    assert len(few) == min(most, len(parts))
    for value in (
        lambda s: s.seconds,
        lambda s: s.tokens,
        lambda s: s.busy * s.seconds,
        lambda s: s.num_sessions * s.seconds,
    ):
        assert sum(map(value, few)) == pytest.approx(sum(map(value, parts)))
    assert all(sum(span.trainer.values()) == pytest.approx(1) for span in few)


def test_means_over_the_idle_time_do_not_see_the_rest():
    busy = {"seconds": 9.0, "trainer": {"train": 9.0}, "sessions": {"generating": 90.0}}
    idle = {"seconds": 1.0, "trainer": {"wait": 1.0}, "sessions": {"acting": 4.0}}
    meanwhile = merged(spans([busy, idle]), while_idle=True)
    assert meanwhile.seconds == 1.0
    assert meanwhile.sessions == {"generating": 0.0, "in their environment": 4.0, "waiting for a place": 0.0}
