"""Trajectories and groups as JSON. Promise: reading gives back what was written, bit for bit.

Everything is plain JSON for `jq`, except logprobs: base64 of little-endian float32, because
decimals would be half of the file. A sequence of 300 tokens, 60 of them sampled:

    {"ids": [5, 9, ...], "sampled": [200, 40, 40, 20], "logprobs": "Wkw...", "versions": [[7, 60]],
     "turns": [[0, 240], [1, 60]]}

`sampled` holds the lengths of alternating runs, starting with tokens that were not sampled;
`versions` and `turns` are runs of [value, count]. Only sampled tokens have logprobs and versions.
Fields with their default value are left out. `reward`, `success` and `num_turns` are for readers
and not read back. Advantages belong to a batch and are not stored.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ludus.errors import StoreFailed, describe
from ludus.types import Action, Group, Message, Observation, Sequence, Stop, Task, Tool, ToolCall, Trajectory, Turn
from ludus.types import frozen_array as frozen

R = TypeVar("R")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class StoredTrajectory:
    """A trajectory and its place in the run."""

    trajectory: Trajectory
    step: int
    group_id: str
    split: str


def stored_to_dict(stored: StoredTrajectory) -> Json:
    place = {"step": stored.step, "group": stored.group_id, "split": stored.split}
    return place | trajectory_to_dict(stored.trajectory)


def stored_from_dict(data: Mapping[str, Any]) -> StoredTrajectory:
    trajectory = trajectory_from_dict(data)
    return StoredTrajectory(trajectory, step=data["step"], group_id=data["group"], split=data["split"])


def trajectory_to_dict(trajectory: Trajectory) -> Json:
    return {
        "id": trajectory.id,
        "environment": trajectory.task.environment,
        "reward": trajectory.reward,
        "success": trajectory.success,
        "stop": trajectory.stop.value,
        "failure": trajectory.failure,
        "num_turns": len(trajectory.turns),
        **{name: getattr(trajectory, name) for name in ("max_turns", "seconds", "attempt", "seed")},
        **{name: _plain(getattr(trajectory, name)) for name in ("task", "start", "turns")},
        "sequences": [_sequence_to_dict(sequence) for sequence in trajectory.sequences],
    }


def trajectory_from_dict(data: Mapping[str, Any]) -> Trajectory:
    try:
        return _record(Trajectory, {field.name: data[field.name] for field in fields(Trajectory)})
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise StoreFailed(
            f"trajectory {data.get('id', '(without id)')!r} cannot be read: {describe(error)}. "
            "Another version of Ludus wrote it, or it was edited; read it with the version that wrote it."
        ) from error


def group_to_dict(group: Group) -> Json:
    played = {name: [trajectory_to_dict(each) for each in getattr(group, name)] for name in ("trajectories", "failed")}
    return {"id": group.id, "task": _plain(group.task), "born": group.born, **played}


def group_from_dict(data: Mapping[str, Any]) -> Group:
    return _record(Group, data)


RECORDS = (Task, Tool, ToolCall, Message, Action, Observation, Turn)


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


_DEFAULTS = {record: [(field.name, _default(field)) for field in fields(record)] for record in RECORDS}


def _plain(value: Any) -> Any:
    """A record as a dict without fields that have their default; tuples as lists."""
    if isinstance(value, str | float | int | None):  # most values; avoids the look-up
        return value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if not isinstance(value, RECORDS):
        return value
    defaults = _DEFAULTS.get(type(value)) or next(_DEFAULTS[each] for each in RECORDS if isinstance(value, each))
    filled = ((name, default, getattr(value, name)) for name, default in defaults)
    return {name: _plain(item) for name, default, item in filled if item != default}


def _record(kind: type[R], data: Mapping[str, Any]) -> R:
    """The inverse of `_plain`; a field that the record does not have is a TypeError."""
    return kind(**{name: _READ[name](value) if name in _READ else value for name, value in data.items()})


def _each(read: Callable[[Any], R]) -> Callable[[Iterable[Any]], tuple[R, ...]]:
    return lambda values: tuple(map(read, values))


def _sequence_to_dict(sequence: Sequence) -> Json:
    sampled = np.asarray(sequence.sampled, dtype=bool)
    return {
        "ids": sequence.ids.tolist(),
        "sampled": _switches(sampled),
        "logprobs": base64.b64encode(sequence.logprobs[sampled].astype("<f4").tobytes()).decode(),
        "versions": _runs(sequence.versions[sampled]),
        "turns": _runs(sequence.turns),
    }


def _sequence(data: Mapping[str, Any]) -> Sequence:
    num_tokens = len(data["ids"])
    lengths = np.array(data["sampled"], dtype=np.int64)
    sampled = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
    logprobs, versions = np.zeros(num_tokens, np.float32), np.full(num_tokens, -1, np.int32)
    logprobs[sampled] = np.frombuffer(base64.b64decode(data["logprobs"]), dtype="<f4")
    versions[sampled] = _from_runs(data["versions"])
    return Sequence(
        ids=frozen(data["ids"], np.int32),
        sampled=frozen(sampled, np.bool_),
        logprobs=frozen(logprobs, np.float32),
        versions=frozen(versions, np.int32),
        turns=frozen(_from_runs(data["turns"]), np.int32),
    )


def _switches(mask: np.ndarray) -> list[int]:
    """Lengths of alternating runs, starting with False: [F F T F] -> [2, 1, 1], [T] -> [0, 1]."""
    edges = np.flatnonzero(np.diff(mask, prepend=False))
    return np.diff(np.concatenate(([0], edges, [len(mask)]))).tolist()  # type: ignore[no-any-return]


def _runs(values: np.ndarray) -> list[list[int]]:
    """[value, count] of each run: [7 7 8] -> [[7, 2], [8, 1]]."""
    starts = np.flatnonzero(np.append(len(values) > 0, values[1:] != values[:-1]))
    counts = np.diff(np.append(starts, len(values)))
    return np.stack([values[starts], counts], axis=1).tolist()  # type: ignore[no-any-return]


def _from_runs(runs: list[list[int]]) -> np.ndarray:
    values, counts = np.array(runs, dtype=np.int64).reshape(-1, 2).T
    return np.repeat(values, counts)


_tools = _each(partial(_record, Tool))
_observation = partial(_record, Observation)
_READ: dict[str, Callable[[Any], Any]] = {
    "task": partial(_record, Task),
    "start": _observation,
    "observation": _observation,
    "action": partial(_record, Action),
    "messages": _each(partial(_record, Message)),
    "tool_calls": _each(partial(_record, ToolCall)),
    "tools": lambda tools: None if tools is None else _tools(tools),
    "reward": float,  # a NaN was written as a string
    "metrics": lambda metrics: {name: float(value) for name, value in metrics.items()},
    "turns": _each(partial(_record, Turn)),
    "sequences": _each(_sequence),
    "stop": Stop,
    "trajectories": _each(trajectory_from_dict),
    "failed": _each(trajectory_from_dict),
}
"""How to read the fields that are not plain JSON."""
