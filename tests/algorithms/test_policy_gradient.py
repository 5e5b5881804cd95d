import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ludus.algorithms import make_algorithm
from ludus.config import AlgorithmConfig
from ludus.errors import TrainerFailed
from ludus.types import Stop
from tests.algorithms.examples import make_group, make_sequence
from tests.algorithms.problems import loss_of, tokens_of

ARM_REWARDS = (0.3, 1.0)


def grpo(**knobs):
    return make_algorithm(AlgorithmConfig(**knobs))


# ------------------------------------------------------------------------------------------------ gradients in closed form


def expected_gradient(algorithm, *, chance, spoken_with=None, size=2):
    """The mean gradient with respect to arm 1's logit, over every outcome of a group, on a two-armed softmax bandit."""
    spoken_with = chance if spoken_with is None else spoken_with
    total = 0.0
    for arms in itertools.product((0, 1), repeat=size):
        probability = math.prod(spoken_with if arm else 1 - spoken_with for arm in arms)
        said = [math.log(spoken_with if arm else 1 - spoken_with) for arm in arms]
        sequences = [[make_sequence([arm], logprobs=[logprob])] for arm, logprob in zip(arms, said, strict=True)]
        batch = algorithm.batch([make_group([ARM_REWARDS[arm] for arm in arms], sequences=sequences)])
        if batch.sequences:
            logit = torch.tensor(math.log(chance / (1 - chance)), requires_grad=True)
            policy = torch.stack([torch.zeros(()), logit]).log_softmax(0)
            loss_of(algorithm, batch.sequences, policy=policy).backward()
            total += probability * logit.grad.item()
    return total


def true_gradient(chance):
    """d/d logit of the expected reward."""
    return chance * (1 - chance) * (ARM_REWARDS[1] - ARM_REWARDS[0])


