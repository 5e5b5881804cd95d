import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ludus.cli.env import app
from ludus.errors import LudusError


def ludus(*arguments, answers=None):
    """With the message of a failure in the output, as `ludus.cli.main` prints it."""
    result = CliRunner().invoke(app, list(arguments), input=answers)
    assert result.exception is None or isinstance(result.exception, LudusError | SystemExit), result.exception
    result.output_bytes += f"{result.exception or ''}".encode()
    return result


def test_list_shows_the_built_in_worlds_with_their_knobs():
    result = ludus("list")
    assert result.exit_code == 0
    assert "frozen_lake" in result.output
    assert "slippery=0.0" in result.output


def test_new_writes_an_environment_of_twenty_lines_that_passes_its_own_test(tmp_path):
    assert ludus("new", "my_game", "--folder", str(tmp_path)).exit_code == 0
    code = [line for line in (tmp_path / "my_game.py").read_text().splitlines() if line.strip()]
    assert len(code) <= 20
    watched = ludus("play", str(tmp_path / "my_game.py"), "--player", "solver")
    assert watched.exit_code == 0, "docs/environments.md watches its solver, and clones it for a warm start"
    assert "reward 1" in watched.output
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert run.returncode == 0, run.stdout


def test_new_overwrites_nothing_and_wants_a_python_name(tmp_path):
    ludus("new", "my_game", "--folder", str(tmp_path))
    again = ludus("new", "my_game", "--folder", str(tmp_path))
    assert again.exit_code == 1
    assert "exists; choose another name" in again.output
    assert "expected a lower-case Python name" in ludus("new", "my-game", "--folder", str(tmp_path)).output


def test_check_reports_and_passes():
    result = ludus("check", "guess", "--options", "numbers=7", "--tasks", "2")
    assert result.exit_code == 0, result.output
    assert "solver: 6 of 6 solved" in result.output


def test_check_fails_with_what_to_do():
    result = ludus("check", "tests.environments.authored:SeedInPrompt", "--tasks", "1")
    assert result.exit_code == 1
    assert "error: the first prompt of 'seed_in_prompt/train/0' changes with the seed" in result.output
    assert "-> use only the task's data" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "gess"), "Did you mean 'guess'"),
        (("check", "missing.py"), "does not exist"),
        (("check", "guess", "-o", "number=3"), "Did you mean 'numbers'"),
        (("check", "guess", "-o", "numbers"), "expected key=value"),
        (("play", "guess", "--player", "robot"), "expected person, random or solver"),
        (("play", "guess", "--task", "99999"), "tasks"),
        (("play", "guess", "--split", "valid"), "--split is 'valid', in which 'guess' has no tasks"),
        (("check", "os:path"), "has no `name`; expected a class"),
        (("new", "class"), "expected a lower-case Python name"),
    ],
)
def test_bad_input_gets_one_clear_message(arguments, message):
    result = ludus(*arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def test_one_can_watch_the_solver_and_a_random_player():
    watched = ludus("play", "kv_store", "--player", "solver")
    assert "> commit()" in watched.output
    assert "reward 1" in watched.output.splitlines()[-1]
    assert ludus("play", "frozen_lake", "--player", "random").exit_code == 0


def test_a_person_plays_with_tools_and_with_words():
    guessed = ludus("play", "guess", answers="guess number=1\nguess number=x\nhello\n\n" + "guess number=1\n" * 9)
    assert "higher" in guessed.output
    assert "number: got 'x', expected a valid integer" in guessed.output
    assert "[invalid]" in guessed.output
    walked = ludus("play", "frozen_lake", answers="up\nup\n")
    assert "at 0 0" in walked.output
    assert "stopped" in walked.output


def test_an_environment_that_raises_ends_the_game_with_one_message():
    result = ludus("play", "ludus.environments.fake:FakeEnvironment", "-o", "fault=raise", "--player", "solver")
    assert result.exit_code == 1
    assert "act raised RuntimeError: the fake raised" in result.output


def test_what_an_environment_says_cannot_move_the_cursor(tmp_path):
    code = "class A:\n    tasks = {'train': [{}]}\n    def setup(self, task, rng):\n        return '\\x1b[2Jgone'\n"
    (tmp_path / "a.py").write_text(code + "    def act(self, text):\n        return ''\n")
    shown = ludus("play", str(tmp_path / "a.py"), answers="").output
    assert "\\x1b[2Jgone" in shown
    assert "\x1b[2J" not in shown
