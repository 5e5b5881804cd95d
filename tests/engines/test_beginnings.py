"""What a slot can have from others is found without looking at each: compared here with looking at each."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.engines.plan import Request, Slot
from ludus.engines.prefix_index import BLOCK, Beginnings, common_prefix
from ludus.engines.schedule import MIN_SHARED, Schedule
from ludus.types import Sampling


def listed(index: int, ids: list[int], *, into: Beginnings, version: int = 0) -> Slot:
    slot = Slot(index, policy="current", version=version, ids=ids)
    into.extend(slot, len(ids))
    return slot


def find(beginnings: Beginnings, ids: list[int], *, at_least: int = BLOCK, version: int = 0) -> set[int]:
    return set(
        beginnings.of(ids, length=len(ids), policy="current", version=version, known=(), at_least=at_least),
    )


def test_those_that_share_most_blocks_are_found_and_nobody_where_too_few_are_shared():
    beginnings = Beginnings()
    ids = list(range(5 * BLOCK))
    listed(1, ids[: 2 * BLOCK] + [7] * BLOCK, into=beginnings)
    listed(2, ids[: 3 * BLOCK], into=beginnings)
    listed(3, ids[: 3 * BLOCK + 5], into=beginnings)
    assert find(beginnings, ids) == {2, 3}
    assert find(beginnings, ids[: 2 * BLOCK + 1]) == {1, 2, 3}
    assert find(beginnings, ids, at_least=4 * BLOCK) == set()
    assert find(beginnings, ids, version=1) == set()


def test_what_is_cut_is_not_found_and_what_grows_again_is():
    beginnings = Beginnings()
    ids = list(range(4 * BLOCK))
    slot, other = listed(1, ids, into=beginnings), listed(2, ids, into=beginnings)
    beginnings.cut(slot, 2 * BLOCK + 3)
    assert find(beginnings, ids) == {2}
    assert find(beginnings, ids[: 2 * BLOCK]) == {1, 2}
    slot.ids = ids[: 2 * BLOCK] + [5] * BLOCK
    beginnings.extend(slot, len(slot.ids))
    assert find(beginnings, slot.ids) == {1}
    for each in (slot, other):
        beginnings.cut(each, 0)
    assert not beginnings._listed, "nothing is kept of slots that hold nothing"


def by_looking_at_each(schedule: Schedule, request: Request, *, at_least: int) -> tuple[Slot | None, int]:
    best, most = None, at_least - 1
    for slot in schedule.slots:
        if slot.policy == request.policy and slot.version == schedule.versions[request.policy]:
            held = slot.ids if slot.busy else slot.ids[: slot.length]
            length = min(len(held), request.num_prompt - 1)
            if (shared := common_prefix(held, request.ids, most=length)) > most:
                best, most = slot, shared
    return best, most if best else 0


class Checked(Schedule):
    """Compares every answer with that of looking at all slots."""

    def _find(self, request):
        found = super()._find(request)
        idle = [slot for slot in self.slots if not slot.busy]
        own = [slot for slot in idle if slot.session_id == request.session_id and slot.policy == request.policy]
        assert found.own is (own[0] if own else None)
        source, shared = by_looking_at_each(self, request, at_least=found.kept + MIN_SHARED)
        assert found.source is source
        assert source is None or found.num_shared == shared
        return found

    def _free_slot(self):
        unclaimed = [slot for slot in self.slots if not slot.busy and slot.session_id is None]
        slot = super()._free_slot()
        assert not unclaimed or slot is unclaimed[0], "the lowest that nobody needs"
        return slot


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_whatever_happens_the_slot_with_most_of_a_prompt_is_found_and_the_lowest_free_one_taken(seed: int):
    rng = random.Random(seed)
    schedule = Checked(num_slots=6, slot_tokens=200, max_running=rng.randint(1, 6), prefill_tokens=rng.randint(8, 90))
    for policy in ("current", "reference"):
        schedule.loaded(policy, version=0)
    histories = {str(i): [rng.randrange(2)] * BLOCK * rng.randint(1, 4) for i in range(5)}
    added = []
    for _ in range(60):
        event, session = rng.random(), rng.choice(sorted(histories))
        if event < 0.5:
            policy = rng.choice(["current", "current", "reference"])
            sampling = Sampling(max_tokens=rng.randint(1, 24), stop_ids=(9,))
            added.append(Request(list(histories[session]), sampling, session, policy))
            schedule.add(added[-1])
        elif event < 0.55:
            schedule.loaded("current", version=schedule.versions["current"] + 1)
        elif event < 0.6 and added:
            schedule.cancel(rng.choice(added))
        elif event < 0.65:
            schedule.release(session)
        for planned in schedule.plan().passes:
            for chunk in planned.chunks:
                said = [9 if rng.random() < 0.05 else 0] if chunk.samples else []
                if completion := schedule.advance(chunk, drawn=(said, [-1.0] * len(said))):
                    prompt = chunk.request.ids[: chunk.request.num_prompt]
                    # perhaps another session says the same, and goes on from there
                    histories[rng.choice(sorted(histories))] = [*prompt, *completion.ids, rng.randrange(2)][:150]
