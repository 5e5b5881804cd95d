"""Groups on their way to the trainer. Promise: none leaves staler than the bound, and none is starved by being dropped for its age.

A slot is one group's place, from the draw until the engine has LOADED the weights its gradient went into:

    admit ──▶ playing ──put──▶ ready ──take──▶ training ──loaded──▶ free
                 └──drop──▶ free   └──too old──▶ free, and the draw is tried again

Two rules bound staleness, and both are needed. Slots: with (bound + 1) x groups_per_step of them nothing is born stale.
Age: a straggler keeps one slot while the others go round, so age is checked again when a group is taken. A draw that was
dropped for its age once is protected when it is tried again: the trainer waits for it rather than outrun it, so that slow
tasks are trained too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ludus.pipeline.feed import Draw
from ludus.types import Group


@dataclass(frozen=True, slots=True)
class Admission:
    draw: Draw
    born: int
    """The version the engine had loaded when the group started: no token of it can be older."""

    @property
    def protected(self) -> bool:
        return self.draw.tries > 0


@dataclass(frozen=True, slots=True)
class Taken:
    """Groups to train now (None: wait), and the draws that were found too old."""

    groups: tuple[Group, ...] | None
    stale: tuple[Draw, ...] = ()


class Buffer:
    def __init__(self, *, groups_per_step: int, max_staleness: int) -> None:
        self._groups_per_step = groups_per_step
        self._max_staleness = max_staleness
        self._playing: dict[int, Admission] = {}
        self._ready: dict[int, tuple[Draw, Group]] = {}
        self._num_training = 0

    @property
    def slots(self) -> int:
        return (self._max_staleness + 1) * self._groups_per_step

    @property
    def num_free(self) -> int:
        return self.slots - len(self._playing) - len(self._ready) - self._num_training

    @property
    def playing(self) -> list[Admission]:
        return [self._playing[index] for index in sorted(self._playing)]

    @property
    def ready(self) -> list[tuple[Draw, Group]]:
        return [self._ready[index] for index in sorted(self._ready)]

    def admit(self, draw: Draw, *, version: int) -> Admission:
        assert self.num_free > 0, "admit() without a free slot"
        assert draw.index not in self._playing, f"draw {draw.index} is playing already"
        admission = self._playing[draw.index] = Admission(draw, born=version)
        return admission

    def put(self, draw: Draw, group: Group) -> None:
        """The group is complete; its slot stays taken."""
        del self._playing[draw.index]
        self._ready[draw.index] = (draw, group)

    def drop(self, draw: Draw) -> None:
        """The group came to nothing; its slot is free at once."""
        del self._playing[draw.index]

    def restore(self, ready: Iterable[tuple[Draw, Group]]) -> None:
        self._ready = {draw.index: (draw, group) for draw, group in ready}

    def take(self, *, version: int) -> Taken:
        """The oldest draws that are complete and young enough to be trained at `version`."""
        stale = tuple(draw for draw, group in self.ready if group.staleness(version) > self._max_staleness)
        for draw in stale:
            del self._ready[draw.index]
        if len(self._ready) < self._groups_per_step or self._would_outrun(version):
            return Taken(None, stale)
        chosen = sorted(self._ready)[: self._groups_per_step]
        groups = tuple(self._ready.pop(index)[1] for index in chosen)
        self._num_training += len(groups)
        return Taken(groups, stale)

    def loaded(self, num_groups: int) -> None:
        """The engine has the weights that so many of the groups went into."""
        assert num_groups <= self._num_training, f"{num_groups} groups loaded, {self._num_training} taken"
        self._num_training -= num_groups

    def _would_outrun(self, version: int) -> bool:
        """True if one more optimiser step would make a protected group too old while it is still playing."""
        return any(a.protected and version + 1 - a.born > self._max_staleness for a in self._playing.values())
