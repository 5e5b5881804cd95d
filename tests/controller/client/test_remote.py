"""The client's side of the wire: what it does when lines break, and that it never hangs. Its other
ends are fakes; e2e has real ones.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from ludus.controller.client import remote
from ludus.controller.client.remote import RemoteClient
from ludus.errors import ConfigError, ControllerFailed, WorkerLost
from ludus.hosting.host import draw_player
from ludus.types import Action
from ludus.wire import reconnect as reconnect_module
from tests.controller.echo import TASK, plane


def run(scenario: Any, *, delay_s: float = 0.0, **settings: Any) -> Any:
    async def main() -> Any:
        async with plane(delay_s=delay_s) as (controller, worker):
            client = await RemoteClient.connect(controller.url, **{"patience_s": 60.0, **settings})
            try:
                async with asyncio.timeout(60):
                    return await scenario(client, controller, worker)
            finally:
                await client.close()

    return asyncio.run(main())


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.005)


# -------------------------------------------------------------------------------------- all is well


def test_a_session_is_opened_at_the_controller_and_played_at_the_worker():
    async def scenario(client, controller, worker):
        assert client.environments()["echo"].max_turns == 3
        assert await client.tasks("echo", "train") == [TASK]
        session = await client.open(TASK, seed=7, timeout_s=5)
        assert (await session.start()).messages[0].content == "say something"
        said = [(await session.act(Action(word))).messages[0].content for word in ("a", "b")]
        await session.close()
        await session.close()
        (wanted,) = controller.calls("open")
        assert (wanted.task, wanted.seed, wanted.timeout_s) == (TASK, 7, 5)
        assert [act.turn for act in worker.calls("act")] == [0, 1]
        assert controller.calls("act") == [], "turns go straight to the worker"
        assert (said, worker.acts, client.live) == (["a", "b"], {}, {})

    run(scenario)


def test_a_hundred_sessions_share_one_connection_to_each_end():
    async def one(client):
        session = await client.open(TASK, seed=0)
        await session.start()
        await session.act(Action("x"))
        await session.close()

    async def scenario(client, controller, worker):
        await asyncio.gather(*(one(client) for _ in range(100)))
        assert (len(controller.connections), len(worker.connections)) == (1, 1)
        assert len({act.request_id for act in worker.calls("act")}) == 100

    run(scenario)


def test_the_environments_player_is_asked_for_with_the_seed_that_it_would_have_here():
    async def scenario(client, controller, worker):
        session, rng, same = await client.open(TASK, seed=0), random.Random(3), random.Random(3)
        for mistakes in (0.0, 1.0, 0.5):
            player, seed = draw_player(mistakes=mistakes, rng=same)
            assert (await session.solve(mistakes=mistakes, rng=rng)).content == f"{player} {seed}"

    run(scenario)


def test_leases_of_all_sessions_are_renewed_in_one_call_until_they_are_closed():
    async def scenario(client, controller, worker):
        sessions = [await client.open(TASK, seed=0) for _ in range(3)]
        await sessions[0].close()
        before = len(worker.calls("renew"))
        await until(lambda: len(worker.calls("renew")) > before + 1)  # the one after it was not under way at the time
        assert worker.calls("renew")[-1].session_ids == ("s1", "s2")

    run(scenario, lease_s=0.1)


def test_a_session_whose_lease_ran_out_is_noticed_when_it_is_renewed():
    async def scenario(client, controller, worker):
        session = await client.open(TASK, seed=0)
        worker.acts.clear()
        await until(lambda: not client.live)
        with pytest.raises(WorkerLost, match=r"over where it ran .cause: lease"):
            await session.act(Action("late"))

    run(scenario, lease_s=0.1)


def test_an_unknown_environment_is_answered_with_the_near_one():
    async def scenario(client, controller, worker):
        with pytest.raises(ConfigError, match=r"no environment 'ecco' at http.*Did you mean 'echo'"):
            await client.tasks("ecco", "train")

    run(scenario)


# -------------------------------------------------------------------------------------- lines break


def test_an_act_whose_connection_breaks_is_repeated_and_not_executed_twice():
    async def scenario(client, controller, worker):
        session = await client.open(TASK, seed=0)
        acting = asyncio.create_task(session.act(Action("once")))
        await until(lambda: worker.calls("act"))
        await worker.cut()
        assert (await acting).messages[0].content == "once"
        first, second = worker.calls("act")
        assert (first.turn, first.request_id) == (second.turn, second.request_id)
        assert [action.content for action in worker.acts["s0"]] == ["once"]

    run(scenario, delay_s=1.0)


def test_a_call_that_always_breaks_its_connection_is_not_repeated_for_ever():
    async def scenario(client, controller, worker):
        async def break_it(act):
            await worker.cut()

        worker.act = break_it
        session = await client.open(TASK, seed=0)
        with pytest.raises(WorkerLost, match="worker w is lost"):
            await session.act(Action("poison"))
        assert len(worker.calls("act")) == reconnect_module.MAX_TIMES

    run(scenario)


@pytest.mark.parametrize("address", ["ws://127.0.0.1:9/link", ""])
def test_a_worker_out_of_reach_is_played_through_the_controller(address):
    async def scenario(client, controller, worker):
        controller.worker_address = address
        session = await client.open(TASK, seed=0)
        assert (await session.act(Action("a"))).messages[0].content == "a"
        await until(lambda: controller.calls("renew"))
        await session.close()
        assert (len(controller.calls("act")), worker.connections, worker.acts) == (1, [], {})

    run(scenario, lease_s=0.1)


def test_an_address_that_is_somebody_elses_worker_is_noticed_and_the_controller_relays():
    async def scenario(client, controller, worker):
        async with plane() as (_, stranger):
            controller.worker_address = stranger.address
            session = await client.open(TASK, seed=0)
            await until(lambda: controller.calls("renew"))
            assert (await session.act(Action("a"))).messages[0].content == "a"
            assert len(stranger.calls("act")) == 1

    run(scenario, lease_s=0.1)


def test_a_worker_that_dies_in_the_middle_of_an_act_is_lost_with_the_controllers_reason():
    async def scenario(client, controller, worker):
        session = await client.open(TASK, seed=0)
        acting = asyncio.create_task(session.act(Action("a")))
        await until(lambda: worker.calls("act"))
        controller.lost = "worker w was killed by signal 9"
        await worker.hang_up()
        with pytest.raises(WorkerLost, match="killed by signal 9"):
            await acting

    run(scenario, delay_s=60)


def test_a_session_that_the_controller_declares_over_ends_its_callers_wait_at_once():
    async def scenario(client, controller, worker):
        session = await client.open(TASK, seed=0)
        acting = asyncio.create_task(session.act(Action("a")))
        await until(lambda: worker.calls("act"))
        controller.tell_ended("s0", "worker w is silent for 15 s")
        with pytest.raises(WorkerLost, match="silent for 15 s"):
            await acting
        with pytest.raises(WorkerLost, match="silent for 15 s"):
            await session.act(Action("again"))
        await session.close()
        assert len(worker.calls("act")) == 1

    run(scenario, delay_s=60)


def test_a_worker_that_never_answers_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(remote, "GRACE_S", 0.1)

    async def scenario(client, controller, worker):
        session = await client.open(TASK, seed=0, timeout_s=0.1)
        with pytest.raises(WorkerLost, match=r"worker w did not answer 'act' within 0.2 s"):
            await session.act(Action("a"))

    run(scenario, delay_s=60)


def test_a_controller_that_restarts_is_found_again_and_the_open_is_repeated_with_its_id():
    async def scenario(client, controller, worker):
        controller.hold.clear()
        opening = asyncio.create_task(client.open(TASK, seed=0))
        await until(lambda: controller.calls("open"))
        await controller.hang_up()
        await asyncio.sleep(0.1)
        controller.hold.set()
        await controller.listen()
        await (await opening).start()
        first, second = controller.calls("open")
        assert first == second

    run(scenario)


def test_a_controller_that_dies_while_it_is_dialled_is_dialled_again():
    """It took the connection, and said nothing any more."""

    async def scenario(client, controller, worker):
        dialled = asyncio.Event()

        async def die(reader, writer):
            writer.close()
            dialled.set()

        await controller.hang_up()
        dying = await asyncio.start_server(die, "127.0.0.1", controller.port)
        opening = asyncio.create_task(client.open(TASK, seed=0))
        await dialled.wait()
        dying.close()
        await dying.wait_closed()
        await controller.listen()
        assert (await (await opening).start()).messages

    run(scenario)


def test_sessions_go_on_while_the_controller_is_away():
    async def scenario(client, controller, worker):
        session = await client.open(TASK, seed=0)
        await controller.hang_up()
        assert (await session.act(Action("a"))).messages[0].content == "a"
        await controller.listen()

    run(scenario)


def test_a_controller_that_stays_away_is_a_named_failure():
    async def scenario(client, controller, worker):
        await controller.hang_up()
        with pytest.raises(
            ControllerFailed, match=r"the controller http://127.* cannot be reached .*ConnectionRefused"
        ):
            await client.open(TASK, seed=0)
        await controller.listen()

    run(scenario, patience_s=0.3)


def test_closing_never_raises_and_leaves_nothing_running():
    async def scenario(client, controller, worker):
        session = await client.open(TASK, seed=0)
        await session.start()
        await worker.hang_up()
        await controller.hang_up()
        await session.close()
        await client.close()
        left = [task for task in asyncio.all_tasks() if "Line" in repr(task) or "Connection" in repr(task)]
        await worker.listen()
        await controller.listen()
        assert left == []

    run(scenario, patience_s=0.3)


# ------------------------------------------------------------------------------------------ opening


@pytest.mark.parametrize(
    "refusal",
    [
        ControllerFailed("no worker has environment 'echo'", status=404),
        ControllerFailed("the request was withdrawn", status=410),
        WorkerLost("worker w died while it opened the session"),
    ],
)
def test_an_open_that_came_to_nothing_is_made_anew_for_a_while(refusal):
    async def scenario(client, controller, worker):
        open_it, refusals = controller.open, iter([refusal])

        async def at_first_refused(wanted):
            if refused := next(refusals, None):
                raise refused
            return await open_it(wanted)

        controller.open = at_first_refused
        await controller.cut()
        assert await (await client.open(TASK, seed=0)).start()
        assert len({wanted.request_id for wanted in controller.calls("open")}) == 2

        controller.open = lambda wanted: (_ for _ in ()).throw(refusal)
        await controller.cut()
        client.patience_s = 0.3
        with pytest.raises(type(refusal), match=str(refusal)):
            await client.open(TASK, seed=0)

    run(scenario)


def test_a_client_that_calls_too_often_slows_down_instead_of_failing():
    async def scenario(client, controller, worker):
        refusals = iter([ControllerFailed("too fast", status=429)] * 2)
        open_it = controller.open

        async def sometimes(wanted):
            if refusal := next(refusals, None):
                raise refusal
            return await open_it(wanted)

        controller.open = sometimes
        await controller.cut()
        assert await (await client.open(TASK, seed=0)).start()
        assert len({wanted.request_id for wanted in controller.calls("open")}) == 1

    run(scenario)


def test_an_open_that_nobody_waits_for_any_more_is_withdrawn():
    async def scenario(client, controller, worker):
        controller.hold.clear()
        opening = asyncio.create_task(client.open(TASK, seed=0))
        await until(lambda: controller.calls("open"))
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await until(lambda: controller.calls("withdraw"))
        assert controller.calls("withdraw")[0].request_id == controller.calls("open")[0].request_id
        assert client.live == {}

    run(scenario)


@pytest.mark.parametrize(
    ("token", "got"), [("", "no access token was given"), ("stale", "not valid there, or no longer")]
)
def test_a_refused_token_is_told_with_the_next_move_and_not_tried_again(token, got):
    async def main():
        async with plane() as (controller, _):
            controller.token = "secret"
            await (await RemoteClient.connect(controller.url, token="secret")).close()
            with pytest.raises(ControllerFailed, match=f"{got}.*LUDUS_TOKEN") as refusal:
                await RemoteClient.connect(controller.url, token=token, patience_s=60)
            assert refusal.value.status == 401

    asyncio.run(main())


def test_what_is_too_large_to_send_is_refused_and_nobody_else_notices(monkeypatch):
    monkeypatch.setattr("ludus.wire.connection.MAX_BODY_BYTES", 10_000)

    async def scenario(client, controller, worker):
        loud, quiet = await client.open(TASK, seed=0), await client.open(TASK, seed=0)
        acting = asyncio.create_task(quiet.act(Action("a")))
        with pytest.raises(ControllerFailed, match="cannot be sent") as refusal:
            await loud.act(Action("x" * 20_000))
        assert refusal.value.status == 413
        assert (await acting).messages[0].content == "a"
        assert len(worker.connections) == 1

    run(scenario)


def test_something_that_is_no_url_is_told_what_one_looks_like():
    with pytest.raises(ConfigError, match=r"'localhost:7100' is not a controller's URL.*http://127"):
        reconnect_module.connection_url("localhost:7100")
