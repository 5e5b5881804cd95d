import dataclasses
import math

import pytest
from typer.testing import CliRunner

from ludus.cli.conversation import visible
from ludus.cli.main import app
from ludus.cli.trajectories import parse_range
from ludus.config import parse_config
from ludus.errors import ConfigError
from ludus.store.recorder import Recorder
from ludus.store.run_folder import RunFolder
from ludus.types import Action, Message, Observation, Stop
from tests.store.examples import make_trajectory

EVIL = "[bold red]not markup[/] \x1b[31mred\x1b[0m \u202eesrever \r\x07"


@pytest.fixture
def run(tmp_path):
    config = parse_config({"name": "first", "store": {"folder": str(tmp_path)}})
    with Recorder(RunFolder.create(config), trajectories=True) as recorder:
        for step in range(5):
            recorder.trajectory(make_trajectory(f"g{step}.0", reward=step / 4), step=step, group_id=f"g{step}")
        failed = make_trajectory(
            "g9.0", environment="walk", stop=Stop.FAILED, failure="EnvironmentFailed: act: KeyError"
        )
        recorder.trajectory(failed, step=5, group_id="g9", split="test")
    return str(config.folder)


def ludus(*arguments):
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "140"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def listed(text):
    return [line.split()[0] for line in text.splitlines() if line.strip().startswith("g")]


def test_all_trajectories_are_listed_with_what_a_person_asks_first(run):
    text = ludus("trajectories", run)
    assert listed(text) == ["g0.0", "g1.0", "g2.0", "g3.0", "g4.0", "g9.0"]
    assert "6 match, 6 in total" in text


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["--environment", "walk"], ["g9.0"]),
        (["--step", "1:3"], ["g1.0", "g2.0", "g3.0"]),
        (["--step", "4:"], ["g4.0", "g9.0"]),
        (["--reward", ">=0.75", "--environment", "guess"], ["g3.0", "g4.0"]),
        (["--reward", "0.2:0.6"], ["g1.0", "g2.0"]),
        (["--stop", "failed"], ["g9.0"]),
        (["--split", "test"], ["g9.0"]),
        (["--limit", "2"], ["g4.0", "g9.0"]),
        (["--reward", "77"], []),
    ],
)
def test_filters_choose(run, arguments, ids):
    assert listed(ludus("trajectories", run, *arguments)) == ids


def test_an_id_is_one_word_of_one_line_however_narrow_the_terminal_is(tmp_path):
    config, name = parse_config({"name": "first", "store": {"folder": str(tmp_path)}}), "eval-96/kv_store/test/70.0"
    with Recorder(RunFolder.create(config), trajectories=True) as recorder:
        recorder.trajectory(make_trajectory(name), step=96, group_id="kv_store/test/70", split="test")
    text = CliRunner().invoke(app, ["trajectories", str(config.folder)], env={"COLUMNS": "40"}).stdout
    (line,) = [line.split() for line in text.splitlines() if "kv_store" in line]
    assert (line[0], line[-1]) == (name, "done")


def test_a_filter_that_no_trajectory_can_fit_gets_the_near_name(run):
    with pytest.raises(ConfigError, match="Did you mean 'guess'"):
        ludus("trajectories", run, "--environment", "gess")


def test_one_is_printed_as_a_conversation_with_its_tools_calls_rewards_and_stop(run):
    text = ludus("trajectories", run, "--show", "g2.0", "--tokens")
    for part in (
        "Guess it.",
        'guess({"number": 5})',
        "too low",
        "+0.5",
        "stop done",
        "current v3",
        "0.25 s",
        "4 sampled",
    ):
        assert part in text


def test_a_failed_one_says_why(run):
    text = ludus("trajectories", run, "--show", "g9.0")
    assert "EnvironmentFailed: act: KeyError" in text
    assert "unscored" in text


def test_an_unknown_id_gets_near_ones(run):
    with pytest.raises(ConfigError, match=r"'g2\.0'"):
        ludus("trajectories", run, "--show", "g2")


def test_markup_and_control_characters_of_a_model_are_shown_not_obeyed(tmp_path):
    config = parse_config({"name": "evil", "store": {"folder": str(tmp_path)}})
    trajectory = make_trajectory("evil")
    turn = dataclasses.replace(
        trajectory.turns[0], action=Action(EVIL), observation=Observation(messages=(Message("tool", EVIL),))
    )
    with Recorder(RunFolder.create(config), trajectories=True) as recorder:
        recorder.trajectory(dataclasses.replace(trajectory, turns=(turn,)), step=0, group_id="g")
    text = ludus("trajectories", str(config.folder), "--show", "evil")
    assert "[bold red]not markup[/]" in text
    assert "\\x1b[31mred" in text
    assert not set("\x1b\u202e\x07") & set(text)


def test_visible_keeps_what_people_write():
    assert visible("naïve 你好 😀\n\ttab") == "naïve 你好 😀\n\ttab"


def test_a_torn_line_is_reported_and_the_rest_is_listed(run):
    with (RunFolder.open(run).trajectory_files()[0]).open("ab") as file:
        file.write(b'{"id": "half')
    result = CliRunner().invoke(app, ["trajectories", run], env={"COLUMNS": "200"})
    assert len(listed(result.stdout)) == 6
    assert "00000.jsonl:7" in result.stderr.replace("\n", "")


@pytest.mark.parametrize("text", ["x", ">=", ":", "1:2:3", ">1:2"])
def test_a_range_that_cannot_be_read_says_what_can(text):
    with pytest.raises(ConfigError, match=r"--reward.*expected"):
        parse_range(text, option="--reward")


def test_no_range_admits_nothing_that_is_no_number():
    assert not any(parse_range(text, option="--reward")(math.nan) for text in ("1", ">0", "0:1", "<9"))


def test_report_writes_the_page_and_prints_where(run):
    path = ludus("report", run).strip()
    assert path.endswith("report.md")
