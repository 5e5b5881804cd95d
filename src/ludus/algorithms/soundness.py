"""Warnings about combinations that train with surprises. The config refuses those that fail."""

from __future__ import annotations

from collections.abc import Iterator

from ludus.config import RunConfig


def doubts(config: RunConfig) -> Iterator[str]:
    """One sentence each: what, why, and the next move."""
    algorithm, bound = config.algorithm, config.pipeline.max_staleness
    advantage, cap = algorithm.advantage_piece, algorithm.get("importance_cap")
    if algorithm.ratio_base == "old" and not cap and bound:
        yield (
            f"algorithm.importance_cap is 0 with pipeline.max_staleness {bound}: nothing corrects for tokens of an "
            "older policy. Set a cap, or algorithm.ratio_base = 'behaviour'."
        )
    if algorithm.get("importance") == "sequence":
        yield (
            "algorithm.importance is 'sequence': a product over all tokens grows or vanishes with a sequence's length. "
            "Watch optimizer/ess; 'token' is biased, but stable."
        )
    if algorithm.ratio_base == "old" and algorithm.get("ratio") == "sequence":
        yield (
            "algorithm.ratio is 'sequence' with ratio_base 'old': with one step per batch the ratio is 1 and its clip "
            "has no effect. GSPO's clip needs algorithm.ratio_base = 'behaviour'."
        )
    filtered = f"algorithm.filter is {algorithm.filter!r} with advantage {algorithm.advantage!r}"
    if algorithm.filter in ("top_share", "top_p") and advantage.critics and not advantage.trains_critic:
        yield (
            f"{filtered}, as in StarPO-S: policy and critic learn only from tasks at the edge of the policy's ability. "
            "That is its method, and its bias; filter = 'none' is PPO."
        )
    elif algorithm.filter != "none" and not advantage.compares:
        yield (
            f"{filtered}, which learns from groups of equal rewards too: leaving them out biases it towards tasks at "
            "the edge. Set filter = 'none'."
        )
    if algorithm.get("task_centre") and algorithm.filter == "none":
        yield (
            "algorithm.task_normalise without a filter moves groups of equal rewards away from 0, by minus mean over "
            "deviation, as published in AgentRL. filter = 'zero_variance' or task_centre = false avoids it."
        )
    if algorithm.filter != "none" and algorithm.kl != "none":
        yield (
            "algorithm.kl with a filter: the groups that it drops are not held near the reference either. "
            "filter = 'none' keeps them."
        )
