"""Which cache rows hold which pages of the engine's memory: bookkeeping, no torch. Promise: a page
is free, or held by one row or by several that share it, and becomes free when the last releases it.

Rows share full pages of a common prefix, which nobody writes to again. Pages are numbered from 1;
page 0 belongs to nobody: the padding of a batch is written there.
"""

from __future__ import annotations

from collections.abc import Iterable


class Pages:
    def __init__(self, *, count: int, tokens: int, num_rows: int) -> None:
        """`count` pages of `tokens` tokens each."""
        self.count, self.tokens = count, tokens
        self.num_pinned = 0  # pages held by at least one running row, which cannot be evicted
        self._free = list(range(count, 0, -1))
        self._held: list[list[int]] = [[] for _ in range(num_rows)]
        self._holders = [0] * (count + 1)
        self._runners = [0] * (count + 1)  # by page, how many of its holders are running
        self._running: set[int] = set()
        self._changed: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def held(self, row: int) -> tuple[int, ...]:
        return tuple(self._held[row])

    def num_held(self, row: int) -> int:
        return len(self._held[row])

    def alone(self, row: int) -> tuple[int, ...]:
        """The pages that no other row holds."""
        return tuple(page for page in self._held[row] if self._holders[page] == 1)

    def is_shared(self, row: int, *, token: int) -> bool:
        """Whether others hold the page of this token, which must then not be written to."""
        return self._holders[self._held[row][token // self.tokens]] > 1

    def needed(self, tokens: int) -> int:
        return -(-tokens // self.tokens)

    def missing(self, row: int, tokens: int) -> int:
        """Pages that `row` lacks to hold `tokens` tokens."""
        return max(0, self.needed(tokens) - len(self._held[row]))

    def grow(self, row: int, tokens: int) -> None:
        """Takes the missing pages; the caller has checked that as many are free."""
        lacking = self.missing(row, tokens)
        assert lacking <= len(self._free), f"{lacking} pages wanted, {len(self._free)} free"
        taken = [self._free.pop() for _ in range(lacking)]
        self._held[row] += taken
        self._take(row, taken)

    def share(self, source: int, *, target: int, count: int) -> None:
        """Puts the first `count` pages of `source` before the pages of `target`."""
        shared = self._held[source][:count]
        assert len(shared) == count, f"{count} pages wanted of a row that holds {len(shared)}"
        self._held[target][:0] = shared
        self._take(target, shared)

    def shrink(self, row: int, tokens: int) -> None:
        """Releases the pages beyond the first `tokens` tokens."""
        kept = self.needed(tokens)
        given = self._held[row][kept:]
        del self._held[row][kept:]
        for page in reversed(given):
            self._changed.add(row)
            if row in self._running:
                self._count_runner((page,), by=-1)
            self._holders[page] -= 1
            if not self._holders[page]:
                self._free.append(page)

    def pin(self, row: int) -> None:
        self._running.add(row)
        self._count_runner(self._held[row], by=1)

    def unpin(self, row: int) -> None:
        self._running.remove(row)
        self._count_runner(self._held[row], by=-1)

    def take_changes(self) -> dict[int, tuple[int, ...]]:
        """The pages of every row whose pages have changed since the last call."""
        changed, self._changed = self._changed, set()
        return {row: self.held(row) for row in sorted(changed)}

    def _take(self, row: int, pages: list[int]) -> None:
        if pages:
            self._changed.add(row)
        for page in pages:
            self._holders[page] += 1
        if row in self._running:
            self._count_runner(pages, by=1)

    def _count_runner(self, pages: Iterable[int], *, by: int) -> None:
        runners = self._runners
        for page in pages:
            before = runners[page]
            runners[page] = after = before + by
            if not before or not after:
                self.num_pinned += by


def pages_within(budget: float, *, total_bytes: int, page_bytes: int, most: int) -> int:
    """Pages within `budget`: a share of `total_bytes` up to 1, GiB above. At most `most`."""
    size = budget * total_bytes if budget <= 1 else budget * 2**30
    return min(most, int(size // page_bytes))
