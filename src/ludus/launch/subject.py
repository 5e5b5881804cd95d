"""The runs of `ludus eval` and `ludus collect`, played by a model, an endpoint or solvers.

Promise: a model that cannot answer is found at the start, before a session is played. After any
interruption the same command resumes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.config import RunConfig
from ludus.engines.chat_server import ChatServer
from ludus.engines.engine import Engine
from ludus.engines.server import ServerEngine
from ludus.errors import ConfigError, EngineLost
from ludus.launch.context import ModelContext, RunContext, make_model_context, make_run_context, patiently, preparing
from ludus.launch.placement.here import Here
from ludus.launch.policies import first_answer
from ludus.rollout.player import Player
from ludus.rollout.sampler import ChatSampler, SolverSampler
from ludus.store.recorder import Listener, Recorder
from ludus.store.run_folder import RunFolder
from ludus.types import Trajectory

MAX_LOST = 8
"""Sessions in a row that could not reach their model before the command gives up."""
KINDS = {"evaluating": "evaluation", "collecting": "collection"}
"""The event that marks a run folder as one of these."""
MAY_DIFFER = (
    ("engine", "url"), ("engine", "max_running"), ("engine", "threads"), ("evaluation", "num_tasks"), ("evaluation", "attempts"),
    ("sft", "num_trajectories"), ("workers",), ("controller",), ("store",),
)  # fmt: skip
"""Keys that change nothing about a finished attempt: where it is played, and how many there are."""


@dataclass(frozen=True, slots=True)
class Subject:
    context: RunContext
    player: Player
    name: str
    """The model's name for people."""
    words: str
    """What trajectories hold: "tokens" where the sampled ones are known, else "text"."""


@asynccontextmanager
async def playing(
    config: RunConfig, kind: str, *, split: str, solver: bool = False, listeners: Iterable[Listener]
) -> AsyncIterator[tuple[Recorder, Subject]]:
    """A run of a kind of KINDS, new or resumed."""
    collects = kind == "collecting"
    folder = _open(config, kind, same={"solver": solver, "split": split} if collects else {})
    trajectories = config.store.trajectories or collects
    with Recorder(folder, trajectories=trajectories, listeners=[*listeners, _LossWatch()]) as recorder:
        async with AsyncExitStack() as closing:
            with preparing(folder):
                subject = await make_subject(config, folder=folder.path, split=split, solver=solver, closing=closing)
            yield recorder, subject
        recorder.event("finished", version=0)


async def make_subject(
    config: RunConfig, *, folder: Path, split: str, solver: bool, closing: AsyncExitStack
) -> Subject:
    """The run file's model, or the environments' own solvers, for which no model is loaded."""
    words = "text" if solver or config.engine.kind == "chat" else "tokens"
    make = make_model_context if words == "tokens" else make_run_context
    context = await make(config, folder=folder, split=split)
    closing.push_async_callback(context.client.close)
    if solver:
        return Subject(context, context.player(SolverSampler(mistakes=config.sft.mistakes)), "solver", words)
    engine: Engine | ChatServer
    if isinstance(context, ModelContext):
        placement = Here(context)
        closing.push_async_callback(placement.close)
        engine = await placement.engine(trains=False)
        player = await placement.player(engine)
    else:
        settings = config.engine
        engine = ChatServer(settings.url, model=settings.model, max_running=settings.sized(on_gpu=False).max_running)
        closing.push_async_callback(engine.close)
        player = context.player(ChatSampler(engine))
    name = config.model.name
    if isinstance(engine, ServerEngine | ChatServer):  # model.name is at most our tokenizer
        await patiently(first_answer(engine, context), what=f"the first answer of {config.engine.url}")
        name = await engine.model_name()
    return Subject(context, player, name, words)


def _open(config: RunConfig, kind: str, *, same: Mapping[str, Any]) -> RunFolder:
    """A new run folder, or that of the same command, to resume it, where its event held `same`."""
    if not RunFolder(config.folder).config_file.exists():
        return RunFolder.create(config)
    begun = RunFolder.open(config.folder)
    first = next((event for event in begun.events() if event.get("kind") == kind), None)
    if first is None:
        return RunFolder.create(config)  # refuses: another kind of run is there
    differing = [] if same.items() <= first.items() else ["the player or the split"]
    if differing := differing + _differences(begun.config(), config):
        raise ConfigError(
            f"{begun.path} holds another {KINDS[kind]}: {', '.join(differing)}. Give this one another name (--name), "
            f"or delete that one: rm -r {begun.path}"
        )
    return RunFolder.resume(config, step=0)


def _differences(before: RunConfig, after: RunConfig) -> list[str]:
    """Settings that change an attempt: "evaluation.split is 'test' there and 'dev' here"."""
    one, other = _leaves(before.model_dump(mode="json")), _leaves(after.model_dump(mode="json"))
    keys = [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]
    return [
        f"{'.'.join(key)} is {one.get(key)!r} there and {other.get(key)!r} here"
        for key in sorted(keys)
        if not any(key[: len(free)] == free for free in MAY_DIFFER)
    ]


def _leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {key: leaf for name, item in value.items() for key, leaf in _leaves(item, (*path, name)).items()}


def finished(folder: RunFolder) -> list[Trajectory]:
    """Scored attempts of the earlier call; unscored ones are played again."""
    if folder.resumed_at is None:
        return []
    stored = (each.trajectory for each in folder.read_trajectories(report=lambda _: None))
    return [each for each in stored if each.stop.scored]


class _LossWatch:
    """Listener: raises EngineLost when too many sessions in a row could not reach their model."""

    def __init__(self) -> None:
        self._lost = 0

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind != "trajectory":
            return
        trajectory: Trajectory = fields["trajectory"]
        self._lost = self._lost + 1 if trajectory.failure.startswith(f"{EngineLost.__name__}:") else 0
        if self._lost >= MAX_LOST:
            raise EngineLost(
                f"{self._lost} sessions in a row lost their model, the latest by {trajectory.failure}\n"
                "Finished sessions are kept: run the same command again to resume."
            )
