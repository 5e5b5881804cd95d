"""Each bottleneck is named, with the figures it rests on."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.reports.timeline import SESSIONS, TRAINER, Span
from ludus.reports.verdict import Name, Setting, verdict

SETTING = Setting(max_sessions=20, max_staleness=1, max_running=8)


def make_span(
    *, training=0.0, loading=0.0, saving=0.0, generating=0.0, environment=0.0, place=0.0, seconds=1.0, **others
) -> Span:
    """What is left of the trainer's time, it waits."""
    trainer = (training, loading, saving, 1 - training - loading - saving)
    sessions = (generating, environment, place)
    return Span(
        seconds=seconds,
        trainer=dict(zip(TRAINER, trainer, strict=True)),
        sessions=dict(zip(SESSIONS, sessions, strict=True)),
        **others,
    )


CASES = {
    "saving": (make_span(saving=0.6, training=0.2), "60% .* store.checkpoint_every"),
    "loading": (make_span(loading=0.5, training=0.3), "50% .* training itself 30%.* pipeline.groups_per_step"),
    "trainer": (make_span(training=0.85, ready=3, busy=0.4), "trains 85% .* waits 15%, with 3.0 groups .*devices"),
    "places": (make_span(training=0.3, place=9, environment=6), "70% .* 60% of these wait for a place.* workers.num"),
    "stragglers": (make_span(training=0.2, environment=2), "only 2.0 of 20 .* pipeline.max_staleness"),
    "environments": (
        make_span(training=0.38, environment=16, generating=4, busy=0.2),
        'waits 62% .* busy 80% of that, the engine 20%.*at = "workers"',
    ),
    "queue": (
        make_span(training=0.2, generating=18, environment=2, busy=0.95, running=8, waiting=9),
        "9 requests queue behind 8 .* engine.max_running .8 now",
    ),
    "cache": (
        make_span(training=0.2, generating=18, environment=2, busy=0.9, running=18, computed=900, reused=100, tokens=300),
        "held only 10% .* engine.max_cached",
    ),
    "engine": (
        make_span(training=0.2, generating=18, environment=2, busy=0.9, running=18, computed=100, reused=900, tokens=300),
        "waits 80% .* generate 90% of that: the engine is the bottleneck, busy 90% with 18 sequences",
    ),
    "host": (make_span(training=0.2, generating=18, environment=2, busy=0.3), "computes only 30%.*pipeline.session_processes = 1"),
    "balanced": (make_span(training=0.48, loading=0.3, busy=0.5), "trains 48%, loads 30% and waits 22%"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("device", "processes", "name", "said"),
    [
        (0.1, 0, "host", "busy 90%, but waits for its GPU only 11% of that.*pipeline.session_processes = 1"),
        (0.1, 2, "host", 'only 11% of that.*at = "workers"'),
        (0.5, 0, "engine", "the engine is the bottleneck"),
    ],
)
def test_a_gpu_that_waits_for_python_is_told_from_one_that_is_waited_for(device, processes, name, said):
    span = make_span(training=0.2, generating=18, environment=2, busy=0.9, running=18, device=device)
    setting = replace(SETTING, on_gpu=True, session_processes=processes)
    found = verdict([span], setting=setting)
    assert (found.name, bool(re.search(said, found.text))) == (name, True), found.text
    assert verdict([span], setting=SETTING).name == "engine", "on a CPU the engine's own thread computes"


@pytest.mark.parametrize("name", CASES)
def test_the_bottleneck_is_named_with_its_figures_and_the_next_move(name):
    span, text = CASES[name]
    found = verdict([span], setting=SETTING)
    assert found.name == name
    assert re.search(text, found.text), found.text


def test_a_synchronous_run_is_told_that_the_two_sides_take_turns():
    synchronous = Setting(max_sessions=20, max_staleness=0, max_running=8)
    found = verdict([make_span(training=0.4, generating=20, busy=0.6)], setting=synchronous)
    assert found.name == "turns"
    assert "Training (40%) and playing (60%)" in found.text
    assert verdict([make_span(training=0.95)], setting=synchronous).name == "trainer"


def test_without_a_recorded_second_nothing_is_said():
    assert verdict([], setting=SETTING).name == "unknown"


def test_the_trainer_that_waits_for_nobody_is_sent_to_the_events():
    assert "look at the run's events" in verdict([make_span()], setting=SETTING).text


def test_only_what_sessions_do_while_the_trainer_waits_counts():
    busy = make_span(training=1.0, generating=20, busy=1.0, seconds=4)
    idle = make_span(environment=20, seconds=6)
    assert verdict([busy, idle], setting=SETTING).name == "environments"


def test_environments_on_workers_are_not_told_to_move_there():
    elsewhere = Setting(max_sessions=20, max_staleness=1, max_running=8, in_process=False)
    span, _ = CASES["environments"]
    assert verdict([span], setting=elsewhere).text.endswith("or add workers.")


@given(
    st.tuples(*[st.floats(0, 1)] * 4).filter(sum),
    st.tuples(*[st.floats(0, 30)] * 3),
    st.floats(0, 1),
    st.integers(0, 2),
)
def test_every_run_gets_a_verdict(trainer, sessions, busy, bound):
    shares = dict(zip(TRAINER, (each / sum(trainer) for each in trainer), strict=True))
    span = Span(1.0, trainer=shares, sessions=dict(zip(SESSIONS, sessions, strict=True)), busy=busy)
    found = verdict([span], setting=Setting(max_sessions=20, max_staleness=bound, max_running=8))
    assert found.name in get_args(Name)
    assert found.text.endswith(".")
