"""Runs an author's code. Promise: it may block, hang, raise or answer nonsense; the event loop
keeps running, and only EnvironmentFailed comes out.

Plain methods run on threads, async ones on the loop, each in its own task so that one that
ignores its cancellation is left behind. Callers keep the time limits (`asyncio.timeout`): a call
whose caller is gone is stopped, and its session is closed once it has returned. An async method
that holds the loop is stopped by a watchdog, because no timeout can fire there. stopping.py says
what cannot be stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Literal, TypeVar

from ludus.environments.environment import Environment, Session
from ludus.environments.needs import Provider, needs_of
from ludus.errors import ConfigError, EnvironmentFailed, TurnTimeout, describe
from ludus.hosting.answers import checked_action, checked_observation, checked_tasks
from ludus.hosting.stopping import Raised, Stopped, Watch
from ludus.hosting.threads import Call, Threads
from ludus.types import Action, Observation, Task

T = TypeVar("T")
Player = Literal["solve", "random_action"]
CLOSE_S = 5.0
"""How long `close` waits for an author's own close."""
MAX_HOLD_S = 5.0
"""How long an async method may hold the loop: every other session waits meanwhile."""
LINGER_S = 0.5
"""How long `Host.close` waits for calls whose callers were cancelled."""
_log = logging.getLogger(__name__)


class Host:
    """Opens sessions of Environment objects in this process."""

    def __init__(
        self, *, max_threads: int = 256, max_hold_s: float = MAX_HOLD_S, sandboxes: Provider | None = None
    ) -> None:
        self._sandboxes = sandboxes
        self._threads = Threads(max_threads=max_threads)
        self.max_hold_s = max_hold_s
        self.watch = Watch()
        self.live: set[HostedSession] = set()

    async def tasks(self, environment: Environment, split: str) -> list[Task]:
        where = f"{environment.name}: tasks({split!r})"
        answer = await self.call(partial(environment.tasks, split), where=where)
        return _checked(checked_tasks, answer, where=where)

    async def open(
        self, environment: Environment, task: Task, *, seed: int, timeout_s: float = math.inf, label: str = ""
    ) -> HostedSession:
        """`timeout_s`, the caller's own limit, shortens how long async methods may hold the
        loop. `label` names the session's sandbox, if it has one."""
        hold_s = min(timeout_s, self.max_hold_s)
        sandbox = await self._open_sandbox(environment, task, label=label or f"{task.id}#{seed}")
        try:
            given = {} if sandbox is None else {"sandbox": sandbox}
            call = partial(environment.open, task, seed=seed, **given)
            session = await self.call(call, where=f"{task.id}: open", afterwards=_close_quietly, hold_s=hold_s)
            if not isinstance(session, Session):
                raise EnvironmentFailed(
                    f"{task.id}: open answered {type(session).__name__}; expected start, act and close"
                )
        except BaseException:
            if sandbox is not None:
                self._threads.begin(sandbox.close)
            raise
        hosted = HostedSession(session, host=self, task=task, hold_s=hold_s, sandbox=sandbox)
        self.live.add(hosted)
        return hosted

    async def _open_sandbox(self, environment: Environment, task: Task, *, label: str) -> Any:
        needs = needs_of(environment)
        if not needs.hosted_sandbox:
            return None
        if self._sandboxes is None:
            raise ConfigError(
                f"environment {environment.name!r} needs a sandbox ({needs.kind}), and this host was given none"
            )
        call = partial(self._sandboxes.open, needs.sandbox, image=needs.image, session=label)
        return await self.call(call, where=f"{task.id}: sandbox", afterwards=_close_quietly)

    async def call(
        self,
        function: Callable[..., Any],
        *,
        where: str,
        afterwards: Callable[[Any], object] | None = None,
        began: Callable[[Call], object] | None = None,
        hold_s: float | None = None,
    ) -> Any:
        """Runs author code on a thread, or on the loop if it is async. `afterwards`: as in Call."""
        value = function
        if not _is_async(function):
            call = self._threads.begin(function)
            call.afterwards = afterwards
            if began:
                began(call)
            value = await self._threads.finish(call)
            if isinstance(value, Raised):
                raise failed(value.error, where=where) from value.error
            if not inspect.isawaitable(value):
                return value
        hold_s = self.max_hold_s if hold_s is None else hold_s
        coroutine = value() if callable(value) else _awaiting(value)
        work = _guarded(self.watch.drive(coroutine, limit_s=hold_s), where=where, hold_s=hold_s)
        return await _in_task(work, afterwards=None if afterwards is None else self._close_stray)

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in list(self.live)))
        await self._threads.settled(patience_s=LINGER_S)
        self._threads.close()

    def _close_stray(self, session: Any) -> None:
        """Closes a session whose opener was gone when it came."""
        if isinstance(session, Session):
            HostedSession(session, host=self, task=Task("stray", "", ""), hold_s=self.max_hold_s).close_soon()


