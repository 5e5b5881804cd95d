import pytest
import torch

from ludus.errors import ConfigError
from ludus.trainer.forward import prepare, sampled_logprobs
from ludus.trainer.pack import make_microbatch
from tests.trainer.examples import make_model, make_sequence

STRANGERS = [make_sequence(length, seed=length) for length in (9, 30, 17)]
LONG = make_sequence(30, seed=30)
SIBLINGS = [  # all have 12 tokens in common, three of them 20
    LONG,
    make_sequence(24, seed=1, ids=[*LONG.ids[:20], 1, 2, 3, 4]),
    make_sequence(20, seed=2, ids=LONG.ids[:20]),
    make_sequence(17, seed=3, ids=[*LONG.ids[:12], 5, 6, 7, 8, 9]),
]


def reference(model, sequences, *, temperature):
    """Each sequence alone, all logits, no packing."""
    logprobs, entropies = [], []
    for sequence in sequences:
        ids = torch.tensor(sequence.ids.astype("int64"))
        table = (model(input_ids=ids.unsqueeze(0)).logits[0, :-1] / temperature).log_softmax(-1)
        mask = torch.tensor(sequence.sampled[1:])
        logprobs.append(table.gather(1, ids[1:, None])[mask, 0])
        entropies.append(-(table.exp() * table).sum(-1)[mask])
    return torch.cat(logprobs), torch.cat(entropies)


def gradients(model, values):
    model.zero_grad()
    (values * torch.linspace(-1, 1, len(values))).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("sequences", [STRANGERS, SIBLINGS], ids=["strangers", "siblings"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("max_logits", [1 << 24, 5 * 60, 1], ids=["at once", "in pieces", "one by one"])
def test_packed_logprobs_entropies_and_gradients_are_those_of_each_sequence_alone(sequences, temperature, max_logits):
    model = make_model().eval()
    logprobs, entropies = reference(model, sequences, temperature=temperature)
    expected = gradients(model, logprobs)
    prepare(model)
    got, got_entropies = sampled_logprobs(
        model, make_microbatch(sequences), temperature=temperature, max_logits=max_logits
    )
    assert got.dtype == torch.float32
    assert torch.allclose(got, logprobs, atol=1e-5)
    assert torch.allclose(got_entropies, entropies, atol=1e-5)
    assert not got_entropies.requires_grad
    for mine, theirs in zip(gradients(model, got), expected, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


def test_a_model_that_changes_logits_after_its_head_is_refused():
    model = make_model().eval()
    plain = type(model).forward

    class Scaled(type(model)):
        def forward(self, **kwargs):
            output = plain(self, **kwargs)
            output.logits = output.logits * 0.5
            return output

    model.__class__ = Scaled
    with pytest.raises(ConfigError, match="Scaled gives other logprobs on packed rows than on single ones"):
        prepare(model)


def test_a_model_that_drops_the_segments_is_refused():
    model = make_model().eval()
    decoder = model.model
    plain = type(decoder).forward

    class Deaf(type(decoder)):
        def forward(self, *, segments=None, **kwargs):
            return plain(self, **kwargs)

    decoder.__class__ = Deaf
    with pytest.raises(ConfigError, match="differ by"):
        prepare(model)
