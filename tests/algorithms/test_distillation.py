"""On-policy distillation: the mean gradient is that of the exact divergence, and following it ends at the teacher."""

import pytest
import torch

from ludus.algorithms import make_algorithm
from ludus.config import AlgorithmConfig, load_config
from ludus.errors import ConfigError
from tests.algorithms.examples import group_of, make_conversation
from tests.algorithms.problems import chance, loss_of, table, walks

STUDENT, TEACHER = (0.4, -0.3, 0.8), (-1.5, 0.2, 2.0)
DISTILL = make_algorithm(AlgorithmConfig(advantage="teacher", aggregate="constant", aggregate_tokens=1))


def divergence(logits):
    ours, theirs = table(logits), table(torch.tensor(TEACHER))
    said = [[token for turn in outcome[0] for token in turn] for outcome in walks()]
    return sum(
        chance(outcome, ours) * (ours[tokens] - theirs[tokens]).sum()
        for outcome, tokens in zip(walks(), said, strict=True)
    )


def mean_gradient(logits):
    """Over all outcomes of single sessions, whose rewards say the opposite and must not matter."""
    total = torch.zeros(3)
    for outcome in walks():
        spoken = [[float(table(torch.tensor(logits))[token]) for token in turn] for turn in outcome[0]]
        group = group_of([make_conversation(outcome[0], [-9.0, 5.0], logprobs=spoken)])
        leaf = torch.tensor(logits, requires_grad=True)
        sequences = DISTILL.batch([group]).sequences
        loss_of(DISTILL, sequences, policy=table(leaf), reference=table(torch.tensor(TEACHER))).backward()
        total += chance(outcome, table(torch.tensor(logits))) * leaf.grad
    return total


def test_on_single_turns_the_mean_gradient_is_that_of_the_divergence_and_on_walks_that_of_each_turns_own():
    # A token's advantage is its own log ratio: that the first arm leads to a state with a worse divergence is not in it.
    leaf = torch.tensor(STUDENT, requires_grad=True)
    divergence(leaf).backward()
    got = mean_gradient(STUDENT)
    assert got[1:] == pytest.approx(leaf.grad[1:], abs=1e-6)
    alone = torch.tensor(STUDENT[0], requires_grad=True)
    ours = torch.stack([torch.zeros(()), alone]).log_softmax(0)
    theirs = torch.tensor([0.0, TEACHER[0]]).log_softmax(0)
    (ours.exp() * (ours - theirs)).sum().backward()
    assert got[0] == pytest.approx(float(alone.grad), abs=1e-6)


def test_at_the_teacher_every_gradient_is_0():
    assert mean_gradient(TEACHER).tolist() == pytest.approx([0, 0, 0], abs=1e-7)


def test_following_it_ends_at_the_teacher():
    logits = torch.tensor(STUDENT)
    before = float(divergence(logits))
    for _ in range(60):
        logits = logits - 6.0 * mean_gradient(tuple(logits.tolist()))
    assert float(divergence(logits)) < 1e-2 * before


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.advantage=teacher"], "a teacher goes with advantage 'teacher' and only with it"),
        (["teacher.model=x"], "a teacher goes with"),
        (["algorithm.advantage=teacher", "algorithm.unfinished_reward=-0.2", "teacher.model=x"], "judges alone"),
        (
            ["algorithm.advantage=teacher", "algorithm.normalise=batch", "teacher.model=x"],
            "advantage 'teacher' has no such option",
        ),
        (["algorithm.advantage=teacher", "algorithm.kl=k3", "algorithm.kl_weight=1.0", "teacher.model=x"], "already"),
    ],
)
def test_a_missing_or_idle_teacher_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)
