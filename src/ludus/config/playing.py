"""How a run plays: the knobs of [rollout] and [engine], a part of `config`'s tree.

Promise: what a kind of engine decides for itself is refused, and what is left to the device is decided in one place.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from ludus.config.learning import Section, refuse_password


class RolloutConfig(Section):
    group_size: int = Field(default=8, ge=1)
    """Attempts at one task that are compared with each other."""
    min_group_size: int = Field(default=2, ge=1)
    """A group with fewer scored attempts than this is dropped and counted."""
    retries: int = Field(default=1, ge=0)
    """How often a failed attempt is started anew before it is left out."""
    max_turns: int = Field(default=16, gt=0)
    """Turns of one session; reaching it ends the session as max_turns. An environment's own max_turns comes first."""
    max_turn_tokens: int = Field(default=64, gt=0)
    """Sampled tokens of one turn; a turn that reaches it ends the session as max_turn_tokens."""
    max_tokens: int = Field(default=1024, gt=0)
    """Prompt, observations and samples of one session; reaching it ends the session as max_tokens."""
    max_invalid: int = Field(default=3, ge=0)
    """Invalid actions a session survives; one more ends it as invalid."""
    max_observation_chars: int = Field(default=8000, gt=0)
    """A longer observation is cut, and says so."""
    turn_timeout_s: float = Field(default=60.0, gt=0)
    """Wall clock of one call into the environment."""
    session_timeout_s: float = Field(default=900.0, gt=0)
    """Wall clock of a whole session."""
    temperature: float = Field(default=1.0, gt=0)
    """Of sampling, and of the logprobs that are trained."""


class EngineConfig(Section):
    kind: Literal["embedded", "server", "chat"] = "embedded"
    """embedded: in this process. server: an outside one that returns token ids and logprobs, for evaluation. chat: one that speaks in text
    alone, which can be evaluated and cloned, never trained; it needs no tokenizer here, so model.name is left out."""
    url: str = ""
    """server, chat: base URL of an OpenAI-compatible endpoint, e.g. http://127.0.0.1:8000/v1. A key, where one is wanted: LUDUS_API_KEY."""
    model: str = ""
    """server, chat: which of the endpoint's models; empty: the only one it serves."""
    max_running: int = Field(default=0, ge=0)
    """Sequences decoded together; the others wait. 0 picks 64, on a GPU 256."""
    max_cached: int = Field(default=0, ge=0)
    """Sessions whose keys and values are kept between turns; the least recently used makes room. 0 picks 128, on a GPU 512."""
    memory: float = Field(default=0.0, ge=0)
    """On a GPU, for keys and values: up to 1 a share of its memory, above that GiB. Where it is full, the youngest sequence waits. 0 picks
    0.4, or 0.8 where no trainer is on the same device."""
    max_waiting: int = Field(default=4096, gt=0)
    """Requests that may queue; beyond it `generate` waits before it queues (back-pressure)."""
    prefill_tokens: int = Field(default=0, ge=0)
    """Prompt tokens computed between two decode steps, so that long prompts do not stall running sequences; 0 picks 1024 on a CPU,
    16384 on a GPU."""
    deterministic: bool = False
    """One sequence per forward pass: tokens do not depend on who else is in the batch. Slow; for tests and exact resume."""
    threads: int = Field(default=1, ge=0)
    """CPU threads of a forward pass; 0 leaves torch's default."""

    def sized(self, *, on_gpu: bool) -> EngineConfig:
        """With a number wherever 0 leaves the choice to the device."""
        picks: dict[str, float] = {"max_running": 64, "max_cached": 128, "prefill_tokens": 1024, "memory": 0.4}
        if on_gpu:
            picks |= {"max_running": 256, "max_cached": 512, "prefill_tokens": 16384}
        return self.model_copy(update={name: pick for name, pick in picks.items() if not getattr(self, name)})

    @model_validator(mode="after")
    def _url_fits_kind(self) -> EngineConfig:
        outside = self.kind != "embedded"
        refuse_password(self.url, key="engine.url")
        if outside != bool(self.url) or (self.url and not self.url.startswith(("http://", "https://"))):
            raise ValueError(
                f"engine.url is {self.url!r} with engine.kind {self.kind!r}; a url goes with kind 'server' or 'chat' and only with them"
            )
        if self.model and not outside:
            raise ValueError(f"engine.model is {self.model!r} with engine.kind 'embedded'; use model.name")
        return self

    @model_validator(mode="after")
    def _server_decides_for_itself(self) -> EngineConfig:
        for key in ("max_cached", "memory", "max_waiting", "prefill_tokens", "deterministic", "threads"):
            if self.kind != "embedded" and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(
                    f"engine.{key} is {getattr(self, key)!r} with engine.kind {self.kind!r}, which decides that for itself; leave it out"
                )
        return self
