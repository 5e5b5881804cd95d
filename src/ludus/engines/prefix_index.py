"""Which slots begin as a prompt does, without looking at each of them. Promise: none that shares a block of tokens with it is missed.

A slot is listed under every whole block of its tokens, by a hash of that block and all before it, its policy and its version. A prompt
walks down the same chain as far as somebody is listed. A hash that two beginnings have in common only names one slot too many: whoever
asks compares the tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from ludus.engines.plan import Slot

BLOCK = 16


class Beginnings:
    def __init__(self) -> None:
        self._listed: defaultdict[int, set[int]] = defaultdict(set)

    def extend(self, slot: Slot, length: int) -> None:
        """Lists the slot under the first `length` of its tokens; those it was listed under before are still the same."""
        keys, ids = slot.keys, slot.ids
        key = keys[-1] if keys else _root(slot.policy, slot.version)
        for start in range(len(keys) * BLOCK, length - BLOCK + 1, BLOCK):
            key = hash((key, *ids[start : start + BLOCK]))
            keys.append(key)
            self._listed[key].add(slot.index)

    def cut(self, slot: Slot, length: int) -> None:
        """From now on only the first `length` of its tokens count."""
        gone = slot.keys[length // BLOCK :]
        del slot.keys[length // BLOCK :]
        for key in gone:
            self._listed[key].discard(slot.index)
            if not self._listed[key]:
                del self._listed[key]

    def of(
        self, ids: Sequence[int], *, length: int, policy: str, version: int, known: Sequence[int], at_least: int
    ) -> Collection[int]:
        """Slots with the most blocks of the first `length` ids; none where they are fewer than `at_least` tokens have. `known`: keys of
        the first of them."""
        found: Collection[int] = ()
        key = known[-1] if known else _root(policy, version)
        for start in range(len(known) * BLOCK, length - BLOCK + 1, BLOCK):
            key = hash((key, *ids[start : start + BLOCK]))
            if start + BLOCK <= at_least - BLOCK:
                continue
            if key not in self._listed:
                break
            found = self._listed[key]
        return found


def _root(policy: str, version: int | None) -> int:
    return hash((policy, version))


def common_prefix(a: Sequence[int], b: Sequence[int], *, most: int) -> int:
    """Length of the longest common prefix, or `most`, which both have. Compares slices, which is C, and halves the interval."""
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
