"""Each environment is played where it lives, and every place is closed once."""

from __future__ import annotations

import asyncio

import pytest

from ludus.controller.client.local import LocalClient
from ludus.controller.client.mixed import MixedClient
from ludus.environments.fake import FakeEnvironment
from ludus.errors import ConfigError


class Counting(LocalClient):
    num_closed = 0

    async def close(self):
        self.num_closed += 1
        await super().close()


def test_each_environment_is_played_where_it_lives_and_every_place_is_closed_once():
    async def main():
        first = Counting([FakeEnvironment(name="a"), FakeEnvironment(name="b")])
        second = Counting([FakeEnvironment(name="c", turns=1), FakeEnvironment(name="unused")])
        client = MixedClient({"a": first, "b": first, "c": second})
        assert [(name, each.max_turns) for name, each in client.environments().items()] == [
            ("a", 3),
            ("b", 3),
            ("c", 1),
        ]
        for name in ("a", "b", "c"):
            task = (await client.tasks(name, "train"))[0]
            session = await client.open(task, seed=0, timeout_s=5)
            assert (await session.start()).messages[1].content == task.data["words"][0]
        await client.close()
        assert (first.num_closed, second.num_closed) == (1, 1)

    asyncio.run(main())


def test_an_environment_that_the_run_does_not_have_is_answered_with_the_near_one():
    client = MixedClient({"guess": LocalClient([FakeEnvironment(name="guess")])})
    with pytest.raises(ConfigError, match=r"no environment 'ges' in this run. Did you mean 'guess'"):
        asyncio.run(client.tasks("ges", "train"))
