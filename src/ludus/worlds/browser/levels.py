"""The MiniWoB++ levels that are offered, each with its solver."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from ludus.types import ToolCall
from ludus.worlds.browser.page import Element

Solver = Callable[[str, list[Element], int], ToolCall]
"""The next call, from the instruction, the elements of the page, and the number of actions done."""


def _find(elements: list[Element], *roles: str, name: str = "") -> Element:
    fitting = [each for each in elements if each.role in roles and (not name or each.name == name)]
    return fitting[0] if fitting else elements[-1]


def _click(element: Element) -> ToolCall:
    return ToolCall("click", {"element": element.number})


def _named(asked: str, elements: list[Element], done: int, *, roles: tuple[str, ...], x: str = "x") -> ToolCall:
    """Clicks what is quoted. `x` is the name of what is quoted as "x"."""
    wanted = _quoted(asked)[0]
    return _click(_find(elements, *roles, name=x if wanted == "x" else wanted))


def _form(asked: str, elements: list[Element], done: int) -> ToolCall:
    """Types each quoted text into the next field, and the last one into all fields left."""
    texts = _quoted(asked)
    fields = [each for each in elements if each.role == "textbox"]
    if done < len(fields):
        return ToolCall("type_text", {"element": fields[done].number, "text": texts[min(done, len(texts) - 1)]})
    return _click(_find(elements, "button"))


def _checkboxes(asked: str, elements: list[Element], done: int) -> ToolCall:
    listed = asked.removeprefix("Select ").removesuffix(" and click Submit.")
    wanted = [] if listed == "nothing" else listed.split(", ")
    for each in elements:
        if each.role in ("checkbox", "radio") and each.name in wanted and "checked" not in each.states:
            return _click(each)
    return _click(_find(elements, "button", name="Submit"))


def _list(asked: str, elements: list[Element], done: int) -> ToolCall:
    wanted = re.sub(r" from the (scroll )?list and click Submit\.$", "", asked.removeprefix("Select "))
    if done == 0:
        return ToolCall("select", {"element": _find(elements, "combobox", "listbox").number, "option": wanted})
    return _click(_find(elements, "button", name="Submit"))


def _quoted(asked: str) -> list[str]:
    return re.findall(r'"([^"]*)"', asked) or [""]


LEVELS: dict[str, Solver] = {
    "click-button": partial(_named, roles=("button",)),
    "click-link": partial(_named, roles=("text", "link")),
    "click-dialog-2": partial(_named, roles=("button",), x="Close"),
    "enter-password": _form,
    "login-user": _form,
    "click-checkboxes": _checkboxes,
    "click-option": _checkboxes,
    "choose-list": _list,
}
