"""Gradients in closed form: what a combination claims about its mean is checked over every outcome, and so is its documented bias."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ludus.algorithms import make_algorithm
from ludus.config import AlgorithmConfig, load_config
from ludus.errors import TrainerFailed
from tests.algorithms.examples import group_of, make_conversation
from tests.algorithms.problems import (
    ARMS,
    FIRST,
    SECOND,
    loss_of,
    mean_gradient,
    mean_gradient_of_mixture,
    pulls,
    table,
    true_gradient,
    walks,
)

LOGITS = (0.4, -0.3, 0.8)
ELSEWHERE = (-1.5, 0.2, 0.1)
"""Another speaker's."""
LOSSES = [
    {},
    {"ratio_base": "behaviour"},
    {"loss": "cispo", "ratio_base": "behaviour"},
    {"loss": "cispo"},
    {"loss": "reinforce"},
]


def algorithm(**knobs):
    return make_algorithm(AlgorithmConfig(**knobs))


def gradient(size=2, spoken_with=None, outcomes=None, **knobs):
    return mean_gradient(algorithm(**knobs), LOGITS, outcomes or walks(), size=size, spoken_with=spoken_with)


TRUE = true_gradient(LOGITS, walks())
PER_TOKEN = -TRUE / 2
"""The loss goes down where the return goes up; every trajectory has two tokens, and a token mean divides by them."""


@pytest.mark.parametrize(("size", "loss"), [(3, {}), *((2, loss) for loss in LOSSES)])
@pytest.mark.parametrize("advantage", ["leave_one_out", "reward", "return_to_go"])
def test_unbiased_advantages_have_the_true_gradient_as_their_mean(advantage, loss, size):
    assert gradient(size, advantage=advantage, **loss) == pytest.approx(PER_TOKEN, abs=1e-6)


@pytest.mark.parametrize(("size", "loss"), [(3, {}), *((2, loss) for loss in LOSSES)])
def test_mean_centring_is_short_of_its_own_share_in_the_baseline(size, loss):
    assert gradient(size, normalise="none", **loss) == pytest.approx(PER_TOKEN * (size - 1) / size, abs=1e-6)


@pytest.mark.parametrize("aggregate", ["trajectory", "sequence"])
def test_a_sequence_ratio_has_the_mean_of_its_tokens_gradients(aggregate):
    got = gradient(advantage="leave_one_out", ratio="sequence", ratio_base="behaviour", aggregate=aggregate)
    assert got == pytest.approx(PER_TOKEN, abs=1e-6)


@pytest.mark.parametrize("advantage", ["gae", "turn_gae", "bilevel_gae"])
def test_with_a_critic_that_expects_nothing_the_gradient_is_the_true_one_also_alone_in_its_group(advantage):
    for size in (1, 2):
        assert gradient(size, advantage=advantage, normalise="none") == pytest.approx(PER_TOKEN, abs=1e-6)


def test_a_discounted_return_to_go_has_the_gradient_of_the_discounted_return_from_each_turn_on():
    # Turn 1 weighs its own reward in full: the discount does not shrink late turns, as it would in the gradient of the discounted sum.
    expected = true_gradient(LOGITS, walks(), reward=lambda outcome: outcome[1][0] + 0.5 * outcome[1][1])
    expected[1:] *= 2
    assert gradient(advantage="return_to_go", discount=0.5) == pytest.approx(-expected / 2, abs=1e-6)


def test_a_reward_earned_first_gives_the_later_action_no_credit():
    late_matters_not = [(said, (rewards[0], 0.0)) for said, rewards in walks()]
    batches = {
        name: algorithm(advantage=name).batch([group_of([make_conversation(s, r) for s, r in late_matters_not])])
        for name in ("reward", "return_to_go")
    }
    variance = {name: np.var([s.advantages[s.sampled][1] for s in batch.sequences]) for name, batch in batches.items()}
    assert variance["return_to_go"] < variance["reward"], "only the baseline is left of it"
    assert gradient(advantage="return_to_go", outcomes=late_matters_not)[1:] == pytest.approx(0, abs=1e-6)


# ------------------------------------------------------------------------------------------------ documented bias


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"task_normalise": "token"},
        {"task_normalise": "trajectory", "task_centre": False},
        {"advantage": "reward", "normalise": "batch"},
        {"normalise": "batch"},
        {"advantage": "gigpo", "state_weight": 1e-9},
    ],
)
@pytest.mark.parametrize("rewards", [(0.3, 1.0), (0.0, 100.0)])
def test_normalised_advantages_of_a_pair_are_1_and_minus_1_whatever_the_rewards(knobs, rewards):
    # p (1 - p) is half the chance of a pair that differs: the difference of rewards, which the true gradient has in it, is gone.
    p = 1 / (1 + np.exp(-LOGITS[0]))
    got = gradient(outcomes=pulls(rewards), **knobs)
    assert got == pytest.approx([-p * (1 - p), 0, 0], abs=1e-6)


