import io

import pytest
from rich.console import Console

from ludus.cli.progress import Progress, clock_text, panel, step_line
from ludus.cli.scoreboard import Scoreboard, sparkline
from ludus.config import parse_config

CONFIG = parse_config(
    {"name": "demo", "environments": {"guess": {}, "walk": {}}, "pipeline": {"steps": 10, "max_staleness": 2}}
)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def step(number):
    return {
        "step": number,
        "train/reward/guess": number / 10,
        "train/success/guess": number / 10,
        "train/turns/guess": 4.0,
        "trajectories/invalid_rate/guess": 0.25,
        "staleness/mean": 0.5,
        "staleness/max": 2.0,
        "tokens/generated": 300.0,
        "time/train_s": 0.1,
        "time/publish_s": 0.1,
        "time/wait_s": 0.1,
        "groups/playing": 12,
        "groups/ready": 3,
        "groups/dropped_stale/guess": 1.0,
        "trajectories/failed/turn_timeout": 2.0,
        "probe/gap": 2e-7,
    }


EVALUATION = {
    "step": 4,
    "environments": [{"environment": "walk", "success": 0.5, "success_low": 0.4, "success_high": 0.6}],
}


def played(clock):
    board = Scoreboard(CONFIG, clock=clock)
    board.update("started", {"steps": 10, "version": 0})
    for number in range(1, 6):
        clock.now += 2.0
        board.update("trajectory", {"split": "train"})
        board.update("metrics", step(number))
    return board


def drawn(board):
    console = Console(file=io.StringIO(), width=160)
    console.print(panel(board))
    return console.file.getvalue()


def test_the_time_left_follows_the_pace_of_the_steps():
    clock = Clock()
    board = played(clock)
    assert board.left_s == pytest.approx(10)
    clock.now += 1.0
    assert board.left_s == pytest.approx(9)


def test_a_resumed_run_counts_its_pace_from_where_it_resumed():
    clock = Clock()
    board = Scoreboard(CONFIG, clock=clock)
    board.update("started", {"steps": 10, "version": 6})
    clock.now += 3.0
    board.update("metrics", step(7))
    assert board.left_s == pytest.approx(9)


def test_the_panel_shows_what_a_person_watches():
    board = played(Clock())
    board.update("evaluation", EVALUATION)
    board.update("trajectory", {"split": "test"})
    text = drawn(board)
    for part in (
        "step 5/10",
        "0:10 left",
        "guess",
        "0.30",
        "30%",
        "1,000 tokens/s",
        "staleness 0.5, oldest 2 (bound 2)",
    ):
        assert part in text
    for part in (
        "12 playing",
        "2.0e-07",
        "5 groups dropped",
        "10 failed",
        "50% [40, 60] at step 4",
        "evaluating 1/128",
    ):
        assert part in text


def test_cloning_and_evaluating_have_a_display_too():
    cloning = Scoreboard(CONFIG)
    cloning.update("cloning", {"steps": 200, "trajectories": 9})
    cloning.update("metrics", {"step": 20, "optimizer/loss": 1.5})
    assert "step 20/200" in drawn(cloning)
    assert "loss 1.500" in drawn(cloning)
    evaluating = Scoreboard(CONFIG)
    evaluating.update("trajectory", {"split": "test"})
    assert "session 1/128" in drawn(evaluating)


def test_elsewhere_than_on_a_terminal_a_line_is_printed_now_and_then_and_at_the_end():
    clock, console = Clock(), Console(file=io.StringIO(), width=300)
    progress = Progress(CONFIG, console=console, clock=clock)
    progress("started", {"steps": 10, "version": 0})
    for number in range(1, 11):
        clock.now += 1.0
        progress("metrics", step(number))
    progress("evaluation", EVALUATION)
    progress("closed", {})
    lines = console.file.getvalue().splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["1/10", "6/10", "10/10"]
    assert lines[-1] == "held-out success: walk 50% [40, 60] at step 4"


def test_a_line_holds_reward_and_success_of_every_environment():
    assert "reward (success): guess 0.30 (30%)" in step_line(played(Clock()))


def test_an_evaluation_without_a_scored_session_has_no_rate():
    board = Scoreboard(CONFIG)
    board.update("evaluation", {"step": 4, "environments": [{"environment": "walk", "success": None}]})
    assert board.held_out == {"walk": "unknown (no scored session) at step 4"}


def test_on_a_terminal_the_display_ends_with_the_run_and_gives_the_cursor_back():
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    progress = Progress(CONFIG, console=console)
    progress("started", {"steps": 10, "version": 0})
    progress("metrics", step(10))
    progress("closed", {})
    text = console.file.getvalue()
    assert "10/10" in text
    assert text.rstrip().endswith("\x1b[?25h")


def test_nothing_is_drawn_before_the_first_event():
    console = Console(file=io.StringIO(), force_terminal=True)
    Progress(CONFIG, console=console)
    assert console.file.getvalue() == ""


def test_a_display_that_cannot_be_written_never_ends_the_run():
    class Gone(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

    progress = Progress(CONFIG, console=Console(file=Gone()))
    progress("started", {"steps": 10, "version": 0})
    for number in range(1, 11):
        progress("metrics", step(number))
    progress("closed", {})
    assert progress.board.step == 10


@pytest.mark.parametrize(
    ("values", "text"),
    [([], ""), ([0.0, 0.5, 1.0], "▁▅█"), ([3.0], "▁"), ([float("nan"), 1.0], "▁"), ([2.0] * 40, "▁" * 10)],
)
def test_a_trend_fits_in_ten_characters(values, text):
    assert sparkline(values) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, "0:00"), (65, "1:05"), (3700, "1:01:40")])
def test_a_clock_reads_like_one(seconds, text):
    assert clock_text(seconds) == text


@pytest.mark.parametrize("kind", ["collapse", "collapsed", "no_gradient", "stall", "listener_failed"])
def test_what_goes_badly_is_a_line_of_its_own(kind):
    file = io.StringIO()
    progress = Progress(CONFIG, console=Console(file=file))
    progress(kind, {"text": "sign of collapse in guess: turns grow long"})
    assert file.getvalue() == "warning: sign of collapse in guess: turns grow long\n"
