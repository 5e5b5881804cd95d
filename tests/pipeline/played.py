"""Groups as if they had been played."""

from ludus.types import Action, Group, Observation, Stop, Task, Trajectory, Turn


def played(task, rewards, *, tokens=10, max_turns=0, name="g"):
    """One turn per trajectory; a reward of 1 is a success."""
    trajectories = tuple(
        Trajectory(
            f"{name}.{i}",
            task,
            attempt=i,
            seed=0,
            start=Observation(),
            turns=(Turn(0, Action("x"), Observation(reward=reward, done=True), num_tokens=tokens),),
            sequences=(),
            stop=Stop.DONE,
            max_turns=max_turns,
        )
        for i, reward in enumerate(rewards)
    )
    return Group(name, task, trajectories)


def make_tasks(environment, size):
    return [Task(f"{environment}/train/{k}", environment, "train") for k in range(size)]
