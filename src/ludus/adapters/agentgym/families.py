"""AgentGym's families: what the server is sent, what it answers, and the reward.

Some reward rules are ours: each reward is paid once, and a session's rewards add up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ludus.adapters.agentgym import instructions, reading
from ludus.adapters.outside import as_text
from ludus.environments.author import Reply
from ludus.errors import EnvironmentFailed

_SEARCHED = re.compile(r"<(search|answer)>.*?</\1>", re.DOTALL)
_BROWSER_GONE = re.compile(r"is dead|has been closed|Target (page|closed|crashed)|[Cc]rashed")


def part(answer: Any, key: str, kind: type | tuple[type, ...]) -> Any:
    """A field of an answer. A missing one fails the session: it is no reward of 0."""
    if not isinstance(answer, Mapping) or key not in answer:
        got = sorted(map(str, answer)) if isinstance(answer, Mapping) else type(answer).__name__
        raise EnvironmentFailed(f"the server answered {got}; expected an object with {key!r}. Is the family right?")
    if not isinstance(answer[key], kind):
        names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise EnvironmentFailed(f"the server's {key!r} is {answer[key]!r:.60}; expected {names}")
    return answer[key]


def _number(answer: Any, key: str) -> float:
    return float(part(answer, key, (int, float)))


def observed(answer: Any) -> str:
    return str(part(answer, "observation", str))


def fetched(answer: Any) -> str:
    """The answer of GET /observation: a plain string."""
    if not isinstance(answer, str):
        raise EnvironmentFailed(f"the server's observation is {type(answer).__name__}; expected a string")
    return answer


def _experiment(answer: Any) -> str:
    return f"{part(answer, 'task_description', str)}\n{observed(answer)}"


def _household(answer: Any) -> str:
    actions = part(answer, "available_actions", list)
    return f"{observed(answer)}\nAVAILABLE ACTIONS: {','.join(map(as_text, actions))}"


def _vocabulary(answer: Any) -> str:
    if not isinstance(answer, list):
        raise EnvironmentFailed(f"the server's vocabulary is {type(answer).__name__}; expected a list of words")
    return "The vocabulary:\n" + "\n".join(map(as_text, answer)) + "\nA new game begins. Make your first guess."


def plain(answer: Any, action: str, paid: float) -> Reply:
    return Reply(observed(answer), _number(answer, "reward"), part(answer, "done", bool))


def stated(answer: Any, action: str, paid: float) -> Reply:
    """WebShop, SQLGym: the text is called `state`; it may be missing at the end."""
    done = part(answer, "done", bool)
    text = part(answer, "state", (str, type(None)) if done else str)
    return Reply(text or "", _number(answer, "reward"), done)


def _grid(answer: Any, action: str, paid: float) -> Reply:
    """BabyAI: rewarded at the goal only. The server does not report a late success as done, and
    adds its reward to `score` again in each later turn."""
    reward = _number(answer, "reward")
    reached = reward > 0
    return Reply(observed(answer), reward, reached or part(answer, "done", bool), metrics={"success": float(reached)})


def _scored(answer: Any, action: str, paid: float) -> Reply:
    """SciWorld: the server sends the total score, from -100 to 100; the reward is its change."""
    score = _number(answer, "score")
    metrics = {"score": score, "success": float(score >= 100)}
    return Reply(observed(answer), score / 100 - paid, part(answer, "done", bool), metrics=metrics)


def _housework(answer: Any, action: str, paid: float) -> Reply:
    return Reply(_household(answer), _number(answer, "reward"), part(answer, "done", bool))


def _move(answer: Any, action: str, paid: float) -> Reply:
    """Maze: every move costs; the one that reaches the goal does not."""
    reward, done = _number(answer, "reward"), part(answer, "done", bool)
    return Reply(observed(answer), reward, done, metrics={"success": float(done and reward >= 0)})


def _guess(answer: Any, action: str, paid: float) -> Reply:
    """Wordle: the server must shift LMRL-Gym's rewards of -1 and 0 to 0 and 1."""
    outcome = plain(answer, action, paid)
    if not 0 <= outcome.reward <= 1:
        raise EnvironmentFailed(
            f"the wordle server's reward is {outcome.reward}; expected 0 or 1, which LMRL-Gym's -1 and 0 are shifted to"
        )
    return outcome


