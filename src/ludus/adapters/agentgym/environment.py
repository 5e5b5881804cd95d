"""An AgentGym server as an Environment."""

from __future__ import annotations

import asyncio
from typing import Any

from ludus.adapters.agentgym.families import FAMILIES, Family, part
from ludus.adapters.agentgym.reading import Unreadable
from ludus.adapters.agentgym.server import Instances, Server, says_error
from ludus.adapters.agentgym.splits import choose
from ludus.adapters.outside import as_text, opening
from ludus.environments.author import refuse_after_done, refused
from ludus.environments.environment import EnvironmentBase
from ludus.errors import ConfigError, EnvironmentFailed, nearest
from ludus.types import Action, Message, Observation, Task


class AgentGym(EnvironmentBase):
    def __init__(
        self, *, url: str, family: str, train: str | list[int] = "", test: str | list[int] = "", name: str = "agentgym"
    ) -> None:
        """url: http://HOST:PORT. family: one of families.py. train, test: task ids as a list, as
        ranges ("0-373,400") or as a .json file of AgentGym's rows; empty: the family's own split
        (splits.py)."""
        if family not in FAMILIES:
            raise ConfigError(f"unknown family {family!r}.{nearest(family, FAMILIES)} Known: {', '.join(FAMILIES)}.")
        self.name = name
        self.family: Family = FAMILIES[family]
        self.description = self.family.instruction
        self.max_turns = self.family.max_turns
        self.options = {"url": url, "family": family, "train": train, "test": test}
        self.server = Server(_base(url, prefix=self.family.prefix))
        self.instances = Instances(self._create)
        self._closes = True
        self._split = choose(family, train=train, test=test)

    def tasks(self, split: str) -> list[Task]:
        ids = {"train": self._split.train, "test": self._split.test}.get(split, ())
        return [Task(f"{self.name}/{split}/{i}", self.name, split, {"id": i}) for i in ids]

    def open(self, task: Task, *, seed: int, sandbox: Any = None) -> AgentGymSession:
        """`seed` is unused: these servers take their noise from the task."""
        return AgentGymSession(self, task)

    async def leave(self, instance: int, *, certain: bool) -> None:
        """Closes an instance, or keeps it if the server has no close and its state is `certain`."""
        done = self.instances.lost
        try:
            self._closes = self._closes and await self.server.close({self.family.key: instance})
            if self._closes:
                done = self.instances.closed
            elif certain:
                done = self.instances.give_back
        finally:
            done(instance)

    async def _create(self) -> int:
        answer = await self.server.ask("create", body=self.family.create)
        return answer if type(answer) is int else int(part(answer, self.family.key, int))


class AgentGymSession:
    """One instance of the server, from reset to close; a session that never starts holds none."""

    def __init__(self, environment: AgentGym, task: Task) -> None:
        self._environment, self._family, self._task = environment, environment.family, task
        self._instance: int | None = None
        self._certain = False
        """The last call was answered, so the instance can be reset and used again."""
        self._paid = 0.0
        self._last = ""
        self._done = False

    async def start(self) -> Observation:
        if self._instance is not None:
            raise EnvironmentFailed("start() twice: a session is single use, open a new one")
        self._instance = await self._environment.instances.take()
        answer = await self._ask("reset", self._family.reset(self._task.data["id"]))
        if isinstance(answer, dict) and answer.get("observation") == "TimeoutError":
            raise EnvironmentFailed(f"the server could not reset task {self._task.data['id']}: TimeoutError")
        if self._family.first_from:
            query = {self._family.key: self._instance}
            answer = await self._environment.server.ask(self._family.first_from, query=query)
        self._last = as_text(self._family.first(answer))
        return opening(self._family.instruction, self._last)

    async def act(self, action: Action) -> Observation:
        refuse_after_done(self._done)
        try:
            said = self._family.read(as_text(action.content))
        except Unreadable as problem:
            return refused(f"Invalid Action.\n\n{self._last}" if self._family.repeats else str(problem))
        outcome = self._family.outcome(await self._ask("step", {"action": said}), said, self._paid)
        self._paid += outcome.reward
        self._last, self._done = as_text(outcome.text), outcome.done
        return Observation(
            messages=(Message("user", self._last),),
            reward=outcome.reward,
            done=outcome.done,
            invalid=outcome.invalid,
            metrics=outcome.metrics,
        )

    async def close(self) -> None:
        instance, self._instance = self._instance, None
        if instance is None:
            return
        closing = asyncio.ensure_future(self._environment.leave(instance, certain=self._certain))
        # read its exception, so that asyncio does not log it; `leave` counts lost instances
        closing.add_done_callback(lambda closed: closed.cancelled() or closed.exception())
        await asyncio.shield(closing)  # closed even if the caller stops waiting

    async def _ask(self, path: str, body: Any) -> Any:
        self._certain = False
        server = self._environment.server
        answer = await server.exchange(path, body={self._family.key: self._instance, **body})
        self._certain = path != "reset" or not says_error(answer)
        return server.clean(answer, path=path)


def _base(url: str, *, prefix: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"option url is {url!r}; expected http://HOST:PORT of an AgentGym server")
    base = url.rstrip("/")
    return base if not prefix or base.endswith(f"/{prefix}") else f"{base}/{prefix}"
