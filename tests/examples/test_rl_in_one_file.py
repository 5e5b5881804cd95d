"""The one-file example stays one page-turn long, and runs."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "rl_in_one_file.py"


def test_it_is_under_250_lines_and_imports_nothing_of_ours():
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) < 250
    assert "import ludus" not in text
    assert "from ludus" not in text


def test_it_plays_learns_and_prints_success_before_and_after():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "20"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    before, *steps, after = done.stdout.splitlines()
    assert before.startswith("before: 0.")
    assert before.endswith("held-out tasks")
    assert [line.split("success")[0].strip() for line in steps] == ["step  20"]
    assert after.startswith("after:  0.")
