"""ArCHer's critic (2402.19446): turns become features in a replay, which a double critic values.

    state    hidden state before the turn's first sampled token
    action   hidden state before its last sampled token, and that token's embedding

Both come from the frozen model that the run started with, so that replayed features stay comparable
and are computed once. They are normalised with the statistics of the present replay. Differs from
the paper: there the encoder (RoBERTa) is trained too, so that every update encodes its turns again;
V and the policy learn from the actions just played, not from new samples at replayed states. The
last turn of a session is terminal, also where a limit cut it. As in the paper, the critic may learn
alone at first (`critic.warmup`), and a baseline per token may be subtracted (`critic.baseline`).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ludus.algorithms.returns import token_rewards, turn_rewards
from ludus.config import CriticConfig, TrainerConfig
from ludus.errors import TrainerFailed
from ludus.models.transfer import fetched
from ludus.trainer.budget import FIRST_TOKENS, Budget, OnEvent
from ludus.trainer.checkpoint import Checkpoint
from ludus.trainer.critics.double import DoubleCritic, Scale, TokenBaseline, Turns
from ludus.trainer.critics.value import by_sequence, hidden_before
from ludus.trainer.forward import prepare
from ludus.trainer.state import learner_tensors, load_weights, named_tensors, restore_learner
from ludus.types import Batch, Sequence, Trajectory

NETWORKS, TARGETS, REPLAY, BASELINE = "archer", "archer_targets", "archer_replay", "archer_baseline"
COLUMNS = tuple(field.name for field in fields(Turns))


class Archer:
    """Takes over `encoder`. Trains when it is asked for values."""

    def __init__(
        self,
        config: CriticConfig,
        *,
        encoder: PreTrainedModel,
        trainer: TrainerConfig,
        discount: float,
        seed: int,
        on_event: OnEvent | None = None,
    ) -> None:
        self._config, self._encoder = config, encoder
        self.alone = config.warmup
        self._dtype = encoder.dtype
        self._budget = Budget(trainer.microbatch_tokens or FIRST_TOKENS, device=encoder.device, on_event=on_event)
        prepare(encoder.float().requires_grad_(False).eval())
        hidden, device = encoder.config.get_text_config().hidden_size, encoder.device
        self.critic = DoubleCritic(
            state=hidden,
            action=2 * hidden,
            lr=config.lr,
            discount=discount,
            target_rate=config.target_rate,
            seed=seed,
            device=device,
        )
        self.replay = Turns.none(state=hidden, action=2 * hidden, device=device)
        self.baseline = TokenBaseline(state=hidden, lr=config.lr, seed=seed, device=device) if config.baseline else None
        self._metrics: dict[str, float] = {}

    def values(self, trajectories: Seq[Trajectory]) -> list[np.ndarray]:
        """Add the turns to the replay, learn `critic.steps` times, return advantages by token."""
        features = self._features(trajectories)
        found = [_turns(t, *own) for t, own in zip(trajectories, features, strict=True)]
        fresh = self.replay.pick(slice(0)).followed_by(*(turns for turns, _ in found))
        if not len(fresh):
            return [np.zeros(0) for _ in trajectories]
        self.replay = self.replay.followed_by(fresh, most=self._config.replay)
        scale = Scale.of(self.replay)
        fresh = scale(fresh)
        self._learn(scale(self.replay), fresh)
        pieces = self.critic.advantages(fresh).split([len(turns) for turns, _ in found])
        by_token = [own[ordinals] for own, (_, ordinals) in zip(pieces, found, strict=True)]
        if self.baseline is not None:
            before = [scale.state(hidden) for hidden, _ in features]
            by_token = self._without_baseline(self.baseline, by_token, before)
        return [fetched(own).numpy().astype(np.float64) for own in by_token]

    def _without_baseline(self, baseline: TokenBaseline, worth: Seq[Tensor], hidden: Seq[Tensor]) -> list[Tensor]:
        """Subtract the baseline, which learns afterwards: it must not know how a token ended."""
        whole, states = torch.cat([*worth]), torch.cat([*hidden])
        guesses = baseline.guess(states).detach()
        self._metrics["archer_baseline_loss"] = baseline.learn(states, whole, steps=self._config.steps)
        return list((whole - guesses).split([len(own) for own in worth]))

    def _learn(self, replay: Turns, fresh: Turns) -> None:
        losses = [self.critic.learn(replay, fresh, batch=self._config.batch) for _ in range(self._config.steps)]
        if not np.isfinite(losses).all():
            raise TrainerFailed(
                f"ArCHer's critic has losses {losses[-1]}; expected finite numbers. Look at the rewards, or lower critic.lr."
            )
        q, v = np.mean(losses, axis=0)
        self._metrics = {"archer_q_loss": float(q), "archer_v_loss": float(v), "archer_replay": float(len(replay))}

    def step(self, batch: Batch) -> dict[str, float]:  # noqa: ARG002
        """Return the metrics of the updates that `values` made."""
        return self._metrics

    @torch.no_grad()
    def _features(self, trajectories: Seq[Trajectory]) -> list[tuple[Tensor, Tensor]]:
        """Return, by trajectory, hidden states before sampled tokens and embeddings (M, hidden)."""
        sequences = [sequence for trajectory in trajectories for sequence in trajectory.sequences]
        nothing = torch.zeros(0, self.replay.states.shape[1], device=self._encoder.device)
        hidden = by_sequence(sequences, self._hidden, budget=self._budget)
        rows = iter(zip(hidden, sequences, strict=True))
        return [self._joined([next(rows) for _ in t.sequences], nothing) for t in trajectories]

    def _hidden(self, sequences: Seq[Sequence]) -> Tensor:
        return hidden_before(self._encoder, sequences, dtype=self._dtype, budget=self._budget)

    def _joined(self, rows: Seq[tuple[Tensor, Sequence]], nothing: Tensor) -> tuple[Tensor, Tensor]:
        ids = np.concatenate([np.zeros(0, np.int64), *(s.ids[s.sampled].astype(np.int64) for _, s in rows)])
        embeddings: Tensor = self._encoder.get_input_embeddings()(torch.from_numpy(ids).to(nothing.device))
        return torch.cat([nothing, *(hidden for hidden, s in rows if s.num_sampled)]), embeddings.float()

    def tensors(self) -> dict[str, Mapping[str, Tensor]]:
        replay = {name: getattr(self.replay, name) for name in COLUMNS}
        own: dict[str, Mapping[str, Tensor]] = {
            **learner_tensors(NETWORKS, self.critic.networks, self.critic.optimizer),
            TARGETS: named_tensors(self.critic.targets),
            REPLAY: {**replay, "updates": torch.tensor(self.critic.updates)},
        }
        if self.baseline is not None:
            own |= learner_tensors(BASELINE, self.baseline.network, self.baseline.optimizer)
        return own

    def restore(self, checkpoint: Checkpoint) -> None:
        restore_learner(NETWORKS, self.critic.networks, self.critic.optimizer, checkpoint=checkpoint)
        load_weights(self.critic.targets, checkpoint.tensors(TARGETS), folder=checkpoint.folder)
        replay = checkpoint.tensors(REPLAY)
        self.replay = Turns(*(replay[name].to(self._encoder.device) for name in COLUMNS))
        self.critic.updates = int(replay["updates"])
        if self.baseline is not None:
            restore_learner(BASELINE, self.baseline.network, self.baseline.optimizer, checkpoint=checkpoint)


def _turns(trajectory: Trajectory, hidden: Tensor, embeddings: Tensor) -> tuple[Turns, Tensor]:
    """Return the turns with sampled tokens, and the turn of each sampled token."""
    named = np.concatenate([np.zeros(0, np.int32), *(s.turns[s.sampled] for s in trajectory.sequences)])
    _, firsts, ordinals = np.unique(named, return_index=True, return_inverse=True)
    lasts = np.append(firsts, len(named))[1:] - 1
    rewards = token_rewards(turn_rewards(trajectory).tolist(), sampled=np.ones(len(named), np.bool_), turns=named)
    states = hidden[torch.from_numpy(firsts).to(hidden.device)]
    ends = torch.from_numpy(lasts).to(hidden.device)
    done = torch.zeros(len(firsts), device=hidden.device)
    done[-1:] = 1.0
    turns = Turns(
        states=states,
        actions=torch.cat([hidden[ends], embeddings[ends]], dim=1),
        rewards=torch.from_numpy(np.bincount(ordinals, weights=rewards).astype(np.float32)).to(hidden.device),
        nexts=torch.cat([states[1:], torch.zeros_like(states[:1])]),
        done=done,
    )
    return turns, torch.from_numpy(ordinals).to(hidden.device)
