from __future__ import annotations

import numpy as np
import torch

from ludus.engines.staging import ALIGNED, StagingBuffer


def make() -> StagingBuffer:
    return StagingBuffer(torch.device("cpu"), tokens=((2, 3), torch.int64), logprobs=((5,), torch.float32))


def test_all_parts_are_brought_and_fetched_at_once_in_their_own_shapes_and_types():
    buffer = make()
    buffer.host["tokens"][:] = [[1, 2, 3], [4, 5, -(2**62)]]
    buffer.host["logprobs"][:] = -0.5
    buffer.upload()
    assert buffer.device["tokens"].tolist() == [[1, 2, 3], [4, 5, -(2**62)]]
    assert buffer.device["logprobs"].tolist() == [-0.5] * 5
    buffer.device["tokens"][1] = 9
    buffer.device["logprobs"] += 1
    assert buffer.host["tokens"][1, 0] == 4, "the host hears of it when it asks"
    wait = buffer.download()
    buffer.device["tokens"][:] = 0  # launched later
    assert wait()["tokens"].tolist() == [[1, 2, 3], [9, 9, 9]]
    assert wait()["logprobs"].tolist() == [0.5] * 5


def test_parts_begin_where_tensors_of_their_own_would_and_are_zero_at_first():
    buffer = make()
    first, second = (part.data_ptr() for part in buffer.device.values())
    assert (second - first) % ALIGNED == 0
    assert all(part.is_contiguous() and not part.any() for part in buffer.device.values())
    assert [part.dtype for part in buffer.host.values()] == [np.int64, np.float32]