def test_gigpo_counts_the_same_first_turn_twice():
    # On the bandit the state group is the group: A_state equals A_episode.
    once, twice = gradient(outcomes=pulls()), gradient(outcomes=pulls(), advantage="gigpo")
    assert twice == pytest.approx(2 * once, abs=1e-6)


# ------------------------------------------------------------------------------------------------ another speaker


def test_importance_of_the_whole_sequence_recovers_the_true_gradient_and_that_of_a_token_does_not():
    knobs = {"advantage": "leave_one_out", "importance_cap": 1e6}
    whole = gradient(spoken_with=ELSEWHERE, importance="sequence", **knobs)
    assert whole == pytest.approx(PER_TOKEN, abs=1e-6)
    assert gradient(spoken_with=ELSEWHERE, **knobs) != pytest.approx(PER_TOKEN, abs=1e-3)


@pytest.mark.parametrize("knobs", [{"importance_cap": 1e6}, {"loss": "reinforce", "ratio_base": "behaviour"}])
def test_on_single_tokens_token_weights_are_exact_and_without_them_the_gradient_is_wrong(knobs):
    expected = -true_gradient(LOGITS, pulls())
    right = gradient(spoken_with=ELSEWHERE, outcomes=pulls(), advantage="leave_one_out", **knobs)
    wrong = gradient(spoken_with=ELSEWHERE, outcomes=pulls(), advantage="leave_one_out", importance_cap=0)
    assert right == pytest.approx(expected, abs=1e-6)
    assert wrong != pytest.approx(expected, abs=1e-2)


# ------------------------------------------------------------------------------------------------ KL and entropy


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_kl_term_pulls_towards_the_reference_by_its_weight(estimator):
    group = group_of([make_conversation(said, (0.0, 0.0)) for said, _ in walks()])
    pulled = algorithm(kl=estimator, kl_weight=0.1, filter="none")
    sequences = pulled.batch([group]).sequences
    leaf = torch.tensor(LOGITS, requires_grad=True)
    loss_of(pulled, sequences, policy=table(leaf), reference=table(torch.tensor(ELSEWHERE))).backward()
    assert (leaf.grad.sign() == (torch.tensor(LOGITS) - torch.tensor(ELSEWHERE)).sign())[:1].all()
    same = torch.tensor(LOGITS, requires_grad=True)
    loss_of(pulled, sequences, policy=table(same), reference=table(torch.tensor(LOGITS))).backward()
    assert same.grad.tolist() == pytest.approx([0, 0, 0], abs=1e-7), "at the reference there is nothing to pull"


def test_an_entropy_bonus_is_taken_off_the_loss_whatever_the_importance():
    group = group_of([make_conversation(said, rewards) for said, rewards in walks()])
    plain, bonus = algorithm(), algorithm(entropy_weight=0.5)
    sequences = plain.batch([group]).sequences
    entropies = torch.full((7,), 0.3)
    difference = loss_of(plain, sequences, policy=table(torch.tensor(LOGITS))) - loss_of(
        bonus, sequences, policy=table(torch.tensor(LOGITS)), entropies=entropies
    )
    assert difference.item() == pytest.approx(0.5 * 0.3)


# ------------------------------------------------------------------------------------------------ presets

FOLDER = Path(__file__).parents[2].joinpath("configs", "presets")
APART = {"distill", "archer"}
"""The one knows no reward (test_distillation), the other's critic is what makes advantages (below)."""
PRESETS = sorted(file for file in FOLDER.glob("*.toml") if file.stem not in APART)
UNBIASED = {"rloo"}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_every_preset_goes_uphill_on_average_on_the_bandit_and_on_the_walk(preset):
    recipe = make_algorithm(load_config(preset).algorithm)
    for outcomes in (pulls(), walks()):
        uphill = -mean_gradient(recipe, LOGITS, outcomes, size=3)
        assert uphill @ true_gradient(LOGITS, outcomes) > 0


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_every_presets_mean_gradient_is_exactly_what_it_claims(preset):
    """Pairs on the bandit, where the closed form is known: unbiased for RLOO; for all that divide by a deviation, 1 and -1 in a pair."""
    recipe = make_algorithm(load_config(preset).algorithm)
    p = 1 / (1 + np.exp(-LOGITS[0]))
    spread = 0.7 if preset.stem in UNBIASED else 1.0  # the difference of the two rewards, or what is left of it
    assert mean_gradient(recipe, LOGITS, pulls()) == pytest.approx([-p * (1 - p) * spread, 0, 0], abs=1e-6)


