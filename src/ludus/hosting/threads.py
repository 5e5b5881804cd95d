"""Blocking calls beside an event loop. Promise: a call that hangs holds up no other call, not the
loop, and not the end of the process.

Not a ThreadPoolExecutor, which joins its threads at exit and never replaces a stuck one. Threads
share one inbox, so a thread that is done takes the next call without a switch: quick environments
keep one or two threads busy, blocking ones as many as they need.

    begun --a thread takes it--> running --returns--> returned
      |                             |
      +--caller cancelled           +--caller cancelled--> stopped and written off: its thread is
         (never runs)               replaced, and when it returns, `afterwards` frees what it holds
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from ludus.hosting.stopping import Raised, Stay

_PATIENCE_S = 0.01
"""A call that waited this long for a thread gets a new one: the others are probably blocked."""
_INSIST_S = (1.0, 30.0)
"""First and longest pause before a call that swallowed its stop is stopped again; pauses double."""
FREE_S = 5.0
"""Limit of a call without a caller whose result must be freed, and of the freeing."""
_numbers = itertools.count()


class Call:
    __slots__ = ("_claim", "afterwards", "begun_s", "function", "future", "loop", "returned", "stay", "written_off")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.loop = asyncio.get_running_loop()
        self.begun_s = self.loop.time()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.afterwards: Callable[[Any], object] | None = None
        """Called with the result (None if the call raised) of a call whose caller was cancelled."""
        self.returned = False
        self.written_off = False
        self.stay = Stay()
        self._claim = [True]

    def claim(self) -> bool:
        """True once: for the thread that will run it, or for a caller that gives up before."""
        try:
            return self._claim.pop()  # list.pop is atomic
        except IndexError:
            return False

    @property
    def claimed(self) -> bool:
        return not self._claim

    @property
    def running(self) -> bool:
        return not self._claim and not self.returned and (self.written_off or not self.future.done())


class Threads:
    def __init__(self, *, max_threads: int = 256) -> None:
        self.max_threads = max_threads
        self.num_threads = 0
        self._inbox: SimpleQueue[Call | None] = SimpleQueue()
        self._outbox: deque[tuple[Call, Any]] = deque()
        self._drained_by: asyncio.AbstractEventLoop | None = None
        self._begun: deque[Call] = deque()
        self._lingering: set[Call] = set()
        """Calls whose callers are gone, and the calls that free what those held."""
        self._grown_by: asyncio.AbstractEventLoop | None = None

    def begin(self, function: Callable[[], Any]) -> Call:
        call = Call(function)
        self._inbox.put(call)
        self._begun.append(call)
        if self.num_threads == 0:
            self._hire(1)
        elif self._grown_by is not call.loop:
            self._grown_by = call.loop
            call.loop.call_later(_PATIENCE_S, self._grow, call.loop)
        return call

    async def finish(self, call: Call) -> Any:
        """The result, or `Raised`."""
        try:
            return await call.future
        except asyncio.CancelledError:
            self._give_up(call)
            raise

    async def settled(self, *, patience_s: float) -> None:
        """Waits for calls that cancelled callers left behind: they may have sessions to close."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + patience_s
        while self._lingering and loop.time() < give_up_s:
            await asyncio.sleep(0.002)

    def close(self) -> None:
        """Threads end after all that was begun."""
        for _ in range(self.num_threads):
            self._inbox.put(None)
        self.num_threads = 0

    def _grow(self, loop: asyncio.AbstractEventLoop) -> None:
        self._grown_by = None
        self._begun = deque(call for call in self._begun if not call.claimed)
        late = sum(loop.time() - call.begun_s > _PATIENCE_S for call in self._begun)
        # at most double: on a busy machine a few late calls must not bring hundreds of threads
        self._hire(min(late, max(1, self.num_threads), self.max_threads - self.num_threads))
        if self._begun:
            self._grown_by = loop
            loop.call_later(_PATIENCE_S, self._grow, loop)

    def _hire(self, count: int) -> None:
        for _ in range(count):
            threading.Thread(target=self._work, name=f"environment-{next(_numbers)}", daemon=True).start()
            self.num_threads += 1

    def _give_up(self, call: Call) -> None:
        if call.claim():
            return
        if call.returned:
            if not call.future.cancelled():  # the result was on its way, and nobody takes it
                self._free(call, call.future.result())
            return
        call.written_off = True
        self._lingering.add(call)
        self.num_threads -= 1
        if call.afterwards is None:
            self._stop(call, again_s=_INSIST_S[0])
        else:  # stopped while returning, it would lose what it holds
            call.loop.call_later(FREE_S, lambda: self._stop(call, again_s=_INSIST_S[0]))

    def _stop(self, call: Call, *, again_s: float) -> None:
        if not call.returned:  # a thread may have claimed it without having begun
            call.stay.stop()
            call.loop.call_later(again_s, lambda: self._stop(call, again_s=min(2 * again_s, _INSIST_S[1])))

    def _work(self) -> None:
        while (call := self._inbox.get()) is not None:
            if call.claim():
                self._outbox.append((call, call.stay.run(call.function)))
                self._report(call.loop)
            del call  # or this idle thread would keep the session alive

    def _report(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._drained_by is not loop:
            self._drained_by = loop
            try:
                loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # the loop is closed and nobody waits; the next loop drains
                self._drained_by = None

    def _drain(self) -> None:
        self._drained_by = None  # first: what is appended from here on is reported anew
        while self._outbox:
            self._settle(*self._outbox.popleft())

    def _settle(self, call: Call, outcome: Any) -> None:
        call.returned = True
        self._lingering.discard(call)
        if call.written_off:
            self.num_threads += 1
            self._free(call, outcome)
            if self.num_threads > self.max_threads:
                self._inbox.put(None)
                self.num_threads -= 1
        elif call.future.cancelled():  # its caller is gone, `_give_up` has not run yet
            self._free(call, outcome)
        else:
            call.future.set_result(outcome)

    def _free(self, call: Call, outcome: Any) -> None:
        if (afterwards := call.afterwards) is not None:
            result = None if isinstance(outcome, Raised) else outcome
            freeing = Call(lambda: afterwards(result))
            self._lingering.add(freeing)
            self._inbox.put(freeing)
            freeing.loop.call_later(FREE_S, lambda: self._stop(freeing, again_s=_INSIST_S[0]))
