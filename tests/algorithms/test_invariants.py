"""What must change nothing, for the pieces of every preset: order, observations, empty rows, packing, microbatches and ranks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.algorithms import make_algorithm
from ludus.config import AlgorithmConfig, load_config
from ludus.types import Group, frozen_array
from tests.algorithms.examples import group_of, make_conversation, make_sequence
from tests.algorithms.problems import loss_of

PRESETS = {
    path.stem: load_config(path).algorithm
    for path in sorted(Path(__file__).parents[2].joinpath("configs", "presets").glob("*.toml"))
}
RECIPES = {
    **PRESETS,
    "dr-grpo": AlgorithmConfig(normalise="none", aggregate="constant", aggregate_tokens=16),
    "return-to-go": AlgorithmConfig(advantage="return_to_go", discount=0.9, loss="cispo"),
    "gigpo": AlgorithmConfig(advantage="gigpo", discount=0.9, aggregate="sequence"),
    "bilevel": AlgorithmConfig(advantage="bilevel_gae", discount=0.9, gae_lambda=0.8),
    "task-variant": AlgorithmConfig(task_normalise="trajectory", task_centre=False, importance="sequence"),
}
every_recipe = pytest.mark.parametrize("recipe", list(RECIPES.values()), ids=list(RECIPES))
POLICY = torch.linspace(-2.0, -0.5, 12)
REFERENCE = torch.linspace(-0.7, -1.9, 12)

turns = st.tuples(
    st.lists(st.integers(1, 11), min_size=1, max_size=3), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from("abc")
)
conversations = st.lists(turns, min_size=1, max_size=3)
groups = st.lists(st.lists(conversations, min_size=2, max_size=4), min_size=1, max_size=3)


def build(drawn):
    """Groups of conversations; each is (ids sampled in a turn, reward, observation before it) per turn."""
    built = []
    for g, group in enumerate(drawn):
        made = []
        for i, conversation in enumerate(group):
            said, rewards, seen = zip(*conversation, strict=True)
            # float32 values that engine and trainer might report: not the policy's, so that ratios are not 1
            logprobs = [[float(POLICY[token]) + 0.1 * ((i + k) % 3 - 1) for token in own] for k, own in enumerate(said)]
            made.append(make_conversation(said, rewards, observations=seen, name=f"g{g}.{i}", logprobs=logprobs))
        built.append(group_of(made, name=f"g{g}"))
    return built


def guesses(trajectories):
    """A critic that goes by the token alone: not 0, and the same wherever the token stands."""
    said = [[s.ids[s.sampled] for s in trajectory.sequences] for trajectory in trajectories]
    return [np.concatenate([np.zeros(0), *ids]) / 10 for ids in said]


def batch(recipe, some):
    return make_algorithm(recipe).batch(some, values=guesses)


def trained(recipe, some):
    """By the identity of their ids: (advantages, weights) of every sequence."""
    return {id(s.ids): (s.advantages, s.weights) for s in batch(recipe, some).sequences}


def total(recipe, sequences):
    return loss_of(make_algorithm(recipe), sequences, policy=POLICY, reference=REFERENCE).item() if sequences else 0.0


@every_recipe
@settings(max_examples=12)
@given(groups, st.randoms(use_true_random=False))
def test_the_order_of_groups_and_inside_them_changes_nothing(recipe, drawn, random):
    straight = build(drawn)
    shuffled = []
    for group in straight:
        order = list(group.trajectories)
        random.shuffle(order)
        shuffled.append(replace(group, trajectories=tuple(order)))
    if recipe.filter not in ("top_share", "top_p"):  # ties between groups are broken by their order
        random.shuffle(shuffled)
    one, other = trained(recipe, straight), trained(recipe, shuffled)
    assert one.keys() == other.keys()
    for key, (advantages, weights) in one.items():
        assert other[key][0] == pytest.approx(advantages, abs=1e-5)
        assert other[key][1] == pytest.approx(weights, abs=1e-9)


@every_recipe
@settings(max_examples=12)
@given(groups, st.integers(1, 5))
def test_more_observation_tokens_and_rows_without_a_sample_change_nothing(recipe, drawn, length):
    plain = build(drawn)
    padded = [replace(g, trajectories=tuple(_padded(t, length) for t in g.trajectories)) for g in plain]
    one, other = (batch(recipe, some).sequences for some in (plain, padded))
    assert [s.advantages[s.sampled].tolist() for s in one] == [s.advantages[s.sampled].tolist() for s in other]
    assert total(recipe, one) == pytest.approx(total(recipe, other), abs=1e-6)


def _padded(trajectory, length):
    (sequence,) = trajectory.sequences
    columns = {name: getattr(sequence, name) for name in ("ids", "sampled", "logprobs", "versions", "turns")}
    more = {name: np.concatenate([values[:1].repeat(length), values]) for name, values in columns.items()}
    longer = replace(sequence, **{name: frozen_array(values, columns[name].dtype) for name, values in more.items()})
    return replace(trajectory, sequences=(longer, make_sequence([], prompt=(1, 2))))


@every_recipe
@settings(max_examples=12)
@given(groups, st.data())
def test_splitting_into_microbatches_or_ranks_and_packing_in_another_order_change_nothing(recipe, drawn, data):
    sequences = batch(recipe, build(drawn)).sequences
    order = data.draw(st.permutations(range(len(sequences))))
    places = data.draw(st.lists(st.integers(0, 2), min_size=len(sequences), max_size=len(sequences)))
    parts = [[sequences[i] for i in order if places[i] == rank] for rank in range(3)]
    assert sum(total(recipe, part) for part in parts) == pytest.approx(total(recipe, sequences), abs=1e-5)


@every_recipe
@settings(max_examples=12)
@given(groups)
def test_observations_never_have_an_advantage_or_a_weight_and_all_numbers_are_finite(recipe, drawn):
    for sequence in batch(recipe, build(drawn)).sequences:
        assert not sequence.advantages[~sequence.sampled].any()
        assert not sequence.weights[~sequence.sampled].any()
        assert np.isfinite(sequence.advantages).all()
        assert (sequence.weights[sequence.sampled] > 0).all()


@every_recipe
def test_a_forked_trajectory_weighs_as_much_as_one_that_did_not_fork(recipe):
    group = build([[[([1, 2], 1.0, "a"), ([3, 4], 0.0, "b")], [([1, 2], 0.0, "a"), ([3, 4], 0.0, "b")]]])[0]
    forked = replace(group, trajectories=(_forked(group.trajectories[0]), group.trajectories[1]))
    whole = {t.id: _weight(recipe, group, t) for t in group.trajectories}
    split = {t.id: _weight(recipe, forked, t) for t in forked.trajectories}
    assert split == pytest.approx(whole)


def _forked(trajectory):
    """The second turn in a sequence of its own, after the first as its prompt."""
    (sequence,) = trajectory.sequences
    first = {n: getattr(sequence, n)[:3] for n in ("ids", "sampled", "logprobs", "versions", "turns")}
    again = sequence.sampled & (sequence.turns == 1)
    return replace(
        trajectory, sequences=(replace(sequence, **first), replace(sequence, sampled=frozen_array(again, np.bool_)))
    )


def _weight(recipe, group: Group, trajectory) -> float:
    own = {id(s.ids) for s in trajectory.sequences}
    return float(sum(s.weights.sum() for s in batch(recipe, [group]).sequences if id(s.ids) in own))
