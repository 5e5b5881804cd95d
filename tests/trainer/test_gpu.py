"""The trainer on a GPU: its kernels against plain operations, its steps against a CPU's."""

import copy

import numpy as np
import pytest
import torch

from ludus.config import LoraConfig
from ludus.models.attention.packed import Segments, _attend, use_packed_attention
from ludus.models.layers.training import has_training_layers
from ludus.trainer.forward import prepare
from ludus.trainer.head import logprobs_in_pieces
from ludus.trainer.lora import add_adapters
from ludus.trainer.pack import subtree_ends, trie
from ludus.trainer.sft import log_likelihood
from ludus.types import Batch
from ludus.weights.memory import MemoryChannel
from tests.models.test_training_layers import FAMILIES, logprobs_and_gradients
from tests.models.test_tree_attention import family
from tests.trainer.examples import make_batch, make_model, make_sequence, make_trainer, same, weights_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def make_trained(dtype, *, rank=0, rounds=False, initializer_range=0.2, **knobs):
    """`rounds`: weights as in half precision."""
    channel = MemoryChannel()
    # heads of 32, as the fused kernel wants them in multiples of 8
    model = make_model(hidden_size=128, initializer_range=initializer_range).cuda()
    model = (model.to(torch.bfloat16) if rounds else model).to(dtype)
    if rank:
        pytest.importorskip("peft")
    add_adapters(model, LoraConfig(rank=rank), seed=0)
    return make_trainer(model, channel=channel, **{"compile": False} | knobs), channel


def test_the_fused_kernel_agrees_with_the_loop_in_values_and_gradients():
    lengths = [5, 1, 130, 64]
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [(1, heads, sum(lengths), 32) for heads in (4, 2, 2)]
    inputs = [torch.randn(shape, device="cuda", generator=generator) for shape in shapes]
    segments = Segments.of(lengths, device="cuda")
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        leaves = [tensor.to(dtype, copy=True).requires_grad_() for tensor in inputs]
        out, _ = _attend(torch.nn.Module(), *leaves, None, scaling=32**-0.5, segments=segments)
        out.square().sum().backward()
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for looped, fused in zip(*results, strict=True):
        assert torch.allclose(fused.float(), looped, atol=0.03 * looped.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_trains_publishes_and_resumes_as_a_cpu_does(dtype, tmp_path):
    trainer, channel = make_trained(dtype)
    cpu = make_trainer(make_model(hidden_size=128))
    for step in range(2):
        numbers, reference = trainer.step(make_batch(step)), cpu.step(make_batch(step))
        assert numbers["loss"] == pytest.approx(reference["loss"], abs=1e-4 if dtype == torch.float32 else 0.02)
    assert {tensor.dtype for tensor in channel.fetch(trainer.publish()).values()} == {dtype}
    folder = trainer.save(tmp_path, state={}, keep=1)
    resumed, _ = make_trained(dtype)
    resumed.restore(folder)
    assert same(weights_of(resumed), weights_of(trainer))
    for either in (trainer, resumed):
        either.step(make_batch(5))
    gaps = [
        (a - b).abs().max().item()
        for a, b in zip(weights_of(trainer).values(), weights_of(resumed).values(), strict=True)
    ]
    assert max(gaps) < 1e-5


@pytest.mark.parametrize(("heads", "shared", "dim"), [(4, 2, 32), (14, 2, 64), (12, 2, 128), (3, 3, 80)])
def test_tree_attention_agrees_with_the_loop_in_values_and_gradients(heads, shared, dim):
    results, rows = [], family()
    nodes = trie(rows)
    for dtype in (torch.float32, torch.bfloat16):
        segments = Segments.of(
            [len(row) for row in rows], spread=np.concatenate(nodes), ends=subtree_ends(nodes), device="cuda"
        )
        generator = torch.Generator("cuda").manual_seed(0)
        shapes = [(1, each, len(subtree_ends(nodes)), dim) for each in (heads, shared, shared)]
        leaves = [torch.randn(shape, device="cuda", generator=generator).to(dtype).requires_grad_() for shape in shapes]
        out, _ = _attend(torch.nn.Module(), *leaves, None, scaling=dim**-0.5, segments=segments)
        out.square().sum().backward()
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for looped, tree in zip(*results, strict=True):
        assert torch.allclose(tree.float(), looped, atol=0.03 * looped.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_heads_kernels_agree_with_plain_operations(dtype, temperature):
    generator = torch.Generator("cuda").manual_seed(0)
    hidden, weight = (torch.randn(n, 64, device="cuda", generator=generator).to(dtype) for n in (70, 5003))
    targets = torch.randint(0, 5003, (70,), device="cuda", generator=generator)
    slopes = torch.linspace(-1, 1, 70, device="cuda")
    results = []
    for form in ("plain", "pieces"):
        leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight)]
        if form == "plain":
            table = ((leaves[0] @ leaves[1].t()).float() / temperature).log_softmax(-1)
            logprobs, entropies = table.gather(1, targets[:, None])[:, 0], -(table.exp() * table).sum(-1)
        else:
            logprobs, entropies = logprobs_in_pieces(*leaves, None, targets, temperature=temperature, rows=32)
        (logprobs * slopes + entropies * slopes.flip(0)).sum().backward()
        results.append([logprobs.detach(), entropies.detach(), *(leaf.grad.float() for leaf in leaves)])
    for expected, got in zip(*results, strict=True):
        share = 1e-4 if dtype == torch.float32 else 0.03
        assert torch.allclose(got, expected, atol=share * expected.abs().max().item())


