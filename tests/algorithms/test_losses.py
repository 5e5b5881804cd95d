import math

import pytest
import torch
from torch import tensor

from ludus.algorithms.losses import clipped_share, clipped_surrogate, importance_weights, ratios


def gradient(log_ratio, advantage, *, low=0.2, high=0.3):
    logprob = tensor([log_ratio], requires_grad=True)
    clipped_surrogate(ratios(logprob, tensor([0.0])), tensor([advantage]), low=low, high=high).sum().backward()
    return logprob.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"),
    [
        (1.0, 1.0, False),
        (1.29, 1.0, False),
        (1.31, 1.0, True),
        (0.5, 1.0, False),
        (0.81, -1.0, False),
        (0.79, -1.0, True),
        (5.0, -1.0, False),
    ],
)
def test_the_clip_takes_the_gradient_only_where_the_step_would_go_further_out(ratio, advantage, clipped):
    expected = 0.0 if clipped else -ratio * advantage
    assert gradient(math.log(ratio), advantage) == pytest.approx(expected, rel=1e-5)
    assert clipped_share(tensor([ratio]), tensor([advantage]), low=0.2, high=0.3).item() == float(clipped)


def test_an_absurd_ratio_gives_a_finite_gradient():
    assert gradient(500.0, 1.0) == 0.0
    assert math.isfinite(gradient(500.0, -1.0))


def test_importance_weights_are_capped_and_carry_no_gradient():
    old = tensor([0.0, -1.0, -1.0], requires_grad=True)
    weights = importance_weights(old, tensor([-3.0, -1.0, -0.5]), cap=2.0)
    assert weights.tolist() == pytest.approx([2.0, 1.0, math.exp(-0.5)])
    assert not weights.requires_grad


def test_a_missing_logprob_is_never_taken_for_a_weight_of_1():
    missing = tensor([float("nan")])
    assert torch.isnan(importance_weights(tensor([-1.0]), missing, cap=2.0)).all()
    loss = clipped_surrogate(ratios(tensor([-1.0]), missing), tensor([1.0]), low=0.2, high=0.2)
    assert torch.isnan(loss).all()
