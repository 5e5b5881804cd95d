"""An OpenEnv server as an environment. Promise: a server error is never a reward.

The HTTP routes for reset and step share no state, so sessions use `/ws`. The schema of a server's
actions decides how the model acts: with the server's tools (list_tools, call_tool), by writing the
one text field, or else with a single tool made from the action.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from ludus.adapters.outside import MAX_ANSWER_BYTES, as_text, opening, read_json, reply_to, seed_tasks
from ludus.environments.author import refuse_after_done, refused
from ludus.environments.environment import EnvironmentBase
from ludus.environments.tools import random_call, random_value
from ludus.errors import ConfigError, EnvironmentFailed, describe
from ludus.types import Action, Observation, Task, Tool, ToolCall

TOOL = "act"
OPEN_S = 10.0
FULL_S = 0.1
"""Wait before a full server is asked again. By default a server holds one session."""
HIDDEN = "metadata"
"""Field of every OpenEnv action that the model does not see."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ActionFormat:
    """How a server takes actions."""

    kind: Literal["tools", "text", "action"]
    field: str = ""
    tools: tuple[Tool, ...] = ()


class ServerFull(Exception):
    """The server takes no further session now."""


class OpenEnv(EnvironmentBase):
    def __init__(
        self,
        *,
        url: str,
        prompt: str = "",
        field: str = "",
        max_turns: int = 16,
        num_train: int = 200,
        num_test: int = 50,
        name: str = "openenv",
    ) -> None:
        """url: http://HOST:PORT. num_train, num_test: number of seeds, each a task.
        field: the action's field for the model's text, if the schema has several."""
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"option url is {url!r}; expected http://HOST:PORT of an OpenEnv server")
        self.name, self.description = name, prompt
        self.max_turns = max_turns
        self.options = {
            "url": url, "prompt": prompt, "field": field, "max_turns": max_turns, "num_train": num_train, "num_test": num_test,
        }  # fmt: skip
        self.url = url.rstrip("/")
        self._schema: Mapping[str, Any] | None = None

    def tasks(self, split: str) -> list[Task]:
        return seed_tasks(self, split)

    def open(self, task: Task, *, seed: int, sandbox: Any = None) -> OpenEnvSession:
        """`seed` is unused: the server takes one seed, the task's."""
        return OpenEnvSession(self, task)

    async def action_schema(self) -> Mapping[str, Any]:
        if self._schema is None:
            import httpx

            try:
                async with httpx.AsyncClient(timeout=OPEN_S) as client:
                    answer = await client.get(f"{self.url}/schema")
            except httpx.HTTPError as error:
                raise EnvironmentFailed(f"{self.url}/schema cannot be reached: {describe(error)}") from error
            found = read_json(answer.content[:MAX_ANSWER_BYTES], where=f"{self.url}/schema")
            schema = found.get("action") if isinstance(found, dict) else None
            if answer.status_code != 200 or not isinstance(schema, dict):
                raise EnvironmentFailed(
                    f"{self.url}/schema answered {answer.status_code} without `action`; is it an OpenEnv server?"
                )
            self._schema = schema
        return self._schema


