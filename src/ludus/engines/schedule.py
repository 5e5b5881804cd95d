"""What the embedded engine does next: pure decisions, no torch. Promise: requests are served in
order, and what was cached under one policy version never serves a request that began under another.

A cache row holds the keys and values of one sequence. A session keeps its row between turns, so its
next prompt computes only what is new. A first prompt copies its prefix from another row of the same
policy and version. The engine's loop is: `plan`, carry it out, `advance` each chunk. Plans may
overlap: a request with chunks in flight can only continue to decode, from tokens that are still
unknown. If one of them turns out to be the last, what was planned after it is wasted.

With `pages` a row holds as many as its tokens need; rows share the full pages of a common prefix.
When no page is free, sessions between two turns lose their cache, the least recently used first;
then the youngest running request is preempted: it returns to the head of the queue with all its
tokens and is computed again. The oldest is never preempted, so all end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import Literal

from ludus.engines.pages import Pages
from ludus.engines.plan import NOTHING, UNKNOWN, CacheRow, Chunk, Drawn, Pass, Plan, Request, Span
from ludus.engines.prefix_index import BLOCK, PrefixIndex, common_prefix
from ludus.engines.speculation import LONGEST, Speculator
from ludus.errors import EngineFailed
from ludus.types import Completion

Found = tuple[CacheRow | None, int, CacheRow | None, int]
"""Where the prefix of a prompt is: the session's own row and how many tokens of the prompt it
holds; another row that holds more, and how many."""
MIN_SHARED = BLOCK
"""Tokens of a prompt worth copying from another row; computing fewer is as cheap."""
_INDEX, _ROW = attrgetter("index"), attrgetter("row")


class Schedule:
    """Requests and cache rows. First in, first admitted; decoding continues in every iteration,
    prompts share `prefill_tokens` of it.

    `deterministic`: one sequence per pass and no reuse, so that a request's arithmetic depends on
    nothing but itself. `decode_steps` above 1: prompts and decoding take separate passes, and
    decoding draws up to so many tokens at a time. `speculator` proposes tokens to compute ahead."""

    def __init__(
        self,
        *,
        num_rows: int,
        row_tokens: int,
        max_running: int,
        prefill_tokens: int,
        deterministic: bool = False,
        decode_steps: int = 1,
        pages: Pages | None = None,
        speculator: Speculator | None = None,
    ) -> None:
        assert max_running <= num_rows, f"{max_running} running sequences need as many cache rows, got {num_rows}"
        self.rows = [CacheRow(index) for index in range(num_rows)]
        self._unclaimed = list(range(num_rows))  # idle, of no session; a heap
        self._kept: dict[str, list[CacheRow]] = {}  # by session
        self._prefixes = PrefixIndex()
        self.row_tokens, self.max_running, self.prefill_tokens = row_tokens, max_running, prefill_tokens
        self.deterministic, self.decode_steps = deterministic, decode_steps
        self.steps = decode_steps
        """Tokens that decoding draws at a time now; the engine may change it between two plans."""
        self.pages, self.speculator = pages, speculator
        plain = not (deterministic or pages or decode_steps > 1)
        assert speculator is None or plain, "speculation needs rows without pages, one token at a time"
        assert pages is None or pages.count >= pages.needed(row_tokens + decode_steps), "the longest sequence must fit"
        self.versions: dict[str, int] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_reused = self.num_preempted = self.num_drafted = self.num_kept = self._clock = 0
        """Prompt tokens that a row already held, preempted requests, draft tokens computed, and
        those of them that were then drawn."""

    # ----------------------------------------------------------------------------- events

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def fits(self, request: Request) -> None:
        """Raises EngineFailed if `request` could outgrow its row. The last token needs no room."""
        asked = request.num_prompt + request.sampling.max_tokens
        if asked - 1 > self.row_tokens:
            raise EngineFailed(
                f"session {request.session_id}: a prompt of {request.num_prompt} tokens and up to "
                f"{request.sampling.max_tokens} sampled ones are {asked}, but the engine keeps {self.row_tokens} per "
                "session; raise the engine's max_tokens (rollout.max_tokens), or ask for fewer"
            )

    def loaded(self, policy: str, *, version: int) -> None:
        """Running requests keep their cache, which nobody else may read; idle rows until needed."""
        self.versions[policy] = version
        for request in self.running:
            row = request.row
            if row is None or row.policy != policy:
                continue
            if row.length:
                row.version = None  # its keys hold the old version, so nobody finds it
                continue
            self._prefixes.cut(row, 0)
            row.version = version
            self._extend(row)

    def cancel(self, request: Request) -> Span | None:
        """Removes the request, and returns what it held in the cache, which may be NaN; with pages,
        those that nobody else holds."""
        if request in self.waiting:
            self.waiting.remove(request)
        if request.row is None:
            return None
        index, count = request.row.index, request.row.length + self._longest_draft(request)
        held = Span(index, count, self.pages.alone(index) if self.pages else ())
        self._forget(self._vacate(request))
        return held

    def release(self, session_id: str) -> None:
        for row in list(self._kept.get(session_id, ())):
            self._claim(row, None)

    def start_over(self, pages: Pages) -> None:
        """The cache is empty and its memory is now `pages`: running requests are computed again."""
        for request in reversed(list(self.running)):
            self._preempt(request)
        for row in self.rows:
            self._forget(row)
        self.pages = pages

    # ----------------------------------------------------------------------------- one iteration

    def plan(self) -> Plan:
        copies = [copy for request in self.running if request.leader and (copy := self._follow(request))]
        admitted = []
        while self.waiting and len(self.running) < self.max_running:
            request = self.waiting[0]
            found = self._find(request)
            if not self._has_room(request, found):
                break
            admitted.append(self.waiting.popleft())
            if copy := self._admit(request, found):
                copies.append(copy)
        passes = tuple(self._passes())
        for planned in passes:
            for chunk in planned.chunks:
                chunk.request.in_flight += (chunk,)
        return Plan(tuple(admitted), tuple(copies), passes, self.pages.take_changes() if self.pages else {})

    def advance(self, chunk: Chunk, *, drawn: Drawn = NOTHING) -> Completion | None:
        """The chunk was computed and, where it samples, tokens were drawn with their logprobs.
        Returns the completion if one of them was its last; tokens after that one are dropped."""
        request, row = chunk.request, chunk.request.row
        assert row is not None, "only a running request is computed"
        assert request.in_flight[0] is chunk, "a request's chunks are collected in their order"
        request.in_flight = request.in_flight[1:]
        tokens, logprobs = drawn
        over = request.over_after(tokens)
        kept = len(tokens) if over is None else over + 1
        row.length = chunk.end + max(0, kept - 1)
        request.ids += tokens[:kept]
        request.logprobs += logprobs[:kept]
        request.versions += [self.versions[request.policy]] * kept
        if len(request.ids) >= (len(row.keys) + 1) * BLOCK:
            self._extend(row)
        if self.speculator and kept:
            self.num_drafted, self.num_kept = self.num_drafted + len(chunk.draft), self.num_kept + kept - 1
            self.speculator.learn(request.ids, start=len(request.ids) - kept)
        if over is None:
            return None
        return self._finish(request, "end" if tokens[over] in request.sampling.stop_ids else "length")

    # ----------------------------------------------------------------------------- rows

    def _finish(self, request: Request, stop: Literal["end", "length"]) -> Completion:
        row = self._vacate(request)
        if row.version is None or self.deterministic:
            self._forget(row)
        elif self.pages:
            self.pages.shrink(row.index, row.length)  # it may have decoded past its end
        return request.completion(stop)

    def _vacate(self, request: Request) -> CacheRow:
        row = request.row
        assert row is not None, "a running request has a row"
        self.running.remove(request)
        request.row, request.leader, request.in_flight, row.busy = None, None, (), False
        if row.session_id is None:
            heappush(self._unclaimed, row.index)
        if self.pages:
            self.pages.unpin(row.index)
        row.ids = row.ids.copy()  # until now the request's own list
        self._prefixes.cut(row, row.length)
        return row

    def _claim(self, row: CacheRow, session_id: str | None) -> None:
        """The row is kept for that session's next turn; None: for nobody."""
        if row.session_id is not None:
            mine = self._kept[row.session_id]
            mine.remove(row)
            if not mine:
                del self._kept[row.session_id]
            if session_id is None and not row.busy:
                heappush(self._unclaimed, row.index)
        if session_id is not None:
            self._kept.setdefault(session_id, []).append(row)
        row.session_id = session_id

    def _extend(self, row: CacheRow) -> None:
        """Lets others find what a running row holds, as it grows."""
        if row.version is not None and not self.deterministic:
            self._prefixes.extend(row, len(row.ids))

    def _find(self, request: Request) -> Found:
        """The rows that hold, or are computing, most of the prompt."""
        idle = [row for row in self._kept.get(request.session_id, ()) if not row.busy and row.policy == request.policy]
        own = min(idle, key=_INDEX, default=None)
        kept = self._usable(own, request) if own else 0
        known = own.keys[: kept // BLOCK] if own else []
        source, num_shared = self._best_source(request, at_least=kept + MIN_SHARED, known=known)
        return own, kept, source, num_shared

    def _admit(self, request: Request, found: Found) -> tuple[Span, Span] | None:
        """Gives the request a row with its prefix, now or when its leader has computed it."""
        own, held, source, count = found
        row, kept = own or self._free_row(), 0 if source else held
        self._prefixes.cut(row, held if row is own else count if row is source else 0)
        if source is row:
            source, kept = None, count
        is_ready = source is not None and source.length >= count
        kept = self._trim(row, kept)
        copy = None
        if source and is_ready:
            copy, kept = self._lend(source, row, count), count
        elif source:
            request.leader, request.num_shared = source, count
        self._make_room(row, request)
        self._occupy(row, request, length=kept)
        return copy

    def _occupy(self, row: CacheRow, request: Request, *, length: int) -> None:
        self._clock += 1
        self._claim(row, request.session_id)
        row.policy, row.version = request.policy, self.versions[request.policy]
        row.ids, row.length, row.busy, row.used = request.ids, length, True, self._clock
        request.row = row
        self._extend(row)
        if self.pages:
            self.pages.pin(row.index)
        self.num_reused += length
        self.running.append(request)

    def _follow(self, request: Request) -> tuple[Span, Span] | None:
        """Copies the prefix once the leader has computed it, if the leader still exists."""
        leader, row, count = request.leader, request.row, request.num_shared
        if leader is None or row is None:
            return None
        promised = self._matches(leader, request) and leader.ids[:count] == request.ids[:count]
        if promised and leader.length < count and leader.busy:
            return None
        request.leader = None
        if not promised or leader.length < count:
            return None
        self.num_reused += count - row.length
        row.length = count
        return self._lend(leader, row, count)

    def _lend(self, source: CacheRow, target: CacheRow, count: int) -> tuple[Span, Span] | None:
        """The first `count` tokens of `source` become those of `target`, which is empty. Full pages
        are shared; the last one, which both will write to, is copied."""
        if self.pages is None:
            return Span(source.index, count), Span(target.index, count)
        whole = count // self.pages.tokens
        last = self.pages.held(source.index)[whole : self.pages.needed(count)]
        self.pages.share(source.index, target=target.index, count=whole)
        if not last:
            return None
        self._evict(self.pages.missing(target.index, count), sparing=(target,))
        self.pages.grow(target.index, count)
        mine = self.pages.held(target.index)[whole : whole + 1]
        return Span(source.index, count, last), Span(target.index, count, mine)

    def _free_row(self) -> CacheRow:
        """The lowest row without a session, to keep running rows together; else the least worth:
        cycling through more sessions than rows must not evict each just before it is needed."""
        if self._unclaimed:
            return self.rows[heappop(self._unclaimed)]
        return min((row for row in self.rows if not row.busy), key=self._worth())

    def _best_source(self, request: Request, *, at_least: int, known: Sequence[int]) -> tuple[CacheRow | None, int]:
        """The lowest row with the longest prefix. `known`: keys of the prompt's first blocks."""
        best, most = None, at_least - 1
        if self.deterministic or request.num_prompt - 1 < at_least:
            return None, 0
        version = self.versions[request.policy]
        found = self._prefixes.find(request, version=version, known=known, at_least=at_least)
        for index in sorted(found):
            row = self.rows[index]
            # else it cannot share more than `most` tokens
            promising = len(row.ids) > most and row.ids[most] == request.ids[most]
            if promising and (shared := self._usable(row, request)) > most:
                best, most = row, shared
        return best, most

    def _usable(self, row: CacheRow, request: Request) -> int:
        """Tokens of the prompt that `row` holds or computes, without the last: it yields logits."""
        if not self._matches(row, request):
            return 0
        held = len(row.ids) if row.busy else row.length
        return common_prefix(row.ids, request.ids, most=min(held, request.num_prompt - 1))

    def _matches(self, row: CacheRow, request: Request) -> bool:
        return row.policy == request.policy and row.version == self.versions[request.policy]

    # ----------------------------------------------------------------------------- pages

    def _has_room(self, request: Request, found: Found) -> bool:
        """Whether all its tokens, its next block and a page for each running request fit."""
        if self.pages is None or not self.running:
            return True
        _, _, source, num_shared = found
        wanted = self.pages.needed(len(request.ids) + self.decode_steps) + len(self.running)
        if source and source.busy:
            wanted -= num_shared // self.pages.tokens  # already counted as pinned
        return wanted <= self.pages.count - self.pages.num_pinned

    def _trim(self, row: CacheRow, kept: int) -> int:
        """Drops everything beyond the first `kept` tokens and returns how many can be kept. The
        page that is written to next must not be shared: its tokens are computed again if it is."""
        if self.pages is None:
            return kept
        self.pages.shrink(row.index, kept)
        if kept % self.pages.tokens and self.pages.is_shared(row.index, token=kept):
            kept -= kept % self.pages.tokens
            self.pages.shrink(row.index, kept)
        return kept

    def _make_room(self, row: CacheRow, request: Request) -> None:
        """Takes pages for all tokens of `request`, except those that its leader will share."""
        if self.pages is None:
            return
        promised = request.num_shared // self.pages.tokens if request.leader else 0
        tokens = len(request.ids) - promised * self.pages.tokens
        self._evict(self.pages.missing(row.index, tokens), sparing=(row,))
        self.pages.grow(row.index, tokens)

    def _evict(self, wanted: int, *, sparing: Collection[CacheRow]) -> None:
        """Idle rows lose their cache until `wanted` pages are free or none is left. Rows of an old
        version go all at once: nobody wants them, and evicting one by one takes long."""
        assert self.pages is not None
        if self.pages.num_free >= wanted:
            return
        idle = [row for row in self.rows if not row.busy and row not in sparing and self.pages.num_held(row.index)]
        for row in idle:
            if self._is_old(row):
                self._forget(row)
        for row in sorted(idle, key=self._worth()):
            if self.pages.num_free >= wanted:
                return
            self._forget(row)

    def _is_old(self, row: CacheRow) -> bool:
        return row.version != self.versions.get(row.policy)

    def _worth(self) -> Callable[[CacheRow], tuple[int, int]]:
        """Order of eviction: rows without a session or of an old version, then sessions that may
        come back, then those that wait, the last in the queue first."""
        place = {request.session_id: i for i, request in enumerate(self.waiting)}

        def worth(row: CacheRow) -> tuple[int, int]:
            if row.session_id is None or self._is_old(row):
                return 0, row.used
            return (2, -place[row.session_id]) if row.session_id in place else (1, row.used)

        return worth

    def _grown(self, request: Request, tokens: int) -> bool:
        """Takes pages for `tokens`, preempting younger requests if needed; what they have in flight
        is wasted. False: the request itself was preempted."""
        if self.pages is None or request.row is None:
            return request.row is not None
        index = request.row.index
        missing = self.pages.missing(index, tokens)
        while missing > self.pages.num_free:
            self._evict(missing, sparing=())
            if missing <= self.pages.num_free:
                break
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is request:
                return False
        if missing:
            self.pages.grow(index, tokens)
        return True

    def _preempt(self, request: Request) -> None:
        self._forget(self._vacate(request))
        self.waiting.appendleft(request)
        self.num_preempted += 1

    def _forget(self, row: CacheRow) -> None:
        self._prefixes.cut(row, 0)
        self._claim(row, None)
        row.version, row.length = None, 0
        if self.pages:
            self.pages.shrink(row.index, 0)

    # ----------------------------------------------------------------------------- passes

    def _passes(self) -> Iterator[Pass]:
        chunks = list(self._chunks())
        if self.deterministic:
            yield from (Pass(chunk.request.policy, (chunk,)) for chunk in chunks)
            return
        by_policy: dict[str, list[Chunk]] = {}
        for chunk in chunks:
            by_policy.setdefault(chunk.request.policy, []).append(chunk)
        apart = self.decode_steps > 1
        for policy, mine in by_policy.items():
            decode, prompts = list[Chunk](), list[Chunk]()
            for chunk in mine:
                (decode if (chunk.decodes if apart else chunk.width == 1) else prompts).append(chunk)
            decode.sort(key=_ROW)
            # decoding first: it may continue from what earlier prompts have drawn
            parts = (decode, prompts) if apart else ([*decode, *prompts],)
            yield from (Pass(policy, tuple(part)) for part in parts if part)

    def _chunks(self) -> Iterator[Chunk]:
        budget = self.prefill_tokens
        for request in list(self.running):
            row = request.row
            if row is None or request.leader is not None:
                continue  # just preempted by an older one, or waiting for its leader
            if request.in_flight:
                yield from self._next_block(request, row)
                continue
            missing = len(request.ids) - row.length
            count = 1 if missing == 1 else min(missing, self.prefill_tokens if self.deterministic else budget)
            if not count:
                continue
            steps = self.steps if missing == 1 else 1
            if not self._grown(request, row.length + count + steps - 1):
                continue
            if missing > 1:
                budget -= count
            ids = request.ids[row.length : row.length + count]
            draft: tuple[int, ...] = ()
            if self.speculator and count == missing:
                longest, stop_ids = self._longest_draft(request), request.sampling.stop_ids
                draft = self.speculator.draft(request.ids, most=longest, stop_ids=stop_ids)
            yield Chunk(request, row.index, row.length, ids, count == missing, draft, steps)

    def _next_block(self, request: Request, row: CacheRow) -> Iterator[Chunk]:
        """The chunk after those in flight, unless these are certain to end the request."""
        last = request.in_flight[-1]
        drawn = len(request.logprobs) + sum(chunk.steps for chunk in request.in_flight)
        if self.decode_steps == 1 or not last.samples or drawn >= request.sampling.max_tokens:
            return
        start = last.end + last.steps - 1
        if self._grown(request, start + self.steps):
            yield Chunk(request, row.index, start, [UNKNOWN], samples=True, steps=self.steps)

    def _longest_draft(self, request: Request) -> int:
        """Nothing is computed behind the last token that may be sampled."""
        return min(LONGEST, request.sampling.max_tokens - len(request.logprobs) - 1) if self.speculator else 0
