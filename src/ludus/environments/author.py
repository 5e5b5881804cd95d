'''The short way to write an environment: a class with `tasks`, `setup` and `@tool` methods.

    class Double:
        """Double the number."""          # the system message
        max_turns = 2

        def tasks(self, split):           # plain data; keys of your choice, "id" names a task
            return [{"n": n} for n in (range(40) if split == "train" else range(40, 50))]

        def setup(self, task, rng):       # the first user message; `rng` is the attempt's own noise
            self.n = task["n"]
            return f"number {self.n}"

        @tool
        def answer(self, value: int):
            """Give the answer."""
            return Reply("right", reward=1, done=True) if value == 2 * self.n else "wrong"

An instance is one session; the constructor's keyword arguments are the options. Any method may be
async.

Instead of tools, one method `act(self, text)` makes a text environment; an attribute `actions`
lists the texts it accepts. Beside tools, `say(self, text)` answers a message without a call, which
is refused otherwise. Optional methods: `solve(self)`, `random_action(self, rng)`, `close(self)`.
Optional attributes: `capabilities` and `lists_answers` (environment.py), `isolation`, `sandbox` and
`image` (needs.py).
'''

from __future__ import annotations

import copy
import inspect
import random
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeVar

from ludus.environments.environment import EnvironmentBase, Session
from ludus.environments.needs import Needs, read_needs
from ludus.environments.signature import BadArguments, read_signature
from ludus.environments.tools import ToolMethod, random_call, tools_of
from ludus.errors import ConfigError, nearest
from ludus.types import Action, Message, Observation, Task, ToolCall

T = TypeVar("T")
_METHODS = ("setup", "act", "say", "solve", "random_action", "close")


@dataclass(frozen=True, slots=True)
class Reply:
    """What a tool or `act` may return instead of a str. `invalid`: the action was refused."""

    text: str
    reward: float = 0.0
    done: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    invalid: bool = False


class AuthoredEnvironment(EnvironmentBase):
    """An author's class as an Environment."""

    def __init__(self, author: type, *, name: str = "", options: Mapping[str, Any] | None = None) -> None:
        self.author = author
        self.name = name or snake_case(author.__name__)
        self.description = _docstring(author)
        self.tools = tools_of(author)
        self.capabilities = tuple(getattr(author, "capabilities", ()))
        self.lists_answers = bool(getattr(author, "lists_answers", False))
        self.needs: Needs = read_needs(author, name=self.name)
        _require_shape(author, self.tools)
        self._given = read_options(author, options or {}, name=self.name)
        parameters = inspect.signature(author).parameters.values()
        self.options = {each.name: each.default for each in parameters if each.default is not each.empty} | self._given
        self.max_turns = getattr(self._new(), "max_turns", None)
        self._plain = not any(inspect.iscoroutinefunction(getattr(author, m, None)) for m in (*_METHODS, *self.tools))
        self._tasks: dict[str, tuple[Task, ...]] = {}

    def tasks(self, split: str) -> list[Task]:
        if split not in self._tasks:
            source = self._new().tasks
            rows = source.get(split, ()) if isinstance(source, Mapping) else source(split)
            self._tasks[split] = tuple(self._task(row, split=split, index=i) for i, row in enumerate(rows or ()))
        return list(self._tasks[split])

    def open(self, task: Task, *, seed: int, sandbox: Any = None) -> Session:
        author = self._new()
        if sandbox is not None:
            author.sandbox = sandbox
        session = AuthoredSession(author, environment=self, task=task, seed=seed)
        return PlainSession(session) if self._plain else session

    def _new(self) -> Any:
        try:
            return self.author(**self._given)
        except ConfigError:  # its message is complete, e.g. which package is missing
            raise
        except ValueError as error:
            raise ConfigError(f"environment {self.name!r} refuses options {dict(self.options)}: {error}") from error

    def _task(self, row: Mapping[str, Any], *, split: str, index: int) -> Task:
        if not isinstance(row, Mapping):
            raise TypeError(f"{self.name}.tasks({split!r})[{index}] is {type(row).__name__}; expected a dict")
        return Task(f"{self.name}/{split}/{row.get('id', index)}", self.name, split, dict(row))


