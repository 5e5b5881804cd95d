"""An engine over a connection: a rollout process samples with the engine of the run's process."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from ludus.engines.engine import Engine
from ludus.types import CURRENT, Completion, Sampling
from ludus.wire.codec import Record
from ludus.wire.connection import Connection, Handler


class Generate(Record, frozen=True):
    ids: array  # type: ignore[type-arg]
    sampling: Sampling
    session_id: str
    policy: str


class LinkedEngine:
    """The far side. Cancelling a generation here cancels it there."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def generate(
        self, ids: Sequence[int], *, sampling: Sampling, session_id: str, policy: str = CURRENT
    ) -> Completion:
        request = Generate(array("I", ids), sampling, session_id, policy)
        completion: Completion = await self._connection.call("generate", request, answer=Completion, cancel=True)
        return completion

    async def release(self, session_id: str) -> None:
        self._connection.tell("release", session_id)


def engine_handlers(engine: Callable[[], Engine]) -> dict[str, Handler]:
    """The engine's side. `engine` is called at each request: a process may start before it."""

    async def generate(request: Generate) -> Completion:
        return await engine().generate(
            request.ids, sampling=request.sampling, session_id=request.session_id, policy=request.policy
        )

    release = Handler(str, lambda session_id: engine().release(session_id))
    return {"generate": Handler(Generate, generate), "release": release}
