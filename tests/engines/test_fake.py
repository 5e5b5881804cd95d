from __future__ import annotations

import asyncio

import pytest

from ludus.engines.engine import Engine
from ludus.engines.fake import FakeEngine
from ludus.errors import EngineFailed
from tests.engines.examples import tokens


def test_a_script_is_spoken_turn_by_turn_in_each_session_and_cut_at_max_tokens():
    async def main():
        engine: Engine = FakeEngine([[5, 6, 7], [8]])
        first = await engine.generate([1], sampling=tokens(10), session_id="a")
        other = await engine.generate([1], sampling=tokens(2), session_id="b")
        second = await engine.generate([1, 5, 6, 7, 2], sampling=tokens(10), session_id="a")
        with pytest.raises(EngineFailed, match="2 completions, turn 2"):
            await engine.generate([1], sampling=tokens(10), session_id="a")
        return first, other, second

    first, other, second = asyncio.run(main())
    assert (first.ids, first.stop) == ((5, 6, 7), "end")
    assert (other.ids, other.stop) == ((5, 6), "length")
    assert (second.ids, second.stop) == ((8,), "end")


def test_without_a_script_the_seed_decides_and_stop_ids_are_honoured():
    async def main():
        engine = FakeEngine(vocab_size=10)
        sampling = tokens(50, seed=3, stop_ids=(4,))
        return [await engine.generate([1, 2], sampling=sampling, session_id=name) for name in "ab"]

    one, two = asyncio.run(main())
    assert one == two
    assert one.stop == "end"
    assert one.ids[-1] == 4


def test_versions_loads_and_failures_are_tracked_per_policy():
    async def main():
        engine = FakeEngine(lambda ids, turn: [len(ids), turn], fail_on=[1], latency_s=0.001)
        await engine.add_policy("reference", version=1)
        await engine.load(4)
        completion = await engine.generate([1, 2, 3], sampling=tokens(5), session_id="a")
        with pytest.raises(EngineFailed, match="call 1"):
            await engine.generate([1], sampling=tokens(5), session_id="a")
        reference = await engine.generate([1], sampling=tokens(5), session_id="a", policy="reference")
        await engine.release("a")
        await engine.close()
        return engine, completion, reference

    engine, completion, reference = asyncio.run(main())
    assert completion.ids == (3, 0)
    assert completion.versions == (4, 4)
    assert reference.versions == (1, 1)
    assert engine.loads == [("current", 4)]
    assert engine.released == ["a"]
    assert engine.prompts[0] == (1, 2, 3)


def test_a_cancelled_call_is_counted():
    async def main():
        engine = FakeEngine(latency_s=10)
        call = asyncio.create_task(engine.generate([1], sampling=tokens(5), session_id="a"))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        return engine.num_cancelled

    assert asyncio.run(main()) == 1
