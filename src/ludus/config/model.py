"""[model], [lora] and [teacher]: the models of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from ludus.config.section import Section


class ModelConfig(Section):
    name: str = "tiny"
    """A folder, a hub name, a pulled model (`ludus models list`), or `tiny`, made from the seed."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:N. `devices` splits engine and trainer."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the weights. auto: bfloat16 on a GPU of compute capability 8 or more, else float32."""
    chat_template: str = ""
    """Path of a Jinja file that replaces the model's chat template. Empty: the model's own."""
    tool_format: Literal["auto", "hermes", "llama3", "smollm2", "json"] = "auto"
    """Syntax of the model's tool calls. auto: inferred from the chat template."""


class LoraConfig(Section):
    rank: int = Field(default=0, ge=0)
    """Rank of the LoRA adapters (needs ludus[lora]). 0 trains all weights instead. Adapters usually
    need about ten times the learning rate."""
    alpha: int = Field(default=0, ge=0)
    """An adapter's output is scaled by alpha / rank. 0 means twice the rank."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers that get an adapter, such as q_proj. Empty: all in the decoder."""

    def problems(self) -> Iterator[str]:
        if not self.rank and (self.alpha or self.targets):
            yield (
                f"lora.rank is 0, so there are no adapters, but lora.alpha is {self.alpha} and lora.targets "
                f"{list(self.targets)}; set a rank, such as 16, or leave them out"
            )


class TeacherConfig(Section):
    model: str = ""
    """For advantage "teacher": a folder, pulled model or hub name with the policy's tokenizer."""
