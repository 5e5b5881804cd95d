import json
import os
import subprocess
import sys

import pytest

from ludus import __version__
from ludus.cli.main import COMMANDS, load


def ludus(*arguments, **environment):
    command = [sys.executable, "-c", "from ludus.cli.main import main; main()", *arguments]
    env = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", **environment}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def test_help_lists_every_command():
    result = ludus("--help")
    assert result.returncode == 0
    assert all(name in result.stdout for name in COMMANDS)


def test_the_list_of_commands_fits_a_terminal():
    assert "..." not in ludus("--help", COLUMNS="80").stdout.partition("Commands:")[2]


@pytest.mark.parametrize(("command", "section"), [("evolve", "[evolve] and [sft]"), ("quickstart", "[sft] section")])
def test_help_shows_sections_in_brackets_as_they_are(command, section):
    assert section in ludus(command, "--help").stdout


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_imports_nothing_heavy(arguments):
    script = f"""
import json, sys
sys.argv = ["ludus", *{arguments!r}]
from ludus.cli.main import main
try:
    main()
except SystemExit:
    pass
heavy = {{"torch", "transformers", "pydantic", "matplotlib", "numpy", "tensorboard", "httpx", "asyncio"}}
print(json.dumps(sorted(heavy & set(sys.modules))), file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(result.stderr.splitlines()[-1]) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_exists_where_the_list_says(name):
    assert load(COMMANDS[name], name=name) is not None


def test_the_version_is_printed():
    assert ludus("--version").stdout.strip() == f"ludus {__version__}"


def test_a_wrong_command_gets_the_near_one():
    result = ludus("trian")
    assert result.returncode == 2
    assert "'train'" in result.stderr


def test_a_named_failure_is_one_message_on_stderr_without_a_traceback(tmp_path):
    result = ludus("report", str(tmp_path / "nothing"))
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("ludus: ConfigError: ")
    assert "Traceback" not in result.stderr


def test_a_file_that_cannot_be_used_is_one_message_too(tmp_path):
    (tmp_path / "file").write_text("")
    result = ludus("env", "new", "my_game", "--folder", str(tmp_path / "file"))
    assert result.returncode == 1
    assert result.stderr.startswith("ludus: FileExistsError: ")
    assert "check its permissions and the free space" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_warning_of_ours_is_told_without_the_line_of_code_it_came_from():
    script = """
import warnings
import ludus.cli.main as main
import ludus.cli.trajectories as commands
def report(run: str) -> None:
    warnings.warn_explicit("mind the step", UserWarning, commands.__file__, 1)
    warnings.warn_explicit("mind the gap", UserWarning, "/elsewhere/other.py", 7)
commands.report = report
main.main()
"""
    result = subprocess.run([sys.executable, "-c", script, "report", "x"], capture_output=True, text=True, check=False)
    assert result.stderr.splitlines() == ["warning: mind the step", "/elsewhere/other.py:7: UserWarning: mind the gap"]


def test_the_traceback_is_there_for_who_asks(tmp_path):
    assert "Traceback" in ludus("report", str(tmp_path / "nothing"), LUDUS_DEBUG="1").stderr


def test_ctrl_c_says_so_and_exits_with_130():
    script = """
import ludus.cli.main as main
import ludus.cli.trajectories as commands
def report(run: str) -> None:
    raise KeyboardInterrupt
commands.report = report
main.main()
"""
    result = subprocess.run([sys.executable, "-c", script, "report", "x"], capture_output=True, text=True, check=False)
    assert result.returncode == 130
    assert result.stderr == "ludus: interrupted\n"
