"""Pages without a model: a machine with real page memory carries plans out, reading and writing through the tables it was told."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.engines.pages import Pages, pages_within
from ludus.engines.plan import Chunk, Pass, Request
from ludus.engines.schedule import MIN_SHARED, Schedule
from ludus.types import Completion, Sampling

TOKENS = 4
"""Of a page."""


def make_schedule(
    *, count: int, num_slots: int = 6, max_running: int = 4, slot_tokens: int = 40, **changes
) -> Schedule:
    pages = Pages(count=count, tokens=TOKENS, num_slots=num_slots)
    schedule = Schedule(
        num_slots=num_slots,
        slot_tokens=slot_tokens,
        max_running=max_running,
        pages=pages,
        **{"prefill_tokens": 64, "decode_steps": 3, **changes},
    )
    schedule.loaded("current", version=0)
    return schedule


def make_request(ids: list[int], *, session: str = "a", tokens: int = 3) -> Request:
    return Request(list(ids), Sampling(max_tokens=tokens, stop_ids=(99,)), session)


def check_owners(pages: Pages, *, num_slots: int) -> None:
    owned = [page for slot in range(num_slots) for page in pages.held(slot)]
    assert len(owned) == len(set(owned)), "no page has two owners"
    assert 0 not in owned, "page 0 is nobody's"
    assert len(owned) + pages.num_free == pages.count, "none is lost, and there are never more than the budget's"


@dataclass
class Machine:
    """memory[page] is what a real page would hold: (token, version) at each of its places; `tables` what the device was told."""

    schedule: Schedule
    memory: dict[int, list] = field(default_factory=dict)
    tables: dict[int, tuple[int, ...]] = field(default_factory=dict)
    started: dict[Request, int] = field(default_factory=dict)
    done: list[tuple[Request, Completion]] = field(default_factory=list)
    said: dict[Request, list[int]] = field(default_factory=dict)
    """Every token that was ever drawn for a request and kept, in order."""

    def page(self, number: int) -> list:
        return self.memory.setdefault(number, [None] * TOKENS)

    def step(self, *, rng: random.Random) -> None:
        schedule = self.schedule
        plan = schedule.plan()
        assert schedule.pages is not None
        check_owners(schedule.pages, num_slots=len(schedule.slots))
        self.tables.update(plan.tables)
        for request in plan.admitted:
            self.started.setdefault(request, schedule.versions[request.policy])
        for copy in plan.copies:
            contents = [list(self.page(page)) for page in copy.source_pages]
            assert len(copy.source_pages) == len(copy.target_pages) == schedule.pages.needed(copy.count)
            for page, content in zip(copy.target_pages, contents, strict=True):
                self.memory[page] = content
        for planned in plan.passes:
            for chunk in planned.chunks:
                self.compute(chunk, planned)
            for chunk in planned.chunks:
                self.advance(chunk, planned, rng)

    def compute(self, chunk: Chunk, planned: Pass) -> None:
        request, version = chunk.request, self.schedule.versions[chunk.request.policy]
        assert [entry[0] for entry in self.read(chunk.slot, chunk.start)] == request.ids[: chunk.start]
        assert all(entry[1] >= self.started[request] for entry in self.read(chunk.slot, chunk.start))
        for offset, token in enumerate(chunk.ids):
            self.write(chunk.slot, chunk.start + offset, (token, version))
        for ahead in range(1, planned.steps):
            self.write(chunk.slot, chunk.start + ahead, ("drawn", version))

    def advance(self, chunk: Chunk, planned: Pass, rng: random.Random) -> None:
        request = chunk.request
        before = list(request.ids)
        drawn = [(rng.choice([7, 8, 9, 99]), -1.0) for _ in range(planned.steps) if chunk.samples]
        for ahead, (token, _) in enumerate(drawn[:-1], start=1):
            self.write(chunk.slot, chunk.end - 1 + ahead, (token, self.schedule.versions[request.policy]))
        completion = self.schedule.advance(chunk, drawn=drawn)
        self.said.setdefault(request, []).extend(request.ids[len(before) :])
        if completion:
            self.done.append((request, completion))

    def read(self, slot: int, count: int) -> list:
        table = self.tables.get(slot, ())
        return [self.page(table[position // TOKENS])[position % TOKENS] for position in range(count)]

    def write(self, slot: int, position: int, entry: tuple) -> None:
        self.page(self.tables[slot][position // TOKENS])[position % TOKENS] = entry

    def run(self, *, rng: random.Random, most: int = 3000) -> None:
        for _ in range(most):
            if not (self.schedule.running or self.schedule.waiting):
                return
            self.step(rng=rng)
        raise AssertionError("not everything was served")


class _NeverStops(random.Random):
    def choice(self, options):
        return 7


RNG, NEVER_STOPS = random.Random(0), _NeverStops()


def test_pages_are_taken_as_a_sequence_grows_and_given_back_past_its_end():
    schedule = make_schedule(count=20)
    machine = Machine(schedule)
    schedule.add(make_request([1, 2, 3], tokens=12))
    held = []
    while schedule.running or schedule.waiting:
        machine.step(rng=random.Random(7))
        held.append(schedule.pages.num_held(0))
    assert held[0] < held[-1] or len(held) == 1
    assert schedule.pages.num_held(0) == schedule.pages.needed(schedule.slots[0].length)


def test_when_pages_run_out_the_youngest_gives_way_and_keeps_its_tokens():
    schedule = make_schedule(count=11, slot_tokens=36, decode_steps=1)
    machine = Machine(schedule)
    old, young = make_request([1] * 12, session="old", tokens=20), make_request([2] * 12, session="young", tokens=20)
    for request in (old, young):
        schedule.add(request)
    while not schedule.num_preempted:
        machine.step(rng=NEVER_STOPS)
    assert schedule.running == [old]
    assert list(schedule.waiting) == [young]
    had = list(young.ids)
    assert len(had) > 12
    machine.run(rng=NEVER_STOPS)
    assert young.ids[: len(had)] == had, "what it had said stands"
    assert [request for request, _ in machine.done] == [old, young]
    assert machine.said[young] == list(machine.done[1][1].ids)


def test_sessions_between_turns_lose_their_cache_before_anybody_who_runs_gives_way_the_least_recent_first():
    schedule = make_schedule(count=12, slot_tokens=40)
    machine = Machine(schedule)
    for session in ("first", "second", "released"):
        schedule.add(make_request([1, 2, 3, 4, 5, 6, 7], session=session, tokens=1))
        machine.run(rng=RNG)
    schedule.release("released")
    kept = {slot.session_id for slot in schedule.slots if slot.length and slot.session_id}
    assert kept == {"first", "second"}
    schedule.add(make_request([9] * 36, session="large", tokens=1))
    machine.run(rng=RNG)
    assert {slot.session_id for slot in schedule.slots if slot.length and slot.session_id} == {"second", "large"}
    assert schedule.num_preempted == 0


def test_a_request_that_finds_no_room_waits_and_nobody_overtakes_it():
    schedule = make_schedule(count=13, slot_tokens=40)
    machine = Machine(schedule)
    requests = [make_request([i] * size, session=str(i), tokens=3) for i, size in enumerate((24, 24, 2, 2))]
    for request in requests:
        schedule.add(request)
    machine.step(rng=RNG)
    assert list(machine.started) == requests[:1], "the small ones behind would fit, and wait all the same"
    machine.run(rng=RNG)
    assert list(machine.started) == requests
    assert len(machine.done) == 4


def test_a_shared_prompt_is_copied_page_by_page():
    schedule = make_schedule(count=40, slot_tokens=60)
    machine = Machine(schedule)
    prompt = list(range(MIN_SHARED + 5))
    for attempt in range(4):
        schedule.add(make_request(prompt, session=str(attempt), tokens=2))
    machine.run(rng=RNG)
    assert schedule.num_reused == 3 * (len(prompt) - 1)


def test_a_cancelled_requests_pages_are_free_and_named_to_be_cleared():
    schedule = make_schedule(count=12)
    machine = Machine(schedule)
    request = make_request([1] * 9, tokens=20)
    schedule.add(request)
    machine.step(rng=random.Random(3))
    spill = schedule.cancel(request)
    assert spill is not None
    assert len(spill.pages) >= 3
    assert schedule.pages.num_free == 12


def test_starting_over_with_fewer_pages_loses_no_token():
    schedule = make_schedule(count=30)
    machine = Machine(schedule)
    requests = [make_request([i] * 10, session=str(i), tokens=9) for i in range(3)]
    for request in requests:
        schedule.add(request)
    machine.step(rng=NEVER_STOPS)
    had = {request: list(request.ids) for request in requests}
    schedule.start_over(Pages(count=12, tokens=TOKENS, num_slots=len(schedule.slots)))
    machine.memory.clear()
    machine.tables.clear()
    assert list(schedule.waiting) == requests, "and they are in the order they came"
    machine.run(rng=NEVER_STOPS)
    assert all(request.ids[: len(had[request])] == had[request] for request in requests)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(11, 30), steps=st.integers(1, 5), prefill=st.integers(1, 40))
def test_whatever_happens_everything_finishes_within_the_budget_and_with_the_tokens_it_drew(
    seed, count, steps, prefill
):
    """Sessions of several turns, cancellations, releases, loads; `Machine` checks owners, tables and every cached token."""
    rng = random.Random(seed)
    num_slots = rng.randint(1, 6)
    schedule = make_schedule(
        count=count,
        num_slots=num_slots,
        max_running=rng.randint(1, num_slots),
        slot_tokens=TOKENS * 11 - steps,
        decode_steps=steps,
        prefill_tokens=prefill,
    )
    machine, added, cancelled = Machine(schedule), [], set()
    histories = {str(i): [rng.randrange(2) for _ in range(rng.randint(1, 20))] for i in range(5)}
    for _ in range(40):
        event = rng.random()
        if event < 0.45:
            session = rng.choice(sorted(histories))
            most = schedule.slot_tokens + 1 - len(histories[session])
            if most > 0:
                added.append(make_request(histories[session], session=session, tokens=rng.randint(1, min(most, 16))))
                schedule.add(added[-1])
        elif event < 0.5:
            schedule.loaded("current", version=schedule.versions["current"] + 1)
        elif event < 0.55 and added:
            cancelled.add(rng.choice(added))
            for request in cancelled:
                schedule.cancel(request)
        elif event < 0.6:
            schedule.release(rng.choice(sorted(histories)))
        machine.step(rng=rng)
        for request, _ in machine.done:
            if len(request.ids) < 24:
                histories[request.session_id] = [*request.ids, rng.randrange(2)]
    machine.run(rng=rng)
    served = [request for request, _ in machine.done]
    assert len(served) == len(set(served))
    assert set(added) - cancelled <= set(served)
    for request, completion in machine.done:
        assert list(completion.ids) == machine.said[request]
        assert (
            len(completion.logprobs) == len(completion.versions) == len(completion.ids) <= request.sampling.max_tokens
        )
        assert list(completion.versions) == sorted(completion.versions)


@given(st.floats(0.01, 1), st.integers(1, 2**40), st.integers(1, 2**24), st.integers(1, 10**6))
def test_pages_never_exceed_their_share_of_the_memory_nor_what_can_be_used(share, total, page_bytes, most):
    count = pages_within(share, total_bytes=total, page_bytes=page_bytes, most=most)
    assert count * page_bytes <= share * total
    assert count <= most


@pytest.mark.parametrize(("budget", "expected"), [(0.5, 4), (1.0, 8), (2.0, 2 * 2**30 // 2**20)])
def test_a_budget_is_a_share_up_to_one_and_gib_above(budget, expected):
    assert pages_within(budget, total_bytes=8 * 2**20, page_bytes=2**20, most=10**9) == expected
