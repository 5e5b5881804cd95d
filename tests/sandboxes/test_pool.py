"""Warm sandboxes: used once, refilled, and gone at the end."""

import threading

import pytest

from ludus.errors import SandboxFailed
from ludus.sandboxes.fake import FakeSandbox
from ludus.sandboxes.pool import Pool
from ludus.sandboxes.provider import Sandboxes
from ludus.sandboxes.sandbox import Need
from tests.sandboxes.conftest import make_state, need, wait_for

NEED, OTHER = Need("container", image="a"), Need("container", image="b")


class Maker:
    def __init__(self, *, fails=False):
        self.made, self.fails, self.lock = [], fails, threading.Lock()

    def __call__(self, need):
        if self.fails:
            raise SandboxFailed("none today")
        with self.lock:
            self.made.append(FakeSandbox())
            return self.made[-1]


def test_after_the_first_use_so_many_are_kept_ready_per_need():
    make = Maker()
    pool = Pool(make, size=2)
    pool.take(NEED)
    assert wait_for(lambda: pool.num_ready(NEED) == 2)
    assert pool.num_ready(OTHER) == 0
    pool.close()


def test_nobody_gets_a_used_one():
    make = Maker()
    pool = Pool(make, size=2)
    taken = [pool.take(NEED) for _ in range(20)]
    assert len({id(each) for each in taken}) == 20
    pool.close()
    assert wait_for(lambda: all(each.num_closed == 1 for each in make.made if each not in taken))
    assert all(each.num_closed == 0 for each in taken), "those belong to their takers"


def test_a_failure_is_the_takers_to_see():
    pool = Pool(Maker(fails=True), size=2)
    with pytest.raises(SandboxFailed, match="none today"):
        pool.take(NEED)
    pool.close()


def test_a_warm_container_is_told_whose_it_is_when_it_is_taken(tmp_path, request):
    asked = need("container", request)
    state = make_state(tmp_path)
    sandboxes = Sandboxes(run="r", state=state, warm=1)
    try:
        sandboxes.open(asked, session="first").close()
        assert wait_for(lambda: sandboxes._pool.num_ready(asked) == 1)
        warm = sandboxes.open(asked, session="second")
        assert '"session": "second"' in (state / "labels" / warm.label.id).read_text()
        assert warm.run("echo warm").stdout == "warm\n"
    finally:
        sandboxes.close()
    assert list((state / "labels").iterdir()) == []
