"""Whether a chat template is local: a message's text depends on its neighbours and the first one.

In a local template a short window of the conversation proves that a prompt extends the last one, so
a turn costs the same however long the session is. Text before the messages, such as tools, need not
be rendered to prove it: the rest is the template's `tail`. Where that `is_verbatim`, it is rendered
once as a form and then filled in. Promise: yes only where the template's own syntax proves it."""

from __future__ import annotations

from typing import Any, TypeGuard

from jinja2 import Environment, TemplateError, nodes


def _parsed(expression: str) -> nodes.Node:
    return next(Environment().parse(f"{{{{ {expression} }}}}").find_all(nodes.Output)).nodes[0]


_FIRST_MESSAGE = _parsed("messages[0]")
_NEIGHBOURS = [_parsed("messages[loop.index0 - 1]"), _parsed("messages[loop.index0 + 1]")]
_ITEMS = [_parsed("loop.previtem"), _parsed("loop.nextitem")]
_ASKS_WHETHER_FIRST = [
    _parsed(f"{index} {operator} {first}")
    for index, first in (("loop.index0", 0), ("loop.index", 1))
    for operator in ("==", "!=", "<", "<=", ">", ">=")
]
_LOCAL_LOOP = {"first", "last", "previtem", "nextitem"}
_STATEFUL = {"cycler", "joiner", "self", "caller"}
_OFFERED = {"tools", "documents"}
_ONLY_WRITES = (nodes.Output, nodes.If, nodes.For)
_CAPTURES = (nodes.AssignBlock, nodes.FilterBlock, nodes.CallBlock, nodes.ScopedEvalContextModifier, nodes.NSRef)
_SAID = ("content", "name", "tool_call_id")
"""The text fields of a message; beside them it has only a role."""
_LEAVES_SOMETHING = (nodes.Assign, nodes.AssignBlock, nodes.Macro, nodes.ExprStmt, nodes.Break, nodes.Continue)


def is_local(source: str) -> bool:
    """True for one loop over `messages` whose body sees index 0 and neighbours at most."""
    try:
        body = Environment().parse(source).body
    except TemplateError:  # also tags unknown to this parser, such as break
        return False
    loops = [node for node in body if _is_main_loop(node)]
    if len(loops) != 1 or loops[0].test is not None or loops[0].else_ or loops[0].recursive:
        return False
    outside = all(_holds(node, in_loop=False) for node in body if node is not loops[0])
    # a namespace that is written in the loop carries state between distant messages
    return outside and all(_holds(node, in_loop=True) for node in loops[0].body) and not _has(loops[0], nodes.NSRef)


def tail(template: nodes.Template) -> nodes.Template | None:
    """A local template without the text before its messages, which is equal in all prompts with one
    first message and the same tools; None where the rest uses tools or writing has an effect."""
    start = next(index for index, node in enumerate(template.body) if _is_main_loop(node))
    kept = [node for node in template.body[:start] if not _only_writes(node)]
    used = {name.name for node in template.body[start:] for name in node.find_all(nodes.Name)}
    for node in reversed(kept.copy()):  # drops variables that only the opening used
        if isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name) and node.target.name not in used:
            kept.remove(node)
        else:
            used |= {name.name for name in node.find_all(nodes.Name)}
    rest = nodes.Template([*kept, *template.body[start:]], lineno=1)
    sees_tools = any(name.name in _OFFERED for name in rest.find_all(nodes.Name))
    if sees_tools or _has(template, nodes.NSRef):
        return None
    assert template.environment is not None, "a parsed template knows its environment"
    rest.set_environment(template.environment)
    return rest


def is_verbatim(rest: nodes.Template) -> bool:
    """Whether a tail writes messages' text unchanged or not at all, and branches on roles alone."""
    loop = next(node for node in rest.body if _is_main_loop(node))
    if not isinstance(loop.target, nodes.Name) or _has(rest, _CAPTURES):
        return False
    return all(_is_verbatim(node, message=loop.target.name) for node in rest.iter_child_nodes())


def _is_verbatim(node: nodes.Node, *, message: str) -> bool:
    if isinstance(node, nodes.Macro):  # it writes its caller's values
        return not any(_is_message(each, message) for each in node.find_all(nodes.Node))
    if _is_main_loop(node):
        return all(_is_verbatim(each, message=message) for each in node.body)
    if isinstance(node, nodes.Output):
        return all(_is_verbatim(each, message=message) for part in node.nodes for each in _other_parts(part, message))
    if _is_message(node, message):
        return False
    field = _field(node, message)
    if field is not None:  # message.items() and the like write every field
        return field not in _SAID and not hasattr(dict, field)
    return all(_is_verbatim(each, message=message) for each in node.iter_child_nodes())


def _other_parts(part: nodes.Node, message: str) -> list[nodes.Node]:
    """The parts of an output, without text fields that are written unchanged."""
    if isinstance(part, (nodes.Add, nodes.Concat)):
        operands = [part.left, part.right] if isinstance(part, nodes.Add) else part.nodes
        return [each for operand in operands for each in _other_parts(operand, message)]
    said = part.left if isinstance(part, nodes.Or) and part.right == nodes.Const("") else part
    return [] if _field(said, message) in _SAID else [part]


def _field(node: nodes.Node, message: str) -> str | None:
    """`content`, of message.content or messages[0]["content"]"""
    if not isinstance(node, (nodes.Getattr, nodes.Getitem)) or not _is_message(node.node, message):
        return None
    if isinstance(node, nodes.Getattr):
        return node.attr
    return node.arg.value if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str) else None


def _is_message(node: nodes.Node, message: str) -> bool:
    return _is_name(node, message) or node == _FIRST_MESSAGE or node in _NEIGHBOURS or node in _ITEMS


def _only_writes(node: nodes.Node) -> bool:
    return isinstance(node, _ONLY_WRITES) and not _has(node, _LEAVES_SOMETHING)


def _is_main_loop(node: nodes.Node) -> TypeGuard[nodes.For]:
    return isinstance(node, nodes.For) and _is_name(node.iter, "messages")


def _has(node: nodes.Node, kinds: Any) -> bool:
    return next(node.find_all(kinds), None) is not None


def _holds(node: nodes.Node, *, in_loop: bool) -> bool:
    if node == _FIRST_MESSAGE or (in_loop and (node in _NEIGHBOURS or node in _ASKS_WHETHER_FIRST)):
        return True
    if isinstance(node, nodes.Getattr) and _is_name(node.node, "loop"):
        return not in_loop or node.attr in _LOCAL_LOOP
    if isinstance(node, nodes.Name):
        return node.name != "messages" and node.name not in _STATEFUL and not (in_loop and node.name == "loop")
    if isinstance(node, (nodes.Block, nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.CallBlock)):
        return False
    # inside another loop or a macro, `loop` is not the main one
    inside = in_loop and not isinstance(node, (nodes.For, nodes.Macro))
    if isinstance(node, nodes.For) and not _holds(node.iter, in_loop=in_loop):
        return False
    return all(_holds(child, in_loop=inside) for child in node.iter_child_nodes(exclude=["iter"]))


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name
