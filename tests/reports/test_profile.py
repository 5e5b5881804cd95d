from __future__ import annotations

import pytest

from ludus.reports.profile import Profile, figures, make_profile, setting_of, timeline_text
from ludus.reports.timeline import spans

SECOND = {
    "seconds": 1.0,
    "trainer": {"train": 0.8, "wait": 0.2},
    "sessions": {"generating": 4.0},
    "engine": {"tokens": 1000, "prefill_computed": 1000, "prefill_reused": 3000, "busy_s": 0.5, "load_s": 0.01, "loads": 1},
}  # fmt: skip
STEP = {"step": 1, "time/train_s": 0.8, "tokens/batch": 20_000}


@pytest.fixture
def made(config):
    def make(device="NVIDIA H200", *, seconds=10) -> Profile:
        return make_profile(
            spans([SECOND] * seconds),
            metrics=[STEP] * seconds,
            setting=setting_of(config),
            device=device,
            parameters=500_000_000,
        )

    return make


def test_the_use_of_a_known_device_is_counted_in_floating_point_operations(made):
    profile = made()
    training = 6 * 5e8 * 20_000  # per second of the run, of which 0.8 s were training
    assert profile.training_use == pytest.approx(training / 0.8 / 989e12)
    assert profile.run_use == pytest.approx((training + 2 * 5e8 * 2000) / 989e12)
    assert dict(figures(profile))["of the device's peak (MFU)"] == "7.6% while training, 6.3% of the run"


def test_of_an_unknown_device_only_tokens_per_second_are_told(made):
    profile = made("cpu")
    assert profile.training_use is None
    assert dict(figures(profile)) == {
        "generated": "1,000 tokens/s",
        "trained": "25,000 tokens/s while training",
        "cache hit rate": "75.0% of prompt tokens",
        "engine busy": "50%",
        "pause per load": "10.0 ms, 10 loads",
        "device": "cpu",
    }


def test_the_text_has_a_bar_per_second_until_there_are_too_many(made):
    lines = timeline_text(made()).splitlines()
    training = next(line for line in lines if line.startswith("trainer training"))
    assert training.split()[2:] == ["▆" * 10, "80%"]
    assert lines[0].split() == ["0", "10", "s"]
    long = timeline_text(made(seconds=7200)).splitlines()
    assert max(map(len, long)) < 110
    assert long[0].split() == ["0", "120", "min"]
