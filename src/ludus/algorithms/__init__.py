"""The algorithm of a run, composed from the pieces that its config names."""

from ludus.algorithms.algorithm import Algorithm, Tokens
from ludus.algorithms.credit import Credit
from ludus.algorithms.policy_gradient import PolicyGradient
from ludus.config.pieces import advantage, group_filter, loss, reward

make_algorithm = PolicyGradient

__all__ = [
    "Algorithm", "Credit", "PolicyGradient", "Tokens", "advantage", "group_filter", "loss", "make_algorithm", "reward",
]  # fmt: skip
