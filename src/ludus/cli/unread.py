"""Keys that a command does not read. Promise: an override that would change nothing is refused.

Commands share a run file, so it may have keys that the command does not read. An override is meant
for the command.
"""

from __future__ import annotations

from collections.abc import Iterable

LEARNING = ("pipeline", "curriculum", "horizons", "cross_policy", "algorithm", "critic", "teacher", "monitor")
SCHEDULE = ("trainer.lr", "trainer.warmup_steps", "trainer.decay")
GROUPS = ("rollout.group_size", "rollout.min_group_size", "rollout.retries")
CHECKPOINTS = ("store.checkpoint_every", "store.keep_checkpoints")
PLAYED = ("sft.trajectories", "sft.mistakes", "sft.min_reward", "sft.num_trajectories")
CLONED = ("sft.trajectories", "sft.min_reward", "sft.steps", "sft.batch_tokens", "sft.lr", "sft.warmup_steps")

UNREAD = {
    "train": ("sft", "evolve"),
    "sft": (
        *LEARNING, *SCHEDULE, *GROUPS, *CHECKPOINTS, "engine", "evolve", "evaluation", "rollout.temperature",
    ),
    "evolve": (*LEARNING, *SCHEDULE, *GROUPS, *CHECKPOINTS, *PLAYED, "evaluation"),
    "eval": (
        *LEARNING, *GROUPS, *CHECKPOINTS, "trainer", "lora", "sft", "evolve", "evaluation.every", "rollout.temperature",
        "store.tensorboard",
    ),
    "collect": (
        *LEARNING, *GROUPS, *CHECKPOINTS, *CLONED, "trainer", "lora", "evolve", "evaluation", "store.tensorboard",
        "store.trajectories",
    ),
    "quickstart": ("evolve",),
}  # fmt: skip
INSTEAD = {
    ("sft", "trainer.lr"): "sft.lr",
    ("sft", "trainer.warmup_steps"): "sft.warmup_steps",
    ("sft", "pipeline.steps"): "sft.steps",
    ("evolve", "trainer.lr"): "sft.lr",
    ("evolve", "trainer.warmup_steps"): "sft.warmup_steps",
    ("evolve", "pipeline.steps"): "evolve.rounds or sft.steps",
    ("evolve", "sft.num_trajectories"): "evolve.num_trajectories",
    ("evolve", "sft.min_reward"): "evolve.min_reward",
    ("eval", "rollout.temperature"): "evaluation.temperature",
    ("eval", "rollout.group_size"): "evaluation.attempts",
}


def refuse_unread(overrides: Iterable[str], *, command: str) -> None:
    for override in overrides:
        key = override.partition("=")[0].strip()
        if any(key == unread or key.startswith(f"{unread}.") for unread in UNREAD[command]):
            from ludus.errors import ConfigError

            instead = INSTEAD.get((command, key))
            move = f"use {instead} instead" if instead else "leave it out"
            raise ConfigError(f"{key} has no effect on `ludus {command}`; {move}")
