import math

import pytest

from ludus.reports.curves import Curve, counts, curve, curves, step_s, tokens_per_s
from ludus.reports.report import duration, table, write_report
from ludus.store.recorder import Recorder
from ludus.store.run_folder import RunFolder

PNG = b"\x89PNG\r\n\x1a\n"


def result(name, *, success, unscored=0):
    rates = {"success": success, "success_low": success - 0.1, "success_high": success + 0.1}
    return {"environment": name, "num_tasks": 64, "num_trajectories": 128, "num_unscored": unscored, **rates}


def step(number):
    return {
        "train/reward/guess": 0.01 * number,
        "train/success/guess": 0.02 * number,
        "trajectories/invalid_rate/guess": 0.1,
        "trajectories/trained": 64,
        "trajectories/failed/turn_timeout": 1.0,
        "groups/dropped_stale/guess": 2.0,
        "staleness/mean": 0.5,
        "staleness/max": 1.0,
        "time/train_s": 0.5,
        "time/publish_s": 0.1,
        "time/wait_s": 0.4,
        "time/generate_s": 10.0,
        "time/environment_s": 5.0,
        "tokens/generated": 500.0,
        "optimizer/loss": math.nan if number == 2 else 0.1,
    }


def write_run(config, *, num_steps, evaluated=(0,)):
    with Recorder(RunFolder.create(config), trajectories=False) as recorder:
        for number in range(num_steps + 1):
            if number in evaluated:
                recorder.evaluation(
                    number, {"environments": [result("guess", success=0.2 + 0.01 * number, unscored=3)]}
                )
            if number:
                recorder.metrics(number, step(number))
    return RunFolder.open(config.folder)


@pytest.mark.parametrize("num_steps", [1, 40])
def test_the_report_names_before_and_after_and_links_plots_that_exist(config, num_steps):
    folder = write_run(config, num_steps=num_steps, evaluated=(0, num_steps))
    text = write_report(folder).read_text()
    assert f"success at step {num_steps}" in text
    assert "20.0% [10.0%, 30.0%]" in text
    assert "128 (64 tasks)" in text
    assert f"| session ended unscored | turn_timeout | {num_steps} |" in text
    assert f"| group dropped, too stale | guess | {2 * num_steps} |" in text
    linked = [line.split("(")[1].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert len(linked) == 6
    assert all((folder.path / link).read_bytes().startswith(PNG) for link in linked)


def test_tokens_per_second_of_a_run_are_all_its_tokens_by_all_its_time(config):
    with Recorder(RunFolder.create(config), trajectories=False) as recorder:
        for number, train_s in enumerate((0.5, 98.5), start=1):
            recorder.metrics(number, step(number) | {"time/train_s": train_s})
    assert "| generated | 10 tokens/s on average |" in write_report(RunFolder.open(config.folder)).read_text()


def test_a_run_that_was_evaluated_once_has_one_column_of_success(config):
    text = write_report(write_run(config, num_steps=2)).read_text()
    assert text.count("success at step 0") == 1
    assert "| guess | 20.0% [10.0%, 30.0%] | 128 (64 tasks) | 3 |" in text


def test_a_run_without_a_step_still_has_a_report(config):
    folder = write_run(config, num_steps=0, evaluated=())
    assert "No optimiser step" in write_report(folder).read_text()


def test_a_torn_metrics_line_is_named_in_the_report(config):
    folder = write_run(config, num_steps=2)
    with folder.metrics_file.open("ab") as file:
        file.write(b'{"step": 3, "tr')
    assert "metrics.jsonl:3:" in write_report(folder).read_text()


def test_values_that_are_no_numbers_leave_a_gap_in_their_curve(config):
    folder = write_run(config, num_steps=3)
    assert curve(folder.metrics(), "optimizer/loss").steps.tolist() == [1, 3]


def test_curves_are_found_by_prefix_and_counts_are_summed():
    metrics = [{"step": 1, "a/x": 1, "a/y": 0, "b": 5}, {"step": 2, "a/x": 2, "a/y": 0}]
    assert {name: each.values.tolist() for name, each in curves(metrics, "a/").items()} == {"x": [1, 2], "y": [0, 0]}
    assert counts(metrics, "a/") == {"x": 3}


def test_smoothing_keeps_a_constant_and_invents_nothing_at_the_ends():
    values = Curve(*[curve([{"step": i, "v": 2.0} for i in range(100)], "v").steps] * 2)
    assert values.smoothed()[50] == pytest.approx(50)
    assert values.smoothed()[0] == pytest.approx(1)  # mean of 0, 1 and 2


def test_tokens_per_second_are_those_of_the_trainers_clock():
    assert step_s(step(1)) == pytest.approx(1.0)
    assert tokens_per_s(step(1)) == pytest.approx(500)
    assert tokens_per_s({"tokens/generated_per_s": 7}) == 7
    assert math.isnan(tokens_per_s({}))


@pytest.mark.parametrize(("seconds", "text"), [(5.25, "5.2 s"), (90, "1 min 30 s"), (7380, "2 h 3 min")])
def test_a_duration_reads_in_its_two_largest_units(seconds, text):
    assert duration(seconds) == text


def test_a_pipe_in_a_name_does_not_break_a_table():
    assert table(("a",), [("x|y",)]).splitlines()[-1] == "| x\\|y |"
