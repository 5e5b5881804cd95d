"""ALFWorld's text game: find a thing in a room, do something with it, and put it where it belongs.

Promise: official games and games made here are never mixed, and every task id says which it is. The official ones are read from the folder
that ALFWORLD_DATA names; `games = "auto"` takes them where it is set, else games made from the alfworld package's own parts (rooms.py).
The reward is 1 when the game is won, else 0. Every observation ends with the commands that are possible.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any, Literal

from ludus.environments import Reply, tool
from ludus.errors import EnvironmentFailed
from ludus.types import ToolCall
from ludus.worlds.household import package, rooms
from ludus.worlds.household.game import Game

FOLDERS = {"train": "train", "dev": "valid_seen", "test": "valid_unseen"}
"""Our splits, and the official ones that they are."""
MAX_COMMAND_CHARS = 200


class Household:
    """You are in a room. Do what the task says, one command a turn: go to places, open them, take things, and use them."""

    isolation = "process"
    capabilities = ("planning", "tool use", "memory")
    max_turns = 30

    def __init__(self, *, games: Literal["auto", "official", "generated"] = "auto") -> None:
        """games: official, generated, or auto, which is official where ALFWORLD_DATA is set."""
        self.data = os.environ.get("ALFWORLD_DATA", "")
        self.official = games == "official" or (games == "auto" and bool(self.data))
        if self.official and not any((Path(self.data) / "json_2.1.1" / name).is_dir() for name in FOLDERS.values()):
            raise ValueError(
                f"ALFWORLD_DATA is {self.data!r}, where no json_2.1.1 with games is; run alfworld-download, or set games = 'generated'"
            )

    def tasks(self, split: str) -> list[dict[str, Any]]:
        return official_games(Path(self.data), split=split) if self.official else rooms.games(split)

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        package.folder()  # or it is said what to install
        game, said = self._game(task)
        self.game = Game(game["pddl_domain"], game["grammar"], game["pddl_problem"])
        self.plan: list[str] = []
        text = self.game.first.replace("UNKNOWN GOAL", said)
        return f"{(text.partition('=-')[2] or text).strip()}\n{self._commands()}"

    @tool
    def take_action(self, action: str) -> Reply:
        """Carry out one command.

        action: one of the commands that are possible now, word for word
        """
        command = action.strip()
        if command not in self.game.commands:
            return Reply(
                f"Nothing happens: {command[:MAX_COMMAND_CHARS]!r} is not possible now.\n{self._commands()}",
                invalid=True,
            )
        self.plan = self.plan[1:] if self.plan[:1] == [command] else []
        told = self.game.act(command)
        if self.game.won:
            return Reply("You won.", reward=1.0, done=True, metrics={"success": 1.0})
        return Reply(f"{told.strip()}\n{self._commands()}")

    def solve(self) -> ToolCall:
        """The planner that the game brings; it takes about a second, so a plan is followed for as long as it holds."""
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
        try:
            game: dict[str, str] = json.loads(path.read_text())
            game["pddl_domain"], game["grammar"], game["pddl_problem"]
        except (OSError, ValueError, LookupError) as error:
            raise EnvironmentFailed(f"{path} is no game: {error}. Was it downloaded whole?") from None
        return game, ""


def official_games(data: Path, *, split: str) -> list[dict[str, Any]]:
    """Sorted by their paths. Those that the package itself leaves out (movable receptacles, slices, unsolved) are left out."""
    top = data / "json_2.1.1"
    found = sorted((top / FOLDERS[split]).glob("*/*/game.tw-pddl")) if split in FOLDERS else []
    kept = [
        path for path in found if not {"movable", "Sliced"} & _words(path) and b'"solvable": true' in path.read_bytes()
    ]
    return [
        {
            "id": f"alfworld-{path.parent.parent.name}-{path.parent.name}",
            "game": path.relative_to(top).as_posix(),
            "split": split,
        }
        for path in kept
    ]


def _words(path: Path) -> set[str]:
    return {word for word in ("movable", "Sliced") if word in path.as_posix()}
