"""Judges the trials of `ludus env check`: undeserved rewards, answers in the prompt.

Pure: check.py plays. A player that does not try, repeats one action or exploits the reward must
earn nothing beyond what the task gives.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ludus.checks.trial import Trial
from ludus.types import Action, Tool, ToolCall

MARGIN = 1e-6
MANY = 0.75
"""Share of tasks that one repeated action may solve."""
LEAKS = 0.34
"""Allowed excess of prompts with their own answer over prompts with another task's."""
ENOUGH = 4
"""Tasks needed before a share is judged."""


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Literal["error", "warning"]
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.what}\n    -> {self.fix}"


def bad_actions(tools: Sequence[Tool]) -> list[tuple[str, Action]]:
    """Actions that cannot be carried out, each with a description."""
    bad = [
        ("an empty answer", Action()),
        ("babble", Action(content="?! blah")),
        ("an unreadable call", Action(problem="not JSON")),
    ]
    calls = [("an unknown tool", ToolCall("no_such_tool", {}))]
    for tool in tools:
        names, required = list(tool.parameters.get("properties", {})), tool.parameters.get("required", ())
        calls.append((f"an unknown argument of {tool.name}", ToolCall(tool.name, {"no_such_argument": 1})))
        if required:
            calls.append((f"{tool.name} without arguments", ToolCall(tool.name, {})))
        if names:
            wrong = {name: {"a": [None]} for name in names}
            calls.append((f"a wrong type for {tool.name}", ToolCall(tool.name, wrong)))
    return bad + [(what, Action(tool_calls=(call,))) for what, call in calls]


def constant_actions(trials: Sequence[Trial], tools: Sequence[Tool]) -> list[Action]:
    """Actions to repeat: the most frequent ones, and each tool with minimal arguments."""
    said = Counter(repr(action) for trial in trials for action in trial.actions)
    by_text = {repr(action): action for trial in trials for action in trial.actions}
    common = [by_text[text] for text, _ in sorted(said.items(), key=lambda item: (-item[1], item[0]))[:3]]
    return common + [Action(tool_calls=(ToolCall(tool.name, _least(tool.parameters)),)) for tool in tools]


def farming_actions(trial: Trial, *, max_turns: int) -> Iterator[list[Action]]:
    """Each rewarded action, repeated, and alternated with the action before it."""
    for turn, seen in enumerate(trial.observations[1:]):
        if seen.reward > 0 and not seen.done:
            so_far, again = list(trial.actions[: turn + 1]), trial.actions[turn]
            before = trial.actions[turn - 1] if turn else Action()
            yield (so_far + [again] * max_turns)[:max_turns]
            yield (so_far + [before, again] * max_turns)[:max_turns]


def idle_findings(what: str, trials: Sequence[Trial]) -> list[Finding]:
    paid = [trial for trial in trials if trial.reward > MARGIN or trial.success]
    if not paid:
        return []
    return _error(
        f"a player that says {what} every turn is paid in {len(paid)} of {len(trials)} tasks, "
        f"e.g. {paid[0].reward:g} in {paid[0].task.id!r}",
        "an action that is not carried out must change nothing, and a turn must not pay by itself",
    )


def constant_findings(action: Action, trials: Sequence[Trial], *, best: Mapping[str, float]) -> list[Finding]:
    """`best` is what the solver earned, by task."""
    what = f"{written(action)[:60]!r}, said every turn,"
    found = excess_findings(what, trials, best=best)
    solved = sum(trial.success for trial in trials)
    if len(trials) >= ENOUGH and solved > MANY * len(trials):
        found += _error(
            f"{what} solves {solved} of {len(trials)} tasks",
            "the right action must depend on the task; check what ends a session with a reward",
        )
    return found


def excess_findings(who: str, trials: Sequence[Trial], *, best: Mapping[str, float]) -> list[Finding]:
    """The first trial that earns more than the solver and more than 1."""
    for trial in trials:
        if trial.task.id in best and trial.reward > max(1.0, best[trial.task.id]) + MARGIN:
            return _error(
                f"{who} earns {trial.reward:g} at {trial.task.id!r}, the solver {best[trial.task.id]:g}",
                "pay for each achievement once: remember what was paid, and pay the difference",
            )
    return []


def paid_though_invalid(trials: Sequence[Trial]) -> list[Finding]:
    for trial in trials:
        for seen in trial.observations:
            if seen.invalid and seen.reward > MARGIN:
                what = f"an invalid action at {trial.task.id!r} pays {seen.reward:g}"
                return _error(what, "a refused action must not be rewarded")
    return []


def leak_findings(answers: Sequence[tuple[str, tuple[str, ...]]]) -> list[Finding]:
    """Prompts leak if they contain their own answer clearly more often than another task's.
    `answers`: first prompts, each with the parts of the answer that wins at once."""
    answers = [(prompt, parts) for prompt, parts in answers if parts]
    if len(answers) < ENOUGH:
        return []
    own = [contains(prompt, parts) for prompt, parts in answers]
    others = [contains(prompt, parts) for (prompt, _), (_, parts) in itertools.permutations(answers, 2)]
    if sum(own) / len(own) - sum(others) / len(others) <= LEAKS:
        return []
    parts = ", ".join(answers[own.index(True)][1])
    return _error(
        f"the first prompt of {sum(own)} of {len(own)} tasks contains the final answer, e.g. {parts[:60]!r}",
        "remove it; if the prompt lists all possible answers, set the class attribute lists_answers = True",
    )


def _error(what: str, fix: str) -> list[Finding]:
    return [Finding("error", what, fix)]


def contains(prompt: str, parts: Sequence[str]) -> bool:
    text = prompt.casefold()
    return all(re.search(rf"(?<!\w){re.escape(part.casefold())}(?!\w)", text) for part in parts)


def answer_parts(action: Action) -> tuple[str, ...]:
    """The values of an action's arguments, or its text."""
    if not action.tool_calls:
        return (action.content.strip(),) if action.content.strip() else ()
    return tuple(
        text for call in action.tool_calls for value in call.arguments.values() for text in _leaves(value) if text
    )


def prompt_of(trial: Trial) -> str:
    """Everything a model reads before its first turn."""
    first = trial.observations[0]
    tools = [f"{tool.name} {tool.description} {tool.parameters}" for tool in first.tools or ()]
    return "\n".join([*(message.content for message in first.messages), *tools])


def written(action: Action) -> str:
    """An action as a person reads it: its calls, or its text."""
    calls = (f"{call.name}({', '.join(f'{k}={v!r}' for k, v in call.arguments.items())})" for call in action.tool_calls)
    return ", ".join(calls) or action.content


def _leaves(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for each in value.values() for text in _leaves(each)]
    if isinstance(value, list | tuple):
        return [text for each in value for text in _leaves(each)]
    return [] if value is None or isinstance(value, bool) else [str(value).strip()]


def _least(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Minimal values for a tool's required parameters, by their types."""
    values: dict[str, Any] = {"string": "", "integer": 0, "number": 0.0, "boolean": False, "array": [], "object": {}}
    properties = schema.get("properties", {})
    return {
        name: properties[name]["enum"][0]
        if properties[name].get("enum")
        else values.get(str(properties[name].get("type")), "")
        for name in schema.get("required", ())
        if name in properties
    }