class ClosableSession(ABC):
    """What all kinds of sessions share: `solve` draws the player, and `close` runs once."""

    _closing: asyncio.Future[None] | None = None

    async def solve(self, *, mistakes: float = 0.0, rng: random.Random) -> Action:
        """The solver's action or, with probability `mistakes`, a random valid one."""
        player, seed = draw_player(mistakes=mistakes, rng=rng)
        return await self.propose(player, seed=seed)

    @abstractmethod
    async def propose(self, player: Player, *, seed: int) -> Action:
        """The action of the environment's own player; a random one draws from `seed`."""

    async def close(self) -> None:
        """Returns within CLOSE_S and never raises: a failed close must not lose a finished
        trajectory. A cancelled caller does not stop it."""
        await asyncio.shield(self.close_soon())

    def close_soon(self) -> asyncio.Future[None]:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        return self._closing

    @abstractmethod
    async def _close(self) -> None: ...


class HostedSession(ClosableSession):
    """A live session of author code, as a client sees it."""

    def __init__(self, session: Session, *, host: Host, task: Task, hold_s: float, sandbox: Any = None) -> None:
        self.authored: Any = session
        self._host, self._task, self._hold_s, self._sandbox = host, task, hold_s, sandbox
        self._call: Call | None = None

    async def start(self) -> Observation:
        return await self._checked(checked_observation, "start")

    async def act(self, action: Action) -> Observation:
        return await self._checked(checked_observation, "act", action)

    async def propose(self, player: Player, *, seed: int) -> Action:
        if getattr(self.authored, player, None) is None:
            raise ConfigError(
                f"environment {self._task.environment!r} has no {player}(); it cannot be played without a model"
            )
        arguments = (random.Random(seed),) if player == "random_action" else ()
        return await self._checked(checked_action, player, *arguments)

    async def _close(self) -> None:
        try:
            await self._close_session()
        finally:
            if self._sandbox is not None:  # ends the command that author code may still wait for
                closing = self._host.call(self._sandbox.close, where=f"{self._task.id}: closing its sandbox")
                with contextlib.suppress(EnvironmentFailed, TimeoutError):  # the reaper will find it
                    await asyncio.wait_for(closing, CLOSE_S)
            self._host.live.discard(self)

    async def _close_session(self) -> None:
        if self._call is not None and self._call.running:  # still in the author's code: close after it
            self._call.afterwards = lambda _result: _close_quietly(self.authored)
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._run("close")
        except (EnvironmentFailed, TimeoutError) as error:
            _log.warning("%s", error if str(error) else f"{self._task.id}: close did not return within {CLOSE_S:.0f} s")

    async def _run(self, name: str, *arguments: Any) -> Any:
        method = getattr(self.authored, name)
        function = partial(method, *arguments) if arguments else method
        where = f"{self._task.id}: {name}"
        return await self._host.call(function, where=where, began=self._remember, hold_s=self._hold_s)

    async def _checked(self, check: Callable[[Any], T], name: str, *arguments: Any) -> T:
        return _checked(check, await self._run(name, *arguments), where=f"{self._task.id}: {name}")

    def _remember(self, call: Call) -> None:
        self._call = call


def draw_player(*, mistakes: float, rng: random.Random) -> tuple[Player, int]:
    """The player and its seed: one in another process must draw the same, so it gets no `rng`."""
    return ("random_action" if rng.random() < mistakes else "solve"), rng.getrandbits(53)


def failed(error: BaseException, *, where: str, hold_s: float = MAX_HOLD_S) -> EnvironmentFailed:
    """Names what author code raised: also a SystemExit, which errors.border lets pass."""
    if isinstance(error, Stopped):
        return TurnTimeout(
            f"{where} held the event loop for {hold_s:g} s and was stopped; move code that computes or blocks to a plain "
            'method, which gets a thread, or set isolation = "process"'
        )
    return error if isinstance(error, EnvironmentFailed) else EnvironmentFailed(f"{where} raised {describe(error)}")


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function.func if isinstance(function, partial) else function)


async def _awaiting(value: Any) -> Any:
    return await value


async def _in_task(work: Coroutine[Any, Any, Any], *, afterwards: Callable[[Any], object] | None) -> Any:
    def left_behind(task: asyncio.Future[Any]) -> None:
        if not task.cancelled() and task.exception() is None and afterwards is not None:
            afterwards(task.result())

    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        task.add_done_callback(left_behind)
        raise


async def _guarded(work: Awaitable[Any], *, where: str, hold_s: float = MAX_HOLD_S) -> Any:
    """In a task, a SystemExit would end the loop and an author's CancelledError look like ours."""
    try:
        return await work
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise failed(error, where=where, hold_s=hold_s) from error


def _checked(check: Callable[[Any], T], answer: Any, *, where: str) -> T:
    try:
        return check(answer)
    except Exception as error:
        raise EnvironmentFailed(f"{where} {describe(error).removeprefix('BadAnswer: ')}") from error


def _close_quietly(session: Any) -> None:
    try:
        closing = session.close() if hasattr(session, "close") else None
        if inspect.isawaitable(closing):
            asyncio.run(_guarded(closing, where="close"))
    except BaseException as error:  # noqa: BLE001
        _log.warning("closing a session that outlived its caller raised %s", describe(error))
