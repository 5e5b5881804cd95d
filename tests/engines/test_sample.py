from __future__ import annotations

import math

import pytest
import torch

from ludus.engines.noise import noise
from ludus.engines.sample import draw


def test_tokens_come_as_often_as_their_probability_says():
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05])
    num = 20_000
    logits = probabilities.log().expand(num, -1)
    pairs = draw(logits, temperatures=[1.0] * num, uniforms=noise(1, start=0, count=num).tolist())
    drawn, logprobs = zip(*pairs, strict=True)
    frequencies = torch.bincount(torch.tensor(drawn), minlength=5) / num
    assert (frequencies - probabilities).abs().max() < 0.02
    assert frequencies[1] == 0
    assert logprobs[0] == pytest.approx(math.log(probabilities[drawn[0]]), abs=1e-6)


def test_each_row_has_its_own_temperature_and_zero_is_greedy_with_the_logprobs_of_one():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    drawn, logprobs = zip(*draw(logits, temperatures=[0.0, 1.0, 2.5], uniforms=[0.3, 0.3, 0.3]), strict=True)
    assert drawn[0] == int(logits[0].argmax())
    for row, scale in enumerate((1.0, 1.0, 2.5)):
        expected = (logits[row] / scale).log_softmax(-1)[drawn[row]]
        assert logprobs[row] == pytest.approx(float(expected), abs=1e-6)


def test_a_row_with_nan_says_so():
    logits = torch.zeros(2, 5)
    logits[1, 2] = math.nan
    (_, sound), (_, broken) = draw(logits, temperatures=[1.0, 1.0], uniforms=[0.5, 0.5])
    assert math.isfinite(sound)
    assert math.isnan(broken)
