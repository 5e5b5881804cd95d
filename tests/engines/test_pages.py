"""Pages without a model: a machine with real page memory carries plans out, reading and writing through the tables it was told."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.engines.pages import Pages, pages_within
from ludus.engines.plan import UNKNOWN, Chunk, Pass, Request
from ludus.engines.schedule import MIN_SHARED, Schedule
from ludus.types import Completion, Sampling

TOKENS = 4
"""Of a page."""


def make_schedule(*, count: int, num_rows: int = 6, max_running: int = 4, row_tokens: int = 40, **changes) -> Schedule:
    pages = Pages(count=count, tokens=TOKENS, num_rows=num_rows)
    schedule = Schedule(
        num_rows=num_rows,
        row_tokens=row_tokens,
        max_running=max_running,
        pages=pages,
        **{"prefill_tokens": 64, "decode_steps": 3, **changes},
    )
    schedule.loaded("current", version=0)
    return schedule


def make_request(ids: list[int], *, session: str = "a", tokens: int = 3) -> Request:
    return Request(list(ids), Sampling(max_tokens=tokens, stop_ids=(99,)), session)


def holders(pages: Pages, *, num_rows: int) -> Counter[int]:
    """By page, counted from scratch."""
    return Counter(page for row in range(num_rows) for page in pages.held(row))


def check_pages(pages: Pages, *, num_rows: int, running: Collection[int]) -> None:
    held, free = holders(pages, num_rows=num_rows), set(pages._free)
    assert len(free) == pages.num_free, "no page is free twice"
    assert not free & held.keys(), "no page is free while anybody holds it"
    assert free | held.keys() == set(range(1, pages.count + 1)), "none is lost, and page 0 is nobody's"
    assert all(len(set(pages.held(row))) == pages.num_held(row) for row in range(num_rows))
    assert pages.num_pinned == len({page for row in running for page in pages.held(row)})
    for row in range(num_rows):
        assert set(pages.alone(row)) == {page for page in pages.held(row) if held[page] == 1}


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
    holders: Counter[int] = field(default_factory=Counter)
    overlaps: bool = False
    """What one step launches is collected in the next, after its plan."""
    launched: list[tuple[Chunk, list[int]]] = field(default_factory=list)

    @property
    def unheard(self) -> dict[Request, list[int]]:
        """What was drawn for a request and is in flight."""
        drawn: dict[Request, list[int]] = {}
        for chunk, tokens in self.launched:
            if chunk in chunk.request.in_flight:
                drawn.setdefault(chunk.request, []).extend(tokens)
        return drawn

    def page(self, number: int) -> list:
        return self.memory.setdefault(number, [None] * TOKENS)

    def step(self, *, rng: random.Random) -> None:
        schedule = self.schedule
        plan = schedule.plan()
        self.check()
        self.tables.update(plan.tables)
        for request in plan.admitted:
            self.started.setdefault(request, schedule.versions[request.policy])
        for source, target in plan.copies:
            contents = [list(self.page(page)) for page in source.pages]
            assert len(source.pages) == len(target.pages) == 1, "what fills a page is shared, not copied"
            for page, content in zip(target.pages, contents, strict=True):
                self.memory[page] = content
        launched = [(chunk, self.compute(chunk, planned, rng)) for planned in plan.passes for chunk in planned.chunks]
        before, self.launched = self.launched, launched
        self.collect(before)
        if not self.overlaps:
            self.collect_all()

    def collect_all(self) -> None:
        launched, self.launched = self.launched, []
        self.collect(launched)

    def collect(self, launched: list[tuple[Chunk, list[int]]]) -> None:
        for chunk, drawn in launched:
            if chunk in chunk.request.in_flight:
                self.advance(chunk, drawn)

    def check(self) -> None:
        rows, pages = self.schedule.rows, self.schedule.pages
        check_pages(pages, num_rows=len(rows), running=[row.index for row in rows if row.busy])
        self.holders = holders(pages, num_rows=len(rows))

    def compute(self, chunk: Chunk, planned: Pass, rng: random.Random) -> list[int]:
        request, version = chunk.request, self.schedule.versions[chunk.request.policy]
        ids = [*request.ids, *self.unheard.get(request, ())]
        assert [entry[0] for entry in self.read(chunk.row, chunk.start)] == ids[: chunk.start]
        assert all(entry[1] >= self.started[request] for entry in self.read(chunk.row, chunk.start))
        fed = ids[chunk.start : chunk.end]
        assert chunk.ids == (fed if chunk.end <= len(request.ids) else [UNKNOWN])
        drawn = [rng.choice([7, 8, 9, 99]) for _ in range(planned.steps) if chunk.samples]
        for offset, token in enumerate([*fed, *drawn[:-1]]):
            self.write(chunk.row, chunk.start + offset, (token, version))
        return drawn

    def advance(self, chunk: Chunk, drawn: list[int]) -> None:
        request = chunk.request
        before = list(request.ids)
        completion = self.schedule.advance(chunk, drawn=(drawn, [-1.0] * len(drawn)))
        self.said.setdefault(request, []).extend(request.ids[len(before) :])
        if completion:
            self.done.append((request, completion))

    def read(self, row: int, count: int) -> list:
        table = self.tables.get(row, ())
        return [self.page(table[position // TOKENS])[position % TOKENS] for position in range(count)]

    def write(self, row: int, position: int, entry: tuple) -> None:
        page = self.tables[row][position // TOKENS]
        assert self.holders[page] == 1, "nobody writes where two read"
        self.page(page)[position % TOKENS] = entry

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
    assert schedule.pages.num_held(0) == schedule.pages.needed(schedule.rows[0].length)


def test_when_pages_run_out_the_youngest_gives_way_and_keeps_its_tokens():
    schedule = make_schedule(count=11, row_tokens=36, decode_steps=1)
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
    schedule = make_schedule(count=12, row_tokens=40)
    machine = Machine(schedule)
    for session in ("first", "second", "released"):
        schedule.add(make_request([1, 2, 3, 4, 5, 6, 7], session=session, tokens=1))
        machine.run(rng=RNG)
    schedule.release("released")
    kept = {row.session_id for row in schedule.rows if row.length and row.session_id}
    assert kept == {"first", "second"}
    schedule.add(make_request([9] * 36, session="large", tokens=1))
    machine.run(rng=RNG)
    assert {row.session_id for row in schedule.rows if row.length and row.session_id} == {"second", "large"}
    assert schedule.num_preempted == 0


def test_a_request_that_finds_no_room_waits_and_nobody_overtakes_it():
    schedule = make_schedule(count=13, row_tokens=40)
    machine = Machine(schedule)
    requests = [make_request([i] * size, session=str(i), tokens=3) for i, size in enumerate((24, 24, 2, 2))]
    for request in requests:
        schedule.add(request)
    machine.step(rng=RNG)
    assert list(machine.started) == requests[:1], "the small ones behind would fit, and wait all the same"
    machine.run(rng=RNG)
    assert list(machine.started) == requests
    assert len(machine.done) == 4


def test_siblings_hold_the_pages_of_their_prompt_together_and_copy_only_the_last():
    schedule = make_schedule(count=40, row_tokens=60, prefill_tokens=100)
    machine = Machine(schedule)
    prompt = list(range(MIN_SHARED + 6))  # five pages that are full, and one that is not
    for attempt in range(4):
        schedule.add(make_request(prompt, session=str(attempt), tokens=2))
    machine.step(rng=NEVER_STOPS)
    machine.step(rng=NEVER_STOPS)
    first, *others = [schedule.pages.held(row)[:5] for row in range(4)]
    assert others == [first] * 3
    machine.run(rng=NEVER_STOPS)
    assert schedule.num_reused == 3 * (len(prompt) - 1)
    assert schedule.pages.num_free == 40 - 5 - 4, "five together, and one each"


def test_siblings_fit_where_copies_of_their_prompt_would_not():
    schedule = make_schedule(count=14, row_tokens=40, decode_steps=1)
    machine = Machine(schedule)
    for attempt in range(4):
        schedule.add(make_request([5] * 25, session=str(attempt), tokens=4))
    machine.step(rng=NEVER_STOPS)
    machine.step(rng=NEVER_STOPS)
    assert len(schedule.running) == 4, "7 pages each, if each had its own"
    machine.run(rng=NEVER_STOPS)
    assert schedule.num_preempted == 0
    assert len(machine.done) == 4


def test_of_what_sessions_had_said_or_heard_before_nine_tenths_are_not_computed_again():
    schedule = make_schedule(count=200, num_rows=8, max_running=8, row_tokens=120)
    machine, seen = Machine(schedule), 0
    histories = {str(attempt): list(range(30)) for attempt in range(8)}
    for turn in range(6):
        for session, history in histories.items():
            seen += len(history) if turn or session != "0" else 0  # of the first turn, what a sibling had heard
            schedule.add(make_request([*history, turn], session=session, tokens=6))
        machine.run(rng=NEVER_STOPS)
        for request, _ in machine.done[-8:]:
            histories[request.session_id] = list(request.ids)
    assert schedule.num_reused > 0.9 * seen


def test_a_prompt_of_whole_pages_is_shared_without_a_copy():
    schedule = make_schedule(count=40, row_tokens=60)
    machine = Machine(schedule)
    for attempt in range(3):
        schedule.add(make_request([*range(20), attempt], session=str(attempt), tokens=1))
    machine.step(rng=RNG)
    assert schedule.plan().copies == ()
    assert schedule.num_reused == 2 * 20


def test_the_leader_may_go_and_its_followers_keep_what_they_share():
    schedule = make_schedule(count=40, row_tokens=60)
    machine = Machine(schedule)
    leader, *others = [make_request([3] * 21, session=str(i), tokens=9) for i in range(3)]
    for request in (leader, *others):
        schedule.add(request)
    machine.step(rng=NEVER_STOPS)
    machine.step(rng=NEVER_STOPS)
    shared = schedule.pages.held(1)[:5]
    held = schedule.cancel(leader)
    assert not set(held.pages) & set(shared), "what others read is not cleared"
    machine.check()
    machine.run(rng=NEVER_STOPS)
    assert len(machine.done) == 2


def test_a_session_that_goes_back_behind_what_it_shares_leaves_the_others_alone():
    """Its next prompt parts from its last one in the middle of a page that its sibling reads."""
    schedule = make_schedule(count=40, row_tokens=60)
    machine = Machine(schedule)
    for name in ("goes back", "stays"):
        schedule.add(make_request([4] * 25, session=name, tokens=1))
    machine.run(rng=NEVER_STOPS)
    shared = schedule.pages.held(1)[:6]
    schedule.add(make_request([4] * 10 + [5] * 10, session="goes back", tokens=1))
    machine.run(rng=NEVER_STOPS)
    assert schedule.pages.held(0)[:2] == shared[:2], "two pages are the same for both"
    assert schedule.pages.held(1)[:6] == shared
    schedule.add(make_request([4] * 25 + [7, 7], session="stays", tokens=1))
    machine.run(rng=NEVER_STOPS)


def test_a_cancelled_requests_pages_are_free_and_named_to_be_cleared():
    schedule = make_schedule(count=12)
    machine = Machine(schedule)
    request = make_request([1] * 9, tokens=20)
    schedule.add(request)
    machine.step(rng=random.Random(3))
    held = schedule.cancel(request)
    assert held is not None
    assert len(held.pages) >= 3
    assert schedule.pages.num_free == 12


def test_starting_over_with_fewer_pages_loses_no_token():
    schedule = make_schedule(count=30)
    machine = Machine(schedule)
    requests = [make_request([i] * 10, session=str(i), tokens=9) for i in range(3)]
    for request in requests:
        schedule.add(request)
    machine.step(rng=NEVER_STOPS)
    had = {request: list(request.ids) for request in requests}
    schedule.start_over(Pages(count=12, tokens=TOKENS, num_rows=len(schedule.rows)))
    machine.memory.clear()
    machine.tables.clear()
    assert list(schedule.waiting) == requests, "and they are in the order they came"
    machine.run(rng=NEVER_STOPS)
    assert all(request.ids[: len(had[request])] == had[request] for request in requests)


def test_what_an_old_version_left_gives_way_before_what_is_still_of_use():
    schedule = make_schedule(count=11, num_rows=3, max_running=1, decode_steps=1)
    machine = Machine(schedule)
    for version, session in ((0, "old"), (1, "new")):
        schedule.loaded("current", version=version)
        schedule.add(make_request([version] * 13, session=session))
        machine.run(rng=NEVER_STOPS)
    held = {row.session_id: row.index for row in schedule.rows}
    assert all(schedule.pages.num_held(held[session]) == 4 for session in ("old", "new"))
    schedule.add(make_request([5] * 18, session="third"))
    schedule.add(make_request([0] * 14, session="old"))  # waits, which would make it the last to go
    machine.step(rng=NEVER_STOPS)
    assert [schedule.pages.num_held(held[session]) for session in ("old", "new")] == [0, 4]
    machine.run(rng=NEVER_STOPS)


def test_decoding_goes_on_before_its_tokens_are_heard_of_and_takes_in_whoever_has_read_its_prompt():
    schedule = make_schedule(count=40)
    machine = Machine(schedule, overlaps=True)
    schedule.add(make_request([1] * 5, session="a", tokens=30))
    steps = []
    for step in range(5):
        if step in (1, 3):
            schedule.add(make_request([2 + step] * 6, session=str(step), tokens=30))
        machine.step(rng=NEVER_STOPS)
        steps.append(sorted((chunk.row, chunk.start, chunk.decodes) for chunk, _ in machine.launched))
    assert steps[:2] == [[(0, 0, False)], [(0, 5, True), (1, 0, False)]], (
        "the token that a prompt draws is not waited for"
    )
    assert steps[2] == [(0, 8, True), (1, 6, True)]
    assert steps[3] == [(0, 11, True), (1, 9, True), (2, 0, False)]
    assert steps[4] == [(0, 14, True), (1, 12, True), (2, 6, True)]


def test_nothing_is_computed_after_a_last_token_that_is_known_to_be_the_last():
    schedule = make_schedule(count=40)
    machine = Machine(schedule, overlaps=True)
    schedule.add(make_request([1] * 5, tokens=7))  # one by the prompt, then two blocks of three
    launched = []
    for _ in range(6):
        machine.step(rng=NEVER_STOPS)
        launched.append(len(machine.launched))
    assert launched == [1, 1, 1, 0, 0, 0]
    assert len(machine.done[0][1].ids) == 7


def test_what_is_decoded_in_vain_leaves_the_sessions_next_turn_and_its_pages_as_they_should_be():
    schedule = make_schedule(count=40)
    machine = Machine(schedule, overlaps=True)
    schedule.add(make_request([1] * 5, tokens=30))
    ends = random.Random()
    ends.choice = lambda tokens: 99  # type: ignore[method-assign]
    # a prompt, a block in which it ends, one in vain
    for rng in (NEVER_STOPS, ends, NEVER_STOPS):
        machine.step(rng=rng)
    assert [len(completion.ids) for _, completion in machine.done] == [2]
    assert len(machine.launched) == 1, "a block in vain is in flight"
    assert schedule.pages.num_held(0) == 2, "and has no more pages"
    request = machine.done[0][0]
    schedule.add(make_request([*request.ids, 5, 5], tokens=3))
    machine.run(rng=NEVER_STOPS)
    assert schedule.num_reused == 6, "what was kept is the turn that ended, not what came after it"


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(11, 30),
    steps=st.integers(1, 5),
    prefill=st.integers(1, 40),
    overlaps=st.booleans(),
)
def test_whatever_happens_everything_finishes_within_the_budget_and_with_the_tokens_it_drew(
    seed, count, steps, prefill, overlaps
):
    """Sessions of several turns and with much in common, cancellations, releases, loads; `Machine` checks holders, tables and every
    cached token."""
    rng = random.Random(seed)
    num_rows = rng.randint(1, 6)
    schedule = make_schedule(
        count=count,
        num_rows=num_rows,
        max_running=rng.randint(1, num_rows),
        row_tokens=TOKENS * 11 - steps,
        decode_steps=steps,
        prefill_tokens=prefill,
    )
    machine, added, cancelled = Machine(schedule, overlaps=overlaps), [], set()
    prompt = [rng.randrange(2) for _ in range(24)]
    histories = {str(i): prompt[: rng.randint(1, 24)] + [rng.randrange(2)] * rng.randint(0, 3) for i in range(5)}
    for _ in range(40):
        event = rng.random()
        if event < 0.45:
            session = rng.choice(sorted(histories))
            most = schedule.row_tokens + 1 - len(histories[session])
            if most > 0:
                added.append(make_request(histories[session], session=session, tokens=rng.randint(1, min(most, 16))))
                schedule.add(added[-1])
        elif event < 0.5:
            machine.collect_all()
            schedule.loaded("current", version=schedule.versions["current"] + 1)
        elif event < 0.55 and added:
            cancelled.add(rng.choice(added))
            for request in cancelled:
                schedule.cancel(request)
        elif event < 0.6:
            schedule.release(rng.choice(sorted(histories)))
        schedule.steps = rng.randint(1, steps) if steps > 1 else 1
        machine.step(rng=rng)
        for request, _ in machine.done:
            if len(request.ids) < 24:
                histories[request.session_id] = [*request.ids, rng.randrange(2)]
    machine.run(rng=rng)
    machine.check()
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


EVENTS = st.tuples(st.sampled_from(["grow", "share", "shrink", "pin"]), st.integers(0, 3), st.integers(0, 30))


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=40))
def test_no_page_is_free_while_anybody_holds_it_and_none_is_lost(events):
    pages, running = Pages(count=12, tokens=TOKENS, num_rows=4), set()
    for kind, row, tokens in events:
        other = (row + 1 + tokens % 3) % 4
        if kind == "grow" and pages.missing(row, tokens) <= pages.num_free:
            pages.grow(row, tokens)
        elif kind == "share" and not pages.num_held(row):
            pages.share(other, target=row, count=min(tokens // TOKENS, pages.num_held(other)))
        elif kind == "shrink":
            pages.shrink(row, tokens)
        elif kind == "pin":
            (pages.unpin if row in running else pages.pin)(row)
            running ^= {row}
        check_pages(pages, num_rows=4, running=running)
    for row in range(4):
        pages.shrink(row, 0)
    assert pages.num_free == 12
