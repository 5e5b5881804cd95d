import pytest
import torch

from ludus.models.packed_attention import Segments, _attend
from ludus.weights import MemoryChannel
from tests.trainer.examples import make_batch, make_model, make_trainer, same, weights_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def make_trained(dtype, **knobs):
    channel = MemoryChannel()
    # heads of 32, as the fused kernel wants them in multiples of 8
    model = make_model(hidden_size=128).to(device="cuda", dtype=dtype)
    return make_trainer(model, channel=channel, **knobs), channel


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
    folder = trainer.save(tmp_path, state={}, files={}, keep=1)
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
