"""The trainer of one process. It executes per-token weights and knows no environment and no algorithm.

Promise: a step is applied whole or not at all. A loss or gradient that is not finite leaves weights
and optimiser unchanged and raises an error that names the sequence. A restored checkpoint continues
bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ludus.algorithms.algorithm import Tokens
from ludus.config import TrainerConfig
from ludus.errors import CheckpointFailed, TrainerFailed
from ludus.models.layers.training import merge_projections
from ludus.models.transfer import fetched, placed
from ludus.trainer.budget import Budget, OnEvent, naming_shortage
from ludus.trainer.checkpoint import ADAPTER, MODEL, Checkpoint, checkpoint_folder, load_checkpoint, save_checkpoint
from ludus.trainer.critics.critic import Critic
from ludus.trainer.forward import prepare, sampled_logprobs
from ludus.trainer.layers import checkpoint_layers, compile_layers, compiles
from ludus.trainer.lora import export, has_adapters, merged_tensors
from ludus.trainer.metrics import summarise
from ludus.trainer.optimizer import Masters, Schedule, cast_weights, make_optimizer, warmup
from ludus.trainer.pack import Microbatch, make_microbatch, pack, row_ids
from ludus.trainer.state import (
    copy_tensors,
    load_optimizer_tensors,
    named_tensors,
    optimizer_tensors,
    restore_rng,
    rng_states,
)
from ludus.trainer.threads import cpu_threads
from ludus.types import Batch, Sequence, Trajectory, frozen_array
from ludus.weights.channel import Channel, Snapshot
from ludus.weights.memory import MemoryChannel

Loss = Callable[[Tokens], tuple[Tensor, dict[str, Tensor]]]


class LocalTrainer:
    """Takes over `model`.

    Forward and backward passes and published versions use the model's dtype, as an engine does; the
    optimiser updates float32 copies (`Masters`). Where the model has adapters (`lora.py`), only they
    are trained. Dropout stays off, so that logprobs equal an engine's.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        algorithm_loss: Loss,
        config: TrainerConfig,
        temperature: float = 1.0,
        channel: Channel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        schedule: Schedule | None = None,
        reference: PreTrainedModel | None = None,
        entropy_gradient: bool = False,
        critic: Critic | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        """`reference` is a frozen model whose logprobs the loss gets. `entropy_gradient`: the loss has an
        entropy bonus. `critic` reads this model or has its own. `tokenizer` is written by `export`."""
        self.model = model
        self.version = 0
        """Optimiser steps published so far."""
        self.steps = 0
        """Optimiser steps taken, the unpublished ones included."""
        self._loss = algorithm_loss
        self._config = config
        self._temperature = temperature
        self.channel = channel or MemoryChannel()
        self._tokenizer = tokenizer
        self._published: int | None = None
        self._dtype = model.dtype
        self._schedule = schedule or warmup(config.lr, steps=config.warmup_steps)
        self._reference = reference
        self._entropy_gradient = entropy_gradient
        self._critic = critic
        with cpu_threads(config.threads):
            prepare(model.float().eval())
            if reference is not None:
                prepare(reference.float().requires_grad_(False).eval())
                # rounded as the policy is, or the rounding would count as a divergence
                cast_weights(reference, self._dtype)
        with naming_shortage("the weights and AdamW's averages", device=model.device):
            self._masters = Masters(model, dtype=self._dtype)
            self._optimizer = make_optimizer(
                self._masters, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay
            )
        if not config.compile:
            merge_projections(model)
        self._budget = Budget(config.microbatch_tokens, device=model.device, on_event=on_event)
        if config.checkpoint_activations:
            checkpoint_layers(model)
        if compiles(config.compile, model):
            for each in (model, reference):
                if each is not None:
                    compile_layers(each)

    # -------------------------------------------------------------------------------------------- a step

    def step(self, batch: Batch) -> dict[str, float]:
        """Take one optimiser step. A batch without a sampled token takes none and returns {"skipped": 1}."""
        if not any(sequence.num_sampled for sequence in batch.sequences):
            return {"skipped": 1.0, "tokens": 0.0}
        if self._critic is not None and self.steps < self._critic.alone:
            return self._step_critic(self._critic, batch)
        started = time.perf_counter()
        with cpu_threads(self._config.threads):
            loss, pieces = self._accumulate(batch.sequences)
            grad_norm = self._grad_norm()
            if not np.isfinite(float(loss) + float(grad_norm)):
                raise TrainerFailed(self._blame(batch, loss=float(loss), grad_norm=float(grad_norm)))
            # before the policy moves: the critic may read its weights
            judged = self._critic.step(batch) if self._critic is not None else {}
            lr = self._apply(grad_norm)
            diagnostics = summarise(pieces)
        seconds = time.perf_counter() - started
        return {
            "skipped": 0.0,
            "loss": float(loss),
            "grad_norm": float(grad_norm),
            "lr": lr,
            **diagnostics,
            **judged,
            "tokens": float(batch.num_tokens),
            "sampled_tokens": float(sum(len(piece["entropy"]) for piece in pieces)),
            "microbatches": float(len(pieces)),
            "step_s": seconds,
            "tokens_per_s": batch.num_tokens / seconds,
        }

    def _step_critic(self, critic: Critic, batch: Batch) -> dict[str, float]:
        """Train the critic alone. It counts as a step, so that every batch has its own version."""
        with cpu_threads(self._config.threads):
            judged = critic.step(batch)
        self.steps += 1
        return {"skipped": 0.0, "critic_alone": 1.0, **judged, "tokens": float(batch.num_tokens)}

    def _accumulate(self, sequences: Seq[Sequence]) -> tuple[Tensor, list[dict[str, Tensor]]]:
        """Compute the gradients of all microbatches; return the loss and the diagnostics per sampled token.

        Weights per token are fixed, so the size of a microbatch changes nothing else.
        """
        return self._budget.fitted(lambda: self._try_to_accumulate(sequences), undo=self._masters.forget_gradients)

    def _try_to_accumulate(self, sequences: Seq[Sequence]) -> tuple[Tensor, list[dict[str, Tensor]]]:
        self._masters.forget_gradients()
        total, pieces = torch.zeros((), device=self.model.device), []
        for chosen in self._parts(sequences):
            microbatch = make_microbatch(chosen, device=self.model.device)
            with self._budget.microbatch(tokens=microbatch.ids.shape[1], sequences=len(chosen)):
                loss, diagnostics = self._forward(microbatch, chosen)
                loss.backward()
            total += loss.detach()
            pieces.append(diagnostics)
        self._masters.take_gradients()
        return total, pieces

    def _parts(self, sequences: Seq[Sequence]) -> Iterator[list[Sequence]]:
        """Yield microbatches; when the budget changes on the way, the rest is packed again."""
        left = list(sequences)
        while True:
            budget, taken = self._budget.tokens, set[int]()
            for indices in pack([row_ids(sequence) for sequence in left], budget=budget):
                taken.update(indices)
                yield [left[index] for index in indices]
                if self._budget.tokens != budget:
                    break
            else:
                return
            left = [sequence for index, sequence in enumerate(left) if index not in taken]

    def _forward(self, microbatch: Microbatch, sequences: Seq[Sequence]) -> tuple[Tensor, dict[str, Tensor]]:
        logprobs, entropies = sampled_logprobs(
            self.model, microbatch, temperature=self._temperature, entropy_gradient=self._entropy_gradient
        )
        tokens = Tokens(
            logprobs=logprobs,
            old_logprobs=logprobs.detach(),  # one step per batch: the old policy is the policy itself
            behaviour_logprobs=microbatch.behaviour_logprobs,
            advantages=microbatch.advantages,
            weights=microbatch.weights,
            rows=_rows(sequences, device=self.model.device),
            reference_logprobs=self._reference_logprobs(microbatch),
            entropies=entropies,
        )
        loss, diagnostics = self._loss(tokens)
        return (tokens.weights * loss).sum(), {"entropy": entropies.detach(), **diagnostics}

    @torch.no_grad()
    def _reference_logprobs(self, microbatch: Microbatch) -> Tensor | None:
        if self._reference is None:
            return None
        return sampled_logprobs(self._reference, microbatch, temperature=self._temperature)[0]

    def _grad_norm(self) -> Tensor:
        return torch.nn.utils.get_total_norm([p.grad for p in self._masters.parameters() if p.grad is not None])

    def _apply(self, grad_norm: Tensor) -> float:
        torch.nn.utils.clip_grads_with_norm_(self._masters.parameters(), self._config.max_grad_norm, grad_norm)
        lr = self._schedule(self.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self._masters.copy_back()
        self._masters.forget_gradients()
        self.steps += 1
        return lr

    def _blame(self, batch: Batch, *, loss: float, grad_norm: float) -> str:
        """Find the sequence by running each one alone; leave no gradient behind."""
        culprit = "no sequence alone, only their sum"
        for index, sequence in enumerate(batch.sequences):
            alone, _ = self._accumulate([sequence])
            if not np.isfinite(float(alone) + float(self._grad_norm())):
                culprit = f"sequence {index} of {len(batch.sequences)}{_origin(batch, sequence)}"
                break
        self._masters.forget_gradients()
        return (
            f"step {self.steps} has loss {loss} and gradient norm {grad_norm}; expected finite numbers. It came from "
            f"{culprit}. Weights and optimiser are as before the step; look at that trajectory's logprobs, or lower "
            "trainer.lr."
        )

    def values(self, trajectories: Seq[Trajectory]) -> list[np.ndarray]:
        """Return the critic's value before every sampled token, for the algorithm's advantages."""
        assert self._critic is not None, "this trainer was made without a critic"
        with cpu_threads(self._config.threads):
            return self._critic.values(trajectories)

    # -------------------------------------------------------------------------------------------- versions

    def publish(self) -> int:
        """Put the weights on the channel as a new version; without a step since, return the same one."""
        if self._published != self.steps:
            self.channel.publish(self.steps, merged_tensors(self.model))
            self._published = self.version = self.steps
        return self.version

    @torch.no_grad()
    def logprobs(self, ids: Seq[int]) -> list[float]:
        """Return logprobs of ids[1:] at the sampling temperature; an engine's `score` must agree."""
        sequence = _all_sampled(ids)
        with cpu_threads(self._config.threads):
            microbatch = make_microbatch([sequence], device=self.model.device)
            found, _ = sampled_logprobs(self.model, microbatch, temperature=self._temperature)
            values: list[float] = fetched(found).tolist()
        return values

    # -------------------------------------------------------------------------------------------- checkpoints

    def save(
        self,
        run_folder: str | Path,
        *,
        state: Mapping[str, Any],
        keep: int,
        policies: Mapping[str, Snapshot] | None = None,
    ) -> Path:
        """Write RUN_FOLDER/checkpoints/step-N with the caller's `state`; keep the newest `keep`."""
        folder = checkpoint_folder(run_folder, self.steps)
        own = {
            self._part: self._weights(),
            "optimizer": optimizer_tensors(self._optimizer, self._masters),
            "rng": rng_states(self.model.device),
            **(self._critic.tensors() if self._critic is not None else {}),
            **{name: snapshot.tensors for name, snapshot in (policies or {}).items()},
        }
        counters = {"steps": self.steps, "version": self.version}
        save_checkpoint(folder, tensors=own, state={**state, "trainer": counters}, keep=keep)
        return folder

    def restore(self, folder: str | Path) -> Checkpoint:
        """Continue from a checkpoint, which also holds the caller's state. Publish before an engine loads."""
        checkpoint = load_checkpoint(folder)
        if not (checkpoint.folder / f"{self._part}.safetensors").is_file():
            raise CheckpointFailed(
                f"{checkpoint.folder} holds no {self._part}.safetensors: it was written with "
                f"{'' if self._part == MODEL else 'no '}adapters (lora.rank). Resume with the settings that the run was "
                "started with."
            )
        copy_tensors(self._weights(), checkpoint.tensors(self._part), folder=checkpoint.folder)
        self._masters.copy_back()
        load_optimizer_tensors(self._optimizer, self._masters, checkpoint.tensors("optimizer"))
        if self._critic is not None:
            self._critic.restore(checkpoint)
        restore_rng(checkpoint.tensors("rng"), self.model.device)
        self.steps = int(checkpoint.state["trainer"]["steps"])
        self.version = int(checkpoint.state["trainer"]["version"])
        self._published = None
        return checkpoint

    def export(self, folder: str | Path) -> Path:
        """Write the model in Hugging Face format, merged where there are adapters."""
        assert self._tokenizer is not None, "this trainer was made without a tokenizer"
        return export(folder, model=self.model, tokenizer=self._tokenizer)

    @property
    def _part(self) -> str:
        return ADAPTER if has_adapters(self.model) else MODEL

    def _weights(self) -> dict[str, Tensor]:
        """Return the trained weights in float32 and the rest of the model; with adapters, the adapters alone."""
        rest = {} if has_adapters(self.model) else named_tensors(self.model)
        return {**rest, **{name: master.detach() for name, master in self._masters.named_parameters()}}


def _rows(sequences: Seq[Sequence], *, device: torch.device) -> Tensor:
    """Return the index of the sequence of each sampled token, in the order of the microbatch."""
    counts = torch.tensor([sequence.num_sampled for sequence in sequences])
    return placed(torch.repeat_interleave(torch.arange(len(sequences)), counts), device)


def _all_sampled(ids: Seq[int]) -> Sequence:
    sampled = np.arange(len(ids)) > 0
    zeros = np.zeros(len(ids), dtype=np.float32)
    return Sequence(
        ids=frozen_array(ids, np.int32),
        sampled=sampled,
        logprobs=zeros,
        versions=zeros.astype(np.int32),
        turns=zeros.astype(np.int32),
        advantages=zeros,
        weights=zeros,
    )


def _origin(batch: Batch, sequence: Sequence) -> str:
    """Name the trajectory of a sequence, which is known by its ids: algorithms never replace them."""
    for group in batch.groups:
        for trajectory in group.trajectories:
            if any(own.ids is sequence.ids for own in trajectory.sequences):
                return f" (trajectory {trajectory.id}, task {trajectory.task.id}, environment {trajectory.task.environment})"
    return ""
