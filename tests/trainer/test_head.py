from functools import partial

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ludus.trainer.head import logprobs_in_pieces

ROWS, WIDTH, VOCABULARY, TOKENS = 4, 8, 300, 50


def make_head(*, bias=False, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator, dtype=dtype)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=dtype)
    shift = torch.randn(VOCABULARY, generator=generator, dtype=dtype) if bias else None
    targets = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)
    inputs = [tensor for tensor in (hidden, weight, shift) if tensor is not None]
    return [tensor.requires_grad_() for tensor in inputs], targets


def plain(hidden, weight, bias, targets, *, temperature):
    table = (torch.nn.functional.linear(hidden, weight, bias).float() / temperature).log_softmax(-1)
    return table.gather(1, targets[:, None])[:, 0], -(table.exp() * table).sum(-1)


def pieces(hidden, weight, bias, targets, *, temperature, kept=0):
    return logprobs_in_pieces(hidden, weight, bias, targets, temperature=temperature, rows=ROWS, kept=kept)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("parts", ["logprobs", "entropies", "both"])
@pytest.mark.parametrize("kept", [0, TOKENS])
def test_pieces_give_the_values_and_gradients_of_the_whole(temperature, bias, parts, kept):
    inputs, targets = make_head(bias=bias)
    given = [*inputs, None][:3]
    slopes = torch.linspace(-1, 2, TOKENS)
    results = []
    for form in (plain, partial(pieces, kept=kept)):
        logprobs, entropies = form(*given, targets, temperature=temperature)
        total = (logprobs * slopes).sum() * (parts != "entropies") + (entropies * slopes.flip(0)).sum() * (
            parts != "logprobs"
        )
        results.append([logprobs, entropies, *torch.autograd.grad(total, inputs)])
    for expected, got in zip(*results, strict=True):
        assert torch.allclose(got, expected, rtol=1e-4, atol=1e-4)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation gave, forward or backward."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


def largest_and_saved(form, *, tokens):
    """Of a forward and a backward pass: the largest tensor, and what was kept between the two."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, WIDTH, generator=generator).requires_grad_() for n in (tokens, VOCABULARY))
    targets = torch.zeros(tokens, dtype=torch.int64)
    saved = []
    with Largest() as largest, saved_tensors_hooks(lambda tensor: saved.append(tensor.numel()) or tensor, lambda t: t):
        logprobs, entropies = form(hidden, weight, None, targets, temperature=1.0)
        (logprobs.sum() + entropies.sum()).backward()
    return largest.elements, max(saved)


def test_the_logits_of_one_piece_are_the_largest_thing_there_ever_is_and_none_are_kept():
    own = ROWS * VOCABULARY
    for tokens in (100, 250):
        largest, saved = largest_and_saved(pieces, tokens=tokens)
        assert largest <= max(own, VOCABULARY * WIDTH, tokens * WIDTH)
        assert saved <= max(VOCABULARY * WIDTH, tokens * WIDTH)
        assert largest_and_saved(plain, tokens=tokens) == (tokens * VOCABULARY, tokens * VOCABULARY), (
            "the check can see"
        )


def test_a_frozen_head_gets_no_gradient_and_the_hidden_states_do():
    (hidden, weight), targets = make_head()
    logprobs, _ = pieces(hidden, weight.detach(), None, targets, temperature=1.0)
    logprobs.sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_in_half_precision_sums_are_made_in_float32():
    (hidden, weight), targets = make_head(dtype=torch.bfloat16)
    got, entropies = pieces(hidden, weight, None, targets, temperature=1.0)
    expected, _ = plain(hidden, weight, None, targets, temperature=1.0)
    assert got.dtype == entropies.dtype == torch.float32
    assert torch.allclose(got, expected, atol=1e-3)
    got.sum().backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16
