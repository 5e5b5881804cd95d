"""Converts between AgentRL's JSON and our types. Pure. Promise: a failure never becomes a reward.

AgentRL                     Ludus
task name "kg-std"          environment "kg-std" with test tasks; with any other ending: train tasks
index 17                    Task("kg-std/test/17", data={"index": 17})
status                      STOPS; running: none
reward of the last answer   the sum of all rewards
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ludus.errors import ConfigError, EnvironmentFailed
from ludus.openai_format import NO_PARAMETERS, message_to_openai, read_arguments, tool_to_openai
from ludus.types import Action, Message, Observation, Role, Stop, Task, Tool, ToolCall

Json = dict[str, Any]
Index = int | str
RUNNING = "running"
STOPS: Mapping[str, Stop] = {
    "completed": Stop.DONE,
    "task limit reached": Stop.MAX_TURNS,
    "agent context limit": Stop.MAX_TOKENS,
    "agent validation failed": Stop.INVALID,
    "agent invalid action": Stop.INVALID,
    "task error": Stop.FAILED,  # before unknown: STATUSES takes the first status of a stop
    "unknown": Stop.FAILED,
    "cancelled": Stop.CANCELLED,
}
STATUSES: Mapping[Stop, str] = {stop: status for status, stop in reversed(list(STOPS.items()))}
TEST, TRAIN = "-std", "-env_train"
CUSTOM = -1
"""The index of a task that the client sends itself."""


def split_of(name: str) -> str:
    return "test" if name.endswith(TEST) else "train"


def task_of(name: str, index: Index, *, custom: Mapping[str, Any] | None = None) -> Task:
    data: Json = {"index": index} if custom is None else {"index": index, "custom_task": dict(custom)}
    return Task(f"{name}/{split_of(name)}/{index}", environment=name, split=split_of(name), data=data)


def tasks_of(name: str, indices: Iterable[Index]) -> tuple[Task, ...]:
    return tuple(task_of(name, index) for index in indices if index != CUSTOM)


def index_of(task: Task) -> Index:
    index = task.data.get("index")
    if isinstance(index, bool) or not isinstance(index, int | str):
        raise ConfigError(f"task {task.id} has index {index!r}; a task of an AgentRL worker has an int or a str")
    return index


def position_of(index: Any, *, task_ids: Sequence[str]) -> int:
    """The position of one of our tasks, given by position, by id, or by the last part of its id."""
    if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(task_ids):
        return index
    if isinstance(index, str):
        for position, task_id in enumerate(task_ids):
            if index in (task_id, task_id.rpartition("/")[2]):
                return position
    raise ConfigError(f"no task with index {index!r:.80}; expected 0 to {len(task_ids) - 1}, or a task's id")


def names_of(environment: str, splits: Sequence[str]) -> list[tuple[str, str]]:
    """AgentRL's names of one of our environments, with splits; the plain name means test tasks."""
    names = [(environment, "test"), (environment + TEST, "test"), (environment + TRAIN, "train")]
    return [(name, split) for name, split in names if split in splits]


def observation_of(answer: Mapping[str, Any], *, first: Sequence[Message] = (), where: str) -> Observation:
    """`first`: the messages of the session's start; empty for the start itself. A worker may send
    the whole history at each turn; only its new messages are kept."""
    finished = bool(answer.get("finish"))
    status = str(answer.get("status") or ("unknown" if finished else RUNNING))
    stop = None if status == RUNNING and not finished else STOPS.get(status, Stop.FAILED)
    reward = _reward(answer.get("reward"), where=where)
    if stop in (Stop.FAILED, Stop.CANCELLED):
        raise EnvironmentFailed(f"{where}: the AgentRL worker ended the session with status {status!r}; see its log")
    messages = _news(tuple(map(message_of, answer.get("messages") or ())), first=first)
    if stop is Stop.INVALID and reward > 0:  # some classes keep the status of an early bad turn
        stop = Stop.DONE
    metrics = _numbers(answer.get("metric") or answer.get("metrics") or {})
    if stop not in (None, Stop.DONE):
        metrics[f"ended_{stop}"] = 1.0
    if stop is None:
        # only the reward of the last answer counts, and a resent history repeats old ones
        return Observation(messages, tools=None if first else tools_of(answer), metrics=metrics)
    return Observation(messages, tools=None, reward=reward, done=True, invalid=stop is Stop.INVALID, metrics=metrics)


def _news(messages: tuple[Message, ...], *, first: Sequence[Message]) -> tuple[Message, ...]:
    if not first or not messages or messages[0] != first[0]:
        return messages
    actions = [at for at, message in enumerate(messages) if message.role == "assistant"]
    return messages[actions[-1] + 1 :] if actions else messages[len(first) :]


def _reward(value: Any, *, where: str) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise EnvironmentFailed(f"{where}: the AgentRL worker sent reward {value!r:.60}; expected a finite number")
    return float(value)


def _numbers(metrics: Any) -> dict[str, float]:
    """AgentRL's metrics may hold anything, also traces; ours are numbers."""
    items = metrics.items() if isinstance(metrics, Mapping) else ()
    return {str(k): float(v) for k, v in items if isinstance(v, int | float) and math.isfinite(v)}


