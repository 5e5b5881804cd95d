"""A real run's time is recorded while it runs, and `ludus profile` shows it."""

from __future__ import annotations

import pytest

from ludus.reports.profile import profile
from ludus.reports.timeline import merged, spans
from tests.e2e.runs import FAKE, make_config, run


@pytest.fixture(scope="module")
def folder(blank_model, tmp_path_factory):
    slow = {"fake": {"source": FAKE, "options": {"latency_s": 0.02, "turns": 3, "blocking": False}}}
    pipeline = {"steps": 6, "groups_per_step": 2, "max_staleness": 1}
    return run(make_config(tmp_path_factory.mktemp("runs"), blank_model, environments=slow, pipeline=pipeline))


def test_the_timeline_accounts_for_all_of_the_trainers_time_and_all_tokens(folder):
    whole = merged(spans(folder.timeline()))
    assert sum(whole.trainer.values()) == pytest.approx(1, abs=0.01)
    assert whole.trainer["training"] > 0
    assert whole.trainer["loading"] > 0
    assert whole.sessions["generating"] > 0
    assert whole.sessions["in their environment"] > 0
    assert 0 < whole.busy <= 1
    trained = sum(line["tokens/generated"] for line in folder.metrics())
    assert whole.tokens >= trained, "groups that were still playing at the end generated too"
    assert whole.loads == 6


def test_the_command_shows_timeline_figures_and_verdict_and_leaves_a_plot(folder, ludus):
    code, out, _ = ludus("profile", folder.path)
    assert code == 0
    assert "trainer idle" in out
    assert "tokens/s while training" in out
    assert profile(folder).verdict.text in out
    assert (folder.plots / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_tells_it_too(folder):
    text = folder.report_file.read_text()
    assert profile(folder).verdict.text in text
    assert "![timeline](plots/timeline.png)" in text


def test_a_run_without_a_timeline_is_told_so(folder, ludus):
    kept = folder.timeline_file.read_bytes()
    try:
        folder.timeline_file.write_bytes(b"")
        code, _, err = ludus("profile", folder.path)
    finally:
        folder.timeline_file.write_bytes(kept)
    assert code == 1
    assert "has no timeline" in err
