"""A warm start: trajectories of solvers, or of an earlier run, are cloned into the model, which is then exported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ludus.config import RunConfig
from ludus.errors import ConfigError
from ludus.launch.collect import plan_attempts, play_all
from ludus.launch.context import Parts, beginning, make_arena, make_parts
from ludus.launch.devices import make_current, naming_loss
from ludus.rollout.chat import Chat
from ludus.rollout.speaker import SolverSpeaker
from ludus.store.lines import read_lines
from ludus.store.recorder import Listener, Recorder
from ludus.store.run_folder import RunFolder, warn
from ludus.store.trajectories import StoredTrajectory, stored_from_dict
from ludus.trackers.tracker import trackers_of
from ludus.trainer.lora import export
from ludus.trainer.sft import clone
from ludus.types import Completion, Sequence, Trajectory


async def sft(config: RunConfig, *, listeners: Iterable[Listener] = ()) -> dict[str, Any]:
    """Clones into config.model and exports to the run folder; returns where, and how the cloned trajectories had done."""
    given = _wanted(_given(config), config) if config.sft.trajectories else None  # before the run's name is used up
    folder = RunFolder.create(config)
    listeners = [*trackers_of(config.store, folder), *listeners]
    with Recorder(folder, trajectories=config.store.trajectories, listeners=listeners) as recorder:
        with beginning(folder):
            parts = await make_parts(config, folder=folder.path)
        try:
            trajectories = given or _wanted(await _played(parts, recorder), config)
        finally:
            await parts.client.close()
        sequences = [sequence for trajectory in trajectories for sequence in sequences_of(trajectory, parts.chat)]
        model = parts.load_model()
        recorder.event("cloning", trajectories=len(trajectories), steps=config.sft.steps)
        metrics = await asyncio.to_thread(_clone, model, sequences, config, recorder)
        whole = export(folder.export, model=model, tokenizer=parts.tokenizer)
        recorder.event("finished", version=0)
        success = sum(trajectory.success for trajectory in trajectories) / len(trajectories)
        return {"export": str(whole), "loss": metrics["loss"], "trajectories": len(trajectories), "success": success}


def _clone(model: Any, sequences: list[Sequence], config: RunConfig, recorder: Recorder) -> dict[str, float]:
    def record(step: int, metrics: dict[str, float]) -> None:
        recorder.metrics(step + 1, {f"optimizer/{name}": value for name, value in metrics.items()})

    make_current(model.device)
    with naming_loss(model.device):
        return clone(
            model,
            sequences,
            config=config.sft,
            trainer=config.trainer,
            lora=config.lora,
            seed=config.seed,
            on_step=record,
        )


def _wanted(trajectories: list[Trajectory], config: RunConfig) -> list[Trajectory]:
    least = config.sft.min_reward
    wanted = [t for t in trajectories if t.stop.scored and (least is None or t.reward >= least)]
    if not wanted:
        causes = [trajectory.failure for trajectory in trajectories if trajectory.failure]
        raise ConfigError(
            f"nothing to clone: of {len(trajectories)} trajectories none was scored"
            + ("" if least is None else f" with a reward of at least {least:g} (sft.min_reward)")
            + (f". The latest failure was: {causes[-1]}" if causes else "")
            + ". Mend what fails, lower sft.min_reward, or clone others' trajectories (`ludus collect --model M`, sft.trajectories)"
        )
    return wanted


async def _played(parts: Parts, recorder: Recorder) -> list[Trajectory]:
    played = await solver_trajectories(parts)
    for trajectory in played:
        recorder.trajectory(trajectory, step=0, group_id=trajectory.id)
    return played


def _given(config: RunConfig) -> list[Trajectory]:
    source = config.sft.trajectories
    return _of_train(_stored(source, root=config.store.folder), source=source)


def _of_train(stored: Iterable[StoredTrajectory], *, source: str) -> list[Trajectory]:
    """Never those of held-out tasks: what is cloned could not be evaluated on them any more."""
    found, others = list[Trajectory](), set[str]()
    for each in stored:
        found += [each.trajectory] if each.split == "train" else []
        others |= {each.split} - {"train"}
    if others and not found:
        raise ConfigError(
            f"sft.trajectories {source!r} holds trajectories of split {', '.join(sorted(others))} alone, which are held out; expected "
            "some of split train, as `ludus collect` stores them unless --split says otherwise"
        )
    return found


def _stored(source: str, *, root: str) -> Iterable[StoredTrajectory]:
    """Of a run, by its folder or name, or of a single file."""
    if Path(source).is_file():
        return [stored_from_dict(record) for record in read_lines(Path(source), report=warn)]
    return RunFolder.open(source, root=root).read_trajectories()


async def solver_trajectories(parts: Parts) -> list[Trajectory]:
    """The environments' solvers on train tasks, with the run file's share of mistakes."""
    config = parts.config
    arena = make_arena(parts, SolverSpeaker(parts.chat, mistakes=config.sft.mistakes))
    num = config.sft.num_trajectories
    attempts = plan_attempts(await parts.tasks("train"), config=config, num=num, prefix="solver")
    return await play_all(attempts, arena=arena)


def sequences_of(trajectory: Trajectory, chat: Chat) -> tuple[Sequence, ...]:
    """The conversation in this model's tokens, so that another model's trajectories can be cloned too. Ends before an unreadable action."""
    transcript = chat.transcript()
    prompt: Any = (trajectory.start.messages, trajectory.start.tools or ())
    transcript.start(*prompt)
    for turn in trajectory.turns:
        if turn.action.problem:
            break
        if turn.index:
            previous = trajectory.turns[turn.index - 1].observation
            transcript.observe(previous.messages, previous.tools)
        ids = tuple(chat.encode_action(turn.action))
        blank = (0.0,) * len(ids)
        transcript.speak(Completion(ids, blank, (0,) * len(ids), "end", "clone"), turn=turn.index)
    return transcript.sequences()
