"""`ludus sft`, a warm start: clones trajectories of solvers or of an earlier run into the model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ludus.config import RunConfig
from ludus.errors import ConfigError
from ludus.launch.collect import plan_orders
from ludus.launch.context import ModelContext, make_model_context, preparing
from ludus.launch.placement.here import Here
from ludus.rollout.chat import Chat
from ludus.rollout.player import play_all
from ludus.rollout.sampler import SolverSampler
from ludus.store.lines import read_lines
from ludus.store.recorder import Listener, Recorder
from ludus.store.run_folder import RunFolder, warn
from ludus.store.trajectories import StoredTrajectory, stored_from_dict
from ludus.trackers.tracker import trackers_of
from ludus.trainer.sft import clone
from ludus.types import Completion, Sequence, Trajectory


async def sft(config: RunConfig, *, listeners: Iterable[Listener] = ()) -> dict[str, Any]:
    """Clone into config.model; return where it is exported, and the trajectories' success."""
    given = _given(config) if config.sft.trajectories else None  # before the run's name is taken
    folder = RunFolder.create(config)
    listeners = [*trackers_of(config.store, folder), *listeners]
    with Recorder(folder, trajectories=config.store.trajectories, listeners=listeners) as recorder:
        with preparing(folder):
            context = await make_model_context(config, folder=folder.path)
        try:
            played = [] if given else await solver_trajectories(context)
            for trajectory in played:
                recorder.trajectory(trajectory, step=0, group_id=trajectory.id)
        finally:
            await context.client.close()
        trajectories = given or _wanted(played, config)
        sequences = [sequence for each in trajectories for sequence in sequences_of(each, context.chat)]
        recorder.event("cloning", trajectories=len(trajectories), steps=config.sft.steps)

        def record(step: int, metrics: dict[str, float]) -> None:
            recorder.metrics(step + 1, {f"optimizer/{name}": value for name, value in metrics.items()})

        placement = Here(context)
        try:
            trainer = await placement.cloner()
            metrics = await clone(trainer, sequences, config=config.sft, seed=config.seed, on_step=record)
            export = await trainer.export(folder.export)
        finally:
            await placement.close()
        recorder.event("finished", version=0)
        success = sum(trajectory.success for trajectory in trajectories) / len(trajectories)
        return {"export": str(export), "loss": metrics["loss"], "trajectories": len(trajectories), "success": success}


def _wanted(trajectories: list[Trajectory], config: RunConfig) -> list[Trajectory]:
    least = config.sft.min_reward
    wanted = [t for t in trajectories if t.stop.scored and (least is None or t.reward >= least)]
    if not wanted:
        causes = [trajectory.failure for trajectory in trajectories if trajectory.failure]
        raise ConfigError(
            f"nothing to clone: of {len(trajectories)} trajectories none was scored"
            + ("" if least is None else f" with a reward of at least {least:g} (sft.min_reward)")
            + (f". The latest failure was: {causes[-1]}" if causes else "")
            + ". Fix the failing environment, lower sft.min_reward, or clone other trajectories "
            "(`ludus collect --model M`, sft.trajectories)"
        )
    return wanted


def _given(config: RunConfig) -> list[Trajectory]:
    """Wanted trajectories of a run, by its folder or name, or of one file. Only those of split
    train: a clone of held-out tasks could not be evaluated on them."""
    source = config.sft.trajectories
    if Path(source).is_file():
        stored: Iterable[StoredTrajectory] = map(stored_from_dict, read_lines(Path(source), report=warn))
    else:
        stored = RunFolder.open(source, root=config.store.folder).read_trajectories()
    found, others = list[Trajectory](), set[str]()
    for each in stored:
        found += [each.trajectory] if each.split == "train" else []
        others |= {each.split} - {"train"}
    if others and not found:
        raise ConfigError(
            f"sft.trajectories {source!r} holds trajectories of split {', '.join(sorted(others))} alone, which are held "
            "out; expected some of split train, which `ludus collect` stores by default"
        )
    return _wanted(found, config)


async def solver_trajectories(context: ModelContext) -> list[Trajectory]:
    """Trajectories of the environments' solvers on train tasks, with the run file's mistakes."""
    config = context.config
    player = context.player(SolverSampler(mistakes=config.sft.mistakes, chat=context.chat))
    orders = plan_orders(await context.tasks("train"), config=config, num=config.sft.num_trajectories, prefix="solver")
    return await play_all(orders, player=player)


def sequences_of(trajectory: Trajectory, chat: Chat) -> tuple[Sequence, ...]:
    """The conversation in this model's tokens, up to the first unreadable action.

    It is encoded again, so that another model's trajectories can be cloned too."""
    transcript = chat.transcript()
    transcript.start(trajectory.start.messages, trajectory.start.tools or ())
    for turn in trajectory.turns:
        if turn.action.problem:
            break
        if turn.index:
            previous = trajectory.turns[turn.index - 1].observation
            transcript.observe(previous.messages, previous.tools)
        ids = tuple(chat.encode_action(turn.action))
        blank = (0.0,) * len(ids)
        transcript.add(Completion(ids, blank, (0,) * len(ids), "end", "clone"), turn=turn.index)
    return transcript.sequences()
