"""One trajectory as a conversation. Promise: model text is shown, never interpreted."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ludus.store.trajectories import StoredTrajectory
    from ludus.types import Observation, Sequence, ToolCall, Trajectory, Turn

COLOURS = {"system": "magenta", "user": "blue", "tool": "cyan", "assistant": "green"}


def print_trajectory(stored: StoredTrajectory, *, console: Console, tokens: bool) -> None:
    for line in _conversation(stored, tokens=tokens):
        console.print(line)


def visible(text: str) -> str:
    """Escapes characters that move the cursor, change colours or reverse the text."""
    return "".join(
        char
        if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
        else char.encode("unicode_escape").decode()
        for char in text
    )


def _conversation(stored: StoredTrajectory, *, tokens: bool) -> Iterator[RenderableType]:
    trajectory, task = stored.trajectory, stored.trajectory.task
    yield Rule(Text(visible(trajectory.id), style="bold"))
    facts = {
        "task": task.id,
        "environment": task.environment,
        "split": stored.split,
        "step": stored.step,
        "group": stored.group_id,
        "attempt": trajectory.attempt,
        "seed": trajectory.seed,
    }
    yield Text("  ".join(f"{name} {visible(str(value))}" for name, value in facts.items()), style="dim")
    if task.data:
        yield _labelled("data", _json(task.data), style="dim")
    yield from _observation(trajectory.start)
    for turn in trajectory.turns:
        yield from _turn(turn, num_turns=len(trajectory.turns))
    yield from _end(trajectory)
    for index, sequence in enumerate(trajectory.sequences if tokens else (), start=1):
        yield from _sequence(sequence, title=f"sequence {index} of {len(trajectory.sequences)}")


def _observation(observation: Observation) -> Iterator[RenderableType]:
    if observation.tools:
        yield _labelled("tools", ", ".join(tool.name for tool in observation.tools), style="dim")
    for message in observation.messages:
        yield _labelled(message.name or message.role, message.content, style=COLOURS[message.role])
        yield from _calls(message.tool_calls)


def _calls(calls: Iterable[ToolCall]) -> Iterator[RenderableType]:
    for call in calls:
        yield _labelled("call", f"{call.name}({_json(call.arguments)})", style="bold green")


def _turn(turn: Turn, *, num_turns: int) -> Iterator[RenderableType]:
    facts = (
        f"turn {turn.index + 1} of {num_turns} · {turn.policy} v{turn.version} · {turn.num_prompt_tokens} + "
        f"{turn.num_tokens} tokens · {turn.generate_s:.2f} s generating, {turn.act_s:.2f} s acting"
    )
    yield Rule(Text(visible(facts), style="dim"), align="left", style="dim")
    action, answer = turn.action, turn.observation
    if action.content or not action.tool_calls:
        yield _labelled("assistant", action.content, style=COLOURS["assistant"])
    yield from _calls(action.tool_calls)
    if action.problem:
        yield _labelled("problem", action.problem, style="red")
    yield from _observation(answer)
    if answer.invalid:
        yield _labelled("✗", "invalid", style="bold red")
    if answer.reward:
        yield _labelled("reward", f"{answer.reward:+g}", style="bold yellow")
    if answer.metrics:
        yield _labelled("metrics", _json(answer.metrics), style="dim")


def _end(trajectory: Trajectory) -> Iterator[RenderableType]:
    yield Rule(style="dim")
    facts = [
        f"stop {trajectory.stop}",
        f"reward {trajectory.reward:g}",
        "success" if trajectory.success else "no success" if trajectory.stop.scored else "unscored",
        f"{len(trajectory.turns)} turns",
        f"{trajectory.num_sampled} tokens sampled",
        f"{trajectory.seconds:.2f} s",
    ]
    counts = {"invalid": trajectory.num_invalid, "forks": trajectory.num_forks}
    facts += [f"{count} {name}" for name, count in counts.items() if count]
    yield Text(" · ".join(facts), style="bold green" if trajectory.success else "bold")
    if trajectory.failure:
        yield _labelled("failure", trajectory.failure, style="red")


def _sequence(sequence: Sequence, *, title: str) -> Iterator[RenderableType]:
    """Token ids, with the sampled ones in colour."""
    yield Rule(Text(f"{title}: {len(sequence)} tokens, {sequence.num_sampled} sampled"))
    text = Text()
    for token, sampled in zip(sequence.ids.tolist(), sequence.sampled.tolist(), strict=True):
        text.append(f"{token} ", style="bold green" if sampled else "dim")
    yield text
    if sequence.num_sampled:
        versions = sequence.versions[sequence.sampled]
        known = [value for value in sequence.logprobs[sequence.sampled].tolist() if not math.isnan(value)]
        facts = f"versions {versions.min()} to {versions.max()}, "
        facts += f"logprob mean {sum(known) / len(known):.3f}, lowest {min(known):.3f}" if known else "without logprobs"
        facts += f", {len(versions) - len(known)} tokens without one" if 0 < len(known) < len(versions) else ""
        yield Text(facts, style="dim")


def _labelled(label: str, text: str, *, style: str) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_column(width=9, justify="right", no_wrap=True)
    line.add_column(overflow="fold")
    line.add_row(Text(visible(label), style=style), Text(visible(text)))
    return line


def _json(value: Any) -> str:
    return visible(json.dumps(value, ensure_ascii=False, default=str))
