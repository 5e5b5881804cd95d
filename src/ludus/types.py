"""What flows through Ludus, in the order a trajectory meets it. Promise: records are immutable, and
nothing heavy is imported here.

    Task -> Order -> Observation <-> Action -> Turn -> Trajectory -> Group -> Batch

Token arrays are read-only numpy arrays of equal length T. Token provenance lives in `Sequence` and
nowhere else: whether a token was sampled, with which logprob, under which version. It is written
once, when the engine answers, and never re-derived from text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np

Role = Literal["system", "user", "assistant", "tool"]
CURRENT = "current"
"""The policy that is being trained."""


@dataclass(frozen=True, slots=True)
class Task:
    """Data with a stable id. Example: Task("guess/train/17", "guess", "train", {"low": 3})."""

    id: str
    environment: str
    split: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Order:
    """Sessions to play at one task, as plain data that may travel to another process. Session ids
    are `g000007.2` (attempt 2 of order g000007) and, for a retry of it, `g000007.2r1`."""

    id: str
    task: Task
    seed: tuple[str | int, ...]
    """The parts that the seeds of its sessions are derived from."""
    attempts: tuple[int, ...] | None = None
    """Which attempts to play; None: one session that has the order's own id and seed."""
    retries: int = 0
    """How often an attempt that ended unscored is played again."""
    index: int = 0
    """Its number among the orders that the feed has drawn."""
    tries: int = 0
    """How often its group went stale and was drawn again."""
    born: int = 0
    """The version that was loaded when it was admitted: no token of it can be older."""
    max_turns: int | None = None
    """Turns per session; None: the environment's own limit."""
    policy: str = CURRENT
    others: Mapping[str, float] = field(default_factory=dict)
    """Policies that sample in place of `policy`, each with its chance."""
    temperature: float | None = None
    """Sampling temperature; None: the run's."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call; `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """What the model said: text and tool calls. `problem`: why a call could not be read."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """`tools` replaces the tools on offer; None keeps them. `invalid`: the action failed."""

    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] | None = None
    reward: float = 0.0
    done: bool = False
    invalid: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


class Stop(StrEnum):
    """Why a trajectory ended."""

    DONE = "done"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    MAX_TURN_TOKENS = "max_turn_tokens"
    INVALID = "invalid"
    TURN_TIMEOUT = "turn_timeout"
    SESSION_TIMEOUT = "session_timeout"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def scored(self) -> bool:
        """False where the world, not the policy, ended the session: it is never trained on."""
        return self not in _UNSCORED


_UNSCORED = frozenset({Stop.TURN_TIMEOUT, Stop.SESSION_TIMEOUT, Stop.FAILED, Stop.CANCELLED})


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens. No top-p and no top-k: the reported logprob would be that of another
    distribution. Temperature 0 is greedy, and its logprobs are those of temperature 1. The same
    `seed`, prompt and weights give the same tokens, up to float rounding of the engine's batch."""

    max_tokens: int
    temperature: float = 1.0
    stop_ids: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled tokens, a stop id included, with logprobs at the sampling temperature."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    stop: Literal["end", "length"]
    policy: str = CURRENT


def frozen_array(values: Any, dtype: Any) -> np.ndarray:
    array = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


@dataclass(frozen=True, slots=True, eq=False)
class ValueTargets:
    """What a critic learns from a sequence, each float32 (T,): its values before the step, what
    came of them, and a token's share in the critic's loss, 0 where it is not asked."""

    values: np.ndarray
    returns: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One trainable row. All arrays have length T; `sampled` is the loss mask.

    Example (T = 6): ids [5 9 7 3 8 2], sampled [0 0 1 1 0 1], turns [0 0 0 0 1 1]. `turns` is the
    turn each token belongs to: a turn's prompt (its observation) and its generation share an index.
    `advantages` and `weights` are filled by the algorithm: the loss is the sum over tokens of
    weight x token loss, so splitting a batch never changes a denominator."""

    ids: np.ndarray  # int32
    sampled: np.ndarray  # bool
    logprobs: np.ndarray  # float32, 0 where not sampled
    versions: np.ndarray  # int32, -1 where not sampled
    turns: np.ndarray  # int32
    advantages: np.ndarray | None = None  # float32
    weights: np.ndarray | None = None  # float32
    critic: ValueTargets | None = None  # filled by an algorithm with a critic

    def __post_init__(self) -> None:
        lengths = {len(a) for a in (self.ids, self.sampled, self.logprobs, self.versions, self.turns)}
        assert len(lengths) == 1, f"token arrays of one sequence differ in length: {sorted(lengths)}"

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_sampled(self) -> int:
        return int(self.sampled.sum())


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation and its observation. `role` and `parent`: for several agents and branches."""

    index: int
    action: Action
    observation: Observation
    policy: str = CURRENT
    version: int = 0
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    generate_s: float = 0.0
    act_s: float = 0.0
    role: str = "agent"
    parent: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """The record of a session. Rewards are on the turn whose action earned them."""

    id: str
    task: Task
    attempt: int
    seed: int
    start: Observation
    turns: tuple[Turn, ...]
    sequences: tuple[Sequence, ...]
    stop: Stop
    failure: str = ""
    """For an unscored stop: what failed, e.g. "EnvironmentFailed: act raised KeyError: 'x'"."""
    max_turns: int = 0
    seconds: float = 0.0

    @property
    def reward(self) -> float:
        return self.start.reward + sum(turn.observation.reward for turn in self.turns)

    @property
    def metrics(self) -> dict[str, float]:
        """The environment's last word on each of its metrics."""
        merged = dict(self.start.metrics)
        for turn in self.turns:
            merged.update(turn.observation.metrics)
        return merged

    @property
    def success(self) -> bool:
        """The environment's own `success` metric where it has one, else a full reward of 1."""
        return bool(self.stop.scored and self.metrics.get("success", float(self.reward >= 1 - 1e-6)) > 0)

    @property
    def num_invalid(self) -> int:
        return sum(turn.observation.invalid for turn in self.turns)

    @property
    def num_sampled(self) -> int:
        return sum(turn.num_tokens for turn in self.turns)

    @property
    def num_forks(self) -> int:
        """How often a prompt did not extend the last tokens, so that a new sequence began."""
        return max(0, len(self.sequences) - 1)

    @property
    def oldest_version(self) -> int | None:
        """The oldest version among the tokens that the current policy sampled, if there are any."""
        masked = zip(self.sequences, self.sampled_by_current, strict=True)
        versions = (sequence.versions[own] for sequence, own in masked)
        return min((int(own.min()) for own in versions if len(own)), default=None)

    @property
    def sampled_by_current(self) -> list[np.ndarray]:
        """Per sequence, the mask of the tokens that the current policy sampled."""
        others = [turn.index for turn in self.turns if turn.policy != CURRENT]
        return [s.sampled & ~np.isin(s.turns, others) if others else s.sampled for s in self.sequences]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Trajectories of one task, to compare. `born`: the version loaded when it was admitted."""

    id: str
    task: Task
    trajectories: tuple[Trajectory, ...]
    born: int = 0
    failed: tuple[Trajectory, ...] = ()
    """Attempts that ended unscored; kept for the record, never trained."""

    @property
    def oldest_version(self) -> int:
        versions = [v for t in self.trajectories if (v := t.oldest_version) is not None]
        return min(versions, default=self.born)

    def staleness(self, version: int) -> int:
        return version - self.oldest_version


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one optimiser step eats: sequences with advantages and weights, from whole groups."""

    sequences: tuple[Sequence, ...]
    groups: tuple[Group, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(len(sequence) for sequence in self.sequences)
