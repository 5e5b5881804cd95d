"""Author code that is out of time really ends, and nothing else is struck."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time

import pytest

from ludus.environments import wrap
from ludus.errors import TurnTimeout
from ludus.hosting.host import Host
from ludus.hosting.stopping import Raised, Stay, Stopped
from ludus.hosting.threads import Threads
from ludus.types import Action, Task
from tests.environments.authored import Adder, AsyncAdder

TASK = Task("adder/train/0", "adder", "train", {"a": 1, "b": 1})


class Loops:
    """Counts for as long as it is alive: where the count stands still, the code has ended."""

    def __init__(self):
        self.count = 0

    def forever(self):
        while True:
            self.count += 1

    def stands_still(self, *, within_s: float = 60.0) -> bool:
        deadline, before = time.monotonic() + within_s, -1
        while before != self.count and time.monotonic() < deadline:
            before = self.count
            time.sleep(0.05)
        return before == self.count


def cancelled_after(function, *, seconds=0.05):
    """Begins `function` on a thread and cancels its caller."""

    async def main():
        threads = Threads()
        waiter = asyncio.create_task(threads.finish(threads.begin(function)))
        await asyncio.sleep(seconds)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await threads.settled(patience_s=60)
        again = await threads.finish(threads.begin(lambda: "the thread lives on"))
        threads.close()
        return again

    return asyncio.run(main())


def test_a_loop_on_a_thread_ends_when_its_caller_is_gone():
    loops = Loops()
    assert cancelled_after(loops.forever) == "the thread lives on"
    assert loops.stands_still()


def test_code_that_catches_every_exception_is_stopped_all_the_same():
    loops = Loops()

    def forever():
        while True:
            try:
                loops.count += 1
                raise ValueError
            except Exception:
                pass

    cancelled_after(forever)
    assert loops.stands_still()


def test_code_that_swallows_its_stop_is_stopped_again(monkeypatch):
    monkeypatch.setattr("ludus.hosting.threads._INSIST_S", (0.05, 0.1))
    loops = Loops()

    def forever():
        try:
            loops.forever()
        except BaseException:
            loops.forever()

    cancelled_after(forever)
    assert loops.stands_still()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a collector's callback swallows one
def test_a_strike_never_lands_outside_of_the_authors_code():
    """Stops at random moments around very short stays: each is either carried out inside, or
    forgotten."""
    stays, enough, outcomes = [Stay()], threading.Event(), []

    def victim():
        while not enough.is_set():
            stays[0] = stay = Stay()
            outcomes.append(stay.run(lambda: sum(range(20))))

    thread, rng, stopped = threading.Thread(target=victim), random.Random(1), set()
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        while len(stopped) < 1000 and thread.is_alive():
            stay = stays[0]
            if stay not in stopped and stay.stop():
                stopped.add(stay)
            time.sleep(rng.random() * 1e-5)
        assert thread.is_alive(), "the victim died of a strike outside of its stay"
        enough.set()
        thread.join()
    finally:
        sys.setswitchinterval(switching)
    assert {type(each.error) for each in outcomes if isinstance(each, Raised)} == {Stopped}
    assert {each for each in outcomes if not isinstance(each, Raised)} == {190}


class AsyncLoop(AsyncAdder):
    """Computes on the loop for ever, in its second turn."""

    loops = Loops()

    async def setup(self, task, rng):
        await asyncio.sleep(0)
        return "go"

    async def solve(self):
        await asyncio.sleep(0.01)
        self.loops.forever()


def test_an_async_method_that_holds_the_loop_is_stopped_and_the_others_go_on():
    async def scene():
        host = Host(max_hold_s=0.5)
        session = await host.open(wrap(AsyncLoop, name="adder"), TASK, seed=0)
        other = await host.open(wrap(AsyncAdder, name="adder"), TASK, seed=0)
        await session.start()
        with pytest.raises(TurnTimeout, match=r"solve held the event loop for 0.5 s and was stopped; .*isolation"):
            await session.propose("solve", seed=0)
        assert AsyncLoop.loops.stands_still()
        seen = await other.start()
        await host.close()
        return seen

    assert asyncio.run(scene()).messages[-1].content == "1 and 1"


def test_a_shorter_turn_limit_also_limits_how_long_the_loop_is_held():
    async def scene():
        host = Host()
        session = await host.open(wrap(AsyncLoop, name="adder"), TASK, seed=0, timeout_s=0.4)
        await session.start()
        with pytest.raises(TurnTimeout, match=r"for 0.4 s"):
            await session.propose("solve", seed=0)

    asyncio.run(scene())


def test_in_a_process_of_ours_even_a_sleep_on_the_loop_is_stopped():
    """Signals belong to the main thread, so this one runs in a process of its own."""
    program = (
        "import asyncio, time\n"
        "from ludus.hosting.host import Host\n"
        "async def sleepy():\n"
        "    time.sleep(60)\n"
        "async def main():\n"
        "    host = Host()\n"
        "    host.watch.use_signals()\n"
        "    began = time.monotonic()\n"
        "    try: await host.call(sleepy, where='act', hold_s=0.2)\n"
        "    except Exception as error: print(type(error).__name__, time.monotonic() - began < 30)\n"
        "    for _ in range(200):\n"
        "        await asyncio.sleep(0.002)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "TurnTimeout True", done.stderr


def test_a_cancelled_async_method_hears_of_it_and_may_clean_up():
    heard = []

    class Careful(Adder):
        async def setup(self, task, rng):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                heard.append("cancelled")
                raise

    async def scene():
        host = Host()
        session = await host.open(wrap(Careful, name="adder"), TASK, seed=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await session.start()
        await session.close()
        await host.close()

    asyncio.run(scene())
    assert heard == ["cancelled"]


def test_a_turn_limit_really_ends_a_loop_in_a_plain_method_and_closes_the_session():
    loops, closed = Loops(), threading.Event()

    class Busy(Adder):
        def setup(self, task, rng):
            loops.forever()

        def close(self):
            closed.set()

    async def scene():
        host = Host()
        session = await host.open(wrap(Busy, name="adder"), TASK, seed=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await session.start()
        await session.close()
        await host.close()

    asyncio.run(scene())
    assert loops.stands_still()
    assert closed.wait(60)


def test_a_session_that_an_async_open_returns_too_late_is_closed():
    closed = asyncio.Event()

    class Late:
        name, description, max_turns, options = "late", "", 1, {}

        def tasks(self, split):
            return [TASK]

        async def open(self, task, *, seed):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return self

        def start(self): ...

        def act(self, action): ...

        async def close(self):
            closed.set()

    async def scene():
        host = Host()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await host.open(Late(), TASK, seed=0)
        async with asyncio.timeout(60):
            await closed.wait()

    asyncio.run(scene())


def test_watching_costs_an_async_call_nothing_that_it_returns():
    async def scene():
        host = Host()
        session = await host.open(wrap(AsyncAdder, name="adder"), TASK, seed=0)
        await session.start()
        seen = await session.act(await session.propose("solve", seed=0))
        return seen, await session.act(Action(content="after")) if not seen.done else None

    assert asyncio.run(scene())[0].reward == 1
