"""The tools of an MCP server as an environment; prompt, reward and reset come from the task.

A session ends when the model answers without calling a tool; the answer is compared with the
task's, or judged by a function of yours. Each session of a stdio server has its own process, in a
sandbox that the host starts and ends.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ludus.adapters.mcp_wire import McpClient, http_streams, process_streams
from ludus.adapters.outside import as_text, imported, opening, reply_to
from ludus.environments.author import refuse_after_done, refused
from ludus.environments.environment import EnvironmentBase
from ludus.environments.needs import Needs
from ludus.environments.tools import random_call
from ludus.errors import ConfigError, EnvironmentFailed, nearest
from ludus.openai_format import tool_to_openai
from ludus.plugins import resolve
from ludus.sandboxes.sandbox import Mount, Need
from ludus.types import Action, Message, Observation, Task, Tool, ToolCall

MAX_TOOLS_CHARS = 64 * 1024
"""Limit on the names, descriptions and schemas of all tools: they are part of every prompt."""
INVALID_PARAMS = -32602
"""JSON-RPC error code for unknown tools or arguments."""

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")


@dataclass(frozen=True, slots=True)
class Called:
    """A call that was carried out, with its result."""

    name: str
    arguments: Mapping[str, Any]
    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Played:
    """A finished session, as option `check` receives it: `def check(played) -> float`."""

    task: Mapping[str, Any]
    answer: str
    calls: tuple[Called, ...] = ()


class Mcp(EnvironmentBase):
    def __init__(
        self,
        *,
        tasks: str,
        command: list[str] | None = None,
        url: str = "",
        prompt: str = "",
        check: str = "",
        reset: str = "",
        sandbox: Literal["process", "namespace", "container"] = "namespace",
        mounts: list[str] | None = None,
        variables: dict[str, str] | None = None,
        image: str = "",
        network: bool = False,
        max_turns: int = 16,
        name: str = "mcp",
    ) -> None:
        """tasks: a .jsonl file of {"split", "prompt", "answer"}, or a module:function(split).
        command: starts a stdio server; or url: a streamable HTTP server, e.g. http://HOST:PORT/mcp.
        check: module:function(played) -> reward; empty: 1 if the answer equals the task's `answer`,
        ignoring case and whitespace.
        reset: a tool, hidden from the model, that is called at the start with the task's `reset`.
        sandbox, mounts (read-only, same paths), variables, image, network: of a stdio server."""
        imported("mcp", extra="mcp")
        if bool(command) == bool(url):
            raise ConfigError("set either option command, which starts it, or option url; got both or none")
        self.name, self.description, self.reset = name, prompt, reset
        self.max_turns = max_turns
        self.options = {
            "tasks": tasks, "command": command or [], "url": url, "prompt": prompt, "check": check, "reset": reset, "sandbox": sandbox,
            "mounts": mounts or [], "variables": variables or {}, "image": image, "network": network, "max_turns": max_turns,
        }  # fmt: skip
        seen = tuple(Mount(source=path, target=path) for path in mounts or ())
        need = Need(sandbox, image=image, network=network, mounts=seen) if command else "none"
        self.needs = Needs(sandbox=need, image=image)
        self._check: Callable[[Played], Any] = resolve(check) if check else same_answer
        self._rows = rows_of(tasks)

    def tasks(self, split: str) -> list[Task]:
        rows = [row for row in self._rows(split) if row.get("split", split) == split]
        for number, row in enumerate(rows):
            if not isinstance(row.get("prompt"), str):
                raise ConfigError(f"{self.options['tasks']}: {split} task {number} has no text `prompt`")
        return [
            Task(f"{self.name}/{split}/{row.get('id', i)}", self.name, split, dict(row)) for i, row in enumerate(rows)
        ]

    def open(self, task: Task, *, seed: int, sandbox: Any = None) -> McpSession:
        """`seed` is unused: MCP has none."""
        return McpSession(self, task, sandbox=sandbox)

    def connect(self, sandbox: Any) -> McpClient:
        if url := self.options["url"]:
            return McpClient(partial(http_streams, url), where=url)
        command, variables = self.options["command"], self.options["variables"]
        env = ["/usr/bin/env", *(f"{name}={value}" for name, value in variables.items())] if variables else []
        streams = partial(process_streams, partial(sandbox.attach, [*env, *command]))
        return McpClient(streams, where=f"the MCP server {' '.join(command)[:80]!r}")

    async def judge(self, played: Played) -> float:
        reward = await asyncio.to_thread(self._check, played)
        return float(reward) if isinstance(reward, int | float) else reward


class McpSession:
    def __init__(self, environment: Mcp, task: Task, *, sandbox: Any) -> None:
        self._environment, self._task, self._sandbox = environment, task, sandbox
        self._client: McpClient | None = None
        self._tools: tuple[Tool, ...] = ()
        self._calls: list[Called] = []
        self._done = False

    async def start(self) -> Observation:
        self._client = self._environment.connect(self._sandbox)
        listed = offered(await self._client.list_tools())
        reset, names = self._environment.reset, [tool.name for tool in listed]
        if reset and reset not in names:
            raise EnvironmentFailed(f"the server has no tool {reset!r} to reset it with.{nearest(reset, names)}")
        if reset:
            text, failed, _ = await self._call(reset, self._task.data.get("reset") or {})
            if failed:
                raise EnvironmentFailed(f"the tool {reset!r} did not reset the server: {text[:300]}")
        self._tools = tuple(tool for tool in listed if tool.name != reset)
        return opening(self._environment.description, as_text(self._task.data["prompt"]), tools=self._tools)

    async def act(self, action: Action) -> Observation:
        refuse_after_done(self._done)
        if action.problem:  # an attempted call is not the final answer
            return refused(f"bad tool call: {action.problem}")
        if not action.tool_calls:
            self._done = True
            reward = await self._environment.judge(Played(self._task.data, as_text(action.content), tuple(self._calls)))
            return Observation(reward=reward, done=True)
        replies = [await self._carry_out(call) for call in action.tool_calls]
        return Observation(
            messages=tuple(message for message, _ in replies), invalid=any(invalid for _, invalid in replies)
        )

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def random_action(self, rng: random.Random) -> Action:
        return random_call(self._tools, rng) if self._tools else Action("nothing to call")

    async def _carry_out(self, call: ToolCall) -> tuple[Message, bool]:
        """The reply, and whether the call was invalid."""
        names = [tool.name for tool in self._tools]
        if call.name not in names:
            text = f"no tool {call.name[:40]!r}. tools: {', '.join(names)}.{nearest(call.name, names)}"
            return reply_to(call, text), True
        text, failed, mistake = await self._call(call.name, call.arguments)
        self._calls.append(Called(call.name, dict(call.arguments), text, failed=failed))
        return reply_to(call, text), mistake

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool, bool]:
        """Text, whether the call failed, and whether its arguments were invalid."""
        from mcp import MCPError

        assert self._client is not None, "start() comes first"
        try:
            result = await self._client.call(name, dict(arguments))
        except MCPError as error:
            code, message = error.error.code, as_text(error.error.message)
            if code == INVALID_PARAMS:
                return as_text(f"error: {message}")[:2000], True, True
            raise EnvironmentFailed(f"tool {name!r}: the server answered {code}: {message[:300]}") from error
        text = result_text(result)
        return (f"error: {text}" if result.is_error else text), bool(result.is_error), False


def same_answer(played: Played) -> float:
    expected = played.task.get("answer")
    if expected is None:
        raise ConfigError("the task has no `answer` to compare with; add one, or give option check")
    return float(_squeezed(as_text(expected)) == _squeezed(played.answer))


def _squeezed(text: str) -> str:
    return " ".join(text.casefold().split())


def offered(listed: list[Any]) -> tuple[Tool, ...]:
    """The server's tools as the model sees them. Raises if they cannot be used."""
    tools = tuple(_tool(each) for each in listed)
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise EnvironmentFailed(f"the server lists a tool twice: {max(names, key=names.count)!r:.80}")
    num_chars = sum(len(json.dumps(tool_to_openai(tool))) for tool in tools)
    if num_chars > MAX_TOOLS_CHARS:
        raise EnvironmentFailed(
            f"the descriptions of the server's tools have {num_chars} characters; at most {MAX_TOOLS_CHARS}"
        )
    return tools


