"""The prefix index against a search of every row."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.engines.plan import CacheRow, Request
from ludus.engines.prefix_index import BLOCK, PrefixIndex, common_prefix
from ludus.engines.schedule import MIN_SHARED, Schedule
from ludus.types import Sampling


def listed(index: int, ids: list[int], *, into: PrefixIndex, version: int = 0) -> CacheRow:
    row = CacheRow(index, policy="current", version=version, ids=ids)
    into.extend(row, len(ids))
    return row


def find(prefixes: PrefixIndex, ids: list[int], *, at_least: int = BLOCK, version: int = 0) -> set[int]:
    request = Request([*ids, 0], Sampling(max_tokens=1), "a")  # the last token of a prompt is always computed
    return set(prefixes.find(request, version=version, known=(), at_least=at_least))


def test_those_that_share_most_blocks_are_found_and_nobody_where_too_few_are_shared():
    prefixes = PrefixIndex()
    ids = list(range(5 * BLOCK))
    listed(1, ids[: 2 * BLOCK] + [7] * BLOCK, into=prefixes)
    listed(2, ids[: 3 * BLOCK], into=prefixes)
    listed(3, ids[: 3 * BLOCK + 5], into=prefixes)
    assert find(prefixes, ids) == {2, 3}
    assert find(prefixes, ids[: 2 * BLOCK + 1]) == {1, 2, 3}
    assert find(prefixes, ids, at_least=4 * BLOCK) == set()
    assert find(prefixes, ids, version=1) == set()


def test_what_is_cut_is_not_found_and_what_grows_again_is():
    prefixes = PrefixIndex()
    ids = list(range(4 * BLOCK))
    row, other = listed(1, ids, into=prefixes), listed(2, ids, into=prefixes)
    prefixes.cut(row, 2 * BLOCK + 3)
    assert find(prefixes, ids) == {2}
    assert find(prefixes, ids[: 2 * BLOCK]) == {1, 2}
    row.ids = ids[: 2 * BLOCK] + [5] * BLOCK
    prefixes.extend(row, len(row.ids))
    assert find(prefixes, row.ids) == {1}
    for each in (row, other):
        prefixes.cut(each, 0)
    assert not prefixes._listed, "nothing is kept of rows that hold nothing"


def by_looking_at_each(schedule: Schedule, request: Request, *, at_least: int) -> tuple[CacheRow | None, int]:
    best, most = None, at_least - 1
    for row in schedule.rows:
        if row.policy == request.policy and row.version == schedule.versions[request.policy]:
            held = row.ids if row.busy else row.ids[: row.length]
            length = min(len(held), request.num_prompt - 1)
            if (shared := common_prefix(held, request.ids, most=length)) > most:
                best, most = row, shared
    return best, most if best else 0


class Checked(Schedule):
    """Compares every answer with that of looking at all rows."""

    def _find(self, request):
        found = super()._find(request)
        found_own, kept, found_source, num_shared = found
        idle = [row for row in self.rows if not row.busy]
        own = [row for row in idle if row.session_id == request.session_id and row.policy == request.policy]
        assert found_own is (own[0] if own else None)
        source, shared = by_looking_at_each(self, request, at_least=kept + MIN_SHARED)
        assert found_source is source
        assert source is None or num_shared == shared
        return found

    def _free_row(self):
        unclaimed = [row for row in self.rows if not row.busy and row.session_id is None]
        row = super()._free_row()
        assert not unclaimed or row is unclaimed[0], "the lowest that nobody needs"
        return row


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_whatever_happens_the_row_with_most_of_a_prompt_is_found_and_the_lowest_free_one_taken(seed: int):
    rng = random.Random(seed)
    schedule = Checked(num_rows=6, row_tokens=200, max_running=rng.randint(1, 6), prefill_tokens=rng.randint(8, 90))
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
