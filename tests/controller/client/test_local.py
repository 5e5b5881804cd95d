import asyncio
import random
import subprocess
import sys
import threading

import pytest

from ludus.controller.client.local import LocalClient
from ludus.environments import make, wrap
from ludus.environments.fake import FakeEnvironment
from ludus.errors import ConfigError, EnvironmentFailed
from ludus.hosting import host
from ludus.types import Action, Observation
from tests.environments.authored import Adder, AsyncAdder

HOW = pytest.mark.parametrize("blocking", [True, False])


def client_of(**options):
    return LocalClient([FakeEnvironment(**options)])


async def opened(client, *, environment="fake", index=0, seed=0):
    tasks = await client.tasks(environment, "train")
    return await client.open(tasks[index], seed=seed)


async def played(client, *, environment="fake", index=0, seed=0, mistakes=0.0):
    session = await opened(client, environment=environment, index=index, seed=seed)
    rng = random.Random(seed)
    seen = [await session.start()]
    while not seen[-1].done:
        seen.append(await session.act(await session.solve(mistakes=mistakes, rng=rng)))
    await session.close()
    return seen


@HOW
def test_a_session_is_played_to_its_end(blocking):
    seen = asyncio.run(played(client_of(blocking=blocking)))
    assert sum(observation.reward for observation in seen) == pytest.approx(1)


@pytest.mark.parametrize("author", [Adder, AsyncAdder])
def test_authored_sessions_plain_and_async_look_the_same(author):
    environment = wrap(author, name="adder")
    seen = asyncio.run(played(LocalClient([environment]), environment="adder"))
    assert [m.content for observation in seen for m in observation.messages] == ["Add the numbers.", "0 and 1", "right"]


def test_one_client_serves_several_environments_and_loops():
    client = LocalClient([FakeEnvironment(name="one"), FakeEnvironment(name="two", turns=1)])
    assert list(client.environments()) == ["one", "two"]
    assert [len(asyncio.run(played(client, environment=name))) for name in ("one", "two")] == [4, 2]


def test_an_unknown_environment_is_answered_with_the_near_one():
    with pytest.raises(ConfigError, match=r"no environment 'fak' here. Did you mean 'fake'"):
        asyncio.run(client_of().tasks("fak", "train"))


def test_two_environments_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two environments are called 'fake'"):
        LocalClient([FakeEnvironment(), FakeEnvironment()])


@HOW
@pytest.mark.parametrize("place", ["tasks", "open", "start", "act"])
@pytest.mark.parametrize("fault", ["raise", "exit"])
def test_whatever_author_code_raises_arrives_as_environment_failed(fault, place, blocking):
    with pytest.raises(EnvironmentFailed, match=f"{place}.* raised (RuntimeError|SystemExit): the fake"):
        asyncio.run(played(client_of(fault=fault, fault_in=place, blocking=blocking)))


@HOW
@pytest.mark.parametrize(
    "error", [StopIteration, GeneratorExit, asyncio.CancelledError, StopAsyncIteration, ConfigError]
)
def test_errors_that_could_be_mistaken_for_ours_are_the_environments(error, blocking):
    class Odd(Adder):
        def setup(self, task, rng):
            raise error("odd")

    class AsyncOdd(Adder):
        async def setup(self, task, rng):
            raise error("odd")

    environment = wrap(Odd if blocking else AsyncOdd, name="odd")
    with pytest.raises(EnvironmentFailed, match="odd/train/0: start raised"):
        asyncio.run(played(LocalClient([environment]), environment="odd"))


@HOW
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nan", "reward is nan; expected a finite number"),
        ("nothing", "content is NoneType; expected a str"),
        ("number", "answered int; expected an Observation"),
        ("surrogate", "not valid Unicode"),
    ],
)
def test_nonsense_arrives_as_environment_failed(fault, message, blocking):
    with pytest.raises(EnvironmentFailed, match=message):
        asyncio.run(played(client_of(fault=fault, blocking=blocking)))


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (Observation(reward=float("inf")), "reward is inf"),
        (Observation(reward="1"), "reward is '1' \\(str\\)"),
        (Observation(metrics={"speed": float("nan")}), "metric speed is nan"),
        (Observation(metrics=3), "AttributeError"),
        (Observation(messages="hello"), "messages are str"),
        (Observation(messages=("hello",)), "a message is str"),
        (Observation(tools=({"name": "x"},)), "a tool is dict"),
    ],
)
def test_every_field_of_an_observation_is_checked(observation, message):
    environment = FakeEnvironment()
    environment.open = lambda task, seed: Answers(observation)
    with pytest.raises(EnvironmentFailed, match=message):
        asyncio.run(played(LocalClient([environment])))


class Answers:
    def __init__(self, observation):
        self.observation = observation

    def start(self):
        return self.observation

    def act(self, action):
        return self.observation

    def close(self):
        pass


def test_numbers_of_other_libraries_become_plain_ones():
    import numpy as np

    environment = FakeEnvironment()
    environment.open = lambda task, seed: Answers(
        Observation(reward=np.float32(0.5), done=np.bool_(True), metrics={"n": np.int64(3)})
    )
    (seen,) = asyncio.run(played(LocalClient([environment])))
    assert (type(seen.reward), type(seen.done), type(seen.metrics["n"])) == (float, bool, float)


def test_a_session_without_its_methods_is_named():
    environment = FakeEnvironment()
    environment.open = lambda task, seed: 7
    with pytest.raises(EnvironmentFailed, match="open answered int; expected start, act and close"):
        asyncio.run(opened(LocalClient([environment])))


def test_a_megabyte_of_text_passes_through():
    seen = asyncio.run(first_act(client_of(fault="megabyte")))
    assert len(seen.messages[0].content) == 1_000_000


