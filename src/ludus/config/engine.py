"""[engine]: what generates tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from pydantic import Field

from ludus import plugins
from ludus.config.section import Section, password_problem
from ludus.errors import ConfigError

KINDS = ("embedded", "server", "chat")


class EngineConfig(Section):
    kind: str = "embedded"
    """embedded: in this process. server: an endpoint that returns token ids and logprobs, for
    evaluation. chat: an endpoint that returns text only, for evaluation and cloning; it has its own
    tokenizer, so [model] is left out. Your own: an import path, such as my_module:make_engine."""
    url: str = ""
    """server, chat: base URL of an OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1.
    LUDUS_API_KEY holds its key."""
    model: str = ""
    """server, chat: which of the endpoint's models to use. Empty: the only one it serves."""
    max_running: int = Field(default=0, ge=0)
    """Sequences decoded together; further ones wait. 0 means 64 on a CPU and 256 on a GPU."""
    max_cached: int = Field(default=0, ge=0)
    """embedded: sessions whose keys and values are kept between turns; the least recently used is
    evicted. 0 means 128 on a CPU and 512 on a GPU."""
    memory: float = Field(default=0.0, ge=0)
    """embedded, on a GPU: memory for keys and values, as a share up to 1 or in GiB above 1. When it
    is full, the youngest sequence waits. 0 means 0.4, or 0.8 if no trainer is on the device."""
    max_waiting: int = Field(default=4096, gt=0)
    """embedded: requests in the queue. At the limit `generate` waits before it queues more."""
    prefill_tokens: int = Field(default=0, ge=0)
    """embedded: prompt tokens computed between two decode steps, so that long prompts do not stall
    running sequences. 0 means 1024 on a CPU and 16384 on a GPU."""
    deterministic: bool = False
    """embedded: one sequence per forward pass, so that its tokens do not depend on the batch. Slow;
    for tests and exact resume."""
    threads: int = Field(default=1, ge=0)
    """embedded: CPU threads of a forward pass. 0 uses PyTorch's default."""

    def sized(self, *, on_gpu: bool) -> EngineConfig:
        """This section with every 0 replaced by the device's number."""
        picks: dict[str, float] = {"max_running": 64, "max_cached": 128, "prefill_tokens": 1024, "memory": 0.4}
        if on_gpu:
            picks |= {"max_running": 256, "max_cached": 512, "prefill_tokens": 16384}
        return self.model_copy(update={name: pick for name, pick in picks.items() if not getattr(self, name)})

    @property
    def factory(self) -> Callable[..., Any]:
        """The function that `kind` names by its import path or entry point."""
        factory = plugins.find(self.kind, key="engine.kind", known=KINDS, group="ludus.engines")
        if not callable(factory):
            raise ConfigError(
                f"engine.kind is {self.kind!r}, which is {factory!r}; expected a function(config, model_folder, trains)"
            )
        return cast("Callable[..., Any]", factory)

    def problems(self) -> Iterator[str]:
        if self.kind not in KINDS:
            _ = self.factory  # an unknown name is refused here
            return
        outside = self.kind != "embedded"
        yield from password_problem(self.url, key="engine.url")
        if outside != bool(self.url) or (self.url and not self.url.startswith(("http://", "https://"))):
            yield (
                f"engine.url is {self.url!r} with engine.kind {self.kind!r}; a url goes with kind 'server' or 'chat' "
                "and only with them"
            )
        if self.model and not outside:
            yield f"engine.model is {self.model!r} with engine.kind 'embedded'; use model.name"
        own = ("max_cached", "memory", "max_waiting", "prefill_tokens", "deterministic", "threads")
        for key in self.changed(*own if outside else ()):
            yield (
                f"engine.{key} is {getattr(self, key)!r} with engine.kind {self.kind!r}, which decides that for "
                "itself; leave it out"
            )
