import asyncio
import builtins
import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from ludus.config import EngineConfig, LoraConfig, SftConfig, TrainerConfig
from ludus.engines.embedded import EmbeddedEngine
from ludus.errors import CheckpointFailed, ConfigError
from ludus.models.loading.save import save_model
from ludus.trainer.lora import add_adapters, export, has_adapters, merged_tensors
from ludus.trainer.sft import clone, cloning_trainer
from ludus.trainer.state import named_tensors
from ludus.trainer.threaded import ThreadedTrainer
from ludus.weights.memory import MemoryChannel
from tests.trainer.examples import make_batch, make_model, make_sequence, make_trainer, same

peft = pytest.importorskip("peft")
IDS = list(range(3, 20))


class NoTokenizer:
    def save_pretrained(self, folder):
        pass


def make_adapted(dtype=torch.float32, *, seed=0, rank=4, **changes):
    model = make_model().to(dtype)
    add_adapters(model, LoraConfig(rank=rank, **changes), seed=seed)
    return model


def trained(dtype=torch.float32, *, steps=3, **knobs):
    channel = MemoryChannel()
    trainer = make_trainer(make_adapted(dtype), channel=channel, **knobs)
    for step in range(steps):
        trainer.step(make_batch(step))
    return trainer, channel


@torch.no_grad()
def logits(model):
    return model(input_ids=torch.tensor([IDS]), use_cache=False).logits[0].float()


def test_only_adapters_move_have_gradients_and_memory_in_the_optimiser():
    trainer, _ = trained(steps=2)
    names = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert len(names) == 2 * 7 * 2, "two matrices for each of seven linear layers in two layers"
    assert {name for name, _ in trainer._masters.named_parameters()} == names
    assert len(trainer._optimizer.state) == len(names)
    fresh = named_tensors(make_model())
    for name, tensor in named_tensors(trainer.model).items():
        if name not in names:
            assert torch.equal(tensor, fresh[name.replace(".base_layer", "")])


def test_adapters_change_nothing_at_first_and_depend_on_the_seed_alone():
    first, again, other = (make_adapted(seed=seed) for seed in (1, 1, 2))
    assert torch.equal(logits(first), logits(make_model()))
    assert same(named_tensors(first), named_tensors(again))
    assert not same(named_tensors(first), named_tensors(other))


def test_adding_adapters_leaves_the_global_random_state_alone():
    model, state = make_model(), torch.get_rng_state()
    add_adapters(model, LoraConfig(rank=2), seed=9)
    assert has_adapters(model)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("dtype", "gap"), [(torch.float32, 1e-4), (torch.bfloat16, 0.3)])
def test_what_is_published_is_a_whole_model_that_says_what_the_adapted_one_says(dtype, gap):
    trainer, channel = trained(dtype, lr=3e-2)
    tensors = channel.fetch(trainer.publish())
    plain = make_model().to(dtype)
    assert tensors.keys() == named_tensors(plain).keys()
    before = logits(plain)
    plain.load_state_dict(tensors, strict=False)
    assert {tensor.dtype for tensor in tensors.values()} == {dtype}
    adapted = logits(trainer.model)
    assert (adapted - before).abs().max() > 3 * gap, "training moved it"
    assert (logits(plain) - adapted).abs().max() < gap


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_dozen_versions_later_the_merge_is_still_of_the_weights_it_began_with(dtype):
    """Nothing is merged into what was merged before: rounding would add up, and old adapters would stay."""
    channel, first = MemoryChannel(keep=2), named_tensors(make_model().to(dtype))
    trainer = make_trainer(make_adapted(dtype), channel=channel, lr=3e-2)
    for step in range(12):
        trainer.step(make_batch(step % 3))
        trainer.publish()
    published, adapters = channel.fetch(trainer.version), named_tensors(trainer.model)
    for name, weight in first.items():
        prefix = name.removesuffix(".weight")
        expected = weight
        if f"{prefix}.base_layer.weight" in adapters:
            assert torch.equal(adapters[f"{prefix}.base_layer.weight"], weight), "the weights never move"
            down, up = (adapters[f"{prefix}.lora_{each}.default.weight"].float() for each in "AB")
            expected = (weight.float() + 2 * (up @ down)).to(dtype)  # alpha is twice the rank
        assert torch.equal(published[name], expected)


def test_the_probe_sees_merged_weights_arrive_in_the_engine_and_would_miss_them():
    trainer, channel = trained(lr=3e-2, steps=0)

    async def main():
        engine = EmbeddedEngine(make_model(), config=EngineConfig(), max_tokens=64)
        try:
            gaps = []
            for step in range(4):
                trainer.step(make_batch(step))
                version = trainer.publish()
                for loads in (False, True):
                    if loads:
                        await engine.load(version, source=channel)
                    theirs = await engine.score(IDS)
                    gaps.append(max(abs(a - b) for a, b in zip(trainer.logprobs(IDS), theirs, strict=True)))
            return gaps[0::2], gaps[1::2]
        finally:
            await engine.close()

    before, after = asyncio.run(main())
    assert min(before) > 1e-2, "an engine that was left behind is found out"
    assert max(after) < 1e-4


