"""What does not work is refused, what may surprise is told at the start, and a plain run has nothing to be told."""

import pytest

from ludus.algorithms.soundness import doubts
from ludus.config import load_config
from ludus.errors import ConfigError


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.loss=reinforce", "algorithm.ratio_base=behaviour"], "unclipped importance sampling"),
        (["rollout.group_size=1", "rollout.min_group_size=1"], "compares attempts with each other"),
        (
            ["rollout.group_size=1", "rollout.min_group_size=1", "algorithm.advantage=leave_one_out"],
            "group_size is 1 with algorithm.advantage 'leave_one_out'",
        ),
    ],
)
def test_combinations_that_are_known_not_to_learn_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.loss=reinforce", "algorithm.ratio_base=behaviour", "pipeline.max_staleness=0"],
        ["rollout.group_size=1", "rollout.min_group_size=1", "algorithm.advantage=reward"],
    ],
)
def test_and_taken_where_they_are_sound(overrides):
    assert list(doubts(load_config(None, overrides))) == []


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        (["algorithm.importance_cap=0"], "nothing corrects"),
        (["algorithm.importance=sequence"], "grows or vanishes"),
        (["algorithm.ratio=sequence"], "its clip has no effect"),
        (["algorithm.advantage=reward", "algorithm.filter=zero_variance"], "biases it"),
        (
            [
                "algorithm.advantage=gae",
                "critic.kind=head",
                "algorithm.filter=top_share",
                "algorithm.filter_share=0.25",
            ],
            "its method, and its bias",
        ),
        (["algorithm.advantage=gae", "critic.kind=head", "algorithm.filter=zero_variance"], "biases it"),
        (["algorithm.advantage=archer", "critic.kind=archer", "algorithm.filter=zero_variance"], "biases it"),
        (["algorithm.task_normalise=token", "algorithm.filter=none"], "as published"),
        (["algorithm.kl=k3", "algorithm.kl_weight=0.1"], "not held near the reference"),
    ],
)
def test_what_may_surprise_is_told(overrides, word):
    (told,) = doubts(load_config(None, overrides))
    assert word in told


def test_the_default_and_the_quickstart_raise_no_doubt():
    assert list(doubts(load_config())) == list(doubts(load_config("configs/quickstart.toml"))) == []
