"""`ludus collect`: trajectories of solvers, or of any model, as data for warm starts.

Promise: each trajectory is on disk when it is finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ludus.config import RunConfig
from ludus.launch.subject import finished, playing
from ludus.rollout.player import play_all
from ludus.store.recorder import Listener
from ludus.types import Order, Task, Trajectory


async def collect(
    config: RunConfig, *, solver: bool, split: str = "train", listeners: Iterable[Listener] = ()
) -> dict[str, Any]:
    """Play `sft.num_trajectories` sessions of solvers, or of the run file's model."""
    async with playing(config, "collecting", split=split, solver=solver, listeners=listeners) as (recorder, subject):
        num, prefix = config.sft.num_trajectories, "solver" if solver else "model"
        orders = plan_orders(await subject.context.tasks(split), config=config, num=num, prefix=prefix)
        before = {each.id: each for each in finished(recorder.folder)}
        left = [order for order in orders if order.id not in before]
        recorder.event("collecting", total=len(orders), finished=len(orders) - len(left), solver=solver, split=split)

        def record(trajectory: Trajectory) -> None:
            recorder.trajectory(trajectory, step=0, group_id=trajectory.id, split=split)

        played = await play_all(left, player=subject.player, on_trajectory=record)
    trajectories = [*before.values(), *played]
    scored = [each for each in trajectories if each.stop.scored]
    causes = [each.failure for each in trajectories if each.failure]
    return {
        "folder": str(config.folder),
        "player": subject.name,
        "words": subject.words,
        "trajectories": len(scored),
        "unscored": len(trajectories) - len(scored),
        "success": sum(each.success for each in scored) / len(scored) if scored else None,
        "failure": causes[-1] if causes else "",
    }


def plan_orders(
    tasks: Mapping[str, Sequence[Task]], *, config: RunConfig, num: int, prefix: str, number: int = 0
) -> list[Order]:
    """`num` single sessions in the order of the tasks, divided between the environments by weight,
    at least one each. `number` n gives the n-th plan, which continues where the last one ended."""
    total = sum(section.weight for section in config.environments.values())
    orders = []
    for name, listed in tasks.items():
        count = max(1, round(num * config.environments[name].weight / total))
        for index in range(number * count, (number + 1) * count):
            seed = (config.seed, prefix, name, index)
            orders.append(Order(f"{prefix}-{name}-{index}", listed[index % len(listed)], seed=seed))
    return orders
