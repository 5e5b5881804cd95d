"""The Client of sessions at a controller. Promise: every call ends, and none is executed twice.

    open, tasks ──▶ controller           one connection
    start, act, solve, close ──▶ worker  one connection per worker, shared by its sessions
                         └─▶ controller  relays the calls to a worker that this client cannot reach

A session lives as long as its lease; one task renews the leases of all live sessions. This module
waits, reconnects and repeats; the ids in the records make repeats safe.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar

import msgspec

from ludus.controller import records
from ludus.controller.client.client import TURN_S
from ludus.controller.records import Described, Ended, Opened, Renewed
from ludus.controller.runtime import Clocks, expire, not_found, within
from ludus.errors import ConfigError, ControllerFailed, LudusError, WorkerLost
from ludus.hosting.host import CLOSE_S, ClosableSession, Player
from ludus.types import Action, Observation, Task
from ludus.wire.connection import Handler
from ludus.wire.reconnect import ReconnectingConnection, Unreachable, connection_url

T = TypeVar("T")
LEASE_S = 60.0
WAIT_S = 300.0
PATIENCE_S = 30.0
"""Seconds that a client waits for a controller that is away: long enough for a restart."""
GRACE_S = 30.0
"""Added to a call's own limit: a worker needs a moment to report a timeout."""
TASKS_S = 120.0
PAUSE_S = 0.2
NOBODY, GONE = 404, 410
"""Statuses: no worker has the environment; the request was given up."""
_log = logging.getLogger(__name__)


class RemoteClient:
    """`await RemoteClient.connect(url)` makes one that knows the controller's environments."""

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        lease_s: float = LEASE_S,
        wait_s: float = WAIT_S,
        session_timeout_s: float = 3600.0,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`wait_s` limits the wait for a slot, `session_timeout_s` the time on the worker."""
        self.url, self.lease_s, self.wait_s, self.session_timeout_s = url, lease_s, wait_s, session_timeout_s
        self.patience_s = patience_s
        self.controller = ReconnectingConnection(
            connection_url(url),
            peer=f"the controller {url}",
            token=token,
            patience_s=patience_s,
            handlers={"ended": Handler(Ended, self._ended)},
        )
        self.live: dict[str, RemoteSession] = {}
        self._id = secrets.token_hex(8)
        self._requests = itertools.count()
        self._connections: dict[str, ReconnectingConnection] = {}
        self._described: dict[str, Described] = {}
        self._renewing: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, url: str, **settings: Any) -> RemoteClient:
        client = cls(url, **settings)
        try:
            await client.refresh()
        except BaseException:
            await client.close()
            raise
        return client

    async def refresh(self) -> None:
        """Asks the controller again which environments its workers offer."""
        async with self._within(GRACE_S, "environments"):
            offered = await self.controller.call("environments", answer=tuple[Described, ...])
        self._described = {environment.name: environment for environment in offered}

    def environments(self) -> dict[str, Described]:
        return dict(self._described)

    async def tasks(self, environment: str, split: str) -> list[Task]:
        if environment not in self._described:
            raise ConfigError(not_found(f"no environment {environment!r} at {self.url}", environment, self._described))
        ask = records.AskTasks(environment, split)
        async with self._within(TASKS_S, "tasks"):
            return list(await self._with_patience(lambda: self.controller.call("tasks", ask, answer=tuple[Task, ...])))

    async def open(self, task: Task, *, seed: int, timeout_s: float = TURN_S) -> RemoteSession:
        wanted = records.Open(
            task=task,
            seed=seed,
            request_id="-",
            lease_s=self.lease_s,
            wait_s=self.wait_s,
            timeout_s=timeout_s,
            session_timeout_s=self.session_timeout_s,
        )
        async with self._within(self.wait_s + timeout_s + GRACE_S, "open"):
            opened: Opened = await self._with_patience(lambda: self._open(wanted))
        session = RemoteSession(opened, client=self, connection=self._connection_to(opened), timeout_s=timeout_s)
        self.live[opened.session_id] = session
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew_for_ever())
        return session

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in list(self.live.values())))
        if self._renewing is not None:
            self._renewing.cancel()
        await asyncio.gather(self.controller.close(), *(each.close() for each in self._connections.values()))

    def new_request_id(self) -> str:
        return f"{self._id}-{next(self._requests)}"

    async def _open(self, wanted: records.Open) -> Opened:
        wanted = msgspec.structs.replace(wanted, request_id=self.new_request_id())
        try:
            opened: Opened = await self.controller.call("open", wanted, answer=Opened)
        except BaseException:
            # it may be open by now; if this message is lost, its lease expires
            self.controller.tell("withdraw", records.Withdraw(wanted.request_id))
            raise
        return opened

    async def _with_patience(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Repeats a request while no worker has the environment: workers may be restarting. A
        request that is gone was given up when its connection to the controller broke."""
        give_up = time.monotonic() + self.patience_s
        while True:
            try:
                return await ask()
            except (ControllerFailed, WorkerLost) as error:
                status = getattr(error, "status", NOBODY)  # WorkerLost: nothing was done yet
                if status not in (NOBODY, GONE) or time.monotonic() > give_up:
                    raise
            await asyncio.sleep(PAUSE_S)

    def _within(self, limit_s: float, name: str) -> AbstractAsyncContextManager[object]:
        late = f"{self.controller.peer} did not answer {name!r} within {limit_s:g} s"
        return within(limit_s, lambda: ControllerFailed(late))

    def _connection_to(self, opened: Opened) -> ReconnectingConnection:
        if not opened.address:
            return self.controller
        connection = ReconnectingConnection(opened.address, peer=f"worker {opened.worker_id}")
        return self._connections.setdefault(opened.address, connection)

    def _ended(self, ended: Ended) -> None:
        if (session := self.live.get(ended.session_id)) is not None:
            session.end(ended.message or f"the session is over where it ran (cause: {ended.cause})")

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.lease_s / 3)
            by_connection: dict[ReconnectingConnection, list[str]] = defaultdict(list)
            for session_id, session in self.live.items():
                by_connection[session.connection].append(session_id)
            await asyncio.gather(*(self._renew(each, tuple(ids)) for each, ids in by_connection.items()))

    async def _renew(self, connection: ReconnectingConnection, session_ids: tuple[str, ...]) -> None:
        """A failed renewal is only logged: the next call on a lost session raises the cause."""
        over = session_ids
        try:
            async with asyncio.timeout(self.lease_s / 3):
                if connection is not self.controller:
                    with suppress(Unreachable):
                        over = (await connection.call("renew", records.Renew(over), answer=Renewed)).ended
                if over:  # they may be elsewhere: the address may be another worker's by now
                    over = (await self.controller.call("renew", records.Renew(over), answer=Renewed)).ended
        except (LudusError, TimeoutError) as error:
            _log.warning("leases of %d sessions were not renewed: %s", len(session_ids), error or "no answer")
            return
        for session_id in over:
            self._ended(Ended(session_id, cause="lease"))


