"""Reads a Llama model from a GGUF file. Promise: the weights are the file's own, de-quantised.

It needs the `gguf` package alone: Transformers' reader needs more, and its models cannot be saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from ludus.errors import ConfigError


def require_gguf() -> None:
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise ConfigError(
            "this model comes as a GGUF file; reading it needs an extra: pip install 'ludus[gguf]'"
        ) from None


def read_gguf(path: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """The model in float32, and its tokenizer."""
    require_gguf()
    from gguf import GGUFReader

    reader = GGUFReader(path)
    config = _config(reader)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    config.tie_word_embeddings = "output.weight" not in stored
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    tensors = _tensors(stored, model)
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
    model.load_state_dict(tensors, assign=True)
    model.tie_weights()
    # rotary frequencies are computed, not stored, and have no values on the meta device
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model, AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def _config(reader: Any) -> LlamaConfig:
    def of(key: str, default: Any = None) -> Any:
        field = reader.get_field(key)
        return default if field is None else field.contents()

    architecture = of("general.architecture")
    if architecture != "llama":
        raise ConfigError(
            f"the GGUF file holds a model of architecture {architecture!r}; only 'llama' can be converted"
        )
    heads = of("llama.attention.head_count")
    hidden = of("llama.embedding_length")
    return LlamaConfig(
        vocab_size=of("llama.vocab_size") or len(of("tokenizer.ggml.tokens")),
        hidden_size=hidden,
        intermediate_size=of("llama.feed_forward_length"),
        num_hidden_layers=of("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=of("llama.attention.head_count_kv", heads),
        head_dim=of("llama.attention.key_length", hidden // heads),
        max_position_embeddings=of("llama.context_length"),
        rms_norm_eps=of("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": of("llama.rope.freq_base", 10000.0)},
        bos_token_id=of("tokenizer.ggml.bos_token_id"),
        eos_token_id=of("tokenizer.ggml.eos_token_id"),
        pad_token_id=of("tokenizer.ggml.padding_token_id"),
    )


def _tensors(stored: dict[str, Any], model: LlamaForCausalLM) -> dict[str, Tensor]:
    """The tensors of a file by their names in `model`."""
    from gguf import MODEL_ARCH, dequantize, get_tensor_name_map

    config, tensors = model.config, dict[str, Tensor]()
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads or config.num_attention_heads}
    for name in model.state_dict():
        tensor = stored.pop(names.get_name(name, try_suffixes=(".weight",)) or "", None)
        if tensor is None:
            continue
        weights = torch.tensor(dequantize(tensor.data, tensor.tensor_type), dtype=torch.float32)
        kind = name.split(".")[-2]
        tensors[name] = _halves_apart(weights, heads=heads[kind]) if kind in heads else weights
    if stored:
        raise ConfigError(f"the GGUF file holds a tensor {min(stored)!r} that a plain Llama model does not have")
    return tensors


def _halves_apart(weights: Tensor, *, heads: int) -> Tensor:
    """GGUF interleaves the two halves of a rotary embedding; Transformers concatenates them."""
    rows, columns = weights.shape
    return weights.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
