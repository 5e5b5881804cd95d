"""Groups of processes that are killed with this one, and numbers that may be somebody else's by now."""

from __future__ import annotations

import os
import subprocess

from ludus.processes.supervisor import Supervisor


def test_a_group_is_killed_once_for_its_number_may_be_somebody_elses_later(monkeypatch):
    keeper, sleeper = Supervisor(), subprocess.Popen(["sleep", "600"], start_new_session=True)
    killed: list[int] = []
    try:
        keeper.add(sleeper.pid)
        keeper.kill(sleeper.pid)
        assert sleeper.wait(60) == -9
        monkeypatch.setattr(os, "killpg", lambda group, _: killed.append(group))
        keeper.kill(sleeper.pid)
        keeper.close()
    finally:
        sleeper.kill()
        sleeper.wait()
    assert killed == []
