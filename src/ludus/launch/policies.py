"""Policies that sample beside the current one: an older copy, the first model, models at endpoints.

Promise: each is loaded, or has answered, before the first session. A copy is refreshed when it is
due, and after a resume it is as old as it would have been.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from ludus.config import CrossPolicyConfig
from ludus.engines.chat_server import ChatServer
from ludus.engines.engine import Engine, Generator
from ludus.engines.server import ServerEngine
from ludus.errors import CheckpointFailed, ConfigError
from ludus.launch.context import ModelContext, RunContext
from ludus.rollout.chat import Chat
from ludus.rollout.sampler import ChatSampler, PolicySampler, Sampler
from ludus.trainer.checkpoint import Checkpoint
from ludus.trainer.state import named_tensors
from ludus.types import Sampling
from ludus.weights.channel import Snapshot, Source

STALE, REFERENCE = "stale", "reference"
PROBE = Sampling(max_tokens=1, temperature=0.0)


async def first_answer(server: ChatServer | ServerEngine, context: RunContext) -> None:
    """Ask for one token: a model that cannot answer is found before a session is played."""
    if isinstance(server, ChatServer):
        first = next(iter(context.first.values()))
        await server.answer(first.messages, tools=first.tools or (), sampling=PROBE, session_id="probe")
    else:
        assert isinstance(context, ModelContext), "a server of token ids needs a tokenizer"
        await server.generate(context.probe_ids, sampling=PROBE, session_id="probe")


class Endpoints:
    """The models behind endpoints that sample beside the current policy."""

    def __init__(self, config: CrossPolicyConfig) -> None:
        self._servers: dict[str, ChatServer | ServerEngine] = {
            name: (ChatServer if outside.kind == "chat" else ServerEngine)(outside.url, model=outside.model)
            for name, outside in config.outside.items()
        }

    def sampler(self, engine: Generator, *, chat: Chat) -> Sampler:
        """Policies of `engine`, and the endpoints under their names."""
        endpoints: dict[str, Sampler] = {
            name: ChatSampler(server, chat=chat) if isinstance(server, ChatServer) else PolicySampler(server)
            for name, server in self._servers.items()
        }
        return PolicySampler(engine, endpoints=endpoints)

    async def probe(self, context: ModelContext) -> None:
        """Await each endpoint's first answer; one of token ids must have the policy's tokenizer."""
        text = "\n".join(message.content for message in next(iter(context.first.values())).messages)
        for name, server in self._servers.items():
            await first_answer(server, context)
            if isinstance(server, ChatServer):
                continue
            ours, theirs = context.tokenizer.encode(text), await server.tokenised(text)
            if ours != theirs:
                raise ConfigError(
                    f"cross_policy.outside.{name} has another tokenizer than model.name "
                    f"{context.config.model.name!r}: the first prompt is {len(theirs)} tokens there and {len(ours)} "
                    "here, or others. Serve a model of the same family, or use kind = 'chat'"
                )

    async def close(self) -> None:
        for server in self._servers.values():
            await server.close()


class Copies:
    """The copies of the policy that the engine serves: `stale` and `reference`."""

    def __init__(self, config: CrossPolicyConfig, *, engine: Engine) -> None:
        self._config, self._engine = config, engine
        self._stale: Snapshot | None = None

    async def prepare(
        self, *, version: int, source: Source, checkpoint: Checkpoint | None, first: Callable[[], PreTrainedModel]
    ) -> None:
        """`version` on `source` is current; `first` loads the model that the run began with."""
        if self._config.reference:
            reference = Snapshot(0, named_tensors(first())) if version else source
            await self._engine.add_policy(REFERENCE, version=0, source=reference)
        if self._config.stale:
            saved = None if checkpoint is None else self._saved(checkpoint)
            self._stale = saved or Snapshot(version, source.fetch(version))
            await self._engine.add_policy(STALE, version=self._stale.version, source=self._stale)

    async def refresh(self, version: int, source: Source) -> None:
        """Called with every version that the engine has loaded."""
        if self._config.stale and version % self._config.stale_every == 0:
            self._stale = Snapshot(version, source.fetch(version))
            await self._engine.load(version, policy=STALE, source=self._stale)

    def state(self) -> dict[str, Any]:
        return {"stale_version": self._stale.version if self._stale else 0}

    def snapshots(self) -> dict[str, Snapshot]:
        """What a checkpoint must hold beside the trainer."""
        return {STALE: self._stale} if self._stale else {}

    def _saved(self, checkpoint: Checkpoint) -> Snapshot:
        try:
            return Snapshot(int(checkpoint.state["policies"]["stale_version"]), checkpoint.tensors(STALE))
        except (KeyError, OSError, CheckpointFailed):
            raise CheckpointFailed(
                f"{checkpoint.folder} holds no stale policy, but cross_policy.stale is {self._config.stale}. "
                "Resume with the settings that the run was started with."
            ) from None