def _searched(answer: Any, action: str, paid: float) -> Reply:
    """SearchQA: one answer ends the session; the server alone would let the model retry."""
    outcome = plain(answer, action, paid)
    acted = _SEARCHED.search(action)  # the first of the two counts, as on the server
    return Reply(outcome.text, outcome.reward, outcome.done or bool(acted and acted[1] == "answer"))


def _browsed(answer: Any, action: str, paid: float) -> Reply:
    """WebArena: rewarded only when the agent stops."""
    terminated, truncated = part(answer, "terminated", bool), part(answer, "truncated", bool)
    reward, text = _number(answer, "reward") if terminated else 0.0, observed(answer)
    # without `info`, the server raised: an unreadable action, or a dead browser
    raised = answer.get("info", {}) is None
    if raised and _BROWSER_GONE.search(text):
        raise EnvironmentFailed(f"the server's browser is gone: {as_text(text)[:200]}")
    cut = {"truncated": float(truncated and not terminated)}
    return Reply(text, reward, terminated or truncated, invalid=raised, metrics=cut)


@dataclass(frozen=True, slots=True)
class Family:
    instruction: str
    max_turns: int
    read: Callable[[str], str]
    reset: Callable[[int], Mapping[str, Any]]
    """The body of `reset` for a task id, without the instance."""
    outcome: Callable[[Any, str, float], Reply] = plain
    """From the answer, the action, and the session's reward before it."""
    key: str = "id"
    """The server's field for an instance."""
    create: Mapping[str, Any] = field(default_factory=dict)
    first: Callable[[Any], str] = observed
    """The first observation, from the answer to `reset`, or to GET `first_from`."""
    first_from: str = ""
    prefix: str = ""
    repeats: bool = False
    """An unreadable action is answered with the last observation again."""


def _by_index(i: int) -> dict[str, Any]:
    return {"data_idx": i}


_fetched = partial(Family, key="env_idx", first=fetched, first_from="observation")
_tools = partial(_fetched, read=reading.whole, reset=lambda i: {"id": i}, create={"id": 0})

FAMILIES: dict[str, Family] = {
    "textcraft": Family(instructions.TEXTCRAFT, 30, reading.crafting, _by_index),
    "babyai": Family(instructions.BABYAI, 20, reading.one_line, _by_index, _grid),
    "sciworld": Family(
        instructions.SCIWORLD, 30, reading.after_last_mark, _by_index, _scored, first=_experiment, repeats=True
    ),
    "alfworld": Family(
        instructions.ALFWORLD, 30, reading.after_last_mark, lambda i: {"game": i, "world_type": "Text"}, _housework,
        first=_household, repeats=True,
    ),
    "webshop": _fetched(
        instructions.WEBSHOP, 10, reading.shopping, lambda i: {"session_id": i}, stated, repeats=True
    ),
    "searchqa": _tools(instructions.SEARCHQA, 10, outcome=_searched),
    "sqlgym": _fetched(instructions.SQLGYM, 1, reading.last_sql, lambda i: {"item_id": i}, stated),
    "webarena": _fetched(instructions.WEBARENA, 15, reading.fenced, lambda i: {"seed": 0, "idx": i}, _browsed),
    "maze": Family(instructions.MAZE, 15, reading.moving, lambda i: {"game": i}, _move, prefix="maze"),
    "wordle": Family(
        instructions.WORDLE, 8, reading.guessing, lambda i: {"seed": i}, _guess,
        first=_vocabulary, first_from="filtered_vocab", prefix="wordle",
    ),
    "weather": _tools(instructions.WEATHER, 10),
    "movie": _tools(instructions.MOVIE, 12),
    "academia": _tools(instructions.ACADEMIA, 12),
    "sheet": _tools(instructions.SHEET, 15),
    "todo": _tools(instructions.TODO, 15),
}  # fmt: skip
