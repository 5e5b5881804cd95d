"""The author's API: `from ludus.environments import Reply, tool`. Imports no torch and no HTTP."""

from ludus.environments.author import Reply
from ludus.environments.environment import Environment, EnvironmentBase, Session
from ludus.environments.registry import make, names, wrap
from ludus.environments.tools import tool
from ludus.types import Action, ToolCall

__all__ = [
    "Action", "Environment", "EnvironmentBase", "Reply", "Session", "ToolCall", "make", "names", "tool", "wrap",
]  # fmt: skip
