"""Combinations that train, but not as one might think: told at the start of a run. What is known not to work is refused by the config."""

from __future__ import annotations

from ludus.config import RunConfig
from ludus.config.algorithm import BY_VALUES


def doubts(config: RunConfig) -> list[str]:
    """One sentence each: what, why, and the next move."""
    algorithm, bound = config.algorithm, config.pipeline.max_staleness
    found = []
    if algorithm.ratio_base == "old" and not algorithm.importance_cap and bound:
        found.append(
            f"algorithm.importance_cap is 0 with pipeline.max_staleness {bound}: nothing corrects for tokens of an older policy. "
            "Set a cap, or algorithm.ratio_base = 'behaviour'."
        )
    if algorithm.importance == "sequence":
        found.append(
            "algorithm.importance is 'sequence': a product over all tokens grows or vanishes with a sequence's length. "
            "Watch optimizer/ess; 'token' is biased, but steady."
        )
    if algorithm.ratio_base == "old" and algorithm.loss != "reinforce" and algorithm.ratio == "sequence":
        found.append(
            "algorithm.ratio is 'sequence' around 'old': with one step per batch the ratio is 1 and its clip idles. "
            "GSPO's clip needs algorithm.ratio_base = 'behaviour'."
        )
    greatest = algorithm.filter in ("top_share", "top_p")
    if greatest and algorithm.advantage in BY_VALUES:
        found.append(
            f"algorithm.filter is {algorithm.filter!r} with advantage {algorithm.advantage!r}, as in StarPO-S: policy and critic learn "
            "from tasks at the edge of what the policy can do and from no others. That is its method, and its bias; filter = 'none' is PPO."
        )
    elif algorithm.filter != "none" and algorithm.advantage in ("reward", "return_to_go", "archer", *BY_VALUES):
        found.append(
            f"algorithm.filter is {algorithm.filter!r} with advantage {algorithm.advantage!r}, which learns from groups of equal rewards "
            "too: leaving them out biases it towards tasks at the edge. Set filter = 'none'."
        )
    if algorithm.task_normalise != "none" and algorithm.task_centre and algorithm.filter == "none":
        found.append(
            "algorithm.task_normalise without a filter pushes groups of equal rewards away from 0, by minus mean over deviation: "
            "as published in AgentRL. filter = 'zero_variance' or task_centre = false does not."
        )
    if algorithm.filter != "none" and algorithm.kl != "none":
        found.append(
            "algorithm.kl with a filter: what is left out is not held near the reference either. filter = 'none' keeps it in."
        )
    return found