def exact_turn_advantages(trajectories):
    """Q - V of the walk under LOGITS, as a critic without error would have it."""
    odds = [1 / (1 + np.exp(-logit)) for logit in LOGITS]
    later = [(1 - odds[1 + a]) * SECOND[a][0] + odds[1 + a] * SECOND[a][1] for a in ARMS]
    q = [FIRST[a] + later[a] for a in ARMS]
    start = (1 - odds[0]) * q[0] + odds[0] * q[1]
    answers = []
    for trajectory in trajectories:
        first, second = (int(token) for s in trajectory.sequences for token in s.ids[s.sampled])
        a, b = first - 1, (second - 3) % 2
        answers.append(np.array([q[a] - start, SECOND[a][b] - later[a]]))
    return answers


def test_archers_policy_gradient_with_an_exact_critic_is_the_true_one():
    recipe = make_algorithm(load_config(FOLDER / "archer.toml").algorithm)
    for size in (1, 2):
        got = mean_gradient(recipe, LOGITS, walks(), size=size, values=exact_turn_advantages)
        assert got == pytest.approx(PER_TOKEN, abs=1e-6)


def test_a_baseline_that_knows_what_precedes_a_token_changes_no_mean_gradient_and_one_that_knows_the_token_does():
    """ArCHer's token baseline. On the walk what precedes the second token is the first."""
    recipe = make_algorithm(load_config(FOLDER / "archer.toml").algorithm)

    def less(baseline):
        def values(trajectories):
            said = [[int(token) for s in t.sequences for token in s.ids[s.sampled]] for t in trajectories]
            exact = exact_turn_advantages(trajectories)
            return [own - np.array(baseline(*tokens)) for own, tokens in zip(exact, said, strict=True)]

        return mean_gradient(recipe, LOGITS, walks(), size=1, values=values)

    assert less(lambda a, b: (0.7, 0.2 * a)) == pytest.approx(PER_TOKEN, abs=1e-6)
    assert less(lambda a, b: (0.2 * a, 0.2 * b)) != pytest.approx(PER_TOKEN, abs=1e-3)


# ------------------------------------------------------------------------------------------------ cross-policy sampling


@pytest.mark.parametrize("draw", ["turn", "session"])
def test_with_two_speakers_weights_by_each_tokens_own_speaker_give_the_true_gradient(draw):
    """Every coin and every outcome enumerated. On the walk the whole sequence's weight is exact also where both speak in one session."""

    def weighed(**knobs):
        return mean_gradient_of_mixture(
            algorithm(advantage="leave_one_out", **knobs), LOGITS, ELSEWHERE, walks(), share=0.25, draw=draw
        )

    exact = weighed(importance_cap=1e6, importance="sequence")
    assert exact == pytest.approx(PER_TOKEN, abs=1e-6)
    assert weighed(importance_cap=0) != pytest.approx(PER_TOKEN, abs=1e-3)


def test_masked_foreign_tokens_have_no_part_in_loss_or_denominator():
    talks = [make_conversation([[1], [3, 4]], [0.0, reward], name=f"t{reward}") for reward in (0.0, 1.0)]
    mixed = [replace(talk, turns=(replace(talk.turns[0], policy="stale"), talk.turns[1])) for talk in talks]
    masked = algorithm(off_policy="mask").batch([group_of(mixed)]).sequences
    assert [s.ids[s.sampled].tolist() for s in masked] == [[3, 4], [3, 4]]
    assert sum(s.weights.sum() for s in masked) == pytest.approx(1)
    assert masked[0].ids is talks[0].sequences[0].ids, "still known by its trajectory"
    trained = algorithm(off_policy="train").batch([group_of(mixed)]).sequences
    assert [s.num_sampled for s in trained] == [3, 3]


def test_what_is_masked_needs_no_logprobs():
    silent = make_conversation([[1], [3]], [0.0, 1.0], logprobs=[[float("nan")], [-1.0]])
    silent = replace(silent, turns=(replace(silent.turns[0], policy="outside"), silent.turns[1]))
    group = group_of([silent, make_conversation([[1], [3]], [0.0, 0.0])])
    assert len(algorithm(off_policy="mask").batch([group]).sequences) == 2
    with pytest.raises(TrainerFailed, match="lacks the logprob of 1"):
        algorithm().batch([group])