class AuthoredSession:
    """An instance of an author's class as an async Session."""

    def __init__(self, author: Any, *, environment: AuthoredEnvironment, task: Task, seed: int) -> None:
        self._author, self._environment, self._task = author, environment, task
        self._rng = random.Random(seed)
        self._over = self._closed = False
        self.solve = self._solve if hasattr(author, "solve") else None
        able = environment.tools or hasattr(author, "random_action") or hasattr(author, "actions")
        self.random_action = self._random_action if able else None

    async def start(self) -> Observation:
        # a copy: setup may change its data, and other attempts at this task must not see that
        text = await _settled(self._author.setup(copy.deepcopy(dict(self._task.data)), self._rng))
        reply = _reply(text, by="setup")
        self._over = reply.done
        system = (Message("system", self._environment.description),) if self._environment.description else ()
        tools = tuple(method.tool for method in self._environment.tools.values())
        return _observation((*system, Message("user", reply.text)), [reply], tools=tools)

    async def act(self, action: Action) -> Observation:
        refuse_after_done(self._over)
        carry_out = self._act_with_tools if self._environment.tools else self._act_with_text
        observation = await carry_out(action)
        self._over = observation.done
        return observation

    async def close(self) -> None:
        if not self._closed and hasattr(self._author, "close"):
            self._closed = True
            await _settled(self._author.close())

    async def _act_with_tools(self, action: Action) -> Observation:
        if action.problem:
            return refused(f"bad tool call: {action.problem}")
        if not action.tool_calls and hasattr(self._author, "say"):
            reply = _reply(await _settled(self._author.say(action.content.strip())), by="say")
            return _observation((Message("user", reply.text),), [reply])
        if not action.tool_calls:
            return refused(f"no tool call. tools: {', '.join(self._environment.tools)}")
        messages, replies = [], []
        for call in action.tool_calls:
            reply = await self._carry_out(call)
            messages.append(Message("tool", reply.text, tool_call_id=call.id, name=call.name))
            replies.append(reply)
            if reply.done:
                break
        return _observation(tuple(messages), replies)

    async def _carry_out(self, call: ToolCall) -> Reply:
        tools = self._environment.tools
        if call.name not in tools:
            text = f"no tool {call.name[:40]!r}. tools: {', '.join(tools)}.{nearest(call.name, tools)}"
            return Reply(text, invalid=True)
        try:
            arguments = tools[call.name].signature.read_json(call.arguments)
        except BadArguments as error:
            return Reply(str(error), invalid=True)
        return _reply(await _settled(getattr(self._author, call.name)(**arguments)), by=call.name)

    async def _act_with_text(self, action: Action) -> Observation:
        if action.tool_calls or action.problem:
            return refused("no tools here. answer in plain text")
        text = action.content.strip()
        accepted: Sequence[str] | None = getattr(self._author, "actions", None)
        if accepted is not None:
            match = next((known for known in accepted if known.lower() == text.lower()), None)
            if match is None:
                return refused(f"say one of: {', '.join(accepted)}")
            text = match
        reply = _reply(await _settled(self._author.act(text)), by="act")
        return _observation((Message("user", reply.text),), [reply])

    async def _solve(self) -> Action:
        return _action(await _settled(self._author.solve()), by="solve")

    async def _random_action(self, rng: random.Random) -> Action:
        if hasattr(self._author, "random_action"):
            return _action(await _settled(self._author.random_action(rng)), by="random_action")
        if not self._environment.tools:
            return Action(content=rng.choice(list(self._author.actions)))
        return random_call([method.tool for method in self._environment.tools.values()], rng)


class PlainSession:
    """A session without async methods: its calls may block, so they run on a thread."""

    def __init__(self, session: AuthoredSession) -> None:
        self.start, self.act, self.close = _plain(session.start), _plain(session.act), _plain(session.close)
        self.solve = _plain(session.solve) if session.solve else None
        self.random_action = _plain(session.random_action) if session.random_action else None


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _plain(method: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
    """A plain function from a coroutine function that awaits nothing."""

    def call(*arguments: Any) -> T:
        coroutine = method(*arguments)
        try:
            coroutine.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        coroutine.close()
        raise TypeError("a plain method returned something to await; write it as `async def`")

    return call


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _reply(value: Any, *, by: str) -> Reply:
    if isinstance(value, str):
        return Reply(value)
    if isinstance(value, Reply):
        if not isinstance(value.reward, Real):  # summing would raise without naming `by`
            got = f"{value.reward!r:.60} ({type(value.reward).__name__})"
            raise TypeError(f"{by} returned reward {got}; expected a number")
        return value
    raise TypeError(f"{by} returned {type(value).__name__}; expected a str or a Reply")


def _action(value: Any, *, by: str) -> Action:
    if isinstance(value, str):
        return Action(content=value)
    if isinstance(value, ToolCall):
        return Action(tool_calls=(value,))
    if isinstance(value, Action):
        return value
    raise TypeError(f"{by} returned {type(value).__name__}; expected an Action, a ToolCall or a str")


def refused(text: str) -> Observation:
    """An invalid action; `text` tells the model why."""
    return Observation(messages=(Message("user", text),), invalid=True)


def refuse_after_done(done: bool) -> None:
    if done:
        raise RuntimeError("act() after done: a session is single use, open a new one")


def _observation(messages: tuple[Message, ...], replies: list[Reply], **more: Any) -> Observation:
    return Observation(
        messages=messages,
        reward=sum(reply.reward for reply in replies),
        done=any(reply.done for reply in replies),
        invalid=any(reply.invalid for reply in replies),
        metrics={name: value for reply in replies for name, value in reply.metrics.items()},
        **more,
    )


def _docstring(author: type) -> str:
    doc = inspect.cleandoc(author.__doc__ or "")
    return "" if doc.startswith(f"{author.__name__}(") else doc  # written by @dataclass


def _require_shape(author: type, tools: Mapping[str, ToolMethod]) -> None:
    missing = [name for name in ("tasks", "setup") if not hasattr(author, name)]
    if missing:
        raise ConfigError(f"environment class {author.__name__} has no {' and no '.join(missing)}; see `ludus env new`")
    if bool(tools) == hasattr(author, "act"):
        found = "both" if tools else "neither"
        raise ConfigError(f"class {author.__name__} has {found}; expected methods marked @tool, or one act(self, text)")


def read_options(author: Callable[..., Any], options: Mapping[str, Any], *, name: str) -> dict[str, Any]:
    signature = read_signature(author, what=f"environment {name}")
    unknown = [option for option in options if option not in signature.names]
    if unknown:
        known = ", ".join(signature.names) or "none"
        raise ConfigError(
            f"environment {name!r} has no option {unknown[0]!r}.{nearest(unknown[0], signature.names)} Known: {known}."
        )
    try:
        return signature.read_python(options)
    except BadArguments as error:
        raise ConfigError(f"environment {name!r}: option {error}") from None
