"""All roles in this process: engine and trainer have a thread each, sessions are coroutines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from ludus.engines.engine import Engine
from ludus.launch.context import ModelContext
from ludus.launch.engines import make_engine
from ludus.launch.policies import Endpoints
from ludus.launch.trainers import make_cloning_trainer, make_policy_trainer
from ludus.rollout.player import Player
from ludus.trainer.budget import OnEvent
from ludus.trainer.local import LocalTrainer
from ludus.trainer.threaded import ThreadedTrainer, make_current, naming_loss
from ludus.trainer.trainer import Trainer


class Here:
    def __init__(self, context: ModelContext) -> None:
        self._context = context
        self._closing, self._training = AsyncExitStack(), AsyncExitStack()

    async def engine(self, *, trains: bool) -> Engine:
        engine = make_engine(self._context.config, model_folder=self._context.model_folder, trains=trains)
        self._closing.push_async_callback(engine.close)
        return engine

    async def trainer(self, *, on_event: OnEvent) -> Trainer:
        return await self._train(lambda: make_policy_trainer(self._context, on_event=on_event))

    async def cloner(self) -> Trainer:
        return await self._train(lambda: make_cloning_trainer(self._context))

    async def player(self, engine: Engine) -> Player:
        endpoints = Endpoints(self._context.config.cross_policy)
        self._closing.push_async_callback(endpoints.close)
        return self._context.player(endpoints.sampler(engine, chat=self._context.chat))

    async def close(self) -> None:
        await self._training.aclose()
        await self._closing.aclose()

    async def _train(self, make: Callable[[], LocalTrainer]) -> Trainer:
        """One trainer at a time: the memory of the last one is freed first."""
        await self._training.aclose()
        device = self._context.devices.trainer
        make_current(device)
        with naming_loss(device):
            trainer = ThreadedTrainer(make())
        self._training.push_async_callback(trainer.close)
        return trainer
