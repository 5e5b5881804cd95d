"""[evaluation] and [store]: what is measured, and what is written."""

from __future__ import annotations

from pydantic import Field

from ludus.config.section import Section


class EvaluationConfig(Section):
    every: int = Field(default=0, ge=0)
    """Optimiser steps between evaluations on held-out tasks, which run beside training. 0: no
    evaluation during training."""
    split: str = "test"
    """Split of the held-out tasks."""
    num_tasks: int = Field(default=64, gt=0)
    """Tasks per environment."""
    attempts: int = Field(default=1, gt=0)
    """Attempts per task."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature. 0 is greedy."""


class StoreConfig(Section):
    folder: str = "runs"
    """Folder that holds the run folders."""
    checkpoint_every: int = Field(default=50, ge=0)
    """Optimiser steps between checkpoints. 0: only at the end and on Ctrl-C."""
    keep_checkpoints: int = Field(default=2, gt=0)
    """Number of checkpoints to keep."""
    trajectories: bool = True
    """Store every trajectory."""
    tensorboard: bool = True
    """Write metrics for TensorBoard too."""
    trackers: list[str] = []
    """Other trackers, each by its import path, such as my_module:MyTracker, or by the name of an entry
    point in the group ludus.trackers."""
