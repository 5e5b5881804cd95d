"""A Gymnasium environment by its id. `terminated` is done, the time limit is max_turns.

The task's seed makes the world and the attempt's seed the noise after reset, so that attempts at a
task start alike.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from ludus.adapters.outside import as_text, imported, opening, reply_to, seed_tasks
from ludus.adapters.spaces import ActionText, NotInSpace, check_renderable, described, rendered
from ludus.environments.author import refuse_after_done, refused
from ludus.environments.environment import EnvironmentBase
from ludus.environments.needs import Isolation, Needs
from ludus.errors import ConfigError, describe
from ludus.plugins import resolve
from ludus.types import Action, Message, Observation, Task, Tool, ToolCall

TOOL = "act"
_COLOURED = re.compile(r"\x1b\[([0-9;]+)m(.*?)\x1b\[0m", re.DOTALL)
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
Render = Callable[[Any, Any], str]


class Gymnasium(EnvironmentBase):
    def __init__(
        self,
        *,
        id: str,
        make: dict[str, Any] | None = None,
        prompt: str = "",
        render: str = "space",
        actions: list[str] | None = None,
        tool: bool = False,
        max_turns: int = 0,
        num_train: int = 200,
        num_test: int = 50,
        isolation: Isolation = "none",
        name: str = "gymnasium",
    ) -> None:
        """id: as for gymnasium.make; "module:Id-v0" imports the module first.
        make: further arguments of gymnasium.make.
        render: "space" (observation as text), "ansi" or a module:function(observation, env).
        actions: names for the actions of a Discrete space. tool: the model acts by a tool call.
        max_turns: 0 uses the id's time limit. num_train, num_test: number of seeds, each a task.
        isolation: "process" for an environment that leaks memory or holds a browser or a JVM."""
        self._gymnasium = imported("gymnasium", extra="gymnasium")
        self.name = name
        self.options = {
            "id": id, "make": make or {}, "prompt": prompt, "render": render, "actions": actions or [], "tool": tool,
            "max_turns": max_turns, "num_train": num_train, "num_test": num_test, "isolation": isolation,
        }  # fmt: skip
        self.tool, self.needs = tool, Needs(isolation=isolation)
        trial = self.new()
        try:
            self.actions = ActionText(trial.action_space, names=actions or ())
            self._render = self._renderer(render, trial.observation_space)
            limit = trial.spec.max_episode_steps if trial.spec else None
        finally:
            trial.close()
        properties = {"action": self.actions.schema()}
        schema = {"type": "object", "properties": properties, "required": ["action"]}
        self.tools = (Tool(TOOL, "Act in the environment.", schema),) if tool else ()
        self.max_turns = max_turns or limit
        self.description = prompt or self._explain()

    def tasks(self, split: str) -> list[Task]:
        return seed_tasks(self, split)

    def open(self, task: Task, *, seed: int, sandbox: Any = None) -> GymnasiumSession:
        return GymnasiumSession(self, task, seed=seed)

    def new(self) -> Any:
        keywords = dict(self.options["make"])
        if self.options["render"] == "ansi":
            keywords["render_mode"] = "ansi"
        try:
            # without TimeLimit: our max_turns is the same, and is recorded as the stop
            world = self._gymnasium.make(self.options["id"], max_episode_steps=-1, disable_env_checker=True, **keywords)
            world.spec.max_episode_steps = self._gymnasium.spec(self.options["id"]).max_episode_steps
        except Exception as error:  # third-party code: the id's module may raise anything
            raise ConfigError(f"gymnasium cannot make {self.options['id']!r}: {describe(error)}") from error
        return world

    def show(self, observation: Any, world: Any) -> str:
        return as_text(self._render(observation, world))

    def _renderer(self, render: str, space: Any) -> Render:
        if render == "ansi":
            return lambda _observation, world: without_colours(world.render())
        if render != "space":
            function: Render = resolve(render)
            return function
        check_renderable(space, where=self.options["id"])
        return lambda observation, _world: rendered(space, observation)

    def _explain(self) -> str:
        how = f"Act by calling the tool {TOOL}" if self.tool else "Answer with your action and nothing else"
        form = f"one of {', '.join(self.actions.names)}" if self.actions.names else described(self.actions.space)
        return f"You are in the environment {self.options['id']}. {how}: {form}."


class GymnasiumSession:
    def __init__(self, environment: Gymnasium, task: Task, *, seed: int) -> None:
        self._environment, self._task, self._seed = environment, task, seed
        self._world: Any = None
        self._done = False

    def start(self) -> Observation:
        environment = self._environment
        self._world = environment.new()
        observation, _ = self._world.reset(seed=self._task.data["seed"])
        text = environment.show(observation, self._world)
        self._world.unwrapped.np_random = environment._gymnasium.utils.seeding.np_random(self._seed % 2**32)[0]
        return opening(environment.description, text, tools=environment.tools)

    def act(self, action: Action) -> Observation:
        refuse_after_done(self._done)
        try:
            chosen, reply = self._read(action)
        except NotInSpace as problem:
            return refused(str(problem))
        observation, reward, terminated, truncated, _ = self._world.step(chosen)
        self._done = bool(terminated or truncated)
        return Observation(
            messages=(reply(self._environment.show(observation, self._world)),),
            reward=float(reward),
            done=self._done,
            metrics={"truncated": 1.0} if truncated and not terminated else {},
        )

    def close(self) -> None:
        world, self._world = self._world, None
        if world is not None:
            world.close()

    def random_action(self, rng: random.Random) -> Action:
        space = copy.deepcopy(self._environment.actions.space)  # it keeps its own random state
        space.seed(rng.getrandbits(31))
        text = self._environment.actions.write(space.sample())
        return Action(tool_calls=(ToolCall(TOOL, {"action": text}),)) if self._environment.tool else Action(text)

    def _read(self, action: Action) -> tuple[Any, Callable[[str], Message]]:
        if not self._environment.tool:
            if action.tool_calls:
                raise NotInSpace("no tools here. answer in plain text")
            return self._environment.actions.read(action.content), partial(reply_to, None)
        if [(call.name, set(call.arguments)) for call in action.tool_calls] != [(TOOL, {"action"})]:
            raise NotInSpace(f"call the tool {TOOL} once, with the argument action")
        call = action.tool_calls[0]
        return self._environment.actions.read(as_text(call.arguments["action"])), partial(reply_to, call)


def without_colours(picture: str) -> str:
    """Terminal colours as text: a background becomes [x], a foreground x{blue}."""

    def plain(match: re.Match[str]) -> str:
        numbers = [int(number) for number in match[1].split(";") if number]
        if any(40 <= number <= 47 for number in numbers):
            return f"[{match[2]}]"
        colour = next((_COLOURS[number - 30] for number in numbers if 30 <= number <= 37), "")
        return f"{match[2]}{{{colour}}}" if colour else match[2]

    return _COLOURED.sub(plain, picture)
