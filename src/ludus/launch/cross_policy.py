"""The policies that speak beside the current one in training: an older copy, the model the run began with, models behind endpoints.

Promise: each has been loaded, or has answered, before the first session; copies are refreshed when they are due, and after a resume as old
as they would have been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ludus.engines.chat_server import ChatServer
from ludus.engines.embedded import EmbeddedEngine
from ludus.engines.server import ServerEngine
from ludus.errors import CheckpointFailed, ConfigError
from ludus.launch.context import Parts
from ludus.launch.player import PROBE
from ludus.rollout.mixed import MixedSpeaker, part_at
from ludus.rollout.outside import OutsideInTokens, OutsideInWords
from ludus.rollout.speaker import PolicySpeaker, Speaker
from ludus.trainer.checkpoint import Checkpoint
from ludus.weights.channel import Channel

STALE, REFERENCE = "stale", "reference"


class OtherSpeakers:
    def __init__(self, parts: Parts, *, engine: EmbeddedEngine, channel: Channel) -> None:
        self._parts, self._config = parts, parts.config.cross_policy
        self._engine, self._channel = engine, channel
        self._stale_version = 0
        self._stale: Mapping[str, Tensor] = {}
        self._endpoints: dict[str, ChatServer | ServerEngine] = {
            name: (ChatServer if outside.kind == "chat" else ServerEngine)(outside.url, model=outside.model)
            for name, outside in self._config.outside.items()
        }
        self._mixed = MixedSpeaker(
            engine,
            others=self._config.others,
            draw=self._config.draw,
            seed=parts.config.seed,
            outside={name: self._outside(name, endpoint) for name, endpoint in self._endpoints.items()},
        )

    def speaker(self) -> Speaker:
        return self._mixed if self._config.others else PolicySpeaker(self._engine)

    async def close(self) -> None:
        for endpoint in self._endpoints.values():
            await endpoint.close()

    async def prepare(
        self, *, version: int, checkpoint: Checkpoint | None, start: Callable[[], Mapping[str, Tensor]]
    ) -> None:
        """`version` is on the channel and current; `start` gives the weights the run began with."""
        self._mixed.part = part_at(self._config.schedule, step=version)
        for name, endpoint in self._endpoints.items():
            await self._probe(name, endpoint)
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
        self._mixed.part = part_at(self._config.schedule, step=version)
        if self._config.stale and version % self._config.stale_every == 0:
            await self._engine.load(version, policy=STALE)
            self._stale_version, self._stale = version, self._channel.fetch(version)

    def state(self) -> dict[str, Any]:
        return {"stale_version": self._stale_version}

    def tensors(self) -> dict[str, Mapping[str, Tensor]]:
        return {STALE: self._stale} if self._config.stale else {}

    def _outside(self, name: str, endpoint: ChatServer | ServerEngine) -> Speaker:
        if isinstance(endpoint, ChatServer):
            return OutsideInWords(endpoint, chat=self._parts.chat, policy=name)
        return OutsideInTokens(endpoint, policy=name)

    async def _probe(self, name: str, endpoint: ChatServer | ServerEngine) -> None:
        """Whoever cannot speak is found out here; and whoever speaks in ids must mean the same by them."""
        first = next(iter(self._parts.first.values()))
        if isinstance(endpoint, ChatServer):
            await endpoint.answer(first.messages, tools=first.tools or (), sampling=PROBE, session_id="probe")
            return
        await endpoint.generate(self._parts.probe_ids, sampling=PROBE, session_id="probe")
        text = "\n".join(message.content for message in first.messages)
        ours, theirs = self._parts.tokenizer.encode(text), await endpoint.tokenised(text)
        if ours != theirs:
            raise ConfigError(
                f"cross_policy.outside.{name} has another tokenizer than model.name {self._parts.config.model.name!r}: the first prompt is "
                f"{len(theirs)} tokens there and {len(ours)} here, or others. Serve a model of the same family, or use kind = 'chat'"
            )

    def _publish_stale(self, checkpoint: Checkpoint, version: int) -> None:
        try:
            self._stale_version = int(checkpoint.state["speakers"]["stale_version"])
            tensors = checkpoint.tensors(STALE)
        except (KeyError, OSError):
            raise CheckpointFailed(
                f"{checkpoint.folder} holds no stale policy, but cross_policy.stale is {self._config.stale}. Resume with the settings the "
                "run was started with."
            ) from None
        if self._stale_version != version:
            self._channel.publish(self._stale_version, tensors)
