"""From sequences to microbatches within a token budget.

Promise: packing is deterministic, and every sampled token is predicted exactly once.

A row ends before its last sampled token: later tokens predict nothing. Sequences with a common
prefix, such as the attempts of a group, are neighbours, and the prefix is computed once:

    prompt a b c | x y        computed: prompt a b c x y z        a trie, one node per token
    prompt a b c | x z        (attention alone sees each sequence whole)
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from ludus.models.attention.packed import Segments
from ludus.models.transfer import placed
from ludus.types import Sequence


@dataclass(frozen=True, slots=True)
class Microbatch:
    """One packed row of N computed tokens, and M sampled tokens to predict.

    Row position `predictors[m]` predicts token `targets[m]`."""

    ids: Tensor  # int64 (1, N)
    positions: Tensor  # int64 (1, N), from 0 in each sequence
    segments: Segments
    predictors: Tensor  # int64 (M,)
    targets: Tensor  # int64 (M,)


def row_length(sequence: Sequence) -> int:
    """The number of tokens before the last sampled one."""
    sampled = np.flatnonzero(sequence.sampled)
    return int(sampled[-1]) if len(sampled) else 0


def row_ids(sequence: Sequence) -> np.ndarray:
    return sequence.ids[: row_length(sequence)]


def pack(rows: Seq[np.ndarray], *, budget: int) -> list[list[int]]:
    """Return the row indices of each microbatch, rows in lexical order.

    The microbatches are as few as the budget allows, and then as even as possible, so that no pass
    is spent on a few remaining tokens. A row above the budget gets its own, an empty one none."""
    order = sorted((i for i, row in enumerate(rows) if len(row)), key=lambda i: (rows[i].astype(">u4").tobytes(), i))
    lengths = [len(rows[i]) for i in order]
    shared = [0, *(common_prefix(rows[a], rows[b]) for a, b in pairwise(order))][: len(order)]
    best = _filled(lengths, shared, budget=budget)
    low, high = 0, budget  # `high` is known to suffice
    while high - low > 1:
        middle = (low + high) // 2
        found = _filled(lengths, shared, budget=middle)
        if len(found) == len(best):
            best, high = found, middle
        else:
            low = middle
    return [[order[place] for place in places] for places in best]


def _filled(lengths: Seq[int], shared: Seq[int], *, budget: int) -> list[list[int]]:
    """Fill microbatches in order until the next row's own tokens would exceed the budget."""
    bins: list[list[int]] = []
    room = 0
    for place, (length, common) in enumerate(zip(lengths, shared, strict=True)):
        if not bins or length - common > room:
            bins.append([])
            room, common = budget, 0
        bins[-1].append(place)
        room -= length - common
    return bins


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    length = min(len(a), len(b))
    differ = np.flatnonzero(a[:length] != b[:length])
    return int(differ[0]) if len(differ) else length


def trie(rows: Seq[np.ndarray]) -> list[np.ndarray]:
    """Return the trie node of every token of each row, numbered in depth-first order.

    A row shares the nodes of the prefix that it has in common with the row before it."""
    nodes: list[np.ndarray] = []
    count = 0
    for i, row in enumerate(rows):
        shared = common_prefix(rows[i - 1], row) if i else 0
        new = np.arange(count, count + len(row) - shared)
        nodes.append(np.concatenate([nodes[-1][:shared], new]) if shared else new)
        count += len(new)
    return nodes


def subtree_ends(nodes: Seq[np.ndarray]) -> np.ndarray:
    """Return, for each node of `trie(rows)`, one past its last descendant."""
    counts = np.maximum.accumulate([int(own[-1]) + 1 for own in nodes])  # nodes up to each row
    ends = np.full(counts[-1], counts[-1])
    for own, following, count in zip(nodes, nodes[1:], counts, strict=False):
        ends[own[common_prefix(own, following) :]] = count  # these are not in the next row
    return ends


def make_microbatch(sequences: Seq[Sequence], *, device: torch.device | str = "cpu") -> Microbatch:
    assert not any(sequence.sampled[0] for sequence in sequences), "a sampled token needs a prompt before it"
    rows = [row_ids(sequence) for sequence in sequences]
    nodes = trie(rows)
    spread = np.concatenate(nodes)
    _, first = np.unique(spread, return_index=True)  # where each node's token is in the joined rows
    ends = None if torch.device(device).type == "cpu" else subtree_ends(nodes)
    before = [own[np.flatnonzero(sequence.sampled) - 1] for own, sequence in zip(nodes, sequences, strict=True)]

    def tensor(values: np.ndarray) -> Tensor:
        return placed(torch.from_numpy(values.astype(np.int64, copy=False)), device)

    return Microbatch(
        ids=tensor(np.concatenate(rows)[first]).unsqueeze(0),
        positions=tensor(np.concatenate([np.arange(len(row)) for row in rows])[first]).unsqueeze(0),
        segments=Segments.of([len(row) for row in rows], spread=spread, ends=ends, device=device),
        predictors=tensor(np.concatenate(before)),
        targets=tensor(np.concatenate([sequence.ids[sequence.sampled] for sequence in sequences])),
    )


def sampled_values(sequences: Seq[Sequence], name: str, *, device: torch.device) -> Tensor:
    """Return a field ("critic.values") of the sampled tokens, float32 (M,), in their order."""
    found = []
    for sequence in sequences:
        assert getattr(sequence, name.partition(".")[0]) is not None, f"an algorithm's batch carries {name}"
        found.append(attrgetter(name)(sequence)[sequence.sampled])
    return placed(torch.from_numpy(np.concatenate(found).astype(np.float32, copy=False)), device)
