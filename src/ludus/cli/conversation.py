"""One trajectory as a conversation. Promise: control characters and markup in what a model wrote are shown as text, not obeyed."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ludus.store.trajectories import StoredTrajectory
    from ludus.types import Message, Observation, Sequence, ToolCall, Trajectory, Turn

COLOURS = {"system": "magenta", "user": "blue", "tool": "cyan", "assistant": "green"}


def print_trajectory(stored: StoredTrajectory, *, console: Console, tokens: bool) -> None:
    trajectory = stored.trajectory
    _print_head(stored, console)
    _print_observation(trajectory.start, console)
    for turn in trajectory.turns:
        _print_turn(turn, console, num_turns=len(trajectory.turns))
    _print_end(trajectory, console)
    if tokens:
        for index, sequence in enumerate(trajectory.sequences):
            _print_sequence(sequence, console, index=index, of=len(trajectory.sequences))


def visible(text: str) -> str:
    """Text that cannot move the cursor, change colours or reverse the direction of reading: such characters become their escapes."""
    return "".join(
        char if char in "\n\t" or _harmless(char) else char.encode("unicode_escape").decode() for char in text
    )


def _harmless(char: str) -> bool:
    return unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


# ------------------------------------------------------------------------------------------------ parts


def _print_head(stored: StoredTrajectory, console: Console) -> None:
    trajectory = stored.trajectory
    console.print(Rule(Text(visible(trajectory.id), style="bold")))
    facts = {
        "task": trajectory.task.id,
        "environment": trajectory.task.environment,
        "split": stored.split,
        "step": stored.step,
        "group": stored.group_id,
        "attempt": trajectory.attempt,
        "seed": trajectory.seed,
    }
    console.print(Text("  ".join(f"{name} {visible(str(value))}" for name, value in facts.items()), style="dim"))
    if trajectory.task.data:
        _say(console, "data", _json(trajectory.task.data), style="dim")


def _print_observation(observation: Observation, console: Console) -> None:
    if observation.tools:
        _say(console, "tools", ", ".join(tool.name for tool in observation.tools), style="dim")
    for message in observation.messages:
        _print_message(message, console)


def _print_message(message: Message, console: Console) -> None:
    _say(console, message.name or message.role, message.content, style=COLOURS[message.role])
    for call in message.tool_calls:
        _print_call(call, console)


def _print_turn(turn: Turn, console: Console, *, num_turns: int) -> None:
    policy = f"{turn.policy} v{turn.version}"
    facts = (
        f"turn {turn.index + 1} of {num_turns} · {policy} · {turn.num_prompt_tokens} + {turn.num_tokens} tokens · "
        f"{turn.generate_s:.2f} s generating, {turn.act_s:.2f} s acting"
    )
    console.print(Rule(Text(visible(facts), style="dim"), align="left", style="dim"))
    if turn.action.content or not turn.action.tool_calls:
        _say(console, "assistant", turn.action.content, style=COLOURS["assistant"])
    for call in turn.action.tool_calls:
        _print_call(call, console)
    if turn.action.problem:
        _say(console, "problem", turn.action.problem, style="red")
    _print_observation(turn.observation, console)
    _print_verdict(turn.observation, console)


def _print_call(call: ToolCall, console: Console) -> None:
    _say(console, "call", f"{call.name}({_json(call.arguments)})", style="bold green")


def _print_verdict(observation: Observation, console: Console) -> None:
    if observation.invalid:
        _say(console, "✗", "invalid", style="bold red")
    if observation.reward:
        _say(console, "reward", f"{observation.reward:+g}", style="bold yellow")
    if observation.metrics:
        _say(console, "metrics", _json(observation.metrics), style="dim")


def _print_end(trajectory: Trajectory, console: Console) -> None:
    console.print(Rule(style="dim"))
    verdict = "success" if trajectory.success else "no success" if trajectory.stop.scored else "unscored"
    facts = [f"stop {trajectory.stop}", f"reward {trajectory.reward:g}", verdict]
    facts += [
        f"{len(trajectory.turns)} turns",
        f"{trajectory.num_sampled} tokens sampled",
        f"{trajectory.seconds:.2f} s",
    ]
    facts += [f"{trajectory.num_invalid} invalid"] * bool(trajectory.num_invalid)
    facts += [f"{trajectory.num_forks} forks"] * bool(trajectory.num_forks)
    console.print(Text(" · ".join(facts), style="bold green" if trajectory.success else "bold"))
    if trajectory.failure:
        _say(console, "failure", trajectory.failure, style="red")


def _print_sequence(sequence: Sequence, console: Console, *, index: int, of: int) -> None:
    """Token ids; those that were sampled are in colour."""
    console.print(Rule(Text(f"sequence {index + 1} of {of}: {len(sequence)} tokens, {sequence.num_sampled} sampled")))
    text = Text()
    for token, sampled in zip(sequence.ids.tolist(), sequence.sampled.tolist(), strict=True):
        text.append(f"{token} ", style="bold green" if sampled else "dim")
    console.print(text)
    sampled_mask = sequence.sampled
    if sequence.num_sampled:
        versions = sequence.versions[sampled_mask]
        known = [value for value in sequence.logprobs[sampled_mask].tolist() if not math.isnan(value)]
        facts = f"versions {versions.min()} to {versions.max()}, "
        facts += f"logprob mean {sum(known) / len(known):.3f}, lowest {min(known):.3f}" if known else "without logprobs"
        facts += f", {len(versions) - len(known)} tokens without one" if 0 < len(known) < len(versions) else ""
        console.print(Text(facts, style="dim"))


def _say(console: Console, speaker: str, text: str, *, style: str) -> None:
    line = Table.grid(padding=(0, 1))
    line.add_column(width=9, justify="right", no_wrap=True)
    line.add_column(overflow="fold")
    line.add_row(Text(visible(speaker), style=style), Text(visible(text)))
    console.print(line)


def _json(value: Mapping[str, Any]) -> str:
    return visible(json.dumps(value, ensure_ascii=False, default=str))
