"""What an environment author imports: `from ludus.environments import Reply, tool`. No torch, no HTTP."""

from ludus.environments.author import Reply
from ludus.environments.environment import Environment, Session
from ludus.environments.registry import make, names, wrap
from ludus.environments.tools import tool
from ludus.types import Action, ToolCall

__all__ = [
    "Action", "Environment", "Reply", "Session", "ToolCall", "make", "names", "tool", "wrap",
]  # fmt: skip