def siblings(seed):
    """Groups of four with most of their tokens in common."""
    long = [make_sequence(200, seed=10 * seed + i) for i in range(2)]
    tails = [make_sequence(80, seed=100 * seed + i).ids for i in range(8)]
    return Batch(
        tuple(
            make_sequence(200 + 4 * i, seed=i, ids=[*long[i % 2].ids[:150], *tails[i][: 50 + 4 * i]]) for i in range(8)
        )
    )


def gradients(trainer, batch):
    trainer._accumulate(batch.sequences)
    return torch.cat([weight.grad.flatten().float() for weight in trainer._masters.parameters()])


@pytest.mark.parametrize(("rank", "compile"), [(0, None), (8, None), (0, True)])
def test_layers_on_a_gpu_and_shared_beginnings_have_the_gradients_of_transformers_and_strangers(
    rank, compile, monkeypatch
):
    """The plain side computes in float32 with the same rounded weights, and neither side clips: a ratio near the border would be clipped
    by one and not by the other."""
    knobs = {"rank": rank, "loss": log_likelihood, "initializer_range": 0.1}
    trainer, channel = make_trained(torch.bfloat16, compile=compile, checkpoint_activations=True, **knobs)
    assert has_training_layers(trainer.model) == (compile is None)
    monkeypatch.setattr("ludus.trainer.forward.use_training_layers", lambda model: False)
    plain, _ = make_trained(torch.float32, rounds=True, **knobs)
    for batch in (make_batch(), make_batch(1, lengths=(40, 9)), siblings(1), siblings(2)):
        got, expected = (gradients(each, batch) for each in (trainer, plain))
        assert (got - expected).norm() < 0.04 * expected.norm(), "rounding alone makes 0.013 to 0.018"
    trainer.step(siblings(1))
    published = make_model(hidden_size=128, initializer_range=0.1).to(device="cuda", dtype=torch.bfloat16).eval()
    published.load_state_dict(dict(channel.fetch(trainer.publish())), strict=False)
    ids = torch.arange(3, 40, device="cuda")
    with torch.no_grad():
        table = published(input_ids=ids.unsqueeze(0)).logits[0, :-1].float().log_softmax(-1)
    expected = table.gather(1, ids[1:, None])[:, 0].tolist()
    assert trainer.logprobs(ids.tolist()) == pytest.approx(expected, abs=0.2)


@pytest.mark.parametrize("family", FAMILIES)
def test_lean_layers_on_a_gpu_give_the_models_own_logprobs_and_gradients(family):
    torch.manual_seed(0)
    own = FAMILIES[family]().eval()
    for weight in (p for n, p in own.named_parameters() if "norm" in n):
        weight.data.uniform_(0.5, 1.5)  # ones would hide a weight that is left out
    fast = copy.deepcopy(own).to("cuda")
    use_packed_attention(own)
    prepare(fast)
    assert has_training_layers(fast)
    (got, gradients), (expected, own_gradients) = (logprobs_and_gradients(model) for model in (fast, own))
    assert torch.allclose(got.cpu(), expected, atol=1e-4)
    for name, gradient in own_gradients.items():
        assert torch.allclose(gradients[name].cpu(), gradient, atol=1e-4 * float(gradient.abs().max()), rtol=1e-3), name


def test_memory_that_really_runs_out_is_an_event_and_the_step_goes_on():
    events = []
    trainer, _ = make_trained(torch.bfloat16, microbatch_tokens=1 << 20)
    trainer._budget.on_event = lambda kind, **fields: events.append(kind)
    trainer.step(make_batch())
    batch = make_batch(lengths=[400] * 400)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (400 << 20)) / total)
    try:
        metrics = trainer.step(batch)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert set(events) == {"out_of_memory"}
    assert metrics["microbatches"] > 1


def test_the_budget_of_a_microbatch_is_measured_in_the_first_step():
    events = []
    trainer, _ = make_trained(torch.bfloat16)
    trainer._budget.on_event = lambda kind, **fields: events.append((kind, fields["microbatch_tokens"]))
    trainer.step(make_batch(lengths=[400] * 20))
    assert [kind for kind, _ in events] == ["microbatch_tokens"]
    assert events[0][1] > 4096
