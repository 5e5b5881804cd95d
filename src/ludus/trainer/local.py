"""The trainer of one process. It executes per-token weights and knows no environment or algorithm.

Promise: a step is applied whole or not at all. A loss or gradient that is not finite leaves weights
and optimiser unchanged and raises an error that names the sequence. A restored checkpoint continues
bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ludus.algorithms.algorithm import Tokens
from ludus.config import TrainerConfig
from ludus.errors import TrainerFailed
from ludus.models.layers.training import merge_projections
from ludus.models.transfer import fetched, placed
from ludus.trainer.budget import Budget, OnEvent, naming_shortage
from ludus.trainer.checkpoint import ADAPTER, MODEL, Checkpoint, checkpoint_folder, load_checkpoint, save_checkpoint
from ludus.trainer.critics.critic import Critic
from ludus.trainer.forward import prepare, sampled_logprobs
from ludus.trainer.layers import checkpoint_layers, compile_layers, compiles
from ludus.trainer.lora import export, has_adapters, merged_tensors
from ludus.trainer.optimizer import Masters, Schedule, cast_weights, make_optimizer, warmup
from ludus.trainer.pack import Microbatch, make_microbatch, pack, row_ids, sampled_values
from ludus.trainer.state import (
    copy_tensors,
    load_optimizer_tensors,
    named_tensors,
    optimizer_tensors,
    restore_rng,
    rng_states,
)
from ludus.types import Batch, Sequence, Trajectory, frozen_array
from ludus.weights.channel import Channel, Snapshot
from ludus.weights.memory import MemoryChannel

Loss = Callable[[Tokens], tuple[Tensor, dict[str, Tensor]]]
MAXIMA = ("importance", "logprob_gap")
"""Diagnostics whose maximum is reported beside the mean."""


class LocalTrainer:
    """Takes over `model`.

    Passes and published versions use the model's dtype, as an engine does; the optimiser updates
    float32 copies (`Masters`). Where the model has adapters (`lora.py`), only they are trained.
    Dropout stays off, so that logprobs equal an engine's."""

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
        """`reference` is a frozen model whose logprobs the loss gets. `entropy_gradient`: the loss
        has an entropy bonus. `critic` reads this model or its own. `export` writes `tokenizer`."""
        self.model, self.channel = model, channel or MemoryChannel()
        self._part = ADAPTER if has_adapters(model) else MODEL
        self.version = 0
        """Optimiser steps published so far."""
        self.steps = 0
        """Optimiser steps taken, the unpublished ones included."""
        self._published: int | None = None
        self._config, self._temperature, self._tokenizer = config, temperature, tokenizer
        self._schedule = schedule or warmup(config.lr, steps=config.warmup_steps)
        self._loss, self._entropy_gradient = algorithm_loss, entropy_gradient
        self._reference, self._critic = reference, critic
        dtype = model.dtype
        with cpu_threads(config.threads):
            prepare(model.float().eval())
            if reference is not None:
                prepare(reference.float().requires_grad_(False).eval())
                # rounded as the policy is, or the rounding would count as a divergence
                cast_weights(reference, dtype)
        with naming_shortage("the weights and AdamW's averages", device=model.device):
            self._masters = Masters(model, dtype=dtype)
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

    def step(self, batch: Batch) -> dict[str, float]:
        """Take one optimiser step. Without a sampled token, take none and return {"skipped": 1}."""
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
        """Compute all gradients; return the loss and the diagnostics per sampled token.

        Weights per token are fixed, so the size of a microbatch changes nothing else."""

        def whole() -> tuple[Tensor, list[dict[str, Tensor]]]:
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

        return self._budget.fitted(whole, undo=self._masters.forget_gradients)

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
            old_logprobs=logprobs.detach(),  # one step per batch: old is current
            behaviour_logprobs=sampled_values(sequences, "logprobs", device=self.model.device),
            advantages=sampled_values(sequences, "advantages", device=self.model.device),
            weights=sampled_values(sequences, "weights", device=self.model.device),
            rows=_rows(sequences, device=self.model.device),
            reference_logprobs=self._logprobs(self._reference, microbatch) if self._reference is not None else None,
            entropies=entropies,
        )
        loss, diagnostics = self._loss(tokens)
        return (tokens.weights * loss).sum(), {"entropy": entropies.detach(), **diagnostics}

    @torch.no_grad()
    def _logprobs(self, model: PreTrainedModel, microbatch: Microbatch) -> Tensor:
        return sampled_logprobs(model, microbatch, temperature=self._temperature)[0]

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
        assert self._critic is not None, "this trainer was made without a critic"
        with cpu_threads(self._config.threads):
            return self._critic.values(trajectories)

    def publish(self) -> int:
        if self._published != self.steps:
            self.channel.publish(self.steps, merged_tensors(self.model))
            self._published = self.version = self.steps
        return self.version

    def logprobs(self, ids: Seq[int]) -> list[float]:
        with cpu_threads(self._config.threads):
            microbatch = make_microbatch([_all_sampled(ids)], device=self.model.device)
            values: list[float] = fetched(self._logprobs(self.model, microbatch)).tolist()
        return values

    def save(
        self, run_folder: Path, *, state: Mapping[str, Any], keep: int, policies: Mapping[str, Snapshot] | None = None
    ) -> Path:
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
        checkpoint = load_checkpoint(folder)
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
        assert self._tokenizer is not None, "this trainer was made without a tokenizer"
        return export(folder, model=self.model, tokenizer=self._tokenizer)

    def _weights(self) -> dict[str, Tensor]:
        """Return trained weights in float32 and the rest of the model; or the adapters alone."""
        rest = {} if self._part == ADAPTER else named_tensors(self.model)
        return {**rest, **{name: master.detach() for name, master in self._masters.named_parameters()}}


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Use `count` CPU threads (0: torch's default), then restore the number from before.

    torch keeps it per thread, and autograd runs a CPU backward pass in the calling thread (measured
    on torch 2.13). A thread that never set it starts with the last value that any thread set."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _rows(sequences: Seq[Sequence], *, device: torch.device) -> Tensor:
    """Return the index of the sequence of each sampled token, in the order of the microbatch."""
    counts = torch.tensor([sequence.num_sampled for sequence in sequences])
    return placed(torch.repeat_interleave(torch.arange(len(sequences)), counts), device)


def summarise(pieces: Seq[Mapping[str, Tensor]]) -> dict[str, float]:
    """Return means over all sampled tokens, `NAME_max` for the MAXIMA, and `ess`: the effective
    sample size of the importance weights as a share of the tokens."""
    columns = {name: torch.cat([piece[name] for piece in pieces]).float() for name in pieces[0]}
    reduced = {name: values.mean() for name, values in columns.items()}
    reduced |= {f"{name}_max": columns[name].max() for name in MAXIMA if name in columns}
    if "importance" in columns:
        weights = columns["importance"]
        reduced["ess"] = weights.sum() ** 2 / (weights**2).sum() / len(weights)
    return dict(zip(reduced, fetched(torch.stack(list(reduced.values()))).tolist(), strict=True))


def _all_sampled(ids: Seq[int]) -> Sequence:
    zeros = np.zeros(len(ids), dtype=np.int32)
    return Sequence(
        ids=frozen_array(ids, np.int32),
        sampled=np.arange(len(ids)) > 0,
        logprobs=zeros.astype(np.float32),
        versions=zeros,
        turns=zeros,
    )


def _origin(batch: Batch, sequence: Sequence) -> str:
    """Name a sequence's trajectory, which is known by its ids: algorithms never replace them."""
    for group in batch.groups:
        for trajectory in group.trajectories:
            if any(own.ids is sequence.ids for own in trajectory.sequences):
                return f" (trajectory {trajectory.id}, task {trajectory.task.id}, environment {trajectory.task.environment})"
    return ""
