"""[trainer], [sft] and [evolve]: optimiser steps, cloning, and rounds of both."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ludus.config.section import Section


class TrainerConfig(Section):
    lr: float = Field(default=1e-4, gt=0)
    """Learning rate of AdamW."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimiser steps over which the learning rate rises linearly from 0."""
    decay: Literal["none", "cosine"] = "none"
    """cosine: the learning rate falls to 0 over pipeline.steps."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of its two moving averages."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this norm."""
    microbatch_tokens: int = Field(default=0, ge=0)
    """Tokens in one forward and backward pass; gradients accumulate over a step. 0 means 4096 on a
    CPU; on a GPU it is measured from free memory in the first step. If memory runs out, the step
    continues with half as many."""
    checkpoint_activations: bool = False
    """Store only each layer's input and recompute the rest: a third more work, far less memory."""
    compile: bool | None = None
    """Compile the decoder's layers with torch.compile, which takes a minute at the start. Unset: on
    a GPU, for architectures without kernels of ours."""
    threads: int = Field(default=1, ge=0)
    """CPU threads of the trainer. 0 uses PyTorch's default."""


class SftConfig(Section):
    trajectories: str = ""
    """Run folder (of `ludus collect`, for example) or trajectories file to clone. Empty: the
    environments' solvers play."""
    mistakes: float = Field(default=0.0, ge=0, le=1)
    """Chance that a solver plays a random valid action instead of its own."""
    min_reward: float | None = None
    """Clone only trajectories with at least this reward. Unset: all, including failures."""
    num_trajectories: int = Field(default=1000, gt=0)
    """Trajectories that the solvers play, divided between the environments by weight."""
    steps: int = Field(default=200, gt=0)
    """Optimiser steps of cloning."""
    batch_tokens: int = Field(default=4096, gt=0)
    """Tokens per optimiser step, prompts included."""
    lr: float = Field(default=2e-3, gt=0)
    """Learning rate of cloning."""
    warmup_steps: int = Field(default=10, ge=0)
    """Optimiser steps over which the learning rate rises linearly from 0."""


class EvolveConfig(Section):
    rounds: int = Field(default=4, gt=0)
    """Rounds of `ludus evolve`: play, keep the successes, and clone all of them into the start
    model as [sft] says."""
    num_trajectories: int = Field(default=512, gt=0)
    """Trajectories per round, divided between the environments by weight."""
    min_reward: float = 1.0
    """Least reward of a trajectory that is kept."""
