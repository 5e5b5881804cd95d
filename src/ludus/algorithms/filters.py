"""Which groups are trained. Promise: independent of the order of groups, except for ties.

    none            all of them
    zero_variance   those whose rewards differ: a group-relative advantage of the others is 0, so
                    they only dilute the mean
    dynamic         the same, and the loop plays others in their place    DAPO (2503.14476)
    top_share       of those that differ, the share of all groups with the greatest reward std
                    StarPO-S (2504.20073), 0.25 there
    top_p           of those that differ, the greatest until they hold this share of all std
                    RAGEN-2's linear top-p (2604.06268), 0.9 there

For a reward of 0 or 1 with success rate p the std is sqrt(p (1 - p)), so it selects tasks at the
edge of the policy's ability. Left out: RAGEN-2's softmax top-p (it depends on the scale of
rewards), min-p, and scores other than the std.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Literal

import numpy as np
from pydantic import Field

from ludus.algorithms.advantages import differs, rewards_of
from ludus.config import Section
from ludus.config.pieces import group_filter
from ludus.types import Group

Rescale = Literal["none", "linear", "sqrt"]


class FilterOptions(Section):
    filter_rescale: Rescale = "none"
    """Multiply the loss by the share of groups kept (linear) or its square root (sqrt), so that few
    groups make a small step. none: off."""


class ShareOptions(FilterOptions):
    filter_share: float = Field(gt=0, lt=1)
    """The share to keep: 0.25 in StarPO-S (top_share), 0.9 in RAGEN-2 (top_p)."""


@group_filter("none")
def every(groups: Seq[Group], options: Section) -> Seq[Group]:
    return groups


@group_filter("dynamic", replaces=True)
@group_filter("zero_variance")
def differing(groups: Seq[Group], options: FilterOptions) -> list[Group]:
    return [group for group in groups if group_differs(group)]


@group_filter("top_share")
def top_share(groups: Seq[Group], options: ShareOptions) -> list[Group]:
    return _greatest(groups, lambda stds: math.ceil(options.filter_share * len(groups)))


@group_filter("top_p")
def top_p(groups: Seq[Group], options: ShareOptions) -> list[Group]:
    return _greatest(groups, lambda stds: _nucleus(stds, options.filter_share))


def group_differs(group: Group) -> bool:
    return differs(rewards_of(group))


def reward_std(group: Group) -> float:
    """Exactly 0 if the rewards are equal up to rounding."""
    return float(np.std(rewards_of(group))) if group_differs(group) else 0.0


def rescaled(share: float, *, rescale: Rescale) -> float:
    """The factor of the loss if only `share` of the groups is kept."""
    return {"none": 1.0, "linear": share, "sqrt": math.sqrt(share)}[rescale]


def _greatest(groups: Seq[Group], number: Callable[[list[float]], int]) -> list[Group]:
    """Of the groups that differ, `number(their stds, falling)` with the greatest, in order."""
    scores = [reward_std(group) for group in groups]
    best = sorted((index for index, score in enumerate(scores) if score > 0), key=lambda index: (-scores[index], index))
    return [groups[index] for index in sorted(best[: number([scores[index] for index in best])])]


def _nucleus(scores: Seq[float], share: float) -> int:
    """How many of the sorted scores it takes to hold `share` of their sum."""
    held, wanted = 0.0, share * math.fsum(scores) * (1 - 1e-9)
    for count, score in enumerate(scores):
        if held >= wanted:
            return count
        held += score
    return len(scores)
