"""Groups on their way to the trainer. Promise: none leaves too stale; slow tasks are trained too.

A group has a place from the draw until the engine has LOADED the weights its gradient went into:

    admit ──▶ playing ──put──▶ ready ──take──▶ training ──loaded──▶ free
                 └──drop──▶ free   └──too old──▶ free, and the order is tried again

Two rules bound staleness, and both are needed. Capacity: with (bound + 1) x groups_per_step places
no group is born stale. Age: a straggler keeps one place while the others go round, so age is
checked again when a group is taken. An order that was once dropped for its age is protected on the
next try: the trainer waits for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ludus.types import Group, Order


class Buffer:
    def __init__(self, *, groups_per_step: int, max_staleness: int) -> None:
        self._groups_per_step, self._max_staleness = groups_per_step, max_staleness
        self.capacity = (max_staleness + 1) * groups_per_step
        self._playing: dict[int, Order] = {}
        self._ready: dict[int, tuple[Order, Group]] = {}
        self._num_training = 0

    @property
    def num_free(self) -> int:
        return self.capacity - len(self._playing) - len(self._ready) - self._num_training

    @property
    def playing(self) -> list[Order]:
        return [self._playing[index] for index in sorted(self._playing)]

    @property
    def ready(self) -> list[tuple[Order, Group]]:
        return [self._ready[index] for index in sorted(self._ready)]

    def admit(self, order: Order, *, version: int) -> Order:
        """The order to play, born at the version that the engine has loaded."""
        assert self.num_free > 0, "admit() without a free place"
        assert order.index not in self._playing, f"order {order.index} is playing already"
        admitted = self._playing[order.index] = replace(order, born=version)
        return admitted

    def put(self, order: Order, group: Group) -> None:
        """The group is complete; its place stays taken."""
        del self._playing[order.index]
        self._ready[order.index] = (order, group)

    def drop(self, order: Order) -> None:
        """The group came to nothing; its place is free at once."""
        del self._playing[order.index]

    def restore(self, ready: Iterable[tuple[Order, Group]]) -> None:
        self._ready = {order.index: (order, group) for order, group in ready}

    def take(self, *, version: int) -> tuple[tuple[Group, ...] | None, tuple[Order, ...]]:
        """The oldest complete groups to train at `version` (None: wait), and orders too old."""
        stale = tuple(order for order, group in self.ready if group.staleness(version) > self._max_staleness)
        for order in stale:
            del self._ready[order.index]
        if len(self._ready) < self._groups_per_step or self._would_outrun(version):
            return None, stale
        chosen = sorted(self._ready)[: self._groups_per_step]
        groups = tuple(self._ready.pop(index)[1] for index in chosen)
        self._num_training += len(groups)
        return groups, stale

    def loaded(self, num_groups: int) -> None:
        """The engine has the weights that this many groups went into."""
        assert num_groups <= self._num_training, f"{num_groups} groups loaded, {self._num_training} taken"
        self._num_training -= num_groups

    def _would_outrun(self, version: int) -> bool:
        """True if one more optimiser step would make a protected group too old while it plays."""
        protected = (order for order in self._playing.values() if order.tries)
        return any(version + 1 - order.born > self._max_staleness for order in protected)
