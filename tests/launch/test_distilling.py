"""Distillation through the real trainer: every token the student might say, weighed by its chance, so that nothing is left to luck."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ludus.algorithms import make_algorithm
from ludus.config import AlgorithmConfig, TrainerConfig
from ludus.errors import ConfigError
from ludus.models.loading.tiny import make_tiny
from ludus.trainer.local import LocalTrainer
from ludus.types import Batch, Sequence, frozen_array
from tests.e2e.runs import make_config, run
from tests.trainer.examples import VOCABULARY, make_model

PROMPT = (7, 3, 11)


@torch.no_grad()
def next_logprobs(model):
    """Of every token after the prompt."""
    return model(input_ids=torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1)


def every_token(logprobs):
    def one(token):
        mask = np.arange(4) == 3
        return Sequence(
            ids=frozen_array([*PROMPT, token], np.int32),
            sampled=frozen_array(mask, np.bool_),
            logprobs=frozen_array(np.where(mask, logprobs[token], 0), np.float32),
            versions=frozen_array(np.where(mask, 0, -1), np.int32),
            turns=frozen_array(np.zeros(4), np.int32),
            advantages=frozen_array(np.zeros(4), np.float32),
            weights=frozen_array(mask * float(logprobs[token].exp()), np.float32),
        )

    return Batch(tuple(one(token) for token in range(VOCABULARY)))


def test_the_student_becomes_its_teacher_step_by_step_and_stays_there():
    student, teacher = make_model(seed=0), make_model(seed=1)
    theirs = next_logprobs(teacher)
    algorithm = make_algorithm(AlgorithmConfig(advantage="teacher"))
    trainer = LocalTrainer(student, algorithm_loss=algorithm.loss, config=TrainerConfig(lr=3e-3), reference=teacher)
    distances = []
    for _ in range(40):
        ours = next_logprobs(student)
        distances.append(float((ours.exp() * (ours - theirs)).sum()))
        metrics = trainer.step(every_token(ours))
    assert distances[0] > 0.5
    assert distances[-1] < distances[0] / 20
    twin = LocalTrainer(
        make_model(seed=1), algorithm_loss=algorithm.loss, config=TrainerConfig(), reference=make_model(seed=1)
    )
    metrics = twin.step(every_token(theirs))
    assert (metrics["teacher_kl"], metrics["grad_norm"]) == pytest.approx((0, 0), abs=1e-5)


def test_a_teacher_with_other_words_is_refused(small_model, tmp_path):
    words = ["quite other words"] * 9
    stranger = make_tiny(tmp_path / "stranger", corpus=words, seed=1, vocab_size=400, layers=1, hidden=32)
    config = make_config(tmp_path, small_model, algorithm={"advantage": "teacher"}, teacher={"model": str(stranger)})
    with pytest.raises(ConfigError, match="has another vocabulary than"):
        run(config)
