"""Ids and seeds of sessions, literally: a change of these would change every run, and what a resumed run plays again."""

from __future__ import annotations

import asyncio

import msgspec

from ludus.config import parse_config
from ludus.engines.fake import FakeEngine
from ludus.evaluation.evaluate import evaluate
from ludus.launch.collect import plan_orders
from ludus.pipeline.feed import Feed
from ludus.rollout.play import session_of
from ludus.rollout.player import LocalPlayer
from ludus.types import Order, Task
from tests.rollout.playing import WatchedEnvironment, make_context, says


def with_player(work, *, fail_on):
    environment = WatchedEnvironment(turns=1)

    async def main():
        context = make_context(environment, FakeEngine(says("a"), fail_on=[fail_on]))
        try:
            return await work(LocalPlayer(context), environment)
        finally:
            await context.client.close()

    return [(each.id, each.attempt, each.seed) for each in asyncio.run(main())]


def test_a_drawn_group():
    async def work(player, environment):
        feed = Feed({"fake": environment.tasks("train")}, weights={"fake": 1.0}, seed=7)
        _, order, other = (feed.draw() for _ in range(3))
        assert (order.id, order.task.id, order.seed) == ("g000001", "fake/train/46", (2159659711272657714,))
        assert (other.id, other.seed) == ("g000002", (2922014975310286574,))
        group = await player.play(Order(order.id, order.task, order.seed, attempts=(0, 1), retries=1))
        return (*group.trajectories, *group.failed)

    assert with_player(work, fail_on=0) == [
        ("g000001.0r1", 0, 2072111842085950662),
        ("g000001.1", 1, 2117926079413889521),
        ("g000001.0", 0, 5015119558398031798),
    ]


def test_an_evaluation():
    async def work(player, environment):
        tasks = environment.tasks("test")[:2]
        return await evaluate(tasks, player=player, attempts=2, seed=7, prefix="eval-3")

    assert with_player(work, fail_on=1) == [
        ("eval-3/fake/test/0.0", 0, 4253548869635921293),
        ("eval-3/fake/test/0.1r1", 1, 4772248343276105216),
        ("eval-3/fake/test/5.0", 0, 5841574161246748192),
        ("eval-3/fake/test/5.1", 1, 1318156917835932472),
    ]


def test_a_collection():
    tasks = {"guess": [Task(f"guess/train/{i}", "guess", "train") for i in range(2)]}
    config = parse_config({"seed": 7, "environments": {"guess": {}}})
    orders = plan_orders(tasks, config=config, num=3, prefix="solver", number=1)
    assert [(order.task.id, *session_of(order, attempt=0, retry=0)) for order in orders] == [
        ("guess/train/1", "solver-guess-3", 5087599128885988507),
        ("guess/train/0", "solver-guess-4", 7833973753757421699),
        ("guess/train/1", "solver-guess-5", 5871993772355294208),
    ]


def test_an_order_travels():
    order = Order("g", Task("t/train/0", "t", "train", {"n": [1]}), (1, "x"), (0, 1), others={"stale": 0.5})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=Order) == order