class RemoteSession(ClosableSession):
    def __init__(
        self, opened: Opened, *, client: RemoteClient, connection: ReconnectingConnection, timeout_s: float
    ) -> None:
        self.connection = connection
        self._opened, self._client, self._timeout_s = opened, client, timeout_s
        self._turn, self._over = 0, ""
        self._clocks: Clocks = set()

    async def start(self) -> Observation:
        return await self._call("start", records.Start(*self._who), answer=Observation)

    async def act(self, action: Action) -> Observation:
        session_id, key = self._who
        act = records.Act(session_id, self._turn, action, self._client.new_request_id(), key)
        observation: Observation = await self._call("act", act, answer=Observation)
        self._turn += 1
        return observation

    async def propose(self, player: Player, *, seed: int) -> Action:
        session_id, key = self._who
        return await self._call("solve", records.Solve(session_id, player, seed, key), answer=Action)

    def end(self, reason: str) -> None:
        """The session is over on the other side: waiting and later calls raise WorkerLost."""
        self._over = reason
        self._client.live.pop(self._opened.session_id, None)
        expire(self._clocks)

    @property
    def _who(self) -> tuple[str, str]:
        return self._opened.session_id, self._opened.key

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._call("close", records.Close(*self._who))
        except (LudusError, TimeoutError) as error:
            if not self._over:
                why = str(error) or f"no answer within {CLOSE_S:g} s"
                _log.warning("session %s was not closed, its lease will end it: %s", self._opened.session_id, why)
        finally:
            self._client.live.pop(self._opened.session_id, None)

    async def _call(self, name: str, body: Any, *, answer: type[T] | None = None) -> T:
        if self._over:
            raise WorkerLost(self._over)
        limit_s = self._timeout_s + GRACE_S
        late = f"worker {self._opened.worker_id} did not answer {name!r} within {limit_s:g} s"
        async with within(limit_s, lambda: WorkerLost(self._over or late), clocks=self._clocks):
            reply: T = await self._route(name, body, answer=answer)
        return reply

    async def _route(self, name: str, body: Any, *, answer: Any) -> Any:
        controller = self._client.controller
        if self.connection is not controller:
            try:
                return await self.connection.call(name, body, answer=answer)
            except Unreachable:
                pass  # gone, or out of reach from here: the controller knows which
            except ControllerFailed as error:
                if error.status != 404:
                    raise
                self.connection = controller  # another worker's address, or the session is over
        return await controller.call(name, body, answer=answer)