@pytest.mark.parametrize("chance", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("ratio_base", ["old", "behaviour"])
def test_the_centred_gradient_is_the_true_one_short_of_its_own_share_in_the_baseline(chance, size, ratio_base):
    got = expected_gradient(grpo(normalise="none", ratio_base=ratio_base), chance=chance, size=size)
    assert got == pytest.approx(-(size - 1) / size * true_gradient(chance), rel=1e-5)


@pytest.mark.parametrize("chance", [0.2, 0.9])
def test_the_normalised_gradient_weighs_every_task_alike(chance):
    # In a pair that differs the advantages are -1 and 1 whatever the rewards, and p(1 - p) is half the chance of such a pair.
    assert expected_gradient(grpo(normalise="std"), chance=chance) == pytest.approx(-chance * (1 - chance), rel=1e-5)


@pytest.mark.parametrize("chance", [0.2, 0.9])
def test_importance_weights_recover_the_true_gradient_from_another_speaker(chance):
    weighted = grpo(normalise="none", importance_cap=100.0)
    assert expected_gradient(weighted, chance=chance, spoken_with=0.5) == pytest.approx(
        -true_gradient(chance) / 2, rel=1e-5
    )
    unweighted = grpo(normalise="none", importance_cap=0.0)
    assert expected_gradient(unweighted, chance=chance, spoken_with=0.5) != pytest.approx(
        -true_gradient(chance) / 2, rel=0.05
    )


def test_an_engine_that_agrees_gives_exactly_the_uncorrected_loss():
    group = make_group([0.0, 1.0, 3.0])
    for aggregate in ("token", "trajectory"):
        corrected, plain = grpo(aggregate=aggregate), grpo(aggregate=aggregate, importance_cap=0.0)
        sequences = corrected.batch([group]).sequences
        assert loss_of(corrected, sequences).item() == loss_of(plain, sequences).item()


# ------------------------------------------------------------------------------------------------ batches


def test_every_trajectory_has_one_score_however_often_it_forked():
    forked = [make_sequence([1, 2]), make_sequence([3, 1, 2]), make_sequence([4])]
    group = make_group([1.0, 0.0], sequences=[forked, [make_sequence([1, 2])]])
    sequences = grpo(aggregate="trajectory").batch([group]).sequences
    assert [s.advantages[s.sampled][0] for s in sequences] == [1.0, 1.0, 1.0, -1.0]
    assert sum(s.weights.sum() for s in sequences[:3]) == pytest.approx(0.5)
    assert sequences[3].weights.sum() == pytest.approx(0.5)


def test_observations_get_neither_advantage_nor_weight():
    group = make_group([1.0, 0.0], sequences=[[make_sequence([5], prompt=(1, 2, 3))]] * 2)
    for sequence in grpo().batch([group]).sequences:
        assert sequence.advantages[:3].tolist() == sequence.weights[:3].tolist() == [0, 0, 0]


def test_sequences_that_sampled_nothing_are_left_out_and_ids_stay_the_same_arrays():
    silent, spoken = make_sequence([], prompt=(1, 2)), make_sequence([3])
    group = make_group([1.0, 0.0], sequences=[[silent, spoken], [make_sequence([2])]])
    sequences = grpo().batch([group]).sequences
    assert len(sequences) == 2
    assert sequences[0].ids is spoken.ids


def test_groups_without_a_difference_are_dropped_and_counted():
    groups = [make_group([0.0, 1.0]), make_group([1.0, 1.0]), make_group([0.5, 0.5], environment="grid")]
    batch = grpo().batch(groups)
    assert batch.groups == (groups[0],)
    assert len(batch.sequences) == 2
    assert batch.metrics == {"groups/kept": 1 / 3, "groups/kept/bandit": 1 / 2, "groups/kept/grid": 0.0}


def test_kept_groups_without_a_difference_weigh_in_with_advantage_exactly_0():
    batch = grpo(filter="none").batch([make_group([0.1 + 0.2, 0.3]), make_group([0.0, 1.0])])
    assert [s.advantages[1] for s in batch.sequences] == [0.0, 0.0, -1.0, 1.0]
    assert sum(s.weights.sum() for s in batch.sequences) == pytest.approx(1)


def test_a_batch_with_nothing_to_learn_from_is_empty():
    batch = grpo().batch([make_group([1.0, 1.0])])
    assert batch.sequences == batch.groups == ()
    assert grpo().batch([]).sequences == ()


def test_dropping_groups_without_a_difference_only_scales_the_gradient():
    groups = [make_group([0.0, 1.0]), make_group([1.0, 1.0])]
    gradients = []
    for rule in ("zero_variance", "none"):
        algorithm = grpo(filter=rule)
        logits = torch.zeros(8, requires_grad=True)
        loss_of(algorithm, algorithm.batch(groups).sequences, policy=logits.log_softmax(0)).backward()
        gradients.append(logits.grad)
    assert torch.equal(gradients[0], 2 * gradients[1])


@given(st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_the_order_inside_a_group_changes_nothing(rewards, random):
    group = make_group(rewards)
    shuffled = list(group.trajectories)
    random.shuffle(shuffled)
    algorithm = grpo()
    straight = {id(s.ids): s for s in algorithm.batch([group]).sequences}
    for sequence in algorithm.batch([replace(group, trajectories=tuple(shuffled))]).sequences:
        twin = straight[id(sequence.ids)]
        assert np.array_equal(sequence.advantages, twin.advantages)
        assert np.array_equal(sequence.weights, twin.weights)


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.data())
def test_splitting_a_batch_changes_nothing(lengths, data):
    algorithm = grpo(aggregate="trajectory")
    group = make_group(range(len(lengths)), sequences=[[make_sequence(range(1, n + 1))] for n in lengths])
    sequences = algorithm.batch([group]).sequences
    cut = data.draw(st.integers(1, len(sequences) - 1))
    policy = torch.linspace(-1, 1, 8).log_softmax(0)
    parts = [loss_of(algorithm, part, policy=policy).item() for part in (sequences[:cut], sequences[cut:])]
    assert sum(parts) == pytest.approx(loss_of(algorithm, sequences, policy=policy).item(), abs=1e-6)


def test_diagnostics_say_how_far_engine_and_trainer_are_apart():
    group = make_group(
        [0.0, 1.0], sequences=[[make_sequence([1], logprobs=[-3.0])], [make_sequence([1], logprobs=[-1.0])]]
    )
    algorithm = grpo(importance_cap=2.0)
    tokens = tokens_of(algorithm.batch([group]).sequences, policy=torch.tensor([-1.0, -1.0]))
    _, diagnostics = algorithm.loss(tokens)
    assert {name: values.tolist() for name, values in diagnostics.items()} == {
        "ratio": [1.0, 1.0],
        "clipped": [0.0, 0.0],
        "logprob_gap": [2.0, 0.0],
        "importance": [2.0, 1.0],
        "importance_capped": [1.0, 0.0],
    }


def test_a_missing_logprob_is_refused_by_name():
    group = make_group([0.0, 1.0], sequences=[[make_sequence([1, 2], logprobs=[-1.0, math.nan])], [make_sequence()]])
    with pytest.raises(TrainerFailed, match=r"sequence 0 of trajectory g0 lacks the logprob of 1 of its 2 sampled"):
        grpo().batch([group])


def test_a_reward_that_is_no_number_is_refused_by_name():
    with pytest.raises(TrainerFailed, match="trajectory g1 of bandit/train/g has reward nan"):
        grpo().batch([make_group([0.0, math.nan])])


def test_only_dynamic_sampling_wants_another_group_and_it_goes_by_shaped_rewards():
    alike, different = make_group([1.0, 1.0]), make_group([0.0, 1.0])
    dynamic = make_algorithm(AlgorithmConfig(filter="dynamic"))
    assert (dynamic.wants(alike), dynamic.wants(different)) == (False, True)
    assert make_algorithm(AlgorithmConfig(filter="zero_variance")).wants(alike)
    first, second = alike.trajectories
    cut = replace(alike, trajectories=(first, replace(second, stop=Stop.MAX_TURNS)))
    assert not dynamic.wants(cut)
    assert make_algorithm(AlgorithmConfig(filter="dynamic", unfinished_reward=-0.2)).wants(cut)


@pytest.mark.parametrize(
    ("advantage", "needs_values", "trains_critic"),
    [("group", False, False), ("gae", True, False), ("archer", True, True), ("teacher", False, False)],
)
def test_an_algorithm_says_whether_it_asks_a_critic_and_whether_asking_trains_it(
    advantage, needs_values, trains_critic
):
    algorithm = make_algorithm(AlgorithmConfig(advantage=advantage))
    assert (algorithm.needs_values, algorithm.trains_critic) == (needs_values, trains_critic)
