"""A critic that estimates the return at every sampled token. Its loss never changes the policy.

    head     a linear layer on the policy's last hidden states, which it reads and does not change
    model    a model of the policy's architecture, with its first weights, and the same layer

Both start at 0 and have their own optimiser. PPO's loss (1707.06347):

    1/2 max((v - R)^2, (v_old + clip(v - v_old) - R)^2)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ludus.config import CriticConfig, TrainerConfig
from ludus.errors import TrainerFailed
from ludus.models.transfer import fetched
from ludus.trainer.budget import FIRST_TOKENS, Budget, OnEvent, naming_shortage
from ludus.trainer.checkpoint import Checkpoint
from ludus.trainer.critics.double import start_at_zero
from ludus.trainer.forward import prepare, sampled_hidden
from ludus.trainer.optimizer import make_optimizer
from ludus.trainer.pack import make_microbatch, pack, row_ids, sampled_values
from ludus.trainer.state import learner_tensors, restore_learner
from ludus.types import Batch, Sequence, Trajectory

CRITIC = "critic"
Targets = dict[str, Tensor]


class ValueCritic:
    """Reads `policy`, or takes over `model`. Passes use the model's dtype, the layer float32."""

    def __init__(
        self,
        config: CriticConfig,
        *,
        policy: PreTrainedModel,
        model: PreTrainedModel | None = None,
        trainer: TrainerConfig,
        on_event: OnEvent | None = None,
    ) -> None:
        self._config, self._trainer = config, trainer
        self.alone = config.warmup
        self._model, self._frozen = model or policy, model is None
        self._dtype = self._model.dtype
        self._budget = Budget(trainer.microbatch_tokens or FIRST_TOKENS, device=policy.device, on_event=on_event)
        if model is not None:
            prepare(model.float().eval())
        head = nn.Linear(policy.config.get_text_config().hidden_size, 1, device=policy.device)
        start_at_zero(head)
        self.learning = nn.ModuleDict({"head": head} if model is None else {"head": head, "trunk": model.base_model})
        betas, decay = trainer.betas, trainer.weight_decay
        with naming_shortage("the critic's weights and AdamW's averages", device=policy.device):
            self._optimizer = make_optimizer(self.learning, lr=config.lr, betas=betas, weight_decay=decay)

    @torch.no_grad()
    def values(self, trajectories: Seq[Trajectory]) -> list[np.ndarray]:
        sequences = [sequence for trajectory in trajectories for sequence in trajectory.sequences]
        found = by_sequence(sequences, lambda part: fetched(self._values(self._hidden(part))), budget=self._budget)
        each = iter(own.numpy().astype(np.float64) for own in found)
        return [np.concatenate([np.zeros(0), *(next(each) for _ in t.sequences)]) for t in trajectories]

    def step(self, batch: Batch) -> dict[str, float]:
        """Take `critic.steps` optimiser steps on the batch's returns, each finite or refused."""
        sequences = batch.sequences
        # hidden states of a frozen model are the same in every pass
        read = by_sequence(sequences, self._hidden, budget=self._budget) if self._frozen else None
        metrics: dict[str, float] = {}
        for number in range(self._config.steps):
            loss, norm = self._budget.fitted(lambda: self._pass(sequences, read), undo=self._optimizer.zero_grad)
            metrics = metrics or {"critic_loss": loss, "critic_grad_norm": norm}
            if not np.isfinite(loss + norm):
                raise TrainerFailed(
                    f"the critic's pass {number} has loss {loss} and gradient norm {norm}; expected finite numbers. "
                    "The policy is as before the step; look at the rewards, or lower critic.lr."
                )
            self._optimizer.step()
            self._optimizer.zero_grad()
        return metrics | {"critic_explained": explained(_targets(sequences, device=self._model.device))}

    def _pass(self, sequences: Seq[Sequence], read: Seq[Tensor] | None) -> tuple[float, float]:
        """Compute clipped gradients; return loss and norm. `read`: known hidden states."""
        self._optimizer.zero_grad()
        total = torch.zeros((), device=self._model.device)
        for indices in pack([row_ids(sequence) for sequence in sequences], budget=self._budget.tokens):
            part = [sequences[index] for index in indices]
            hidden = self._hidden(part) if read is None else torch.cat([read[index] for index in indices])
            target = _targets(part, device=self._model.device)
            losses = value_losses(self._values(hidden), target["values"], target["returns"], clip=self._config.clip)
            loss = (target["weights"] * losses).sum()
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.learning.parameters(), self._trainer.max_grad_norm)
        return float(total), float(norm)

    def _hidden(self, sequences: Seq[Sequence]) -> Tensor:
        with torch.set_grad_enabled(not self._frozen and torch.is_grad_enabled()):
            return hidden_before(self._model, sequences, dtype=self._dtype, budget=self._budget)

    def _values(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.learning["head"](hidden)
        return values.squeeze(1)

    def tensors(self) -> dict[str, Mapping[str, Tensor]]:
        return learner_tensors(CRITIC, self.learning, self._optimizer)

    def restore(self, checkpoint: Checkpoint) -> None:
        restore_learner(CRITIC, self.learning, self._optimizer, checkpoint=checkpoint)


def hidden_before(model: PreTrainedModel, sequences: Seq[Sequence], *, dtype: torch.dtype, budget: Budget) -> Tensor:
    """Return hidden states before sampled tokens, float32 (M, hidden), computed in `dtype`."""
    microbatch = make_microbatch(sequences, device=model.device)
    half = dtype != torch.float32
    with (
        budget.microbatch(tokens=microbatch.ids.shape[1], sequences=len(sequences)),
        torch.autocast(model.device.type, dtype=dtype if half else None, enabled=half),
    ):
        return sampled_hidden(model, microbatch).float()


def by_sequence(
    sequences: Seq[Sequence], compute: Callable[[Seq[Sequence]], Tensor], *, budget: Budget
) -> list[Tensor]:
    """Apply `compute` to microbatches within the budget; return its rows (M, ...) by sequence."""

    def whole() -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for indices in pack([row_ids(sequence) for sequence in sequences], budget=budget.tokens):
            part = [sequences[index] for index in indices]
            counts = [sequence.num_sampled for sequence in part]
            found |= zip(indices, compute(part).split(counts), strict=True)
        nothing = next(iter(found.values()))[:0] if found else torch.zeros(0)
        return [found.get(index, nothing) for index in range(len(sequences))]

    return budget.fitted(whole)


def value_losses(values: Tensor, old: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """Return losses per token. With `clip`, moving further than that from `old` gains nothing."""
    plain = (values - returns) ** 2
    if not clip:
        return plain / 2
    clipped = (old + (values - old).clamp(-clip, clip) - returns) ** 2
    return torch.maximum(plain, clipped) / 2


def explained(targets: Targets) -> float:
    """Return the explained variance of the weighted returns; 0 where all are equal."""
    values, returns, weights = (targets[name].double() for name in ("values", "returns", "weights"))

    def variance(x: Tensor) -> float:
        mean = (weights * x).sum() / weights.sum()
        return float((weights * (x - mean) ** 2).sum() / weights.sum())

    whole = variance(returns)
    return 1 - variance(returns - values) / whole if whole > 1e-12 else 0.0


def _targets(sequences: Seq[Sequence], *, device: torch.device) -> Targets:
    names = ("values", "returns", "weights")
    return {name: sampled_values(sequences, f"critic.{name}", device=device) for name in names}
