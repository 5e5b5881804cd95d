"""Reads an action from the model's text, comparably with AgentGym's own clients.

Two differences: an end-of-text mark is cut exactly (several clients cut one character more), and
instead of an empty action the model gets an explanation.
"""

from __future__ import annotations

import re

_MARK = "Action:"
_ONE_LINE = re.compile(r"Action:\s*([^\n]*)")
_SQL = re.compile(r"```sql(.*?)```", re.DOTALL)
_FENCED = re.compile(r"```.+?```", re.DOTALL)
_DIRECTIONS = ("up", "down", "left", "right")


class Unreadable(ValueError):
    """No action in the text; the message is for the model."""


def whole(text: str) -> str:
    """SearchQA and the tool families: the server reads the text itself."""
    text = text.removesuffix("</s>").strip()
    if not text:
        raise Unreadable("Error: the answer is empty.")
    return text


def one_line(text: str) -> str:
    """TextCraft, BabyAI: one action on one line, of letters, digits, commas and blanks."""
    found = _ONE_LINE.findall(whole(text))
    if len(found) > 1:
        raise Unreadable(f"Error: {len(found)} times '{_MARK}' in one answer; only one is allowed.")
    return _some(" ".join(re.sub(r"[^A-Za-z0-9, ]+", "", found[0] if found else "").split()))


def crafting(text: str) -> str:
    action = one_line(text)
    return "inventory" if action.lower() == "look" else action


def after_last_mark(text: str) -> str:
    """ALFWorld, SciWorld: everything after the last `Action:`."""
    return _some(whole(text).rpartition(_MARK)[2] if _MARK in text else "")


def shopping(text: str) -> str:
    """WebShop: also a bare search[...] or click[...]."""
    bare = _MARK not in text and ("search[" in text or "click[" in text)
    return whole(text) if bare else after_last_mark(text)


def after_first_mark(text: str) -> str:
    """Maze, wordle: what follows `Action:`, or everything where it is missing."""
    parts = whole(text).split(_MARK)
    return _some(parts[1] if len(parts) > 1 else parts[0])


def moving(text: str) -> str:
    action = after_first_mark(text)
    return f"move {action.lower()}" if action.lower() in _DIRECTIONS else action


def guessing(text: str) -> str:
    """The server wants `c r a n e`; most models write `crane`."""
    action = after_first_mark(text)
    return " ".join(action.lower()) if len(action) == 5 and action.isalpha() else action


def last_sql(text: str) -> str:
    found = _SQL.findall(whole(text))
    if not found:
        raise Unreadable("Error: no ```sql code block in the answer.")
    return _some(found[-1])


def fenced(text: str) -> str:
    """WebArena: the server finds the action between the backticks; without them there is none."""
    if not _FENCED.search(whole(text)):
        raise Unreadable("Error: no action between ``` and ``` in the answer.")
    return whole(text)


def _some(action: str) -> str:
    action = action.strip()
    if not action:
        raise Unreadable(f"Error: no action found; write it after '{_MARK}'.")
    return action
