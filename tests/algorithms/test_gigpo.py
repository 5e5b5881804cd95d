import numpy as np
import pytest

from ludus.algorithms import make_algorithm
from ludus.algorithms.gigpo import shared_share, state_advantages, states
from ludus.config import AlgorithmConfig
from tests.algorithms.examples import group_of, make_conversation

GOOD, BAD = 1, 2


def walk(*, turns, reward, seen):
    """Each turn samples one token; the reward comes with the last."""
    return make_conversation(turns, [0.0] * (len(turns) - 1) + [reward], observations=seen)


def advantages_of(group, **knobs):
    batch = make_algorithm(AlgorithmConfig(advantage="gigpo", **knobs)).batch([group])
    return [sequence.advantages[sequence.sampled].tolist() for sequence in batch.sequences], batch.metrics


def test_at_a_fork_the_good_branch_is_told_from_the_bad_one_where_the_episode_cannot():
    # Both reach the fork; one goes wrong there, comes back, and wins in the end: equal rewards, so the episode's advantage is 0.
    straight = walk(turns=[[GOOD]], reward=1.0, seen=["fork"])
    detour = walk(turns=[[BAD], [GOOD]], reward=1.0, seen=["fork", "swamp"])
    (first, second), metrics = advantages_of(group_of([straight, detour]), discount=0.5)
    assert first == [1.0]
    assert second == [-1.0, 0.0], "a state that occurs once has nothing to be compared with"
    assert metrics["groups/shared_states"] == pytest.approx(2 / 3)


def test_unique_states_give_the_episodes_advantage_alone():
    group = group_of([walk(turns=[[GOOD]], reward=1.0, seen=["a"]), walk(turns=[[BAD]], reward=0.0, seen=["b"])])
    values, metrics = advantages_of(group, discount=0.9)
    assert values == [[1.0], [-1.0]]
    assert metrics["groups/shared_states"] == 0


def test_the_episodes_statistics_count_trajectories_and_not_turns():
    long = walk(turns=[[1]] * 5, reward=0.0, seen=list("abcde"))
    short = walk(turns=[[1]], reward=1.0, seen=["f"])
    values, _ = advantages_of(group_of([long, short]), discount=0.9)
    assert values == [[-1.0] * 5, [1.0]]


def test_equal_states_of_different_groups_are_never_compared():
    groups = [
        group_of([walk(turns=[[1]], reward=reward, seen=["same"])] * 2, name=str(reward)) for reward in (0.0, 1.0)
    ]
    batch = make_algorithm(AlgorithmConfig(advantage="gigpo")).batch(groups)
    assert [s.advantages[s.sampled].tolist() for s in batch.sequences] == [[0.0]] * 4


def test_a_state_is_the_last_observations_messages():
    first = walk(turns=[[1], [1]], reward=0.0, seen=["a", "b"])
    second = walk(turns=[[1], [1]], reward=0.0, seen=["b", "a"])
    assert states(first) == states(second)[::-1]
    assert len(states(first)) == 2


def test_shares_and_weights():
    assert shared_share([["a", "b"], ["a"]]) == pytest.approx(2 / 3)
    assert shared_share([[]]) == 0
    returns = [np.array([2.0]), np.array([4.0])]
    assert [v.tolist() for v in state_advantages(returns, [["s"], ["s"]], normalise="none")] == [[-1.0], [1.0]]
