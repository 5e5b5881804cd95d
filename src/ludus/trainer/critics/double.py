"""ArCHer's utterance-level critic (2402.19446) over features: two Qs, two Vs, a target copy each.

    Q_j(s, a)  ->  rho + gamma (1 - done) Vbar_j(s')         turns of the replay, of any policy
    V_j(s)     ->  Qbar_j(s, a'),  a' of the current policy  turns just played
    bar        ->  (1 - rate) bar + rate (its network)       after every update
    A(s, a)    =   min_j Q_j(s, a) - min_j V_j(s)

The last layers start at 0, so that a new critic values all actions alike. Features are normalised
first (`Scale`): what distinguishes turns is small beside what all turns have in common, and without
it a network learns little but the mean return.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW

HIDDEN = 128


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """N turns as features: state, action, reward, next state."""

    states: Tensor  # float32 (N, S)
    actions: Tensor  # float32 (N, A)
    rewards: Tensor  # float32 (N,)
    nexts: Tensor  # float32 (N, S), unused where done
    done: Tensor  # float32 (N,): 1 for the last turn of a session

    def __len__(self) -> int:
        return len(self.rewards)

    def pick(self, places: Tensor | slice) -> Turns:
        return Turns(*(getattr(self, field.name)[places] for field in fields(self)))

    def followed_by(self, *others: Turns, most: int | None = None) -> Turns:
        """Return the newest `most` of all."""
        all_of = (torch.cat([getattr(each, field.name) for each in (self, *others)]) for field in fields(self))
        return Turns(*(column[-most:] if most else column for column in all_of))

    @classmethod
    def none(cls, *, state: int, action: int, device: torch.device | str) -> Turns:
        shapes = ((0, state), (0, action), (0,), (0, state), (0,))
        return cls(*(torch.zeros(shape, device=device) for shape in shapes))


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """Normalises features to mean 0 and deviation 1, states and actions separately."""

    states: tuple[Tensor, Tensor]  # (S,) mean and deviation
    actions: tuple[Tensor, Tensor]  # (A,)

    @classmethod
    def of(cls, turns: Turns) -> Scale:
        return cls(_moments(turns.states), _moments(turns.actions))

    def state(self, features: Tensor) -> Tensor:
        return _scaled(features, self.states)

    def __call__(self, turns: Turns) -> Turns:
        actions = _scaled(turns.actions, self.actions)
        return replace(turns, states=self.state(turns.states), actions=actions, nexts=self.state(turns.nexts))


class DoubleCritic:
    def __init__(
        self,
        *,
        state: int,
        action: int,
        lr: float,
        discount: float,
        target_rate: float,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self._discount, self._rate, self._seed = discount, target_rate, seed
        sizes = {"q1": state + action, "q2": state + action, "v1": state, "v2": state}
        self.networks, self.optimizer = _learner(sizes, lr=lr, seed=seed, device=device)
        self.targets = deepcopy(self.networks).requires_grad_(False)
        self.updates = 0

    def learn(self, replay: Turns, fresh: Turns, *, batch: int) -> tuple[float, float]:
        """Update once on `batch` turns of each, drawn by seed and `updates`; return both losses."""
        rng = np.random.default_rng([self._seed, self.updates])
        old, new = (_drawn(turns, batch, rng) for turns in (replay, fresh))
        with torch.no_grad():
            going_on = self._discount * (1 - old.done)
            goals = {j: old.rewards + going_on * self._v(self.targets, j, old.nexts) for j in "12"}
            seen = {j: self._q(self.targets, j, new) for j in "12"}
        q_loss = torch.stack([((self._q(self.networks, j, old) - goals[j]) ** 2).mean() for j in "12"]).sum()
        v_loss = torch.stack([((self._v(self.networks, j, new.states) - seen[j]) ** 2).mean() for j in "12"]).sum()
        _update(self.optimizer, q_loss + v_loss)
        self.updates += 1
        with torch.no_grad():
            for target, own in zip(self.targets.parameters(), self.networks.parameters(), strict=True):
                target.lerp_(own, self._rate)
        return float(q_loss.detach()), float(v_loss.detach())

    @torch.no_grad()
    def advantages(self, turns: Turns) -> Tensor:
        """(N,)"""
        q = torch.minimum(*(self._q(self.networks, j, turns) for j in "12"))
        v = torch.minimum(*(self._v(self.networks, j, turns.states) for j in "12"))
        return q - v

    @staticmethod
    def _q(networks: nn.ModuleDict, which: str, turns: Turns) -> Tensor:
        return _value(networks[f"q{which}"], torch.cat([turns.states, turns.actions], dim=1))

    @staticmethod
    def _v(networks: nn.ModuleDict, which: str, states: Tensor) -> Tensor:
        return _value(networks[f"v{which}"], states)


class TokenBaseline:
    """ArCHer's baseline: an estimate of a turn's advantage before each of its tokens.

    Subtracting it changes no mean gradient, because it never saw the token."""

    def __init__(self, *, state: int, lr: float, seed: int, device: torch.device | str = "cpu") -> None:
        self.network, self.optimizer = _learner({"baseline": state}, lr=lr, seed=seed, device=device)

    def guess(self, states: Tensor) -> Tensor:
        """(M,)"""
        return _value(self.network["baseline"], states)

    def learn(self, states: Tensor, worth: Tensor, *, steps: int) -> float:
        """Learn from tokens that `guess` has seen; return the loss before the first step."""
        losses = []
        for _ in range(steps):
            loss = ((self.guess(states) - worth) ** 2).mean()
            _update(self.optimizer, loss)
            losses.append(float(loss.detach()))
        return losses[0]


def start_at_zero(layer: nn.Linear) -> None:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)


def _learner(
    sizes: Mapping[str, int], *, lr: float, seed: int, device: torch.device | str
) -> tuple[nn.ModuleDict, AdamW]:
    """Return a network for each input size, initialised from `seed`, and their optimiser."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = nn.ModuleDict({name: _network(size) for name, size in sizes.items()}).to(device)
    return networks, AdamW(networks.parameters(), lr=lr, weight_decay=0.0, fused=True)


def _network(size: int) -> nn.Sequential:
    last = nn.Linear(HIDDEN, 1)
    start_at_zero(last)
    return nn.Sequential(nn.LayerNorm(size), nn.Linear(size, HIDDEN), nn.GELU(), last)


def _update(optimizer: AdamW, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _value(network: nn.Module, features: Tensor) -> Tensor:
    values: Tensor = network(features)
    return values.squeeze(1)


ROUNDING = 0.01
"""Deviations below this share of a feature's size may be bfloat16 rounding: not scaled up."""


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(features, dim=0, correction=0)
    least = ROUNDING**2 * (features**2).mean(dim=0) + 1e-12
    return mean, (variance + least).sqrt()


def _scaled(features: Tensor, moments: tuple[Tensor, Tensor]) -> Tensor:
    mean, deviation = moments
    return (features - mean) / deviation


def _drawn(turns: Turns, count: int, rng: np.random.Generator) -> Turns:
    if len(turns) <= count:
        return turns
    places = torch.from_numpy(rng.choice(len(turns), size=count, replace=False)).to(turns.rewards.device)
    return turns.pick(places)