def test_alpha_over_rank_scales_what_an_adapter_adds():
    def shift(**knobs):
        model = make_adapted(**knobs)
        for parameter in model.parameters():
            if parameter.requires_grad:
                torch.nn.init.constant_(parameter, 0.01)
        name = "model.layers.0.mlp.up_proj.weight"
        return (merged_tensors(model)[name] - named_tensors(make_model())[name]).mean().item()

    assert shift(rank=4) == pytest.approx(2 * 4 * 1e-4, rel=1e-3), "alpha is twice the rank"
    assert shift(rank=4, alpha=1) == pytest.approx(1e-4, rel=1e-3)


def test_targets_are_the_layers_that_were_named():
    model = make_adapted(targets=("q_proj", "v_proj"))
    adapted = {name.split(".")[4] for name, p in model.named_parameters() if p.requires_grad}
    assert adapted == {"q_proj", "v_proj"}


@pytest.mark.parametrize("target", ["q_porj", "lm_head"])
def test_a_target_that_is_not_there_is_refused_with_those_that_are(target):
    with pytest.raises(ConfigError, match=r"not a linear layer of this decoder.*q_proj"):
        make_adapted(targets=(target,))


def test_without_peft_the_error_says_what_to_install(monkeypatch):
    original = builtins.__import__

    def without(name, *rest):
        if name == "peft":
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'ludus\[lora\]'"):
        make_adapted()


def test_settings_of_adapters_that_there_are_not_are_refused():
    with pytest.raises(ValueError, match=r"lora\.rank is 0.*lora\.alpha is 8"):
        LoraConfig(alpha=8)


# ------------------------------------------------------------------------------------------------ checkpoints and exports


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_with_adapters_equals_one_that_never_stopped(dtype, tmp_path):
    straight, _ = trained(dtype, steps=2)
    folder = straight.save(tmp_path, state={}, keep=1)
    assert not (folder / "model.safetensors").exists(), "weights that never change are not stored"
    resumed, _ = trained(dtype, steps=0)
    resumed.restore(folder)
    for trainer in (straight, resumed):
        trainer.step(make_batch(7))
    assert same(dict(straight._masters.named_parameters()), dict(resumed._masters.named_parameters()))
    assert same(merged_tensors(straight.model), merged_tensors(resumed.model))


def test_adapters_and_whole_weights_do_not_resume_each_other(tmp_path):
    adapted, _ = trained(steps=1)
    whole = make_trainer()
    folders = [each.save(tmp_path / str(i), state={}, keep=1) for i, each in enumerate((adapted, whole))]
    with pytest.raises(CheckpointFailed, match=r"no model\.safetensors, but adapter, optimizer, rng: .* lora\.rank"):
        whole.restore(folders[0])
    with pytest.raises(CheckpointFailed, match=r"no adapter\.safetensors, but model, optimizer, rng: .* lora\.rank"):
        adapted.restore(folders[1])


def test_an_export_is_a_merged_model_with_the_adapters_beside_it_in_pefts_format(tmp_path):
    save_model(tmp_path / "base", model=make_model(), tokenizer=NoTokenizer())
    trainer, _ = trained(lr=3e-2)
    folder = export(tmp_path / "export", model=trainer.model, tokenizer=NoTokenizer())
    expected = logits(trainer.model)
    merged = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert type(merged).__name__ == "LlamaForCausalLM"
    assert torch.allclose(logits(merged), expected, atol=1e-4)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()
    loaded = peft.PeftModel.from_pretrained(base, folder / "adapter")
    assert torch.allclose(logits(loaded), expected, atol=1e-4)


def test_cloning_trains_adapters_too():
    model = make_model()
    before, losses = copy.deepcopy(named_tensors(model)), []
    config = SftConfig(steps=25, batch_tokens=40, lr=3e-2, warmup_steps=2)
    trainer = cloning_trainer(model, config=config, trainer=TrainerConfig(), lora=LoraConfig(rank=8), seed=0)
    sequences = [make_sequence(length, seed=length) for length in (8, 13, 10)]
    record = lambda step, metrics: losses.append(metrics["loss"])  # noqa: E731
    asyncio.run(clone(ThreadedTrainer(trainer), sequences, config=config, seed=0, on_step=record))
    assert losses[-1] < losses[0] / 2
    after = merged_tensors(model)
    assert torch.equal(after["model.embed_tokens.weight"], before["model.embed_tokens.weight"])
    assert not torch.equal(after["model.layers.1.mlp.up_proj.weight"], before["model.layers.1.mlp.up_proj.weight"])
