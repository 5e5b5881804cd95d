"""The policies that speak beside the current one in training: an older copy, the model the run began with.

Promise: each is loaded before the first session, refreshed when it is due, and after a resume as old as it would have been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ludus.config import SpeakersConfig
from ludus.engines.embedded import EmbeddedEngine
from ludus.errors import CheckpointFailed
from ludus.rollout.mixed import MixedSpeaker
from ludus.rollout.speaker import PolicySpeaker, Speaker
from ludus.trainer.checkpoint import Checkpoint
from ludus.weights.channel import Channel

STALE, REFERENCE = "stale", "reference"


class OtherSpeakers:
    def __init__(self, config: SpeakersConfig, *, engine: EmbeddedEngine, channel: Channel, seed: int) -> None:
        self._config, self._engine, self._channel, self._seed = config, engine, channel, seed
        self._stale_version = 0
        self._stale: Mapping[str, Tensor] = {}

    def speaker(self) -> Speaker:
        if not self._config.others:
            return PolicySpeaker(self._engine)
        return MixedSpeaker(self._engine, others=self._config.others, draw=self._config.draw, seed=self._seed)

    async def prepare(
        self, *, version: int, checkpoint: Checkpoint | None, start: Callable[[], Mapping[str, Tensor]]
    ) -> None:
        """`version` is on the channel and current; `start` gives the weights the run began with."""
        if self._config.reference:
            if version > 0:
                self._channel.publish(0, start())
            await self._engine.add_policy(REFERENCE, version=0)
        if self._config.stale:
            if checkpoint is not None:
                self._publish_stale(checkpoint, version)
            else:
                self._stale_version = version
            await self._engine.add_policy(STALE, version=self._stale_version)
            self._stale = self._channel.fetch(self._stale_version)

    async def refresh(self, version: int) -> None:
        """Called with every version that was loaded."""
        if self._config.stale and version % self._config.stale_every == 0:
            await self._engine.load(version, policy=STALE)
            self._stale_version, self._stale = version, self._channel.fetch(version)

    def state(self) -> dict[str, Any]:
        return {"stale_version": self._stale_version}

    def tensors(self) -> dict[str, Mapping[str, Tensor]]:
        return {STALE: self._stale} if self._config.stale else {}

    def _publish_stale(self, checkpoint: Checkpoint, version: int) -> None:
        try:
            self._stale_version = int(checkpoint.state["speakers"]["stale_version"])
            tensors = checkpoint.tensors(STALE)
        except (KeyError, OSError):
            raise CheckpointFailed(
                f"{checkpoint.folder} holds no stale policy, but speakers.stale is {self._config.stale}. Resume with the settings the "
                "run was started with."
            ) from None
        if self._stale_version != version:
            self._channel.publish(self._stale_version, tensors)