async def first_act(client):
    session = await opened(client)
    await session.start()
    return await session.act(Action(content="red"))


def test_blocking_sessions_do_not_stall_the_loop_or_each_other():
    """All 40 wait at one barrier: only if they are on threads of their own, and the loop goes on,
    does any of them pass."""
    barrier = threading.Barrier(41)

    class Waits(Adder):
        def setup(self, task, rng):
            barrier.wait(timeout=60)
            return "go"

    async def scene():
        client = LocalClient([wrap(Waits)])
        sessions = [await opened(client, environment="waits", seed=seed) for seed in range(40)]
        starts = [asyncio.ensure_future(session.start()) for session in sessions]
        await asyncio.to_thread(barrier.wait, 60)
        return await asyncio.gather(*starts)

    assert len(asyncio.run(scene())) == 40


@HOW
def test_a_hung_call_is_written_off_and_close_returns(blocking):
    async def scene():
        client = client_of(fault="hang", blocking=blocking)
        session = await opened(client)
        await session.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await session.act(Action(content="red"))
        async with asyncio.timeout(60):
            await session.close()
            await session.close()
            await client.close()

    asyncio.run(scene())


def test_hung_calls_beyond_the_number_of_threads_do_not_block_the_others():
    async def scene():
        client = LocalClient([FakeEnvironment(fault="hang"), FakeEnvironment(name="well")], max_threads=2)
        for seed in range(5):
            session = await opened(client, seed=seed)
            await session.start()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await session.act(Action(content="red"))
            await session.close()
        async with asyncio.timeout(60):
            return await played(client, environment="well")

    assert len(asyncio.run(scene())) == 4


def test_a_session_that_outlived_its_caller_is_closed_when_its_call_returns():
    entered, release, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow(Adder):
        def setup(self, task, rng):
            entered.set()
            release.wait(60)
            return "late"

        def close(self):
            closed.set()

    async def scene():
        session = await opened(LocalClient([wrap(Slow)]), environment="slow")
        start = asyncio.ensure_future(session.start())
        await asyncio.to_thread(entered.wait, 60)
        start.cancel()
        await asyncio.sleep(0)
        await session.close()
        assert not closed.is_set()
        release.set()
        assert await asyncio.to_thread(closed.wait, 60)

    asyncio.run(scene())


def test_an_async_session_that_ignores_its_cancellation_does_not_hold_its_caller():
    release = asyncio.Event()

    class Stubborn(Adder):
        async def setup(self, task, rng):
            while not release.is_set():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    continue
            return "at last"

    async def scene():
        session = await opened(LocalClient([wrap(Stubborn)]), environment="stubborn")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await session.start()
        release.set()
        await session.close()

    asyncio.run(scene())


@HOW
@pytest.mark.parametrize("fault", ["raise", "exit", "hang"])
def test_a_close_that_fails_is_logged_and_loses_nothing(fault, blocking, monkeypatch, caplog):
    monkeypatch.setattr(host, "CLOSE_S", 0.02)
    assert len(asyncio.run(played(client_of(fault=fault, fault_in="close", blocking=blocking)))) == 4
    assert "close" in caplog.text


def test_closing_the_client_closes_its_sessions():
    closed = []

    class Noted(Adder):
        def close(self):
            closed.append(self)

    async def scene():
        client = LocalClient([wrap(Noted)])
        for seed in range(3):
            await opened(client, environment="noted", seed=seed)
        await client.close()

    asyncio.run(scene())
    assert len(closed) == 3


def test_a_hanging_environment_does_not_keep_the_process_alive():
    program = (
        "import asyncio\n"
        "from ludus.controller.client.local import LocalClient\n"
        "from ludus.environments.fake import FakeEnvironment\n"
        "async def main():\n"
        "    client = LocalClient([FakeEnvironment(fault='hang', fault_in='start')])\n"
        "    session = await client.open((await client.tasks('fake', 'train'))[0], seed=0)\n"
        "    try:\n"
        "        async with asyncio.timeout(0.05): await session.start()\n"
        "    except TimeoutError: print('in time')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout.strip()) == (0, "in time"), done.stderr


def test_mistakes_are_random_valid_actions():
    async def rate(mistakes):
        client = client_of(turns=20)
        return sum(seen.reward for seen in await played(client, mistakes=mistakes))

    assert asyncio.run(rate(0.0)) == pytest.approx(1)
    assert asyncio.run(rate(1.0)) < 0.5


def test_a_solver_that_nobody_wrote_is_a_config_error():
    environment = FakeEnvironment()
    environment.open = lambda task, seed: Answers(Observation())
    with pytest.raises(ConfigError, match="has no solve"):
        asyncio.run(played(LocalClient([environment])))


def test_latency_is_heavy_tailed_and_known_from_the_seed():
    environment = make("fake", source="ludus.environments.fake:FakeEnvironment", options={"latency_s": 1.0})
    drawn = sorted(environment.latency(random.Random(seed)) for seed in range(2001))
    assert drawn[1000] == pytest.approx(1.0, rel=0.1)
    assert drawn[-1] > 20
    assert environment.latency(random.Random(3)) == environment.latency(random.Random(3))


def test_the_seed_alone_decides_what_goes_wrong():
    def failures():
        async def attempt(client, seed):
            try:
                await played(client, seed=seed)
            except EnvironmentFailed:
                return seed
            return None

        async def scene():
            client = client_of(fault="raise", fault_rate=0.1)
            return [await attempt(client, seed) for seed in range(30)]

        return asyncio.run(scene())

    assert failures() == failures()
    assert 0 < sum(seed is not None for seed in failures()) < 30
