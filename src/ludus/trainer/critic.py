"""The critic: what is still to come, guessed at every sampled token from what precedes it. Its loss never moves the policy.

    head     a linear layer on the policy's own last hidden states, which it reads and does not change
    model    a model of the policy's architecture, begun with the policy's first weights, and the same layer on top

Both start at 0 and have an optimiser of their own. loss = 1/2 max((v - R)^2, (v_old + clip(v - v_old) - R)^2)   (PPO, 1707.06347)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ludus.config import CriticConfig, TrainerConfig
from ludus.errors import CheckpointFailed, TrainerFailed
from ludus.trainer.budget import FIRST_TOKENS
from ludus.trainer.checkpoint import Checkpoint
from ludus.trainer.forward import prepare, sampled_hidden
from ludus.trainer.optimizer import make_optimizer
from ludus.trainer.pack import make_microbatch, pack, row_ids
from ludus.trainer.state import load_optimizer_tensors, load_weights, named_tensors, optimizer_tensors
from ludus.types import Batch, Sequence, Trajectory, ValueTargets, frozen_array

CRITIC, OPTIMIZER = "critic", "critic_optimizer"
Targets = dict[str, Tensor]


class Critic:
    """Reads `policy`, or owns `model` from here on. Forward passes run in the dtype the model came in, the layer in float32."""

    def __init__(
        self,
        config: CriticConfig,
        *,
        policy: PreTrainedModel,
        model: PreTrainedModel | None = None,
        trainer: TrainerConfig,
    ) -> None:
        self._config, self._trainer = config, trainer
        self._model, self._frozen = model or policy, model is None
        self._dtype = self._model.dtype
        if model is not None:
            prepare(model.float().eval())
        head = nn.Linear(policy.config.get_text_config().hidden_size, 1, device=policy.device)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        self.learning = nn.ModuleDict({"head": head} if model is None else {"head": head, "trunk": model.base_model})
        betas, decay = trainer.betas, trainer.weight_decay
        self._optimizer = make_optimizer(self.learning, lr=config.lr, betas=betas, weight_decay=decay)

    @property
    def alone(self) -> int:
        """Steps at the start of a run that are its own."""
        return self._config.warmup

    @torch.no_grad()
    def values(self, trajectories: Seq[Trajectory]) -> list[np.ndarray]:
        """Of each trajectory, the value before every sampled token (M,)."""
        sequences = [sequence for trajectory in trajectories for sequence in trajectory.sequences]
        rows = [row_ids(sequence) for sequence in sequences]
        found = [np.zeros(0)] * len(sequences)
        for indices in pack(rows, budget=self._trainer.microbatch_tokens or FIRST_TOKENS):
            chosen = [sequences[index] for index in indices]
            values = self._values(self._hidden(chosen)).cpu().numpy()
            counts = np.cumsum([sequence.num_sampled for sequence in chosen])[:-1]
            for index, own in zip(indices, np.split(values, counts), strict=True):
                found[index] = own.astype(np.float64)
        each = iter(found)
        return [np.concatenate([np.zeros(0), *(next(each) for _ in t.sequences)]) for t in trajectories]

    def step(self, batch: Batch) -> dict[str, float]:
        """`critic.steps` optimiser steps on the returns in the batch. One that is not finite is not taken, and stops the run."""
        rows = [row_ids(sequence) for sequence in batch.sequences]
        parts = [
            [batch.sequences[index] for index in indices]
            for indices in pack(rows, budget=self._trainer.microbatch_tokens or FIRST_TOKENS)
        ]
        targets = [_targets(part, device=self._model.device) for part in parts]
        read: list[Callable[[], Tensor]] = [lambda part=part: self._hidden(part) for part in parts]  # type: ignore[misc]
        if self._frozen:  # the same in every pass
            read = [lambda hidden=hidden(): hidden for hidden in read]  # type: ignore[misc]
        metrics: dict[str, float] = {}
        for number in range(self._config.steps):
            loss, norm = self._pass(read, targets)
            metrics = metrics or {"critic_loss": loss, "critic_grad_norm": norm}
            if not np.isfinite(loss + norm):
                raise TrainerFailed(
                    f"the critic's pass {number} has loss {loss} and gradient norm {norm}; expected finite numbers. "
                    "The policy is as before the step; look at the rewards, or lower critic.lr."
                )
            self._optimizer.step()
            self._optimizer.zero_grad()
        return metrics | {"critic_explained": explained(targets)}

    def _pass(self, read: Seq[Callable[[], Tensor]], targets: Seq[Targets]) -> tuple[float, float]:
        """Fresh gradients of the whole batch, scaled down to the trainer's greatest norm."""
        self._optimizer.zero_grad()
        total = torch.zeros((), device=self._model.device)
        for hidden, target in zip(read, targets, strict=True):
            losses = value_losses(self._values(hidden()), target["values"], target["returns"], clip=self._config.clip)
            loss = (target["weights"] * losses).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.learning.parameters(), self._trainer.max_grad_norm)
        return float(total), float(norm)

    def _hidden(self, sequences: Seq[Sequence]) -> Tensor:
        microbatch = make_microbatch([blank(sequence) for sequence in sequences], device=self._model.device)
        half = self._dtype != torch.float32
        autocast = torch.autocast(self._model.device.type, dtype=self._dtype if half else None, enabled=half)
        with torch.set_grad_enabled(not self._frozen and torch.is_grad_enabled()), autocast:
            return sampled_hidden(self._model, microbatch).float()

    def _values(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.learning["head"](hidden)
        return values.squeeze(1)

    # -------------------------------------------------------------------------------------------- checkpoints

    def tensors(self) -> dict[str, Mapping[str, Tensor]]:
        return {
            CRITIC: named_tensors(self.learning),
            OPTIMIZER: optimizer_tensors(self._optimizer, self.learning),
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        try:
            weights, memory = checkpoint.tensors(CRITIC), checkpoint.tensors(OPTIMIZER)
        except OSError:
            raise CheckpointFailed(
                f"{checkpoint.folder} holds no critic, but critic.kind is {self._config.kind!r}. Resume with the settings the run was "
                "started with."
            ) from None
        load_weights(self.learning, weights, folder=checkpoint.folder)
        load_optimizer_tensors(self._optimizer, self.learning, memory)


def value_losses(values: Tensor, old: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """Per token; with a clip, a value that went further than it from where it was gains nothing by going on."""
    plain = (values - returns) ** 2
    if not clip:
        return plain / 2
    clipped = (old + (values - old).clamp(-clip, clip) - returns) ** 2
    return torch.maximum(plain, clipped) / 2


def explained(targets: Seq[Targets]) -> float:
    """1 - variance left by the values before the step / variance of the returns, over the tokens that were asked; 0 where all are equal."""
    values, returns, weights = (
        torch.cat([target[name] for target in targets]).double() for name in ("values", "returns", "weights")
    )

    def variance(x: Tensor) -> float:
        mean = (weights * x).sum() / weights.sum()
        return float((weights * (x - mean) ** 2).sum() / weights.sum())

    whole = variance(returns)
    return 1 - variance(returns - values) / whole if whole > 1e-12 else 0.0


def _targets(sequences: Seq[Sequence], *, device: torch.device) -> Targets:
    given = [(sequence.sampled, _given(sequence.critic)) for sequence in sequences]
    return {
        name: torch.from_numpy(np.concatenate([getattr(targets, name)[sampled] for sampled, targets in given])).to(
            device
        )
        for name in ("values", "returns", "weights")
    }


def _given(targets: ValueTargets | None) -> ValueTargets:
    assert targets is not None, "a batch for a critic carries its returns; the algorithm fills them in"
    return targets


def blank(sequence: Sequence) -> Sequence:
    """With advantages and weights that nobody will read: a microbatch must have some."""
    zeros = frozen_array(np.zeros(len(sequence)), np.float32)
    return replace(sequence, advantages=zeros, weights=zeros)
