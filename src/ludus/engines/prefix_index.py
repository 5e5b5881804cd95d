"""Finds cache rows that share a prefix with a prompt. Promise: none that shares a block is missed.

A row is listed under every whole block of its tokens, by a hash of that block, all tokens before
it, the policy and the version. A prompt follows the same chain of hashes as far as any row is
listed. A hash collision only returns one row too many: the caller compares the tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from ludus.engines.plan import CacheRow, Request

BLOCK = 16


class PrefixIndex:
    def __init__(self) -> None:
        self._listed: defaultdict[int, set[int]] = defaultdict(set)

    def extend(self, row: CacheRow, length: int) -> None:
        """Lists the row under its first `length` tokens; those already listed have not changed."""
        keys, ids = row.keys, row.ids
        key = keys[-1] if keys else hash((row.policy, row.version))
        for start in range(len(keys) * BLOCK, length - BLOCK + 1, BLOCK):
            key = hash((key, *ids[start : start + BLOCK]))
            keys.append(key)
            self._listed[key].add(row.index)

    def cut(self, row: CacheRow, length: int) -> None:
        """Unlists the row beyond its first `length` tokens."""
        gone = row.keys[length // BLOCK :]
        del row.keys[length // BLOCK :]
        for key in gone:
            self._listed[key].discard(row.index)
            if not self._listed[key]:
                del self._listed[key]

    def find(self, request: Request, *, version: int, known: Sequence[int], at_least: int) -> Collection[int]:
        """Rows with the most blocks of the prompt, whose last token does not count; none where
        fewer than `at_least` tokens are shared. `known`: keys of the first blocks."""
        found: Collection[int] = ()
        key = known[-1] if known else hash((request.policy, version))
        for start in range(len(known) * BLOCK, request.num_prompt - BLOCK, BLOCK):
            key = hash((key, *request.ids[start : start + BLOCK]))
            if start + BLOCK <= at_least - BLOCK:
                continue
            if key not in self._listed:
                break
            found = self._listed[key]
        return found


def common_prefix(a: Sequence[int], b: Sequence[int], *, most: int) -> int:
    """Length of the longest common prefix, at most `most`. Bisects on slices, compared in C."""
    low, high = 0, most
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
