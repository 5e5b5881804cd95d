import io
import json
import logging

import pytest

from ludus.controller.runtime import log, log_json_lines


@pytest.fixture
def lines():
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    log_json_lines(to=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers, root.level = before, level


def test_an_event_is_one_line_of_json_with_its_facts(lines):
    log(logging.getLogger("x"), "worker lost", worker="w1", reason='silent\n"quoted"', level=logging.WARNING)
    [line] = lines()
    assert line["event"] == "worker lost"
    assert (line["level"], line["worker"], line["reason"]) == ("warning", "w1", 'silent\n"quoted"')
    assert line["time"].endswith("Z")


def test_a_traceback_stays_on_its_line(lines):
    try:
        raise KeyError("x")
    except KeyError:
        logging.getLogger("x").exception("a task failed")
    [line] = lines()
    assert "KeyError: 'x'" in line["traceback"]
