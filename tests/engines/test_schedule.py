"""The schedule without a model: a fake computes chunks by remembering which tokens, of which version, each row's cache holds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.engines.plan import NOTHING
from ludus.engines.prefix_index import common_prefix
from ludus.engines.schedule import MIN_SHARED, Chunk, Pass, Request, Schedule
from ludus.errors import EngineFailed
from ludus.types import Completion, Sampling


def make_schedule(**changes: int | bool) -> Schedule:
    sizes: dict = {"num_rows": 4, "row_tokens": 64, "max_running": 3, "prefill_tokens": 8, **changes}
    schedule = Schedule(**sizes)
    schedule.loaded("current", version=0)
    return schedule


def make_request(ids: list[int], *, session: str = "a", tokens: int = 3, policy: str = "current") -> Request:
    return Request(list(ids), Sampling(max_tokens=tokens, stop_ids=(99,)), session, policy)


@dataclass
class Machine:
    """Carries plans out. cache[row] is what a real cache would hold: (token, policy, version) at each position."""

    schedule: Schedule
    cache: dict[int, list[tuple[int, str, int]]] = field(default_factory=dict)
    done: list[tuple[Request, Completion]] = field(default_factory=list)
    started: dict[Request, int] = field(default_factory=dict)
    passes: list[Pass] = field(default_factory=list)
    num_computed: int = 0

    def step(self, *, rng: random.Random | None = None) -> None:
        plan = self.schedule.plan()
        self.passes += plan.passes
        for request in plan.admitted:
            self.started[request] = self.schedule.versions[request.policy]
        for source, target in plan.copies:
            self.cache[target.row] = self.cache[source.row][: source.count]
        used = [chunk.row for planned in plan.passes for chunk in planned.chunks]
        assert len(used) == len(set(used)), "no row is used twice"
        for planned in plan.passes:
            for chunk in planned.chunks:
                self.compute(chunk)
                said = [rng.randrange(100) if rng else 7 for _ in range(planned.steps) if chunk.samples]
                if completion := self.schedule.advance(chunk, drawn=(said, [-1.0] * len(said))):
                    self.done.append((chunk.request, completion))

    def compute(self, chunk: Chunk) -> None:
        request, version = chunk.request, self.schedule.versions[chunk.request.policy]
        seen = self.cache.get(chunk.row, [])[: chunk.start]
        assert [token for token, _, _ in seen] == request.ids[: chunk.start], "what is cached is this sequence's prefix"
        assert all(p == request.policy and v >= self.started[request] for _, p, v in seen), "and of this version"
        self.cache[chunk.row] = seen + [(token, request.policy, version) for token in chunk.ids]
        self.num_computed += chunk.count

    def run(self, *, steps: int = 3000) -> None:
        for _ in range(steps):
            if not (self.schedule.running or self.schedule.waiting):
                return
            self.step()
        raise AssertionError("not everything was served")


def test_requests_are_admitted_in_the_order_they_came_and_no_more_run_than_allowed():
    schedule = make_schedule()
    requests = [make_request([i + 1] * 4, session=str(i)) for i in range(5)]
    for request in requests:
        schedule.add(request)
    assert list(schedule.plan().admitted) == requests[:3]
    assert list(schedule.waiting) == requests[3:]


def test_prompts_share_the_prefill_budget_while_decoding_goes_on_in_every_step():
    schedule = make_schedule(prefill_tokens=8)
    machine = Machine(schedule)
    schedule.add(make_request([1, 2, 3], tokens=20))
    machine.step()
    schedule.add(make_request([5] * 20, session="b"))
    counts = []
    for _ in range(3):
        (planned,) = schedule.plan().passes
        counts.append([chunk.count for chunk in planned.chunks])
        for chunk in planned.chunks:
            schedule.advance(chunk, drawn=([7], [0.0]) if chunk.samples else NOTHING)
    assert counts == [[1, 8], [1, 8], [1, 4]]


def test_the_next_turn_of_a_session_computes_only_what_is_new():
    schedule = make_schedule(prefill_tokens=64)
    machine = Machine(schedule)
    schedule.add(make_request([1, 2, 3, 4]))
    machine.run()
    before = machine.num_computed
    schedule.add(make_request([1, 2, 3, 4, 7, 7, 7, 8, 9], tokens=1))
    machine.run()
    assert machine.num_computed - before == 3  # the last sampled token, which was never fed back, and the two new ones


def test_a_prompt_that_leaves_the_history_reuses_the_common_prefix_only():
    schedule = make_schedule(prefill_tokens=64)
    machine = Machine(schedule)
    schedule.add(make_request([1, 2, 3, 4]))
    machine.run()
    schedule.add(make_request([1, 2, 8, 8, 8], tokens=1))
    machine.run()
    assert schedule.num_reused == 2


def test_the_least_recently_used_session_makes_room():
    schedule = make_schedule(num_rows=2, max_running=2)
    machine = Machine(schedule)
    for session in ("old", "new", "third"):
        schedule.add(make_request([1, 2, 3], session=session))
        machine.run()
    assert {row.session_id for row in schedule.rows} == {"new", "third"}


def test_a_released_session_makes_room_before_any_other():
    schedule = make_schedule(num_rows=2, max_running=2)
    machine = Machine(schedule)
    for session in ("old", "new"):
        schedule.add(make_request([1, 2, 3], session=session))
        machine.run()
    schedule.release("new")
    schedule.add(make_request([4, 5, 6], session="third"))
    machine.run()
    assert {row.session_id for row in schedule.rows} == {"old", "third"}


def test_a_session_whose_next_turn_is_waiting_keeps_its_row_over_one_that_may_never_come_back():
    schedule = make_schedule(num_rows=2, max_running=1, prefill_tokens=64)
    machine = Machine(schedule)
    for session in ("soon", "idle"):
        schedule.add(make_request([1, 2, 3, 4], session=session))
        machine.run()
    schedule.add(make_request([5, 6], session="other"))
    schedule.add(make_request([1, 2, 3, 4, 7, 7, 7, 8], session="soon"))
    machine.run()
    assert schedule.num_reused == 6
    assert {row.session_id for row in schedule.rows} == {"soon", "other"}


def test_siblings_of_a_group_compute_their_common_prompt_once():
    schedule = make_schedule(max_running=4, prefill_tokens=16)
    machine = Machine(schedule)
    prompt = list(range(40))
    for attempt in range(4):
        schedule.add(make_request(prompt, session=str(attempt), tokens=1))
    machine.run()
    assert len(machine.done) == 4
    assert (
        machine.num_computed == 40 + 3
    )  # the others copy 39 tokens and compute the last, which yields their first logits


def test_a_follower_goes_on_alone_when_its_leader_is_cancelled():
    schedule = make_schedule(prefill_tokens=16)
    machine = Machine(schedule)
    leader, follower = (make_request(list(range(40)), session=name) for name in "ab")
    schedule.add(leader)
    schedule.add(follower)
    machine.step()
    schedule.cancel(leader)
    machine.run()
    assert [request for request, _ in machine.done] == [follower]


def test_loading_keeps_what_is_in_flight_and_versions_change_from_there_on():
    schedule = make_schedule()
    machine = Machine(schedule)
    schedule.add(make_request([1, 2, 3], tokens=4))
    machine.step()
    machine.step()
    schedule.loaded("current", version=5)
    machine.run()
    ((_, completion),) = machine.done
    assert completion.versions == (0, 0, 5, 5)
    assert machine.num_computed == 3 + 3  # nothing was computed again


def test_promise_2_a_new_request_never_meets_the_cache_of_another_version():
    schedule = make_schedule(prefill_tokens=64)
    machine = Machine(schedule)
    flying, idle = make_request([1, 2, 3], tokens=4), make_request([4, 5, 6], session="b", tokens=1)
    schedule.add(flying)
    schedule.add(idle)
    machine.step()
    schedule.loaded("current", version=1)
    machine.run()
    schedule.add(make_request([1, 2, 3, 7, 7, 7, 7, 8], tokens=1))
    schedule.add(make_request([4, 5, 6, 7, 8], session="b", tokens=1))
    before = machine.num_computed
    machine.run()
    assert schedule.num_reused == 0
    assert machine.num_computed - before == 8 + 5


def test_policies_do_not_share_rows_contents_and_load_one_by_one():
    schedule = make_schedule(prefill_tokens=64)
    schedule.loaded("reference", version=0)
    machine = Machine(schedule)
    prompt = list(range(MIN_SHARED * 2))
    for policy in ("current", "reference"):
        schedule.add(make_request(prompt, policy=policy, tokens=1))
        machine.run()
    assert schedule.num_reused == 0
    schedule.loaded("current", version=1)
    schedule.add(make_request([*prompt, 7, 8], policy="reference", tokens=1))
    machine.run()
    assert schedule.num_reused == len(prompt)


def test_cancelling_frees_the_row_and_what_it_held_serves_nobody():
    schedule = make_schedule()
    machine = Machine(schedule)
    running, waiting = make_request([1, 2, 3, 4]), make_request([5, 6])
    schedule.max_running = 1
    schedule.add(running)
    schedule.add(waiting)
    machine.step()
    held = schedule.cancel(running)
    assert held is not None
    assert held.count == 4
    assert not schedule.rows[held.row].busy
    assert schedule.rows[held.row].length == 0
    assert schedule.cancel(waiting) is None
    assert not schedule.running
    assert not schedule.waiting
    assert schedule.cancel(running) is None


def test_a_sequence_that_could_outgrow_its_row_is_told_what_to_change():
    schedule = make_schedule(row_tokens=10)
    schedule.fits(make_request([1] * 8, tokens=3))
    with pytest.raises(EngineFailed, match=r"8 tokens and up to 4 .* keeps 10 .*rollout.max_tokens"):
        schedule.fits(make_request([1] * 8, tokens=4))


def test_deterministic_passes_hold_one_sequence_and_reuse_nothing():
    schedule = make_schedule(deterministic=True, prefill_tokens=16)
    machine = Machine(schedule)
    prompt = list(range(40))
    for session in "abc":
        schedule.add(make_request(prompt, session=session, tokens=2))
    machine.run()
    assert all(len(planned.chunks) == 1 for planned in machine.passes)
    schedule.add(make_request([*prompt, 7, 7, 8], tokens=1))
    machine.run()
    assert schedule.num_reused == 0
    assert machine.num_computed == 3 * 41 + 43


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=30))
def test_the_common_prefix_is_the_longest(a: list[int], b: list[int]):
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(a, b, most=min(len(a), len(b))) == expected


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), deterministic=st.booleans(), num_rows=st.integers(1, 5), prefill=st.integers(1, 30))
def test_whatever_happens_everything_is_served_once_from_caches_of_its_own_version(
    seed: int, deterministic: bool, num_rows: int, prefill: int
):
    """Sessions of several turns, cancellations, releases and loads at random moments. `Machine.compute` checks every cached token."""
    rng = random.Random(seed)
    schedule = make_schedule(
        num_rows=num_rows, max_running=rng.randint(1, num_rows), prefill_tokens=prefill, deterministic=deterministic
    )
    schedule.loaded("reference", version=0)
    machine, cancelled, added = Machine(schedule), set(), []
    histories = {str(i): [rng.randrange(2) for _ in range(rng.randint(1, 24))] for i in range(4)}
    for _ in range(60):
        event = rng.random()
        if event < 0.35:
            session = rng.choice(sorted(histories))
            policy = rng.choice(["current", "current", "reference"])
            added.append(make_request(histories[session], session=session, tokens=rng.randint(1, 4), policy=policy))
            schedule.add(added[-1])
        elif event < 0.45:
            policy = rng.choice(["current", "reference"])
            schedule.loaded(policy, version=schedule.versions[policy] + 1)
        elif event < 0.5 and added:
            cancelled.add(rng.choice(added))
            for request in cancelled:
                schedule.cancel(request)
        elif event < 0.55:
            schedule.release(rng.choice(sorted(histories)))
        machine.step(rng=rng)
        for request, completion in machine.done:
            if len(history := histories[request.session_id]) < 40:
                history[:] = [*request.ids[: request.num_prompt], *completion.ids, rng.randrange(2)]
        assert sum(row.busy for row in schedule.rows) == len(schedule.running) <= schedule.max_running
    machine.run()
    served = [request for request, _ in machine.done]
    assert len(served) == len(set(served))
    assert set(added) - cancelled <= set(served)
    assert not any(row.busy for row in schedule.rows)
    for _, completion in machine.done:
        assert completion.stop == ("end" if completion.ids[-1] == 99 else "length")
        assert list(completion.versions) == sorted(completion.versions)


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_several_steps_at_a_time_say_the_same_and_stop_at_the_same_token(steps):
    schedule = make_schedule(decode_steps=steps, prefill_tokens=5)
    for i in range(5):
        schedule.add(Request(list(range(1, 4 + i)), Sampling(max_tokens=4 + 3 * i, stop_ids=(9,)), str(i)))
    completions = {}
    for _ in range(200):
        for planned in schedule.plan().passes:
            assert planned.steps == 1 or all(chunk.count == 1 and chunk.samples for chunk in planned.chunks)
            for chunk in planned.chunks:
                # the token at a place is the place's number, so the stop id comes to those that get as far as 9
                said = list(range(chunk.end, chunk.end + planned.steps)) if chunk.samples else []
                if completion := schedule.advance(chunk, drawn=(said, [-1.0] * len(said))):
                    completions[chunk.request.session_id] = (completion.ids, completion.stop)
    assert completions == {
        "0": ((3, 4, 5, 6), "length"),
        "1": ((4, 5, 6, 7, 8, 9), "end"),
        "2": ((5, 6, 7, 8, 9), "end"),
        "3": ((6, 7, 8, 9), "end"),
        "4": ((7, 8, 9), "end"),
    }
    assert not schedule.running
