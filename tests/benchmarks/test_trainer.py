"""The benchmark of the trainer, at its smallest."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import trainer as module

    monkeypatch.setitem(module.STEP_TOKENS, "tiny", 300)
    yield module
    sys.modules.pop("trainer", None)


def test_every_case_gives_one_line_with_its_rate_and_its_mfu(bench, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["trainer.py", "--device", "cpu", "--repeats", "1"])
    monkeypatch.setattr(bench, "peak_flops", lambda device: 1e12)
    bench.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = {"full", "peer", "lora", "checkpointed", "shared/unshared", "shared/spread"}
    assert {line["case"].removeprefix("trainer/tiny/") for line in lines} == expected
    assert not [line for line in lines if "error" in line]
    assert all(0 < line["mfu"] < 1 and line["tokens_per_s"] > 0 for line in lines)


def test_flops_count_each_real_token_and_shared_beginnings_once(bench):
    model = bench.make_model("tiny", torch.device("cpu"))
    body, head = 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128), 512 * 64
    one = bench.Batch((bench.make_sequence(np.arange(11), prompt=5),))
    attended = 12 * 2 * 64 * (10 * 11 // 2)
    flops = bench.model_flops(model, one, lora=False, shared=False)
    assert flops == 6 * 10 * body + attended + 6 * 6 * head, "the last token is predicted and predicts nothing"
    twice = bench.Batch(one.sequences * 2)
    assert bench.model_flops(model, twice, lora=False, shared=False) == 2 * flops
    assert bench.model_flops(model, twice, lora=False, shared=True) == flops + 6 * 6 * head


def test_groups_share_their_prompt_or_nothing_at_the_same_lengths(bench):
    shared, apart = (bench.groups("tiny", seed=0, shared=on) for on in (True, False))
    assert [len(s) for s in shared.sequences] == [len(s) for s in apart.sequences]
    beginnings = [{tuple(s.ids[:3]) for s in batch.sequences} for batch in (shared, apart)]
    assert [len(found) for found in beginnings] == [1, 8]
