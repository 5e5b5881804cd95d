import math

import pytest
import torch
from torch import tensor

from ludus.algorithms.losses import (
    cispo,
    clipped_share,
    clipped_surrogate,
    dual_clipped_share,
    importance_weights,
    ratios,
)


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


# ------------------------------------------------------------------------------------------------ dual clip, CISPO


def test_the_dual_clip_bounds_the_loss_of_a_bad_action_and_takes_its_gradient():
    logprob = tensor([math.log(100.0)], requires_grad=True)
    bad = tensor([-1.0])
    loss = clipped_surrogate(ratios(logprob, tensor([0.0])), bad, low=0.2, high=0.2, dual=3.0)
    loss.sum().backward()
    assert (loss.item(), logprob.grad.item()) == (3.0, 0.0)
    assert dual_clipped_share(tensor([100.0, 2.0]), tensor([-1.0, -1.0]), dual=3.0).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.9, 100.0])
def test_the_dual_clip_leaves_good_actions_and_moderate_ratios_alone(ratio):
    for advantage in (1.0, -1.0):
        if advantage < 0 and ratio > 3:
            continue
        arguments = (tensor([ratio]), tensor([advantage]))
        with_it = clipped_surrogate(*arguments, low=0.2, high=0.2, dual=3.0)
        assert with_it.item() == clipped_surrogate(*arguments, low=0.2, high=0.2).item()


@pytest.mark.parametrize(("ratio", "weight"), [(1.0, 1.0), (5.0, 1.3), (0.5, 0.8), (1.1, 1.1)])
def test_cispo_keeps_every_tokens_gradient_with_the_clipped_ratio_as_its_weight(ratio, weight):
    logprob = tensor([math.log(ratio)], requires_grad=True)
    advantage = tensor([2.0])
    cispo(logprob, ratios(logprob, tensor([0.0])), advantage, low=0.2, high=0.3).sum().backward()
    assert logprob.grad.item() == pytest.approx(-2.0 * weight)


# ------------------------------------------------------------------------------------------------ sequences

ROWS = tensor([0, 0, 1])


def test_a_sequence_ratio_is_the_geometric_mean_at_every_token_and_shares_its_gradient():
    logprobs = tensor([0.2, 0.4, -0.3], requires_grad=True)
    ratio = ratios(logprobs, torch.zeros(3), rows=ROWS)
    assert ratio.tolist() == pytest.approx([math.exp(0.3), math.exp(0.3), math.exp(-0.3)])
    ratio[0].backward()
    assert logprobs.grad.tolist() == pytest.approx([math.exp(0.3) / 2, math.exp(0.3) / 2, 0.0])


def test_sequences_of_one_token_have_the_token_ratio():
    logprobs, centre = tensor([0.2, -0.4]), tensor([0.0, -0.1])
    assert torch.equal(ratios(logprobs, centre, rows=tensor([0, 1])), ratios(logprobs, centre))


def test_a_sequences_importance_is_the_capped_product_at_every_token():
    old, behaviour = tensor([-1.0, -1.0, -1.0]), tensor([-1.5, -0.75, -9.0])
    weights = importance_weights(old, behaviour, cap=2.0, rows=ROWS)
    assert weights.tolist() == pytest.approx([math.exp(0.25), math.exp(0.25), 2.0])


def test_a_missing_logprob_spoils_its_own_sequence_and_no_other():
    behaviour = tensor([float("nan"), -1.0, -1.0])
    for values in (
        ratios(tensor([-1.0] * 3), behaviour, rows=ROWS),
        importance_weights(tensor([-1.0] * 3), behaviour, cap=2.0, rows=ROWS),
    ):
        assert torch.isnan(values).tolist() == [True, True, False]
