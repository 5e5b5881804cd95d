"""ALFWorld's text game: find a thing in a room, do something with it, and put it where it belongs.

Promise: official and generated games are never mixed, and every task id tells which it is. Official
games come from the folder ALFWORLD_DATA; `games = "auto"` uses them if it is set, else games made
from the alfworld package's parts (rooms.py). The reward is 1 when the game is won, else 0.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any, Literal

from ludus.environments import Reply, tool
from ludus.errors import EnvironmentFailed, border
from ludus.types import ToolCall
from ludus.worlds.household import package, rooms
from ludus.worlds.household.game import Game

FOLDERS = {"train": "train", "dev": "valid_seen", "test": "valid_unseen"}
"""The official split of each of ours."""
MAX_COMMAND_CHARS = 200


class Household:
    """You are in a room. Do what the task says, one command a turn: go to places, open them, take things, and use them."""

    isolation = "process"
    capabilities = ("planning", "tool use", "memory")
    max_turns = 30

    def __init__(self, *, games: Literal["auto", "official", "generated"] = "auto") -> None:
        """games: official, generated, or auto (official if ALFWORLD_DATA is set)."""
        self.data = os.environ.get("ALFWORLD_DATA", "")
        self.official = games == "official" or (games == "auto" and bool(self.data))
        if self.official and not any((Path(self.data) / "json_2.1.1" / name).is_dir() for name in FOLDERS.values()):
            remedy = "run alfworld-download, or set games = 'generated'"
            raise ValueError(f"ALFWORLD_DATA is {self.data!r}, which has no games in json_2.1.1; {remedy}")

    def tasks(self, split: str) -> list[dict[str, Any]]:
        return official_games(Path(self.data), split=split) if self.official else rooms.games(split)

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        package.folder()  # fails with what to install
        game, said = self._game(task)
        self.game = Game(game["pddl_domain"], game["grammar"], game["pddl_problem"])
        self.plan: list[str] = []
        text = self.game.first.replace("UNKNOWN GOAL", said)
        return f"{(text.partition('=-')[2] or text).strip()}\n{self._commands()}"

    @tool
    def take_action(self, action: str) -> Reply:
        """Carry out one command.

        action: one of the commands that are possible now, word for word"""
        command = action.strip()
        if command not in self.game.commands:
            refused = f"Nothing happens: {command[:MAX_COMMAND_CHARS]!r} is not possible now."
            return Reply(f"{refused}\n{self._commands()}", invalid=True)
        self.plan = self.plan[1:] if self.plan[:1] == [command] else []
        told = self.game.act(command)
        if self.game.won:
            return Reply("You won.", reward=1.0, done=True, metrics={"success": 1.0})
        return Reply(f"{told.strip()}\n{self._commands()}")

    def solve(self) -> ToolCall:
        """The game's planner. It takes about a second, so a plan is followed while it holds."""
        self.plan = self.plan or self.game.plan()
        return ToolCall("take_action", {"action": (self.plan or ["look"])[0]})

    def random_action(self, rng: random.Random) -> ToolCall:
        return ToolCall("take_action", {"action": rng.choice(self.game.commands)})

    def close(self) -> None:
        if hasattr(self, "game"):
            self.game.close()

    def _commands(self) -> str:
        return f"commands: {', '.join(self.game.commands)}"

    def _game(self, task: dict[str, Any]) -> tuple[dict[str, str], str]:
        if task["game"] == "generated":
            return rooms.make_game(task["kind"], split=task["split"], number=task["number"])
        path = Path(self.data) / "json_2.1.1" / task["game"]
        with border(EnvironmentFailed, f"{path} cannot be read as a game; was it downloaded whole?"):
            game = json.loads(path.read_text())
            return {key: game[key] for key in ("pddl_domain", "grammar", "pddl_problem")}, ""


def official_games(data: Path, *, split: str) -> list[dict[str, Any]]:
    """Sorted by path, without those that the package leaves out (movable, sliced, unsolved)."""
    top, tasks = data / "json_2.1.1", []
    for path in sorted((top / FOLDERS[split]).glob("*/*/game.tw-pddl")) if split in FOLDERS else ():
        left_out = any(word in path.as_posix() for word in ("movable", "Sliced"))
        if not left_out and b'"solvable": true' in path.read_bytes():
            name = f"alfworld-{path.parent.parent.name}-{path.parent.name}"
            tasks.append({"id": name, "game": path.relative_to(top).as_posix(), "split": split})
    return tasks