def passed(answer: Mapping[str, Any]) -> Json:
    """A worker's answer, every field kept; but an invalid session with a reward is completed."""
    out = {key: value for key, value in answer.items() if key != "metric"}
    out["metrics"] = answer.get("metric") or answer.get("metrics") or {}
    won = isinstance(out.get("reward"), int | float) and out["reward"] > 0
    if out.get("finish") and won and STOPS.get(str(out.get("status"))) is Stop.INVALID:
        out["status"] = STATUSES[Stop.DONE]
    return out


def answer_of(observation: Observation, *, action: Action | None = None, total: float, stop: Stop | None) -> Json:
    """`total` is the sum of rewards so far, because the reward of the last answer is the result."""
    messages = _unanswered(action, observation) + [openai_message(message) for message in observation.messages]
    if not messages and stop is None:
        messages = [{"role": "user", "content": ""}]  # the evaluator gives up without messages
    answer: Json = {"messages": messages}
    if observation.tools is not None:
        answer["tools"] = [tool_to_openai(tool) for tool in observation.tools]
    return answer | ending(stop, reward=total, metrics=observation.metrics)


def ending(
    stop: Stop | None, *, reward: float = 0.0, metrics: Mapping[str, Any] | None = None, result: Any = None
) -> Json:
    status = RUNNING if stop is None else STATUSES[stop]
    end: Json = {"status": status, "finish": stop is not None, "reward": reward, "metrics": dict(metrics or {})}
    return end if result is None else end | {"result": result}


def _unanswered(action: Action | None, observation: Observation) -> list[Json]:
    """A reply to each tool call that has none, because OpenAI's servers require one."""
    calls = {} if action is None else {call.id: call for call in action.tool_calls}
    got = {message.tool_call_id for message in observation.messages if message.role == "tool"}
    missing = [call for call in calls.values() if call.id not in got and "" not in got]
    return [
        openai_message(Message("tool", "not carried out", tool_call_id=call.id, name=call.name)) for call in missing
    ]


_ROLES: Mapping[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool", "function": "tool",
}  # fmt: skip


def message_of(raw: Any) -> Message:
    if not isinstance(raw, Mapping) or raw.get("role") not in _ROLES:
        raise EnvironmentFailed(f"an AgentRL worker sent {raw!r:.120}; expected a chat message with a known role")
    return Message(
        role=_ROLES[raw["role"]],
        content=_text_of(raw.get("content")),
        tool_calls=tuple(_call_of(call)[0] for call in raw.get("tool_calls") or ()),
        tool_call_id=str(raw.get("tool_call_id") or ""),
        name=str(raw.get("name") or ""),
    )


def tools_of(answer: Mapping[str, Any]) -> tuple[Tool, ...]:
    """Tools in the format of OpenAI (schema in `parameters`) or Anthropic (`input_schema`)."""
    functions = (raw.get("function", raw) for raw in answer.get("tools") or () if isinstance(raw, Mapping))
    return tuple(
        Tool(
            str(each["name"]),
            str(each.get("description") or ""),
            each.get("parameters") or each.get("input_schema") or NO_PARAMETERS,
        )
        for each in functions
        if isinstance(each, Mapping) and each.get("name")
    )


def action_of(messages: Any) -> Action:
    """The action in assistant messages. `problem` names calls that cannot be parsed."""
    if not isinstance(messages, list) or not messages:
        raise ConfigError("messages must be a list of at least one assistant message")
    texts: list[str] = []
    calls: list[ToolCall] = []
    problems: list[str] = []
    for message in messages:
        if not isinstance(message, Mapping) or message.get("role") != "assistant":
            raise ConfigError(f"a message is {message!r:.80}; expected only assistant messages")
        texts.append(_text_of(message.get("content")))
        for raw in message.get("tool_calls") or ():
            call, problem = _call_of(raw, default_id=f"call_{len(calls)}")
            calls.append(call)
            problems.append(problem)
    return Action("\n".join(filter(None, texts)), tuple(calls), problem="; ".join(filter(None, problems)))


def openai_message(message: Message) -> Json:
    return message_to_openai(message) | ({"name": message.name} if message.name else {})


def _call_of(raw: Any, *, default_id: str = "") -> tuple[ToolCall, str]:
    """The call, and why it cannot be parsed, if so."""
    function = raw.get("function") if isinstance(raw, Mapping) else None
    if not isinstance(function, Mapping):
        return ToolCall("", {}, id=default_id), "a tool call has no function name"
    arguments, problem = read_arguments(function.get("arguments"))
    call = ToolCall(str(function.get("name") or ""), arguments, id=str(raw.get("id") or default_id))
    if not isinstance(function.get("name"), str):
        return call, "a tool call has no function name"
    return call, problem and f"{call.name}: {problem}"


def _text_of(content: Any) -> str:
    """The text of a content: a string, None, or parts; parts without text are named."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(map(_part_text, content if isinstance(content, list) else [content]))


def _part_text(part: Any) -> str:
    if not isinstance(part, Mapping):
        return f"[{type(part).__name__}]"
    return str(part["text"]) if "text" in part else f"[{part.get('type', 'part')}]"
