"""Tokens per second and MFU of the trainer, beside a plain Transformers loop with a chunked loss, at Qwen2.5's shapes with random weights.

    python benchmarks/trainer.py --device cuda                          everything; about ten minutes on one H200
    python benchmarks/trainer.py --device cuda --shapes 0.5b --cases full peer
    python benchmarks/trainer.py --device cpu                           the same code at a tiny shape

Cases: `full` (all weights), `compiled` (torch.compile in place of our kernels), `checkpointed` (activations computed again), `lora` (rank
16, every linear layer), `peer`, and `shared`: groups of 8 with a prompt of 1,000 tokens in common and 200 of their own, against the same
lengths with nothing in common, once with tree attention and once with attention over whole sequences. Sequences of the other cases have
100 to 4,000 tokens, evenly, the first 50 of them a prompt; all else is trained.

MFU = model FLOPs / seconds / peak. The peak is that of a large bfloat16 matrix product in the same run (790 TFLOP/s on an H200). Model
FLOPs, of real tokens alone, nothing that is computed twice counted twice:
    6 x parameters of the decoder's linear layers            per token
    12 x layers x heads x head dim x tokens it sees          per token
    6 x vocabulary x hidden size                             per token that is predicted
and with adapters 4 in place of 6 for what is frozen, whose gradients nobody wants. tokens_per_s counts prompts too, shared ones as
often as they occur.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from ludus.config import LoraConfig, TrainerConfig
from ludus.models.attention.tree import Tree
from ludus.trainer.local import LocalTrainer
from ludus.trainer.lora import add_adapters
from ludus.trainer.optimizer import cast_weights
from ludus.trainer.pack import row_ids, subtree_ends, trie
from ludus.trainer.sft import log_likelihood
from ludus.types import Batch, Sequence, frozen_array

SHAPES: dict[str, dict[str, int]] = {
    "0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2},
    "1.5b": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
}  # fmt: skip
VOCABULARY = {"0.5b": 151_936, "1.5b": 151_936, "tiny": 512}
LENGTHS = {"0.5b": (100, 4000), "1.5b": (100, 4000), "tiny": (10, 100)}
GROUP = {"0.5b": (8, 1000, 200), "1.5b": (8, 1000, 200), "tiny": (8, 100, 20)}
"""Attempts, tokens in common, tokens of their own."""
PROMPT = {"0.5b": 50, "1.5b": 50, "tiny": 5}
STEP_TOKENS = {"0.5b": 131_072, "1.5b": 65_536, "tiny": 2_000}
CASES = ("full", "peer", "shared", "lora", "compiled", "checkpointed")
PEER_ROWS = 1024
"""Tokens whose logits the peer's loss makes at once."""