def _tool(listed: Any) -> Tool:
    if not _NAME.fullmatch(listed.name):
        raise EnvironmentFailed(
            f"the server lists a tool {listed.name!r:.80}; expected a name of letters, digits and _./-"
        )
    schema = dict(listed.input_schema)
    if schema.get("type", "object") != "object" or not isinstance(schema.get("properties", {}), dict):
        raise EnvironmentFailed(f"tool {listed.name!r:.60}: its schema is {as_text(schema)[:80]}; expected type object")
    parameters = {"type": "object", "properties": {}, **{key: part for key, part in schema.items() if key != "title"}}
    return Tool(as_text(listed.name), as_text(listed.description or ""), json.loads(as_text(parameters)))


def result_text(result: Any) -> str:
    if not result.content and result.structured_content is not None:
        return as_text(result.structured_content)
    return as_text("\n".join(_block(block) for block in result.content))


def _block(block: Any) -> str:
    """The text of a content block, or a placeholder for other content."""
    if block.type == "text":
        return str(block.text)
    if block.type == "resource":
        return str(getattr(block.resource, "text", None) or f"[{block.resource.uri}]")
    if block.type == "resource_link":
        return f"[{block.uri}]"
    return f"[{block.type}, {getattr(block, 'mime_type', '')}, {len(getattr(block, 'data', ''))} characters of base64]"


def rows_of(source: str) -> Callable[[str], list[Mapping[str, Any]]]:
    """A function that returns the rows of a split."""
    if not source.endswith(".jsonl"):
        function: Callable[[str], list[Mapping[str, Any]]] = resolve(source)
        return function
    try:
        rows = [json.loads(line) for line in Path(source).read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"option tasks: {source} cannot be read: {error}") from None
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or row.get("split") not in ("train", "test"):
            raise ConfigError(f"option tasks: {source} line {number + 1} has no `split` of train or test")
    return lambda _split: rows
