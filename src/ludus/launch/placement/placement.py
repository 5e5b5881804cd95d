"""A placement decides where the roles of a run are: in this process, in processes beside it, on a cluster.

The loop and the commands know the roles alone. A placement starts what they need and ends it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ludus.engines.engine import Engine
from ludus.launch.context import ModelContext
from ludus.rollout.player import Player
from ludus.trainer.budget import OnEvent
from ludus.trainer.trainer import Trainer


class Placement(Protocol):
    async def engine(self, *, trains: bool) -> Engine:
        """`trains`: a trainer shares the engine's device, where they have the same one."""
        ...

    async def trainer(self, *, on_event: OnEvent) -> Trainer:
        """The policy's trainer, with the algorithm, reference and critic of the run file."""
        ...

    async def cloner(self) -> Trainer:
        """A trainer that clones trajectories into the run's model, as [sft] says."""
        ...

    async def player(self, engine: Engine) -> Player:
        """Plays sessions of the run's environments with the policies of `engine`."""
        ...

    async def close(self) -> None:
        """End everything that was started here."""
        ...


async def place(context: ModelContext, *, folder: Path) -> Placement:
    """The placement that the run file asks for. Processes start at once, while models are loaded."""
    from ludus.launch.placement.here import Here
    from ludus.launch.placement.processes import Processes

    num = context.config.pipeline.processes(on_gpu=context.devices.engine.type == "cuda")
    return await Processes.start(context, folder=folder, num=num) if num else Here(context)
