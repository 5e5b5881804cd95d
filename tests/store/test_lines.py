import json
import math
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.errors import StoreFailed
from ludus.store.lines import LineFile, encode_line, read_lines


def read(path):
    problems = []
    return list(read_lines(path, report=problems.append)), problems


def test_lines_come_back_in_order(tmp_path):
    file = LineFile(tmp_path / "deep" / "a.jsonl")
    for number in range(3):
        file.append({"number": number})
    file.close()
    assert read(file.path) == ([{"number": 0}, {"number": 1}, {"number": 2}], [])


def test_a_missing_file_has_no_lines(tmp_path):
    assert read(tmp_path / "nothing.jsonl") == ([], [])


@given(st.text())
def test_any_text_round_trips_on_one_line_also_half_a_surrogate_pair(text):
    line = encode_line({"text": text, "half": "\ud83d"})
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"text": text, "half": "\ud83d"}


def test_numbers_unknown_to_json_are_written_as_text_and_the_line_stays_valid_json():
    line = encode_line({"loss": math.nan, "nested": [{"high": np.float32(math.inf), "low": -math.inf}]})
    strict = json.loads(line, parse_constant=pytest.fail)
    assert strict == {"loss": "NaN", "nested": [{"high": "Infinity", "low": "-Infinity"}]}
    assert math.isnan(float(strict["loss"]))


def test_numpy_values_sets_and_strangers_are_written_not_refused():
    value = {"a": np.float32(0.5), "b": np.arange(2), "c": {"y", "x"}, "d": complex(1, 2)}
    assert json.loads(encode_line(value)) == {"a": 0.5, "b": [0, 1], "c": ["x", "y"], "d": "(1+2j)"}


def test_a_torn_last_line_is_reported_with_its_place_and_the_lines_before_it_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n":1}\n{"n":2}\n{"n":')
    lines, problems = read(path)
    assert lines == [{"n": 1}, {"n": 2}]
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:3: ")
    assert "torn" in problems[0]


def test_a_torn_line_is_ended_when_the_file_is_opened_again_so_that_no_later_line_is_lost(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n":1}\n{"n":')
    file = LineFile(path)
    file.append({"n": 3})
    file.close()
    lines, problems = read(path)
    assert lines == [{"n": 1}, {"n": 3}]
    assert f"{path}:2: " in problems[0]


def test_a_line_that_is_no_object_is_reported(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'[1]\n{"n":2}\n\xff\xfe\n')
    lines, problems = read(path)
    assert lines == [{"n": 2}]
    assert [problem.rsplit(":", 2)[1] for problem in problems] == ["1", "3"]


@pytest.fixture
def small_disk():
    """Files may grow to 100 bytes, then writing fails half way, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_named_and_leaves_only_whole_lines(tmp_path, small_disk):
    file = LineFile(tmp_path / "a.jsonl")
    file.append({"text": "x" * 50})
    with pytest.raises(StoreFailed, match=r"a\.jsonl.*intact.*Free space.*start the command again.*--resume"):
        file.append({"text": "y" * 50})
    assert read(file.path) == ([{"text": "x" * 50}], [])
    file.append({"n": 1})  # a shorter line still fits: the half line was taken back
    assert len(read(file.path)[0]) == 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match=r"cannot open .*file/a\.jsonl"):
        LineFile(tmp_path / "file" / "a.jsonl")


WRITER = """
import sys
from pathlib import Path
from ludus.store.lines import LineFile
file = LineFile(Path(sys.argv[1]))
for number in range(10**9):
    file.append({"number": number, "padding": "x" * 3000})
    print(number, flush=True)
"""


def test_kill_9_loses_no_line_that_append_returned_from(tmp_path):
    path = tmp_path / "a.jsonl"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(200)]
    time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    acknowledged += [int(line) for line in process.stdout.read().splitlines() if line.isdigit()][:-1]
    process.wait()
    lines, problems = read(path)
    assert [line["number"] for line in lines][: len(acknowledged)] == acknowledged
    assert len(problems) <= 1
