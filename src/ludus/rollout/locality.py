"""Whether a chat template is local: one message's text depends on its neighbours and the first message, not on the whole history.

A local template lets a transcript prove that a prompt extends the last one by rendering a short window of the conversation, so a turn
costs the same however long the session is; and what stands before the messages, such as tools, need not be written again to prove it: a
template's `tail` is the rest. Promise: `is_local` says yes, and `tail` gives one, only where the template's own syntax proves it.
"""

from __future__ import annotations

from jinja2 import Environment, TemplateError, nodes

_LOCAL_LOOP = {"first", "last", "previtem", "nextitem"}
_STATEFUL = {"cycler", "joiner", "self", "caller"}
_OFFERED = {"tools", "documents"}
_ONLY_WRITES = (nodes.Output, nodes.If, nodes.For)
_LEAVES_SOMETHING = (nodes.Assign, nodes.AssignBlock, nodes.Macro, nodes.ExprStmt, nodes.Break, nodes.Continue)


def is_local(source: str) -> bool:
    """True for a template with one loop over `messages`, whose body sees index 0 and the neighbours of a message at most."""
    try:
        body = Environment().parse(source).body
    except TemplateError:  # also tags that this parser does not know, such as break: nothing is proven then
        return False
    loops = [node for node in body if _is_main_loop(node)]
    if len(loops) != 1:
        return False
    loop = loops[0]
    assert isinstance(loop, nodes.For)
    if loop.test is not None or loop.else_ or loop.recursive:
        return False
    outside = all(_holds(node, in_loop=False) for node in body if node is not loop)
    return outside and all(_holds(node, in_loop=True) for node in loop.body) and not _keeps_state(loop)


def tail(template: nodes.Template) -> nodes.Template | None:
    """A local template less what it only writes before its messages, which is the same text in every prompt with the same first message
    and tools. None where the rest looks at the tools, or where writing could have an effect."""
    start = next(index for index, node in enumerate(template.body) if _is_main_loop(node))
    kept = [node for node in template.body[:start] if not _only_writes(node)]
    rest = nodes.Template([*kept, *template.body[start:]], lineno=1).set_environment(template.environment)
    sees_tools = any(name.name in _OFFERED for name in rest.find_all(nodes.Name))
    return None if sees_tools or next(template.find_all(nodes.NSRef), None) else rest


def _only_writes(node: nodes.Node) -> bool:
    return isinstance(node, _ONLY_WRITES) and next(node.find_all(_LEAVES_SOMETHING), None) is None


def _is_main_loop(node: nodes.Node) -> bool:
    return isinstance(node, nodes.For) and isinstance(node.iter, nodes.Name) and node.iter.name == "messages"


def _keeps_state(loop: nodes.For) -> bool:
    """A namespace that is written in the loop carries news from one message to a far one."""
    return next(loop.find_all(nodes.NSRef), None) is not None


def _holds(node: nodes.Node, *, in_loop: bool) -> bool:
    if _is_first_message(node) or (in_loop and (_is_neighbour(node) or _asks_whether_first(node))):
        return True
    if isinstance(node, nodes.Getattr) and _is_name(node.node, "loop"):
        return not in_loop or node.attr in _LOCAL_LOOP
    if isinstance(node, nodes.Name):
        return node.name != "messages" and node.name not in _STATEFUL and not (in_loop and node.name == "loop")
    if isinstance(node, (nodes.Block, nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.CallBlock)):
        return False
    if isinstance(node, nodes.For):  # inside, `loop` is the inner loop's
        return _holds(node.iter, in_loop=in_loop) and all(
            _holds(child, in_loop=False) for child in node.iter_child_nodes(exclude=["iter"])
        )
    if isinstance(node, nodes.Macro):
        in_loop = False
    return all(_holds(child, in_loop=in_loop) for child in node.iter_child_nodes())


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


def _is_first_message(node: nodes.Node) -> bool:
    """messages[0]"""
    return isinstance(node, nodes.Getitem) and _is_name(node.node, "messages") and _is_const(node.arg, 0)


def _is_neighbour(node: nodes.Node) -> bool:
    """messages[loop.index0 - 1] and messages[loop.index0 + 1]"""
    return (
        isinstance(node, nodes.Getitem)
        and _is_name(node.node, "messages")
        and isinstance(node.arg, (nodes.Add, nodes.Sub))
        and _is_index(node.arg.left, "index0")
        and _is_const(node.arg.right, 1)
    )


def _asks_whether_first(node: nodes.Node) -> bool:
    """loop.index0 == 0, loop.index == 1, and their negations or orderings against that constant"""
    if not isinstance(node, nodes.Compare) or len(node.ops) != 1:
        return False
    other = node.ops[0].expr
    return (_is_index(node.expr, "index0") and _is_const(other, 0)) or (
        _is_index(node.expr, "index") and _is_const(other, 1)
    )


def _is_index(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Getattr) and _is_name(node.node, "loop") and node.attr == name


def _is_const(node: nodes.Node | None, value: int) -> bool:
    return isinstance(node, nodes.Const) and node.value is not True and node.value is not False and node.value == value
