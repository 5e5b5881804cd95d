"""What the embedded engine does next: pure decisions, no torch. Promise: every request is served in its turn, and no cached key or value
of one policy version serves a request that began under another.

A slot holds the keys and values of one sequence. A session's slot is kept between its turns, and its next prompt computes only what
is new. A first prompt gets what another slot of the same policy and version already holds: siblings of a group share all of it,
sessions of one environment most of it. The engine's loop is: `plan`, carry it out, `advance` each chunk. Plans may overlap: of what an
earlier one has in flight, until it is advanced, only decoding goes on, with tokens that nobody has heard of yet. If one of them turns
out to be the last, what was planned after it was in vain.

With `pages` a slot holds as many of them as its tokens need, and takes more as it grows; what two slots have in common is in pages that
both hold, up to the last that is full. Where none is free, sessions that are between two turns lose what was kept for them, the least
recently used first; then the youngest running request gives way: it goes back to the head of the queue with every token it has, and is
computed again. The oldest never gives way, so everything ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import Literal

from ludus.engines.pages import Pages
from ludus.engines.plan import NOTHING, UNKNOWN, Chunk, Copy, Drawn, Found, Pass, Plan, Request, Slot, Spill
from ludus.engines.prefix_index import BLOCK, Beginnings, common_prefix
from ludus.engines.speculation import LONGEST, Drafts
from ludus.errors import EngineFailed
from ludus.types import Completion

MIN_SHARED = BLOCK
"""Tokens of a prompt worth having from another slot; below, computing them is as cheap."""
_INDEX, _SLOT = attrgetter("index"), attrgetter("slot")


class Schedule:
    """Requests and slots. First in, first admitted; decoding goes on in every step, prompts share `prefill_tokens` of it.

    `deterministic`: one sequence per pass and no reuse, so that a request's arithmetic depends on nothing but itself. `decode_steps`
    above 1: prompts and decoding go in passes of their own, and decoding takes up to so many steps at a time. `drafts`: what to compute
    ahead.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        slot_tokens: int,
        max_running: int,
        prefill_tokens: int,
        deterministic: bool = False,
        decode_steps: int = 1,
        pages: Pages | None = None,
        drafts: Drafts | None = None,
    ) -> None:
        assert max_running <= num_slots, f"{max_running} running sequences need as many slots, got {num_slots}"
        self.slots = [Slot(index) for index in range(num_slots)]
        self._unclaimed = list(range(num_slots))
        """Idle slots that are kept for nobody, as a heap."""
        self._kept: dict[str, list[Slot]] = {}
        """By session, the slots that have its name."""
        self._beginnings = Beginnings()
        self.slot_tokens = slot_tokens
        self.max_running, self.prefill_tokens = max_running, prefill_tokens
        self.deterministic, self.decode_steps = deterministic, decode_steps
        self.steps = decode_steps
        """What decoding takes at a time now; the engine may change it between two plans."""
        self.pages, self.drafts = pages, drafts
        assert drafts is None or not (deterministic or pages or decode_steps > 1), (
            "drafts are for slots, one step at a time"
        )
        assert pages is None or pages.count >= pages.needed(slot_tokens + decode_steps), "the longest sequence must fit"
        self.versions: dict[str, int] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_reused = 0
        """Prompt tokens that needed no computing because a slot held them."""
        self.num_preempted = 0
        self.num_drafted = self.num_kept = 0
        """Tokens computed ahead, and those of them that were then drawn."""
        self._clock = 0

    # -------------------------------------------------------------------------------------------- what happens to the engine

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def fits(self, request: Request) -> None:
        """EngineFailed when `request` could outgrow its slot. The last sampled token is never fed back, so it needs no room."""
        asked = request.num_prompt + request.sampling.max_tokens
        if asked - 1 > self.slot_tokens:
            raise EngineFailed(
                f"session {request.session_id}: a prompt of {request.num_prompt} tokens and up to {request.sampling.max_tokens} sampled "
                f"ones are {asked}, but the engine keeps {self.slot_tokens} per session; "
                "raise the engine's max_tokens (rollout.max_tokens), or ask for fewer"
            )

    def loaded(self, policy: str, *, version: int) -> None:
        """`policy` has new weights. What runs keeps its cache and goes on; nothing else may read it. What idle slots hold stays until its
        room is needed, and serves nobody, being of another version: nothing is generated while this is called."""
        self.versions[policy] = version
        for request in self.running:
            slot = request.slot
            if slot is None or slot.policy != policy:
                continue
            if slot.length:
                slot.version = None  # what it is listed under has the old version in it, and is found by nobody
                continue
            self._beginnings.cut(slot, 0)
            slot.version = version
            self._extend(slot)

    def cancel(self, request: Request) -> Spill | None:
        """Takes the request off, wherever it is; None when it held nothing. What it had computed serves nobody."""
        if request in self.waiting:
            self.waiting.remove(request)
        if request.slot is None:
            return None
        index = request.slot.index
        spill = Spill(
            index, request.slot.length + self._longest_draft(request), self.pages.alone(index) if self.pages else ()
        )
        self._forget(self._vacate(request))
        return spill

    def release(self, session_id: str) -> None:
        for slot in list(self._kept.get(session_id, ())):
            self._claim(slot, None)

    def start_over(self, pages: Pages) -> None:
        """Nothing is cached any more, and memory is now `pages`: what ran is computed again."""
        for request in reversed(list(self.running)):
            self._preempt(request)
        for slot in self.slots:
            self._forget(slot)
        self.pages = pages

    # -------------------------------------------------------------------------------------------- one step

    def plan(self) -> Plan:
        followers = [request for request in self.running if request.leader is not None]
        copies = [copy for request in followers if (copy := self._follow(request))]
        admitted = []
        while self.waiting and len(self.running) < self.max_running:
            found = self._find(self.waiting[0])
            if not self._has_room(self.waiting[0], found):
                break
            request = self.waiting.popleft()
            admitted.append(request)
            if copy := self._admit(request, found):
                copies.append(copy)
        passes = tuple(self._passes())
        for planned in passes:
            for chunk in planned.chunks:
                chunk.request.in_flight += (chunk,)
        return Plan(tuple(admitted), tuple(copies), passes, self.pages.take_changes() if self.pages else {})

    def advance(self, chunk: Chunk, *, drawn: Drawn = NOTHING) -> Completion | None:
        """The chunk was computed and, where it samples, tokens were drawn with their logprobs. Returns the completion if one of them was
        its last; those after it were drawn in vain."""
        request, slot = chunk.request, chunk.request.slot
        assert slot is not None, "only a running request is computed"
        assert request.in_flight[0] is chunk, "a request's chunks land in their order"
        request.in_flight = request.in_flight[1:]
        tokens, logprobs = drawn
        over = request.over_after(tokens)
        kept = len(tokens) if over is None else over + 1
        slot.length = chunk.end + max(0, kept - 1)
        request.ids += tokens[:kept]
        request.logprobs += logprobs[:kept]
        request.versions += [self.versions[request.policy]] * kept
        if len(request.ids) >= (len(slot.keys) + 1) * BLOCK:
            self._extend(slot)
        if self.drafts and kept:
            self.num_drafted, self.num_kept = self.num_drafted + len(chunk.draft), self.num_kept + kept - 1
            self.drafts.learn(request.ids, start=len(request.ids) - kept)
        if over is None:
            return None
        return self._finish(request, "end" if tokens[over] in request.sampling.stop_ids else "length")

    # -------------------------------------------------------------------------------------------- slots

    def _finish(self, request: Request, stop: Literal["end", "length"]) -> Completion:
        slot = self._vacate(request)
        if slot.version is None or self.deterministic:
            self._forget(slot)
        elif self.pages:
            self.pages.shrink(slot.index, slot.length)  # it may have been decoded past its end
        return request.completion(stop)

    def _vacate(self, request: Request) -> Slot:
        slot = request.slot
        assert slot is not None, "a running request has a slot"
        self.running.remove(request)
        request.slot, request.leader, request.in_flight, slot.busy = None, None, (), False
        if slot.session_id is None:
            heappush(self._unclaimed, slot.index)
        if self.pages:
            self.pages.unpin(slot.index)
        slot.ids = slot.ids.copy()  # until now the request's own list
        self._beginnings.cut(slot, slot.length)
        return slot

    def _claim(self, slot: Slot, session_id: str | None) -> None:
        """The slot is kept for that session's next turn from now on; None: for nobody's."""
        if slot.session_id is not None:
            mine = self._kept[slot.session_id]
            mine.remove(slot)
            if not mine:
                del self._kept[slot.session_id]
            if session_id is None and not slot.busy:
                heappush(self._unclaimed, slot.index)
        if session_id is not None:
            self._kept.setdefault(session_id, []).append(slot)
        slot.session_id = session_id

    def _extend(self, slot: Slot) -> None:
        """Others may find what a running slot has, and what it says as it grows."""
        if slot.version is not None and not self.deterministic:
            self._beginnings.extend(slot, len(slot.ids))

    def _find(self, request: Request) -> Found:
        """Where as much of the prompt as possible is, or is being computed, under the request's policy and version."""
        own = self._own_slot(request)
        kept = self._usable(own, request) if own else 0
        known = own.keys[: kept // BLOCK] if own else []
        source, num_shared = self._best_source(request, at_least=kept + MIN_SHARED, known=known)
        return Found(own, kept, source, num_shared)

    def _admit(self, request: Request, found: Found) -> Copy | None:
        """Gives the request a slot with what was found for it, at once or when its leader has computed it."""
        slot, source, count = found.own or self._free_slot(), found.source, found.num_shared
        kept = 0 if source else found.kept
        self._beginnings.cut(slot, found.kept if slot is found.own else count if slot is source else 0)
        if source is slot:
            source, kept = None, count
        is_ready = source is not None and source.length >= count
        kept = self._trim(slot, kept)
        copy = None
        if source and is_ready:
            copy, kept = self._lend(source, slot, count), count
        elif source:
            request.leader, request.num_shared = source, count
        self._make_room(slot, request)
        self._occupy(slot, request, length=kept)
        return copy

    def _occupy(self, slot: Slot, request: Request, *, length: int) -> None:
        self._clock += 1
        self._claim(slot, request.session_id)
        slot.policy, slot.version = request.policy, self.versions[request.policy]
        slot.ids, slot.length, slot.busy, slot.used = request.ids, length, True, self._clock
        request.slot = slot
        self._extend(slot)
        if self.pages:
            self.pages.pin(slot.index)
        self.num_reused += length
        self.running.append(request)

    def _follow(self, request: Request) -> Copy | None:
        """What a request was waiting for, once its leader has computed it; a leader that is gone leaves the request on its own."""
        leader, slot, count = request.leader, request.slot, request.num_shared
        if leader is None or slot is None:
            return None
        promised = self._matches(leader, request) and leader.ids[:count] == request.ids[:count]
        if promised and leader.length < count and leader.busy:
            return None
        request.leader = None
        if not promised or leader.length < count:
            return None
        self.num_reused += count - slot.length
        slot.length = count
        return self._lend(leader, slot, count)

    def _lend(self, source: Slot, target: Slot, count: int) -> Copy | None:
        """The first `count` tokens of `source` become those of `target`, which holds nothing yet. Pages that they fill are shared; the
        last, which each will go on writing to, is copied."""
        if self.pages is None:
            return Copy(source.index, target.index, count)
        whole = count // self.pages.tokens
        last = self.pages.held(source.index)[whole : self.pages.needed(count)]
        self.pages.share(source.index, target=target.index, count=whole)
        if not last:
            return None
        self._evict(self.pages.missing(target.index, count), sparing=(target,))
        self.pages.grow(target.index, count)
        return Copy(source.index, target.index, count, last, self.pages.held(target.index)[whole : whole + 1])

    def _own_slot(self, request: Request) -> Slot | None:
        """The slot kept for this session's next turn, unless another request of the session is using it."""
        named = self._kept.get(request.session_id, ())
        mine = [slot for slot in named if slot.policy == request.policy and not slot.busy]
        return min(mine, key=_INDEX) if mine else None

    def _free_slot(self) -> Slot:
        """A slot nobody's next turn needs, the lowest first so that running slots stay neighbours; else the least recently used.

        A session whose next turn is waiting already goes last, and of those the one furthest back: taking turns through more sessions
        than slots would otherwise throw out each one just before it is needed.
        """
        if self._unclaimed:
            return self.slots[heappop(self._unclaimed)]
        idle = [slot for slot in self.slots if not slot.busy]
        place = {request.session_id: i for i, request in enumerate(self.waiting)}
        return min(idle, key=lambda slot: self._worth(slot, place))

    def _best_source(self, request: Request, *, at_least: int, known: Sequence[int]) -> tuple[Slot | None, int]:
        """The slot with the most of the prompt, the lowest of several. `known`: the keys of the prompt's first blocks."""
        best, most = None, at_least - 1
        if self.deterministic or request.num_prompt - 1 < at_least:
            return None, 0
        found = self._beginnings.of(
            request.ids,
            length=request.num_prompt - 1,
            policy=request.policy,
            version=self.versions[request.policy],
            known=known,
            at_least=at_least,
        )
        for index in sorted(found):
            slot = self.slots[index]
            # else it cannot share more than `most`
            promising = len(slot.ids) > most and slot.ids[most] == request.ids[most]
            if promising and (shared := self._usable(slot, request)) > most:
                best, most = slot, shared
        return best, most

    def _usable(self, slot: Slot, request: Request) -> int:
        """Tokens of the prompt that `slot` holds or is computing. The last one is always computed: it yields the first logits."""
        if not self._matches(slot, request):
            return 0
        held = len(slot.ids) if slot.busy else slot.length
        return common_prefix(slot.ids, request.ids, most=min(held, request.num_prompt - 1))

    def _matches(self, slot: Slot, request: Request) -> bool:
        return slot.policy == request.policy and slot.version == self.versions[request.policy]

    # -------------------------------------------------------------------------------------------- pages

    def _has_room(self, request: Request, found: Found) -> bool:
        """Room for all it has and what it says next, with a page to grow for each that runs: else it would soon be sent back."""
        if self.pages is None or not self.running:
            return True
        wanted = self.pages.needed(len(request.ids) + self.decode_steps) + len(self.running)
        if found.source and found.source.busy:
            wanted -= found.num_shared // self.pages.tokens  # they are counted with those that run
        return wanted <= self.pages.count - self.pages.num_pinned

    def _trim(self, slot: Slot, kept: int) -> int:
        """Lets go of all that lies beyond the first `kept` tokens; says how many can be kept. The page that is written to next must be
        the slot's alone: what others hold of it is computed again."""
        if self.pages is None:
            return kept
        self.pages.shrink(slot.index, kept)
        if kept % self.pages.tokens and self.pages.is_shared(slot.index, token=kept):
            kept -= kept % self.pages.tokens
            self.pages.shrink(slot.index, kept)
        return kept

    def _make_room(self, slot: Slot, request: Request) -> None:
        """Pages of `slot` for all that `request` has, but those that its leader will share with it."""
        if self.pages is None:
            return
        promised = request.num_shared // self.pages.tokens if request.leader else 0
        tokens = len(request.ids) - promised * self.pages.tokens
        self._evict(self.pages.missing(slot.index, tokens), sparing=(slot,))
        self.pages.grow(slot.index, tokens)

    def _evict(self, wanted: int, *, sparing: Collection[Slot]) -> None:
        """Idle sessions lose what was kept for them until `wanted` pages are free, or none is left. What is of an old version goes at
        once: nobody wants it, and looking for pages one by one takes long."""
        assert self.pages is not None
        if self.pages.num_free >= wanted:
            return
        place = {request.session_id: i for i, request in enumerate(self.waiting)}
        idle = [
            slot for slot in self.slots if not slot.busy and slot not in sparing and self.pages.num_held(slot.index)
        ]
        for slot in idle:
            if self._is_old(slot):
                self._forget(slot)
        for slot in sorted(idle, key=lambda s: self._worth(s, place)):
            if self.pages.num_free >= wanted:
                return
            self._forget(slot)

    def _is_old(self, slot: Slot) -> bool:
        return slot.version != self.versions.get(slot.policy)

    def _worth(self, slot: Slot, place: Mapping[str, int]) -> tuple[int, int]:
        """Of what an idle slot holds, by who will want it: nobody, a session that may come back, one that waits (its place in the
        queue). What is of an old version nobody wants."""
        if slot.session_id is None or self._is_old(slot):
            return 0, slot.used
        return (2, -place[slot.session_id]) if slot.session_id in place else (1, slot.used)

    def _grown(self, request: Request, tokens: int) -> bool:
        """Whether the request could get pages for `tokens`; where others had to give way for it, they have, and what was in flight of
        them is in vain. False: it had to itself."""
        if self.pages is None or request.slot is None:
            return request.slot is not None
        index = request.slot.index
        if not self.pages.missing(index, tokens):
            return True
        while self.pages.missing(index, tokens) > self.pages.num_free:
            self._evict(self.pages.missing(index, tokens), sparing=())
            if self.pages.missing(index, tokens) <= self.pages.num_free:
                break
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is request:
                return False
        self.pages.grow(index, tokens)
        return True

    def _preempt(self, request: Request) -> None:
        self._forget(self._vacate(request))
        self.waiting.appendleft(request)
        self.num_preempted += 1

    def _forget(self, slot: Slot) -> None:
        self._beginnings.cut(slot, 0)
        self._claim(slot, None)
        slot.version, slot.length = None, 0
        if self.pages:
            self.pages.shrink(slot.index, 0)

    # -------------------------------------------------------------------------------------------- passes

    def _passes(self) -> Iterator[Pass]:
        chunks = list(self._chunks())
        if self.deterministic:
            yield from (Pass(chunk.request.policy, (chunk,)) for chunk in chunks)
            return
        by_policy: dict[str, list[Chunk]] = {}
        for chunk in chunks:
            by_policy.setdefault(chunk.request.policy, []).append(chunk)
        for policy, mine in by_policy.items():
            if self.decode_steps > 1:
                yield from self._separate_passes(policy, mine)
                continue
            decode = sorted((chunk for chunk in mine if chunk.width == 1), key=_SLOT)
            yield Pass(policy, (*decode, *(chunk for chunk in mine if chunk.width > 1)))

    def _separate_passes(self, policy: str, chunks: list[Chunk]) -> Iterator[Pass]:
        decode: list[Chunk] = []
        prompts: list[Chunk] = []
        for chunk in chunks:
            (decode if chunk.decodes else prompts).append(chunk)
        if decode:  # first: it may go on from what the prompts before these have drawn
            yield Pass(policy, tuple(sorted(decode, key=_SLOT)))
        if prompts:
            yield Pass(policy, tuple(prompts))

    def _chunks(self) -> Iterator[Chunk]:
        budget = self.prefill_tokens
        for request in list(self.running):
            slot = request.slot
            if slot is None or request.leader is not None:
                continue  # an older one took its pages a moment ago, or it waits for its leader
            if request.in_flight:
                yield from self._next_block(request, slot)
                continue
            missing = len(request.ids) - slot.length
            count = 1 if missing == 1 else min(missing, self.prefill_tokens if self.deterministic else budget)
            if not count:
                continue
            steps = self.steps if missing == 1 else 1
            if not self._grown(request, slot.length + count + steps - 1):
                continue
            if missing > 1:
                budget -= count
            ids = request.ids[slot.length : slot.length + count]
            samples = count == missing
            draft = self._draft(request) if samples else ()
            yield Chunk(request, slot.index, slot.length, ids, samples, draft, steps)

    def _next_block(self, request: Request, slot: Slot) -> Iterator[Chunk]:
        """What comes after the tokens that are being drawn, unless they are the last for certain."""
        last = request.in_flight[-1]
        drawn = request.num_sampled + sum(chunk.steps for chunk in request.in_flight)
        if self.decode_steps == 1 or not last.samples or drawn >= request.sampling.max_tokens:
            return
        start = last.end + last.steps - 1
        if self._grown(request, start + self.steps):
            yield Chunk(request, slot.index, start, [UNKNOWN], samples=True, steps=self.steps)

    def _draft(self, request: Request) -> tuple[int, ...]:
        if self.drafts is None:
            return ()
        return self.drafts.after(request.ids, most=self._longest_draft(request), stop_ids=request.sampling.stop_ids)

    def _longest_draft(self, request: Request) -> int:
        """Behind the last token that may be sampled nothing is computed."""
        return min(LONGEST, request.sampling.max_tokens - request.num_sampled - 1) if self.drafts else 0
