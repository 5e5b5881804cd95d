"""Controller, workers, sandboxes, pens and client killed at random moments, again and again, and
the account that is kept to afterwards.

A schedule is its seed. LUDUS_CHAOS_SEED=17 carries out that one; LUDUS_CHAOS_S=600 carries out new
ones for ten minutes. By default a few
known ones. What is promised:

- a trajectory that was acknowledged is there once, and is what the environment says it was; no turn
  was carried out twice
- whoever called had an answer or a failure with a name, and nobody waits for ever
- after each burst of kills, sessions of every environment are played to their ends
- no slot stays taken after its lease has run out, in the controller's eyes and in the workers' own
- no process of a worker, pen or sandbox is left, and no label, folder or control group after the
  next sweep
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from ludus.sandboxes import reaper
from tests.chaos.plane import HOSTED, Plane, wait_until
from tests.chaos.player import LEASE_S
from tests.chaos.schedule import WEIGHTS, draw
from tests.chaos.worlds import NAMES, TURNS

SEEDS = (3, 5)
"""One that ends in order and one that does not."""
NUM_BURSTS, NUM_KILLS = 2, 5
GOES_ON = 2
"""Trajectories of each environment that must be begun and finished after the last kill of a
burst."""
PATIENCE_S = 180.0
"""Generous, for machines that do something else meanwhile; what waits for it ends as soon as it is
true."""


def seeds() -> list[int]:
    given = os.environ.get("LUDUS_CHAOS_SEED")
    return [int(given)] if given else list(SEEDS)


@pytest.mark.parametrize("seed", seeds())
def test_whatever_is_killed_the_accounts_are_right(seed, tmp_path):
    must_live_through(seed, tmp_path)


@pytest.mark.skipif("LUDUS_CHAOS_S" not in os.environ, reason="LUDUS_CHAOS_S=600 goes on for so many seconds")
def test_new_schedules_for_as_long_as_was_asked_for(tmp_path):
    give_up = time.monotonic() + float(os.environ["LUDUS_CHAOS_S"])
    while time.monotonic() < give_up:
        seed = random.SystemRandom().randrange(10**6)
        (folder := tmp_path / str(seed)).mkdir()
        must_live_through(seed, folder)


def test_a_schedule_is_its_seed():
    drawn = draw(5, num_bursts=9, num_kills=9)
    assert drawn == draw(5, num_bursts=9, num_kills=9) != draw(6, num_bursts=9, num_kills=9)
    assert {kill.victim for burst in drawn.bursts for kill in burst} == set(WEIGHTS)


# ------------------------------------------------------------------------------------- one schedule


def must_live_through(seed: int, folder: Path) -> None:
    schedule = draw(seed, num_bursts=NUM_BURSTS, num_kills=NUM_KILLS)
    plane, done = Plane(folder), list[str]()
    try:
        must_go_on(plane)
        for burst in schedule.bursts:
            for what in plane.carry_out(burst):
                done.append(what)
            must_go_on(plane)
        must_stop_in_order(plane) if schedule.at_the_end == "stop" else kill_everything(plane)
        must_have_right_accounts(folder)
        must_leave_nothing(plane)
    except BaseException:
        print(f"\nseed {seed} failed in {folder}; what was done:", *done, sep="\n  ")
        print(f"replay: LUDUS_CHAOS_SEED={seed} python -m pytest tests/chaos/test_schedules.py -n 0 -k accounts")
        raise
    finally:
        plane.close()


def must_go_on(plane: Plane) -> None:
    """With everything back. That begins the first time, too. No number that was begun before may be
    missing: a call that hangs would be."""
    last_kill, before = time.monotonic(), lines(plane.folder, "acknowledged")
    begun = set(range(max((each["number"] for each in before), default=0) + 1))

    def goes_on() -> bool:
        plane.revive()
        acknowledged = lines(plane.folder, "acknowledged")
        since = Counter(each["environment"] for each in acknowledged if each["began"] > last_kill)
        return all(since[name] >= GOES_ON for name in NAMES) and begun <= {each["number"] for each in acknowledged}

    wait_until(goes_on, PATIENCE_S, f"{GOES_ON} new sessions of each environment, and all that were begun before")


def must_stop_in_order(plane: Plane) -> None:
    """A client that is killed once more leaves sessions behind; their slots, and all that were lost
    before, are free after one lease."""
    plane.kill("client")
    time.sleep(LEASE_S)
    wait_until(lambda: is_free(plane), PATIENCE_S, "no session, and nobody who waits for one, in the controller's eyes")
    time.sleep(LEASE_S)  # in their own eyes the workers are as late as they heard of those sessions
    for name in list(plane.running):
        assert plane.stop(name, patience_s=PATIENCE_S) == 0, f"{name} did not stop in order"
    for name in HOSTED:
        said = re.findall(r"draining: (\d+) sessions", plane.log(name).read_text())
        assert said[-1] == "0", f"{name} itself still had {said[-1]} sessions"


def is_free(plane: Plane) -> bool:
    health = plane.get("/health")
    of_workers = [row["num_sessions"] for row in plane.get("/workers")]
    return health["num_sessions"] == health["num_waiting"] == 0 and not any(of_workers)


def kill_everything(plane: Plane) -> None:
    for process in plane.running.values():
        process.kill()
    for name in list(plane.running):
        plane.forget(name)


def must_have_right_accounts(folder: Path) -> None:
    acknowledged, failures = lines(folder, "acknowledged"), lines(folder, "failures")
    noted = Counter((folder / "notes").read_text().splitlines())
    assert [turn for turn, times in noted.items() if times > 1] == [], "turns that were carried out twice"
    numbers = Counter(each["number"] for each in acknowledged)
    assert [number for number, times in numbers.items() if times > 1] == [], "trajectories that are there twice"
    for each in acknowledged:
        turns = [f"{each['number']} {each['attempt']} {turn}" for turn in range(TURNS)]
        assert each["said"] == ["".join(f"{turn}\n" for turn in turns[: n + 1]) for n in range(TURNS)], each
        assert all(noted[turn] == 1 for turn in turns), f"acknowledged, and nobody knows of it: {each}"
    assert [failure for failure in failures if not failure["named"]] == []


def must_leave_nothing(plane: Plane) -> None:
    if plane.level == "namespace":  # what ends by itself; plain processes are swept
        wait_until(lambda: plane.leftovers() == [], PATIENCE_S, "no process is left")
    reaper.sweep(plane.state)
    wait_until(lambda: plane.leftovers() == [], PATIENCE_S, "no process is left after a sweep")
    wait_until(lambda: is_swept(plane), PATIENCE_S, "no label, folder, lease or group is left after a sweep")


def is_swept(plane: Plane) -> bool:
    """A group goes with the sweep that finds it empty, and its last processes may take a moment."""
    reaper.sweep(plane.state)
    return plane.sandboxes_left() == []


def lines(folder: Path, name: str) -> list[dict]:
    """Whole lines: the last one may be being written."""
    file = folder / f"{name}.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
