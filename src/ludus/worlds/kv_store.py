"""A key-value store that must be brought into a required state by several tools, then committed.

With `hints` every reply lists what still has to change (`left c=7, e to d, f none`: set c, rename
e, delete f); without, the store must be read with `show` and compared. Committing ends the session:
1 if the store is exactly right, else 0. So checking pays, and blind trial does not.
"""

from __future__ import annotations

import random
from typing import Annotated, Any

from pydantic import Field

from ludus.environments import Reply, tool
from ludus.types import ToolCall
from ludus.worlds.drawing import draw_tasks

KEYS = "abcdefghijklmnopqrstuvwxyz"
Store = dict[str, int]


class KvStore:
    """Make the store as wanted, then commit."""

    capabilities = ("planning", "tool use")

    def __init__(
        self,
        *,
        keys: Annotated[int, Field(ge=1, le=13)] = 3,
        changes: Annotated[int, Field(ge=1)] = 2,
        hints: bool = True,
        max_turns: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        """keys: at the start; changes: to be made; hints: list what still differs; max_turns:
        0 means two for each change and one to commit."""
        if changes > keys:
            raise ValueError(f"changes is {changes}, above keys {keys}; every change concerns a key of its own")
        self.keys, self.changes, self.hints = keys, changes, hints
        self.max_turns = max_turns or 2 * changes + 1

    def tasks(self, split: str) -> list[dict[str, Any]]:
        return draw_tasks(self._draw, split=split, seed=f"kv_store {self.keys} {self.changes}")

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.store, self.wanted = dict(task["store"]), dict(task["wanted"])
        return f"want {written(self.wanted)}" + (f"\n{self._left()}" if self.hints else "")

    @tool
    def put(self, key: str, value: int) -> str:
        """Set a key."""
        self.store[key] = value
        return self._left()

    @tool
    def delete(self, key: str) -> str:
        """Remove a key."""
        if key not in self.store:
            return f"no {key[:20]}. {self._left()}"
        del self.store[key]
        return self._left()

    @tool
    def move(self, key: str, to: str) -> str:
        """Rename a key."""
        if key not in self.store:
            return f"no {key[:20]}. {self._left()}"
        self.store[to] = self.store.pop(key)
        return self._left()

    @tool
    def show(self) -> str:
        """Show the store."""
        return f"now {written(self.store)}" + (f". {self._left()}" if self.hints else "")

    @tool
    def commit(self) -> Reply:
        """Finish."""
        right = self.store == self.wanted
        return Reply("right" if right else "wrong", reward=float(right), done=True)

    def solve(self) -> ToolCall:
        """The last change listed, nearest to the answer, where a tiny model looks first."""
        left = plan(self.store, self.wanted)
        return left[-1] if left else ToolCall("commit", {})

    def random_action(self, rng: random.Random) -> ToolCall:
        known = self.store | self.wanted
        key, to = rng.choice(sorted(known)), rng.choice(sorted(known))
        arguments = {"put": {"key": key, "value": known[to]}, "delete": {"key": key}, "move": {"key": key, "to": to}}
        name = rng.choice((*arguments, "show", "commit"))
        return ToolCall(name, arguments.get(name, {}))

    def _left(self) -> str:
        return f"left {', '.join(map(hint, plan(self.store, self.wanted))) or 'nothing'}" if self.hints else "ok"

    def _draw(self, rng: random.Random) -> dict[str, Any]:
        names = rng.sample(KEYS[: 2 * self.keys], 2 * self.keys)
        store = {name: rng.randint(0, 9) for name in names[: self.keys]}
        wanted = dict(store)
        for key, new in zip(names[: self.changes], names[self.keys :], strict=False):
            change(wanted, rng.choice(("set", "add", "delete", "move")), key=key, new=new, rng=rng)
        return {"store": dict(sorted(store.items())), "wanted": dict(sorted(wanted.items()))}


def change(store: Store, kind: str, *, key: str, new: str, rng: random.Random) -> None:
    if kind in ("delete", "move"):
        value = store.pop(key)
        store |= {new: value} if kind == "move" else {}
    else:
        old = store.get(key)
        store[key if kind == "set" else new] = rng.choice([value for value in range(10) if value != old])


def plan(store: Store, wanted: Store) -> list[ToolCall]:
    """The shortest list of calls that turns `store` into `wanted`, sorted by key."""
    surplus = {key: value for key, value in sorted(store.items()) if key not in wanted}
    calls: dict[str, ToolCall] = {}
    for key, value in sorted(wanted.items()):
        source = next((old for old in surplus if surplus[old] == value), None)
        if key not in store and source is not None:
            calls[source] = ToolCall("move", {"key": source, "to": key})
            del surplus[source]
        elif store.get(key) != value:
            calls[key] = ToolCall("put", {"key": key, "value": value})
    calls |= {key: ToolCall("delete", {"key": key}) for key in surplus}
    return [calls[key] for key in sorted(calls)]


def hint(call: ToolCall) -> str:
    key = call.arguments["key"]
    if call.name == "move":
        return f"{key} to {call.arguments['to']}"
    return f"{key}={call.arguments['value']}" if call.name == "put" else f"{key} none"


def written(store: Store) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(store.items())) or "nothing"
