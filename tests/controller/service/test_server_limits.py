"""Tokens, rates, sizes and nonsense: what the controller refuses, and that nobody else notices."""

import asyncio
import contextlib
import time

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ludus.controller.records import Close, Open, Opened
from ludus.controller.service.server import Settings
from ludus.errors import ConfigError, ControllerFailed
from ludus.wire.codec import MAX_FRAME_BYTES
from tests.controller.plane import controller, dial, plane, run, stop_time, until, wish


@pytest.mark.parametrize("path", ["/link", "/link/worker"])
@pytest.mark.parametrize("token", ["", "wrong", "expired-token"])
def test_without_a_good_token_there_is_no_link(tmp_path, path, token):
    tokens = tmp_path / "tokens"
    tokens.write_text("ann good-token\nold expired-token 2020-01-01\n")

    async def test():
        async with controller(tokens=str(tokens)) as served:
            with pytest.raises(InvalidStatus) as refusal:
                await dial(served.url, path, token=token)
            assert refusal.value.response.status_code == 401
            await (await dial(served.url, path, token="good-token")).close()

    run(test())


def test_a_revoked_tokens_link_is_closed(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("ann stolen\nbob fine\n")

    async def test():
        async with controller(tokens=str(tokens)) as served:
            ann, bob = await dial(served.url, "/link", token="stolen"), await dial(served.url, "/link", token="fine")
            tokens.write_text("bob fine\n")
            reason = await asyncio.wait_for(ann.running, 60)
            assert "revoked" in reason
            assert await bob.connection.call("environments") is None
            await bob.close()

    run(test())


def test_beyond_loopback_tokens_are_required(monkeypatch):
    monkeypatch.delenv("LUDUS_TOKEN", raising=False)

    async def test():
        async with controller(host="0.0.0.0"):
            pass

    with pytest.raises(ConfigError, match="without access tokens"):
        run(test())


def test_a_client_that_calls_too_fast_over_its_link_hears_429():
    async def test():
        async with controller(max_rate=20) as served:
            stop_time(served)
            connected = await dial(served.url, "/link")
            calls = [connected.connection.call("environments") for _ in range(60)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, ControllerFailed)]
            assert len(refused) == 40
            assert {each.status for each in refused} == {429}
            await connected.close()

    run(test())


def test_a_frame_that_is_no_frame_ends_the_link_and_nobody_elses():
    async def test():
        async with plane() as (served, _, client):
            bad = await dial(served.url, "/link")
            await bad.websocket.send(b'{"not": "a frame"')
            await asyncio.wait_for(bad.running, 60)
            with pytest.raises(ConnectionClosed):
                await bad.websocket.recv()
            assert await client.open()

    run(test())


def test_a_frame_too_large_ends_its_link_and_nobody_elses():
    async def test():
        async with plane() as (served, _, client):
            bad = await dial(served.url, "/link")
            with contextlib.suppress(ConnectionClosed):
                await bad.websocket.send(b"x" * (MAX_FRAME_BYTES + 1))
            assert "too big" in await asyncio.wait_for(bad.running, 60)
            assert await client.open()

    run(test())


def test_a_wall_clock_that_jumps_changes_nothing(monkeypatch):
    async def test():
        async with plane() as (served, _, client):
            opened = await client.open()
            for jump in (86400, -86400):
                now = time.time() + jump
                monkeypatch.setattr(time, "time", lambda now=now: now)
                await asyncio.sleep(0.3)
                assert await client.start(opened.session_id)
            assert "w1" in served.controller.roster.seats

    run(test())


@pytest.mark.parametrize("name", ["nope", "register"])
def test_a_call_that_clients_may_not_make_is_404(name):
    async def test():
        async with plane() as (_, _, client):
            with pytest.raises(ControllerFailed, match="no such call") as failure:
                await client.call(name, {})
            assert failure.value.status == 404

    run(test())


def test_an_open_with_a_bad_field_is_refused_by_name():
    async def test():
        async with plane() as (_, _, client):
            with pytest.raises(ConfigError, match="lease_s"):
                await client.call("open", Open(wish().task, 0, "r", lease_s=-1.0), answer=Opened)

    run(test())


def test_two_thousand_sessions_open_at_once_and_close():
    async def test():
        async with plane(slots=1000, max_rate=0) as (served, worker, client):

            async def visit(number):
                opened = await client.open(number)
                await client.call("close", Close(opened.session_id))
                return opened.session_id

            ids = await asyncio.gather(*(visit(n) for n in range(2000)))
            assert sorted(worker.closed) == sorted(ids)
            assert len(set(ids)) == len(worker.opened) == 2000
            await until(lambda: not served.controller.roster.sessions)
            assert served.controller.roster.seats["w1"].free == 1000

    run(test())


def test_the_default_settings_are_the_ones_the_command_shows():
    from ludus.cli.serve import controller as command

    shown = {name: option.default for name, option in zip(command.__annotations__, command.__defaults__, strict=False)}
    settings = Settings()
    assert shown["heartbeat_s"] == settings.heartbeat_s
    assert shown["grace_s"] == settings.grace_s
    assert shown["max_rate"] == settings.max_rate
    assert shown["max_request_mb"] * 2**20 == settings.max_request_bytes
