"""Which slot has which pages of the engine's memory: bookkeeping, no torch. Promise: a page has one owner or is free, and there are never
more of them than the budget allows.

Pages are numbered from 1; page 0 belongs to nobody, and is where rows write that only fill up a batch.
"""

from __future__ import annotations


class Pages:
    def __init__(self, *, count: int, tokens: int, num_slots: int) -> None:
        """`count` pages of `tokens` tokens each."""
        self.count, self.tokens = count, tokens
        self._free = list(range(count, 0, -1))
        self._held: list[list[int]] = [[] for _ in range(num_slots)]
        self._changed: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def held(self, slot: int) -> tuple[int, ...]:
        """In the order of the tokens that they hold."""
        return tuple(self._held[slot])

    def num_held(self, slot: int) -> int:
        return len(self._held[slot])

    def needed(self, tokens: int) -> int:
        return -(-tokens // self.tokens)

    def missing(self, slot: int, tokens: int) -> int:
        """Pages that `slot` lacks to hold so many tokens."""
        return max(0, self.needed(tokens) - len(self._held[slot]))

    def grow(self, slot: int, tokens: int) -> None:
        """Takes what is missing; whoever calls has seen that as much is free."""
        lacking = self.missing(slot, tokens)
        assert lacking <= len(self._free), f"{lacking} pages wanted, {len(self._free)} free"
        for _ in range(lacking):
            self._held[slot].append(self._free.pop())
        self._note(slot, lacking)

    def shrink(self, slot: int, tokens: int) -> None:
        """Gives back what lies beyond so many tokens."""
        kept = self.needed(tokens)
        given = self._held[slot][kept:]
        del self._held[slot][kept:]
        self._free.extend(reversed(given))
        self._note(slot, len(given))

    def take_changes(self) -> dict[int, tuple[int, ...]]:
        """The pages of every slot that got or gave some since this was last asked."""
        changed, self._changed = self._changed, set()
        return {slot: self.held(slot) for slot in sorted(changed)}

    def _note(self, slot: int, moved: int) -> None:
        if moved:
            self._changed.add(slot)


def pages_within(budget: float, *, total_bytes: int, page_bytes: int, most: int) -> int:
    """How many pages a budget holds: up to 1 it is a share of `total_bytes`, above that GiB. Never more than `most`, which can be used."""
    size = budget * total_bytes if budget <= 1 else budget * 2**30
    return min(most, int(size // page_bytes))
