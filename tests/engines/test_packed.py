from __future__ import annotations

import numpy as np
import torch

from ludus.engines.staging import ALIGNED, Packed


def make() -> Packed:
    return Packed(torch.device("cpu"), tokens=((2, 3), torch.int64), logprobs=((5,), torch.float32))


def test_all_parts_are_brought_and_fetched_at_once_in_their_own_shapes_and_types():
    packed = make()
    packed.host["tokens"][:] = [[1, 2, 3], [4, 5, -(2**62)]]
    packed.host["logprobs"][:] = -0.5
    packed.bring()
    assert packed.device["tokens"].tolist() == [[1, 2, 3], [4, 5, -(2**62)]]
    assert packed.device["logprobs"].tolist() == [-0.5] * 5
    packed.device["tokens"][1] = 9
    packed.device["logprobs"] += 1
    assert packed.host["tokens"][1, 0] == 4, "the host hears of it when it asks"
    awaited = packed.fetching()
    packed.device["tokens"][:] = 0  # launched later
    assert awaited()["tokens"].tolist() == [[1, 2, 3], [9, 9, 9]]
    assert awaited()["logprobs"].tolist() == [0.5] * 5


def test_parts_begin_where_tensors_of_their_own_would_and_are_zero_at_first():
    packed = make()
    first, second = (part.data_ptr() for part in packed.device.values())
    assert (second - first) % ALIGNED == 0
    assert all(part.is_contiguous() and not part.any() for part in packed.device.values())
    assert [part.dtype for part in packed.host.values()] == [np.int64, np.float32]
