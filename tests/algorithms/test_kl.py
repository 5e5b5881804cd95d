"""Every estimator against the exact divergence of two small softmaxes, summed over all outcomes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ludus.algorithms.kl import MAX_K3
from ludus.config import AlgorithmConfig

logits = st.lists(st.floats(-0.5, 0.5, width=32), min_size=3, max_size=3)


def estimate(logprobs, reference, *, estimator):
    return AlgorithmConfig(kl=estimator, kl_weight=1.0).function("kl")(logprobs, reference)


def both(logits_p, logits_ref):
    p = torch.tensor(logits_p, dtype=torch.float64, requires_grad=True)
    return p, p.log_softmax(0), torch.tensor(logits_ref, dtype=torch.float64).log_softmax(0)


def exact(logp, logq):
    """KL(p || q)."""
    return (logp.exp() * (logp - logq)).sum()


def gradient_of(value, leaf):
    return torch.autograd.grad(value, leaf, retain_graph=True)[0].tolist()


@given(logits, logits)
def test_k1_and_k3_have_the_divergence_as_their_mean_and_k3_is_never_negative(a, b):
    _, logp, logref = both(a, b)
    for estimator in ("k1", "k3"):
        mean = (logp.exp() * estimate(logp, logref, estimator=estimator)).sum()
        assert mean.item() == pytest.approx(exact(logp, logref).item(), abs=1e-9)
    assert (estimate(logp, logref, estimator="k3") >= -1e-12).all()


@given(logits, logits)
def test_the_mean_gradients_are_those_the_docstring_claims(a, b):
    leaf, logp, logref = both(a, b)
    chances = logp.detach().exp()  # tokens are drawn, not differentiated through

    def mean_gradient(per_token):
        return gradient_of((chances * per_token).sum(), leaf)

    assert mean_gradient(estimate(logp, logref, estimator="k1")) == pytest.approx([0, 0, 0], abs=1e-9)
    towards_reference = gradient_of(exact(logp, logref), leaf)
    as_penalty = estimate(logp, logref, estimator="k1").detach() * logp
    assert mean_gradient(as_penalty) == pytest.approx(towards_reference, abs=1e-9)
    assert mean_gradient(estimate(logp, logref, estimator="k2")) == pytest.approx(towards_reference, abs=1e-9)
    backwards = gradient_of(exact(logref, logp), leaf)
    assert mean_gradient(estimate(logp, logref, estimator="k3")) == pytest.approx(backwards, abs=1e-9)


def test_a_token_the_reference_prefers_by_far_stays_finite():
    values = estimate(torch.tensor([-100.0]), torch.tensor([0.0]), estimator="k3")
    assert values.item() == MAX_K3
