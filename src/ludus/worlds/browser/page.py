"""A page as numbered lines of its accessibility tree, and the actions on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ludus.worlds.browser.chromium import Chromium

MAX_LINES = 120
MAX_NAME_CHARS = 120
_SHOWN_STATES = ("checked", "selected", "expanded", "disabled", "focused")
_SILENT = "generic none InlineTextBox LineBreak RootWebArea Canvas LabelText MenuListPopup paragraph"
"""Roles that are not shown."""


@dataclass(frozen=True)
class Element:
    """`number` is valid until the page is shown again."""

    number: int
    role: str
    name: str
    value: str
    states: tuple[str, ...]
    node: int

    def __str__(self) -> str:
        value = f" = {self.value!r}" if self.value else ""
        states = f" ({', '.join(self.states)})" if self.states else ""
        return f'[{self.number}] {self.role} "{self.name}"{value}{states}'


class NotThere(Exception):
    """A mistake of the agent's; the message is shown to it."""


def read(chromium: Chromium) -> list[Element]:
    nodes = {node["nodeId"]: node for node in chromium.call("Accessibility.getFullAXTree")["nodes"]}
    elements: list[Element] = []
    if root := next((node for node in nodes.values() if "parentId" not in node), None):
        _walk(root, nodes, elements, said="")
    return elements


def show(elements: list[Element]) -> str:
    lines = [str(element) for element in elements[:MAX_LINES]]
    return "\n".join(lines + [f"({len(elements) - MAX_LINES} more)"] * (len(elements) > MAX_LINES)) or "(an empty page)"


def click(chromium: Chromium, element: Element) -> None:
    x, y = _centre(chromium, element)
    for kind, buttons in (("mouseMoved", 0), ("mousePressed", 1), ("mouseReleased", 0)):
        button = "none" if kind == "mouseMoved" else "left"
        chromium.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=buttons, clickCount=1)


def type_text(chromium: Chromium, element: Element, text: str) -> None:
    able = "return 'value' in this && !this.readOnly && !['checkbox','radio','button','submit','select-one'].includes(this.type)"
    if not _on(chromium, element, able):
        raise NotThere(f"{element} takes no text")
    chromium.call("DOM.focus", backendNodeId=element.node)
    _on(chromium, element, "this.select && this.select()")
    chromium.call("Input.insertText", text=text)


def choose(chromium: Chromium, element: Element, option: str) -> None:
    script = (
        "if (!this.options) return null; const all = [...this.options].map(o => o.text.trim()); const i = all.indexOf(option);"
        "if (i >= 0) { this.selectedIndex = i;"
        "for (const kind of ['input', 'change']) this.dispatchEvent(new Event(kind, {bubbles: true})) }"
        "return i >= 0 ? true : all.slice(0, 30)"
    )
    done = _on(chromium, element, script, option=option)
    if done is None:
        raise NotThere(f"{element} is no list to select from")
    if done is not True:
        raise NotThere(f"{element} has no option {option[:80]!r}; it has {', '.join(done)}")


def scroll(chromium: Chromium, element: Element | None, *, down: bool) -> None:
    amount = 200 if down else -200
    if element is None:
        chromium.evaluate(f"window.scrollBy(0, {amount})")
        return
    script = "let e = this.nodeType == 1 ? this : this.parentElement; while (e && e.scrollHeight <= e.clientHeight) e = e.parentElement;"
    _on(chromium, element, f"{script} (e || document.documentElement).scrollBy(0, {amount})")


def _walk(node: dict[str, Any], nodes: dict[str, Any], found: list[Element], *, said: str) -> None:
    """Collects elements in page order. Text inside a button or a field is not repeated."""
    role = node.get("role", {}).get("value", "")
    is_text = role == "StaticText"
    name = str(node.get("name", {}).get("value", "")).strip()[:MAX_NAME_CHARS]
    spoken = not node["ignored"] and role not in _SILENT.split() and not (is_text and name in ("", said))
    value = str(node.get("value", {}).get("value", ""))[:MAX_NAME_CHARS]
    if spoken and "backendDOMNodeId" in node:
        properties = {each["name"]: each["value"].get("value") for each in node.get("properties", ())}
        states = tuple(state for state in _SHOWN_STATES if properties.get(state) in (True, "true"))
        role = "text" if is_text else role
        found.append(Element(len(found) + 1, role, name, value, states, node["backendDOMNodeId"]))
    for child in node.get("childIds", ()):
        if child in nodes:
            _walk(nodes[child], nodes, found, said=(value or name) if spoken else said)


def _centre(chromium: Chromium, element: Element) -> tuple[float, float]:
    try:
        chromium.call("DOM.scrollIntoViewIfNeeded", backendNodeId=element.node)
        quads = chromium.call("DOM.getContentQuads", backendNodeId=element.node)["quads"]
    except LookupError:
        quads = []
    if not quads:
        raise NotThere(f"{element} cannot be seen now")
    return sum(quads[0][0::2]) / 4, sum(quads[0][1::2]) / 4


def _on(chromium: Chromium, element: Element, script: str, **arguments: str) -> Any:
    """Runs a trusted script with the element as `this`; the agent's text is passed as data only."""
    try:
        target = chromium.call("DOM.resolveNode", backendNodeId=element.node)["object"]["objectId"]
    except LookupError:
        raise NotThere(f"{element} is gone") from None
    function = f"function({', '.join(arguments)}) {{ {script} }}"
    given = {"arguments": [{"value": value} for value in arguments.values()], "returnByValue": True}
    told = chromium.call("Runtime.callFunctionOn", objectId=target, functionDeclaration=function, **given)
    return told.get("result", {}).get("value")
