"""All connected AgentRL workers. Promise: a worker that is gone is lost within seconds.

These workers register with heartbeats, each of which carries the whole index list (11,000 entries
for WebShop). So a heartbeat is decoded once, and its repeats are recognised by their hash.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any
from urllib.parse import urlsplit

from ludus.controller.agentrl.grpc import GrpcWire, Listener, indices_of
from ludus.controller.agentrl.translate import split_of
from ludus.controller.agentrl.wires import HttpWire, Wire
from ludus.controller.agentrl.workers import AgentrlWorker, Beat
from ludus.controller.records import Described, Ended, Register
from ludus.controller.service.server import Controller
from ludus.errors import ConfigError, LudusError, WorkerLost, describe
from ludus.wire.codec import decode
from ludus.wire.connection import detached

RECONCILE_S = 4.0
"""Seconds between queries of a worker's sessions, which also show that it is alive."""
REACH_S = 6.0
"""Seconds to reach a new worker: it sends heartbeats before it listens."""


class Fleet:
    def __init__(self, controller: Controller, *, reconcile_s: float = RECONCILE_S) -> None:
        self.controller, self.reconcile_s = controller, reconcile_s
        self.workers: dict[str, AgentrlWorker] = {}
        self._joining: dict[str, asyncio.Lock] = {}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._ids: dict[bytes, str] = {}
        """Workers by the hash of their heartbeat."""
        self._listener: Listener | None = None
        self.port = 0
        """The gRPC port; 0 where gRPC is not served."""

    async def beat(self, body: bytes, *, owner: str) -> None:
        """Takes a heartbeat of an HTTP worker."""
        digest = hashlib.sha256(owner.encode() + b"\0" + body).digest()
        if (worker_id := self._ids.get(digest)) in self.workers:
            self._heard(self.workers[str(worker_id)])
            return
        beat = decode(body, Beat)
        await self._join(_id_of(beat.address), beat, wire=HttpWire(beat.address), digest=digest, owner=owner)

    async def stream_beat(self, wire: GrpcWire, beat: Any) -> None:
        """Takes a heartbeat of a gRPC worker; only workers on this machine can send one."""
        worker_id = f"agentrl-{beat.id}"
        digest = hashlib.sha256(beat.SerializeToString()).digest()
        known = self.workers.get(worker_id)
        if known is not None and known.wire is wire and self._ids.get(digest) == worker_id:
            self._heard(known)
            return
        read = Beat(beat.name, "", beat.concurrency, indices_of(beat))
        await self._join(worker_id, read, wire=wire, digest=digest, owner="local")

    async def stream_left(self, wire: GrpcWire) -> None:
        for worker in [each for each in self.workers.values() if each.wire is wire]:
            self.lose(worker, "its gRPC stream was closed")

    async def listen(self, host: str, port: int) -> None:
        """Accepts gRPC workers too."""
        self._listener = Listener(beat=self.stream_beat, noticed=self.noticed, left=self.stream_left)
        await self._listener.listen(host, port)
        self.port = self._listener.port

    async def _join(self, worker_id: str, beat: Beat, *, wire: Wire, digest: bytes, owner: str) -> None:
        async with self._joining.setdefault(worker_id, asyncio.Lock()):
            if worker_id in self.workers and self._ids.get(digest) == worker_id:
                return  # another heartbeat came while it was joining
            if not beat.name or beat.concurrency < 1 or not beat.indices:
                got = f"{beat.name!r}, {beat.concurrency}, {len(beat.indices)}"
                raise ConfigError(f"an AgentRL worker needs a name, slots and tasks; got {got}")
            worker = AgentrlWorker(worker_id, beat, owner=owner, wire=wire, changed=self._seat, left=self.lose)
            await self._reach(worker)
            if worker_id in self.workers:
                self.lose(self.workers[worker_id], "it was restarted")
            self.workers[worker_id], self._ids[digest] = worker, worker_id
            try:
                await worker.reconcile()  # ends the sessions of an earlier controller
                self._seat(worker)
            except BaseException:
                self._drop(worker)
                raise
            self._watching[worker_id] = asyncio.create_task(self._watch(worker))

    async def _reach(self, worker: AgentrlWorker) -> None:
        give_up = asyncio.get_running_loop().time() + REACH_S
        while True:
            try:
                await worker.there(limit_s=REACH_S)
                return
            except (LudusError, TimeoutError) as error:
                if asyncio.get_running_loop().time() > give_up:
                    await worker.dismiss()
                    raise ConfigError(
                        f"{worker.id} sends heartbeats but cannot be called from here; check the address that it "
                        f"gives with -s ({describe(error)})"
                    ) from None
            await asyncio.sleep(0.1)

    def _seat(self, worker: AgentrlWorker) -> None:
        """Registers the worker with its usable slots and the sessions known here."""
        if self.workers.get(worker.id) is not worker:
            return
        if not worker.slots:  # a worker cannot join without slots, but it can stop taking sessions
            self.controller.heard(worker.id, leaving=True)
            return
        tasks = hashlib.sha256(repr(worker.indices).encode()).hexdigest()[:8]
        described = Described(
            worker.name,
            description=f"AgentRL's {worker.name}: {len(worker.indices)} tasks, list {tasks}",
            splits=(split_of(worker.name),),
        )
        register = Register(worker.id, environments=(described,), slots=worker.slots, running=worker.running())
        self.controller.join(worker, register, owner=worker.owner)

    def lose(self, worker: AgentrlWorker, reason: str) -> None:
        """The worker cannot be reached or was given up; its next heartbeat brings it back."""
        if self._drop(worker):
            self.controller.lost(worker.id, reason=reason)

    def _drop(self, worker: AgentrlWorker) -> bool:
        if self.workers.get(worker.id) is not worker:
            return False
        del self.workers[worker.id]
        self._ids = {digest: worker_id for digest, worker_id in self._ids.items() if worker_id != worker.id}
        if (watching := self._watching.pop(worker.id, None)) is not None and watching is not asyncio.current_task():
            watching.cancel()
        detached(worker.dismiss())
        return True

    def _heard(self, worker: AgentrlWorker) -> None:
        if self.workers.get(worker.id) is worker:
            self.controller.heard(worker.id, leaving=not worker.slots)

    async def _watch(self, worker: AgentrlWorker) -> None:
        failures = 0
        while True:
            await asyncio.sleep(self.reconcile_s)
            try:
                await self._reconcile(worker)
                failures = 0
            except WorkerLost as error:
                failures += 1
                if failures == 2:
                    self.lose(worker, str(error))
                    return
            except (LudusError, TimeoutError):
                pass  # busy; if it stays silent, the roster gives it up

    async def _reconcile(self, worker: AgentrlWorker) -> None:
        vanished = await worker.reconcile()
        self._heard(worker)
        for session_id in vanished:
            worker.sessions.pop(session_id, None)
            message = f"AgentRL worker {worker.id} no longer has it; it was restarted, or ended it itself"
            self.controller.ended(worker.id, Ended(session_id, cause="failed", message=message))

    async def reconcile(self) -> None:
        """Queries all workers now."""
        workers = list(self.workers.values())
        await asyncio.gather(*(self._reconcile(worker) for worker in workers), return_exceptions=True)

    def noticed(self, number: int) -> None:
        for worker in self.workers.values():
            worker.noticed(number)

    async def close(self) -> None:
        for watching in self._watching.values():
            watching.cancel()
        if self._listener is not None:
            await self._listener.close()
        await asyncio.gather(*(worker.dismiss() for worker in self.workers.values()))


def _id_of(address: str) -> str:
    """HTTP workers have no name; their address identifies them."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"an AgentRL worker gave the address {address!r:.80}; expected something like http://host:5021/api"
        )
    return f"agentrl-{parts.hostname}-{parts.port or 80}"
