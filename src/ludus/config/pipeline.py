"""[pipeline], [curriculum], [horizons.NAME], [monitor], [evaluation] and [store]: the loop of
training, its order of tasks, and what it measures and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

from pydantic import Field

from ludus import plugins
from ludus.config.section import Section

CURRICULA = ("uniform", "replay")


class PipelineConfig(Section):
    steps: int = Field(default=100, gt=0)
    """Optimiser steps of the run."""
    groups_per_step: int = Field(default=8, gt=0)
    """Groups in the batch of one optimiser step."""
    max_staleness: int = Field(default=1, ge=0)
    """Greatest age of a trained group, in optimiser steps. 0 is synchronous training."""
    probe_tolerance: float = Field(default=0.0, ge=0)
    """Greatest mean logprob gap between engine and trainer on the probe prompt after a load. 0
    means 1e-3 in float32 and 0.25 in bfloat16."""
    session_processes: int = Field(default=-1, ge=-1)
    """Processes that play the training sessions of environments with at = "here". 0: the run's own
    process, which shares its interpreter with engine and trainer. -1: 0 on a CPU, 1 on a GPU."""

    def processes(self, *, on_gpu: bool) -> int:
        return self.session_processes if self.session_processes >= 0 else int(on_gpu)

    @property
    def capacity(self) -> int:
        return (self.max_staleness + 1) * self.groups_per_step


class CurriculumConfig(Section):
    tasks: str = "uniform"
    """uniform: every task once per epoch. replay: prioritised level replay, by a task's score. Your
    own: an import path, such as my_module:Curriculum."""
    score: Literal["learnability", "advantage", "positive_value_loss"] = "learnability"
    """replay: a task's score. learnability: success rate x failure rate. advantage: mean distance
    of rewards from their group's mean. positive_value_loss: mean of max(return - value, 0), with
    critic.kind head or model."""
    fresh: float = Field(default=0.5, ge=0, le=1)
    """replay: chance to draw a task that was never drawn, while there are any."""
    rank_temperature: float = Field(default=1.0, gt=0)
    """replay: a task's chance is proportional to rank^(-1 / temperature). Smaller is greedier."""
    staleness_share: float = Field(default=0.1, gt=0, le=1)
    """replay: share of the chances that goes by the time since a task was last played."""
    mix: Literal["weights", "tokens", "success"] = "weights"
    """What the environments share in proportion to their weights. weights: groups. tokens: trained
    tokens. success: groups, with more for environments that are neither solved nor hopeless."""

    @property
    def factory(self) -> Callable[..., Any] | None:
        """The curriculum that `tasks` names by its import path or entry point, if it does."""
        if self.tasks in CURRICULA:
            return None
        found = plugins.find(self.tasks, key="curriculum.tasks", known=CURRICULA, group="ludus.curricula")
        return cast("Callable[..., Any]", found)

    def problems(self) -> Iterator[str]:
        _ = self.factory  # an unknown name is refused here
        scores = ("score", "fresh", "rank_temperature", "staleness_share")
        for key in self.changed(*scores if self.tasks != "replay" else ()):
            yield f"curriculum.{key} counts only with curriculum.tasks 'replay'; leave it out"


class HorizonConfig(Section):
    turns: list[int] = Field(min_length=1)
    """Successive limits on the turns of a session, as in [5, 8, 10]."""
    every: int = Field(default=0, ge=0)
    """Optimiser steps until the next limit (ScalingInter)."""
    success: float | None = Field(default=None, gt=0, le=1)
    """Instead of `every`: next limit at this success rate over the last `window` trajectories."""
    window: int = Field(default=64, gt=0)
    """Trajectories over which `success` is measured."""

    def problems(self) -> Iterator[str]:
        if min(self.turns) < 1:
            yield f"turns is {self.turns}; expected limits of at least 1"
        if bool(self.every) == (self.success is not None):
            yield "a horizon needs `every` (steps per limit) or `success` (share that succeeds), and one of them only"
        if self.every and self.window != 64:
            yield "window counts only with `success`; leave it out"


class MonitorConfig(Section):
    window: int = Field(default=10, ge=2)
    """Batches whose median is compared with the median of the first three. No signs before that."""
    fall: float = Field(default=0.25, ge=0, lt=1)
    """Sign of collapse: success below this share of its best; or, unless success has grown, reward
    deviation in groups or entropy below this share of its start."""
    rise: float = Field(default=3.0, gt=1)
    """Sign of collapse: repeated words, tokens per turn or invalid actions above this multiple of
    their start, or the gradient norm above four times this multiple."""
    stop: int = Field(default=0, ge=0)
    """Signs at once in one environment that end the run, with a checkpoint. 0: warn only."""


class EvaluationConfig(Section):
    every: int = Field(default=0, ge=0)
    """Optimiser steps between evaluations on held-out tasks, beside training. 0: no evaluation."""
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
    """More trackers: import paths such as my_module:MyTracker or entry points of ludus.trackers."""
