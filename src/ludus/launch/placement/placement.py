"""A placement decides where the roles of a run are: in this process, or in processes beside it.

The loop and the commands know the roles alone. A placement starts what they need and ends it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from ludus.config import RunConfig
from ludus.engines.engine import Engine
from ludus.launch.context import ModelContext, make_model_context, preparing
from ludus.launch.placement.here import Here
from ludus.launch.placement.processes import Processes
from ludus.rollout.player import Player
from ludus.store.recorder import Listener, Recorder
from ludus.store.run_folder import RunFolder
from ludus.trackers.tracker import trackers_of
from ludus.trainer.budget import OnEvent
from ludus.trainer.trainer import Trainer


class Placement(Protocol):
    async def engine(self, *, trains: bool) -> Engine:
        """`trains`: a trainer shares the engine's device, where they have the same one."""

    async def trainer(self, *, on_event: OnEvent) -> Trainer:
        """The policy's trainer, with the algorithm, reference and critic of the run file."""

    async def cloner(self) -> Trainer:
        """A trainer that clones trajectories into the run's model, as [sft] says."""

    async def player(self, engine: Engine) -> Player:
        """Plays sessions of the run's environments with the policies of `engine`."""

    async def close(self) -> None:
        """End everything that was started here."""


@asynccontextmanager
async def placed(
    config: RunConfig, folder: RunFolder, *, listeners: Iterable[Listener]
) -> AsyncIterator[tuple[Recorder, ModelContext, Placement]]:
    """A run in `folder` with its trackers. Its environments and its roles end with it."""
    listeners = [*trackers_of(config.store, folder), *listeners]
    with Recorder(folder, trajectories=config.store.trajectories, listeners=listeners) as recorder:
        async with AsyncExitStack() as closing:
            with preparing(folder):
                context = await make_model_context(config, folder=folder.path)
                closing.push_async_callback(context.client.close)
                num = config.pipeline.processes(on_gpu=context.devices.engine.type == "cuda")
                # processes start at once, while models are loaded
                placement = await Processes.start(context, folder=folder.path, num=num) if num else Here(context)
                closing.push_async_callback(placement.close)
            yield recorder, context, placement