class OpenEnvSession:
    def __init__(self, environment: OpenEnv, task: Task) -> None:
        self._environment, self._task = environment, task
        self._socket: Any = None
        self._format = ActionFormat("text")
        self._done = False

    async def start(self) -> Observation:
        schema = await self._environment.action_schema()
        first = await self._enter()
        self._format = action_format(schema, field=self._environment.options["field"])
        if self._format.kind == "tools":
            listed = part(part(await self._send("step", {"type": "list_tools"}), "observation", dict), "tools", list)
            self._format = ActionFormat("tools", tools=tuple(tool_of(each) for each in listed))
        text, reward, done = outcome_of(first)
        self._done = done
        return opening(self._environment.description, text, tools=self._format.tools, reward=reward, done=done)

    async def act(self, action: Action) -> Observation:
        refuse_after_done(self._done)
        if problem := misuse(self._format, action):
            return refused(problem)
        if self._format.kind == "text":
            return await self._one({self._format.field: as_text(action.content)}, call=None)
        replies = []
        for call in action.tool_calls:
            body = {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}
            replies.append(await self._one(body if self._format.kind == "tools" else dict(call.arguments), call=call))
            if replies[-1].done:
                break
        return Observation(
            messages=tuple(message for reply in replies for message in reply.messages),
            reward=sum(reply.reward for reply in replies),
            done=replies[-1].done,
            invalid=any(reply.invalid for reply in replies),
        )

    async def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            try:
                await socket.send(json.dumps({"type": "close"}))
            except Exception as error:  # it may be gone already, in any way  # noqa: BLE001
                _log.debug("close message not sent: %s", describe(error))
            await socket.close()

    def random_action(self, rng: random.Random) -> Action:
        if self._format.kind == "text":
            return Action(str(random_value({"type": "string"}, rng)))
        return random_call(self._format.tools, rng)

    async def _enter(self) -> dict[str, Any]:
        """Connects and resets; waits while the server is full."""
        waited = False
        while True:
            try:
                await self._connect()
                return await self._send("reset", {"seed": self._task.data["seed"]})
            except ServerFull as full:
                await self.close()
                if not waited:
                    _log.info("%s: %s; waiting until it takes a session", self._environment.url, full)
                waited = True
                await asyncio.sleep(FULL_S)

    async def _connect(self) -> None:
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        address = "ws" + self._environment.url.removeprefix("http") + "/ws"
        try:
            self._socket = await connect(
                address,
                compression=None,
                open_timeout=OPEN_S,
                close_timeout=2.0,
                ping_interval=None,  # a server whose step blocks its event loop answers no ping
                max_size=MAX_ANSWER_BYTES,
            )
        except (OSError, WebSocketException, TimeoutError) as error:
            raise EnvironmentFailed(f"{address} cannot be reached: {describe(error)}") from error

    async def _send(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The observation in reply. Raises BadAction if the server blames the action."""
        from websockets.exceptions import ConnectionClosed, WebSocketException

        where = f"{self._environment.url}/ws {kind}"
        try:
            with suppress(ConnectionClosed):  # a full server replies, then closes
                await self._socket.send(json.dumps({"type": kind, "data": data}))
            answer = read_json(await self._socket.recv(), where=where)
        except (OSError, WebSocketException) as error:
            raise EnvironmentFailed(f"{where}: the connection broke: {describe(error)}") from error
        found = part(answer, "data", dict)
        if answer.get("type") == "error":
            raise fault(found, where=where)
        if answer.get("type") != "observation":
            raise EnvironmentFailed(f"{where} answered a {answer.get('type')!r:.40}; expected an observation")
        return dict(found)

    async def _one(self, body: Mapping[str, Any], *, call: ToolCall | None) -> Observation:
        try:
            answer = await self._send("step", body)
        except BadAction as problem:
            return Observation(messages=(reply_to(call, str(problem)),), invalid=True)
        text, reward, self._done = outcome_of(answer)
        return Observation(messages=(reply_to(call, text),), reward=reward, done=self._done)


class BadAction(Exception):
    """The server refused the action; the message is for the model."""


def fault(data: Mapping[str, Any], *, where: str) -> Exception:
    code, message = data.get("code"), as_text(data.get("message", ""))[:300]
    if code == "CAPACITY_REACHED":
        return ServerFull(message)
    if code == "VALIDATION_ERROR":
        details = data.get("errors")
        found = [each for each in details if isinstance(each, dict)] if isinstance(details, list) else []
        lines = [f"{'.'.join(map(str, each.get('loc', ())))}: {as_text(each.get('msg', ''))}" for each in found[:3]]
        return BadAction("bad action: " + ("; ".join(lines) or message))
    return EnvironmentFailed(f"{where} answered an error: {code}: {message}")


def action_format(schema: Mapping[str, Any], *, field: str = "") -> ActionFormat:
    found = schema.get("properties")
    properties = {name: each for name, each in found.items() if name != HIDDEN} if isinstance(found, dict) else {}
    if field:
        if field not in properties:
            raise ConfigError(f"option field is {field!r}; the server's actions have {', '.join(properties) or 'none'}")
        return ActionFormat("text", field=field)
    if not properties or "tool_name" in properties:
        return ActionFormat("tools")
    required = [name for name in schema.get("required", ()) if name in properties]
    if len(required) == 1 and properties[required[0]].get("type") == "string":
        return ActionFormat("text", field=required[0])
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    parameters = {"type": "object", "properties": properties, "required": required, **definitions}
    described = as_text(schema.get("description") or "Act in the environment.").split("\n\n")[0]
    return ActionFormat("action", tools=(Tool(TOOL, described, parameters),))


def tool_of(listed: Any) -> Tool:
    schema = part(listed, "input_schema", dict)
    parameters = {"type": "object", "properties": {}, **{key: value for key, value in schema.items() if key != "title"}}
    return Tool(str(part(listed, "name", str)), as_text(listed.get("description") or ""), parameters)


def misuse(action_format: ActionFormat, action: Action) -> str:
    """What is wrong with an action, found before it is sent; empty if nothing."""
    if action_format.kind == "text":
        return "no tools here. answer in plain text" if action.tool_calls else ""
    names = [tool.name for tool in action_format.tools]
    if not action.tool_calls:
        return f"no tool call. tools: {', '.join(names)}"
    unknown = [call.name for call in action.tool_calls if call.name not in names]
    return f"no tool {unknown[0][:40]!r}. tools: {', '.join(names)}" if unknown else ""


def outcome_of(data: Mapping[str, Any]) -> tuple[str, float, bool]:
    """Text, reward and done of an answer; a reward of null counts as 0."""
    observation, reward, done = part(data, "observation", dict), data.get("reward"), data.get("done", False)
    if not isinstance(reward, int | float | None):
        raise EnvironmentFailed(f"the server's reward is {reward!r:.60}; expected a number or null")
    if not isinstance(done, bool):
        raise EnvironmentFailed(f"the server's done is {done!r:.60}; expected true or false")
    return observation_text(observation), float(reward or 0.0), done


def observation_text(observation: Mapping[str, Any]) -> str:
    if "tool_name" in observation and "result" in observation:
        return result_text(observation)
    if len(observation) == 1:
        return as_text(next(iter(observation.values())))
    return "\n".join(f"{name}: {as_text(value)}" for name, value in observation.items())


def result_text(observation: Mapping[str, Any]) -> str:
    error, result = observation.get("error"), observation["result"]
    if error:
        return f"error: {as_text(error.get('message', error) if isinstance(error, dict) else error)}"
    content = result.get("content") if isinstance(result, dict) else None
    if isinstance(content, list) and all(
        isinstance(block, dict) and isinstance(block.get("text"), str) for block in content
    ):
        return as_text("\n".join(block["text"] for block in content))
    return as_text(result)


def part(answer: Any, key: str, kind: type) -> Any:
    if not isinstance(answer, Mapping) or not isinstance(answer.get(key), kind):
        raise EnvironmentFailed(f"the server answered {as_text(answer)[:120]}; expected {key!r} as {kind.__name__}")
    return answer[key]