def make_model(shape: str, device: torch.device) -> PreTrainedModel:
    config = Qwen2Config(
        **SHAPES[shape],
        vocab_size=VOCABULARY[shape],
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    with device:
        model: PreTrainedModel = Qwen2ForCausalLM(config).eval()
    cast_weights(model, torch.bfloat16 if device.type == "cuda" else torch.float32)
    return model


# ------------------------------------------------------------------------------------------------ batches


def make_sequence(ids: np.ndarray, *, prompt: int) -> Sequence:
    sampled = np.arange(len(ids)) >= prompt
    return Sequence(
        ids=frozen_array(ids, np.int32),
        sampled=sampled,
        logprobs=np.zeros(len(ids), np.float32),
        versions=np.zeros(len(ids), np.int32),
        turns=np.zeros(len(ids), np.int32),
        advantages=sampled.astype(np.float32),
        weights=sampled.astype(np.float32) / 1e5,
    )


def strangers(shape: str, *, seed: int) -> Batch:
    rng, sequences, room = np.random.default_rng(seed), [], STEP_TOKENS[shape]
    while room > 0:
        length = int(rng.integers(LENGTHS[shape][0], LENGTHS[shape][1] + 1))
        sequences.append(make_sequence(rng.integers(0, VOCABULARY[shape], length), prompt=PROMPT[shape]))
        room -= length
    return Batch(tuple(sequences))


def groups(shape: str, *, seed: int, shared: bool) -> Batch:
    rng, (size, common, own) = np.random.default_rng(seed), GROUP[shape]
    sequences = []
    for _ in range(max(1, STEP_TOKENS[shape] // (size * (common + own)))):
        prompt = rng.integers(0, VOCABULARY[shape], common)
        for attempt in range(size):
            ids = np.concatenate([prompt, rng.integers(0, VOCABULARY[shape], own)])
            if not shared:
                ids[0] = (prompt[0] + attempt) % VOCABULARY[shape]  # other from the first token on: nothing in common
            sequences.append(make_sequence(ids, prompt=common))
    return Batch(tuple(sequences))


def model_flops(model: PreTrainedModel, batch: Batch, *, lora: bool, shared: bool) -> float:
    """The formula above. With sharing, of what has to be computed: every beginning once."""
    rows = sorted((row_ids(sequence) for sequence in batch.sequences), key=lambda row: row.tolist())
    nodes = trie(rows) if shared else [np.arange(len(row)) for row in rows]
    if shared:
        tokens, seen = len(subtree_ends(nodes)), sum(_new_contexts(nodes))
    else:
        tokens, seen = sum(map(len, rows)), sum(len(row) * (len(row) + 1) // 2 for row in rows)
    config: Any = model.config
    linears = [(name, m) for name, m in model.base_model.named_modules() if isinstance(m, torch.nn.Linear)]
    adapters = sum(m.weight.numel() for name, m in linears if ".lora_" in name)
    frozen = sum(m.weight.numel() for name, m in linears if ".lora_" not in name)
    times = 4 if lora else 6
    predicted = sum(sequence.num_sampled for sequence in batch.sequences)
    attended = 12 * config.num_hidden_layers * config.hidden_size * seen
    return (
        tokens * (times * frozen + 6 * adapters) + attended + times * predicted * config.vocab_size * config.hidden_size
    )


def _new_contexts(nodes: list[np.ndarray]) -> Iterator[int]:
    """Of each row, how much its own tokens see in all."""
    count = 0
    for own in nodes:
        depths = np.flatnonzero(own >= count) + 1
        yield int(depths.sum())
        count = max(count, int(own[-1]) + 1)


# ------------------------------------------------------------------------------------------------ measuring


def peak_flops(device: torch.device) -> float:
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = [timed(lambda: torch.mm(a, b), device=device) for _ in range(13)][3:]
    return 2 * size**3 / statistics.median(seconds)


def timed(work: Callable[[], Any], *, device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_gib(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@contextmanager
def fresh(device: torch.device) -> Iterator[None]:
    """Memory and compilations of one case do not reach the next."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        yield
    finally:
        gc.collect()
        if device.type == "cuda":
            torch._dynamo.reset()
            torch.cuda.empty_cache()


def measured(
    step: Callable[[Batch], Any], batches: Callable[[int], Batch], *, repeats: int, device: torch.device
) -> dict[str, Any]:
    """The first two steps compile, and find out what fits; each step has sequences of its own."""
    given = [batches(seed) for seed in range(2 + repeats)]
    times = [timed(partial(step, batch), device=device) for batch in given]
    return {
        "tokens_per_s": statistics.median(b.num_tokens / s for b, s in zip(given[2:], times[2:], strict=True)),
        "step_s": statistics.median(times[2:]),
        "start_s": sum(times[:2]),
        "peak_gib": peak_gib(device),
    }


def ours(
    shape: str, device: torch.device, batches: Callable[[int], Batch], *, repeats: int, rank: int = 0, **knobs: Any
) -> tuple[dict[str, Any], PreTrainedModel]:
    model = make_model(shape, device)
    add_adapters(model, LoraConfig(rank=rank), seed=0)
    events: list[str] = []
    config = TrainerConfig(lr=1e-5, threads=0, **knobs)
    trainer = LocalTrainer(
        model, algorithm_loss=log_likelihood, config=config, on_event=lambda kind, **_: events.append(kind)
    )
    found = measured(trainer.step, batches, repeats=repeats, device=device)
    found["microbatch_tokens"] = trainer._budget.tokens
    found["out_of_memory"] = events.count("out_of_memory")
    return found, model


# ------------------------------------------------------------------------------------------------ the peer


def peer(shape: str, device: torch.device, batches: Callable[[int], Batch], *, repeats: int) -> dict[str, Any]:
    """What one writes in an afternoon: rows of similar length padded to the longest, SDPA, logits in checkpointed pieces, AdamW."""
    model = make_model(shape, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    budget = 16_384 if device.type == "cuda" else 1_024

    def step(batch: Batch) -> None:
        for rows in _padded(batch, budget=budget):
            ids = torch.from_numpy(rows["ids"]).to(device)
            mask = torch.from_numpy(rows["mask"]).to(device)
            wanted = torch.from_numpy(rows["wanted"]).to(device)
            hidden = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False)[0][:, :-1][wanted[:, 1:]]
            targets = ids[:, 1:][wanted[:, 1:]]
            parts = zip(hidden.split(PEER_ROWS), targets.split(PEER_ROWS), strict=True)
            losses = [checkpoint(_piece, model, *part, use_reentrant=False) for part in parts]
            (torch.stack(losses).sum() / 1e5).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        optimizer.zero_grad()

    return measured(step, batches, repeats=repeats, device=device)


def _piece(model: Any, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model.lm_head(hidden).float(), targets, reduction="sum")


def _padded(batch: Batch, *, budget: int) -> Iterator[dict[str, np.ndarray]]:
    rows: list[Sequence] = []
    for sequence in [*sorted(batch.sequences, key=len), None]:
        if rows and (sequence is None or (len(rows) + 1) * len(sequence) > budget):
            longest = len(rows[-1])
            table = {name: np.zeros((len(rows), longest), kind) for name, kind in _COLUMNS.items()}
            for i, row in enumerate(rows):
                table["ids"][i, : len(row)], table["mask"][i, : len(row)] = row.ids, 1
                table["wanted"][i, : len(row)] = row.sampled
            yield table
            rows = []
        rows += [] if sequence is None else [sequence]


_COLUMNS = {"ids": np.int64, "mask": np.int64, "wanted": np.bool_}


# ------------------------------------------------------------------------------------------------ cases


def run_case(name: str, shape: str, device: torch.device, *, repeats: int, peak: float) -> None:
    def batches(seed: int) -> Batch:
        return strangers(shape, seed=seed)

    knobs: dict[str, Any] = {
        "full": {},
        "compiled": {"compile": True},
        "checkpointed": {"checkpoint_activations": True},
        "lora": {"rank": 16},
    }.get(name, {})
    if name == "peer":
        found, model = peer(shape, device, batches, repeats=repeats), make_model(shape, device)
    else:
        found, model = ours(shape, device, batches, repeats=repeats, **knobs)
    flops = statistics.median(
        model_flops(model, batches(2 + i), lora=name == "lora", shared=False) / batches(2 + i).num_tokens
        for i in range(repeats)
    )
    tell(f"trainer/{shape}/{name}", found, flops_per_token=flops, peak=peak)


def run_shared(shape: str, device: torch.device, *, repeats: int, peak: float) -> None:
    """The same lengths three times: every beginning once, by tree attention and by attention over whole sequences, and nothing shared."""
    rates: dict[str, float] = {}
    for form in ("unshared", "tree", "spread"):
        if form == "tree" and device.type != "cuda":
            continue

        def batches(seed: int, form: str = form) -> Batch:
            return groups(shape, seed=seed, shared=form != "unshared")

        whole = patch.object(Tree, "of", return_value=None) if form == "spread" else nullcontext()
        with fresh(device), whole:
            found, model = ours(shape, device, batches, repeats=repeats)
        rates[form] = found["tokens_per_s"]
        flops = model_flops(model, batches(2), lora=False, shared=form != "unshared") / batches(2).num_tokens
        ratio = {} if form == "unshared" else {"ratio": round(rates[form] / rates["unshared"], 2)}
        tell(f"trainer/{shape}/shared/{form}", found | ratio, flops_per_token=flops, peak=peak)
        del model


def tell(case: str, found: dict[str, Any], *, flops_per_token: float, peak: float) -> None:
    rate = found["tokens_per_s"] * flops_per_token
    line = {
        "case": case,
        **{name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()},
        "tokens_per_s": round(found["tokens_per_s"]),
        "mfu": round(rate / peak, 3),
        "tflops_per_s": round(rate / 1e12, 4),
        "gflop_per_token": round(flops_per_token / 1e9, 4),
        "peak_tflops": round(peak / 1e12, 3),
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), help="0.5b and 1.5b on a GPU, tiny on a CPU")
    parser.add_argument("--cases", nargs="+", choices=CASES, help="all; `compiled` on a GPU only")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    on_gpu = given.device == "cuda" or (given.device == "auto" and torch.cuda.is_available())
    device = torch.device("cuda" if on_gpu else "cpu")
    torch.set_num_threads(torch.get_num_threads() if on_gpu else 1)
    peak = peak_flops(device)
    for shape in given.shapes or (["0.5b", "1.5b"] if on_gpu else ["tiny"]):
        for name in given.cases or [case for case in CASES if on_gpu or case != "compiled"]:
            try:
                with fresh(device):
                    if name == "shared":
                        run_shared(shape, device, repeats=given.repeats, peak=peak)
                    else:
                        run_case(name, shape, device, repeats=given.repeats, peak=peak)
            except Exception as error:  # a case that fails says so and leaves the others their turn
                print(json.dumps({"case": f"trainer/{shape}/{name}", "error": repr(error)[:500]}), flush=True)


if __name__ == "__main__":
    main()
