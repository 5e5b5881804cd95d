import pytest
import torch

from ludus.errors import ConfigError
from ludus.trainer import layers as layers_module
from ludus.trainer.layers import compiles
from tests.trainer.examples import make_batch, make_model, make_trainer


def gradients(**knobs):
    """Of rows of many kinds. Gradients and not weights: AdamW makes a whole step of the last bit of one that is almost 0."""
    trainer = make_trainer(make_model(num_hidden_layers=4, attention_dropout=0.5), microbatch_tokens=40, **knobs)
    found = []
    for step, lengths in enumerate([(9, 30, 17, 6, 22), (23, 9), (30,), (8, 9, 8, 7, 8, 9)]):
        trainer._accumulate(make_batch(step, lengths=lengths).sequences)
        found += [parameter.grad.clone() for parameter in trainer.model.parameters()]
    return found


def alike(some, others):
    return all(torch.allclose(one, other, atol=1e-6, rtol=1e-4) for one, other in zip(some, others, strict=True))


def kept_elements(trainer):
    kept = []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer._accumulate(make_batch().sequences)
    return sum({tensor.data_ptr(): tensor.numel() for tensor in kept}.values())


def test_activations_computed_again_give_the_same_gradients_and_fewer_are_kept():
    assert alike(gradients(), gradients(checkpoint_activations=True))
    many, few = (kept_elements(make_trainer(checkpoint_activations=on)) for on in (False, True))
    assert few < many


def test_a_model_without_a_list_of_layers_cannot_be_checkpointed_and_says_so():
    model = make_model()
    model.model.layers = torch.nn.Sequential(*model.model.layers)
    with pytest.raises(ConfigError, match=r"trainer\.checkpoint_activations is on.*turn it off"):
        layers_module.checkpoint_layers(model)


def test_layers_are_compiled_on_a_gpu_that_has_no_kernels_for_them_unless_somebody_says_otherwise(monkeypatch):
    model = make_model()
    assert [compiles(choice, model) for choice in (None, True, False)] == [False, True, False]
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    assert [compiles(choice, model) for choice in (None, True, False)] == [True, True, False]
    monkeypatch.setattr(layers_module, "has_training_layers", lambda model: True)
    assert [compiles(choice, model) for choice in (None, True, False)] == [False, True, False]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_one_compilation_serves_all_layers_and_lengths_with_the_same_numbers(monkeypatch, checkpointed):
    from torch._dynamo.testing import CompileCounter

    counter, plain = CompileCounter(), gradients()
    torch._dynamo.reset()
    compile_module = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, **knobs: compile_module(self, backend=counter, **knobs)
    )
    assert alike(plain, gradients(compile=True, checkpoint_activations=checkpointed))
    assert 1 <= counter.frame_count <= 6, "before and after attention; with and without gradient"
