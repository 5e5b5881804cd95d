"""Which slots have which pages of the engine's memory: bookkeeping, no torch. Promise: a page is free or held, by one slot or by several
that share it; it becomes free when the last of them lets go, and there are never more of them than the budget allows.

Slots share whole pages of a common beginning, which nobody writes to again. Pages are numbered from 1; page 0 belongs to nobody, and is
where rows write that only fill up a batch.
"""

from __future__ import annotations

from collections.abc import Iterable


class Pages:
    def __init__(self, *, count: int, tokens: int, num_slots: int) -> None:
        """`count` pages of `tokens` tokens each."""
        self.count, self.tokens = count, tokens
        self.num_pinned = 0
        """Pages of at least one slot that runs: what cannot be had by forgetting."""
        self._free = list(range(count, 0, -1))
        self._held: list[list[int]] = [[] for _ in range(num_slots)]
        self._holders = [0] * (count + 1)
        self._runners = [0] * (count + 1)
        """Of a page's holders, those that run."""
        self._running: set[int] = set()
        self._changed: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def held(self, slot: int) -> tuple[int, ...]:
        """In the order of the tokens that they hold."""
        return tuple(self._held[slot])

    def num_held(self, slot: int) -> int:
        return len(self._held[slot])

    def alone(self, slot: int) -> tuple[int, ...]:
        """Those that no other slot holds."""
        return tuple(page for page in self._held[slot] if self._holders[page] == 1)

    def is_shared(self, slot: int, *, token: int) -> bool:
        """Whether others hold the page of the slot's token at this place, which must not be written to then."""
        return self._holders[self._held[slot][token // self.tokens]] > 1

    def needed(self, tokens: int) -> int:
        return -(-tokens // self.tokens)

    def missing(self, slot: int, tokens: int) -> int:
        """Pages that `slot` lacks to hold so many tokens."""
        return max(0, self.needed(tokens) - len(self._held[slot]))

    def grow(self, slot: int, tokens: int) -> None:
        """Takes what is missing; whoever calls has seen that as much is free."""
        lacking = self.missing(slot, tokens)
        if not lacking:
            return
        assert lacking <= len(self._free), f"{lacking} pages wanted, {len(self._free)} free"
        taken = [self._free.pop() for _ in range(lacking)]
        self._held[slot] += taken
        self._take(slot, taken)

    def share(self, source: int, *, target: int, count: int) -> None:
        """The first `count` pages of `source` become the first of `target` too, before those it has."""
        shared = self._held[source][:count]
        assert len(shared) == count, f"{count} pages wanted of a slot that holds {len(shared)}"
        self._held[target][:0] = shared
        self._take(target, shared)

    def shrink(self, slot: int, tokens: int) -> None:
        """Lets go of what lies beyond so many tokens."""
        kept = self.needed(tokens)
        given = self._held[slot][kept:]
        del self._held[slot][kept:]
        self._let_go(slot, reversed(given))

    def pin(self, slot: int) -> None:
        """It runs from now on."""
        self._running.add(slot)
        self._count_runner(self._held[slot], by=1)

    def unpin(self, slot: int) -> None:
        self._running.remove(slot)
        self._count_runner(self._held[slot], by=-1)

    def take_changes(self) -> dict[int, tuple[int, ...]]:
        """The pages of every slot that got or gave some since this was last asked."""
        changed, self._changed = self._changed, set()
        return {slot: self.held(slot) for slot in sorted(changed)}

    def _take(self, slot: int, pages: list[int]) -> None:
        if pages:
            self._changed.add(slot)
        for page in pages:
            self._holders[page] += 1
        if slot in self._running:
            self._count_runner(pages, by=1)

    def _let_go(self, slot: int, pages: Iterable[int]) -> None:
        for page in pages:
            self._changed.add(slot)
            if slot in self._running:
                self._count_runner((page,), by=-1)
            self._holders[page] -= 1
            if not self._holders[page]:
                self._free.append(page)

    def _count_runner(self, pages: Iterable[int], *, by: int) -> None:
        runners = self._runners
        for page in pages:
            before = runners[page]
            runners[page] = after = before + by
            if not before or not after:
                self.num_pinned += by


def pages_within(budget: float, *, total_bytes: int, page_bytes: int, most: int) -> int:
    """How many pages a budget holds: up to 1 it is a share of `total_bytes`, above that GiB. Never more than `most`, which can be used."""
    size = budget * total_bytes if budget <= 1 else budget * 2**30
    return min(most, int(size // page_bytes))
