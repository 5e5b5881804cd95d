"""BabyAI: a mission in a grid of rooms, told in words.

Levels, rules and solver are minigrid's own. Promise: the actions offered come from the table that
carries them out, so every one works. The mission pays 1, once, and ends the session. The metric
`pace` is minigrid's own reward: from 1, at once, down to 0.1 in the last move allowed.
"""

from __future__ import annotations

import os
import random
from collections import Counter, deque
from functools import cache
from itertools import pairwise
from typing import Any

from ludus.environments import Reply
from ludus.errors import ConfigError, nearest
from ludus.worlds.files import word_lists

MOVES = {"turn left": 0, "turn right": 1, "move forward": 2, "pick up": 3, "drop": 4, "toggle": 5}
"""The moves by minigrid's number. `go to THING` is made of them."""
LEVELS = tuple(word_lists("babyai")["levels"])
_SEEDS = {"train": range(0, 50), "dev": range(50, 55), "test": range(55, 64)}
_AHEAD, _SIDE = 6, 3
"""The agent stands in the middle of the last row of its view of 7 by 7 cells, looking up."""
_HEADINGS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""By minigrid's number of a direction."""
Cell = tuple[int, int]


class BabyAI:
    """You are in a grid of rooms and see what is before you. Fulfil the mission: say one of the actions offered."""

    capabilities = ("planning", "memory", "reasoning")
    max_turns = 40

    def __init__(self, *, levels: tuple[str, ...] = LEVELS) -> None:
        """levels: minigrid's BabyAI levels, by name without `BabyAI-` and version."""
        known = level_ids()
        for level in levels:
            if level not in known:
                raise ValueError(f"no level {level!r}.{nearest(level, known)} Known: {', '.join(sorted(known))}")
        self.levels = levels
        self.things: dict[str, Cell] = {}

    def tasks(self, split: str) -> list[dict[str, Any]]:
        seeds = _SEEDS.get(split, range(0))
        return [{"id": f"{level}-{seed}", "level": level, "seed": seed} for seed in seeds for level in self.levels]

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        import gymnasium

        made: Any = gymnasium.make(level_ids()[task["level"]], disable_env_checker=True)
        self.grid: Any = made.unwrapped
        self.grid.gen_obs = dict  # its image of the grid is not used, and takes most of the time of a move
        self.grid.reset(seed=task["seed"])
        self.seen: set[Cell] = set()
        self.bot: Any = None
        self.advice: int | None = None
        return f"mission: {self.grid.mission}\n{self._look()}"

    @property
    def actions(self) -> tuple[str, ...]:
        return (*MOVES, *(f"go to {name}" for name in self.things))

    def act(self, action: str) -> Reply:
        if action in MOVES:
            before = tuple(self.grid.agent_pos)
            end = self._move(MOVES[action])
            blocked = action == "move forward" and tuple(self.grid.agent_pos) == before and not end
            return end or Reply(f"{'the way is blocked. ' if blocked else ''}{self._look()}")
        way = self._way(self.things[action.removeprefix("go to ")])
        if way is None:
            return Reply(f"no way there is known. {self._look()}")
        for move in way:
            if end := self._move(move):
                return end
            self._see()
        return Reply(self._look())

    def solve(self) -> str:
        """Minigrid's own bot, which must hear of every move once it has been asked."""
        if self.bot is None:
            self._consult(None)
        return next((name for name, move in MOVES.items() if move == self.advice), "turn left")

    def _move(self, move: int) -> Reply | None:
        """The reply that ends the session, or None."""
        _, reward, done, out_of_moves, _ = self.grid.step(move)
        if done:
            text, won = ("done", 1.0) if reward > 0 else ("failed", 0.0)
            return Reply(text, reward=won, done=True, metrics={"success": won, "pace": float(reward)})
        if out_of_moves:
            return Reply("out of moves", done=True, metrics={"success": 0.0, "pace": 0.0})
        if self.bot is not None:
            self._consult(move)
        return None

    def _consult(self, move: int | None) -> None:
        from minigrid.utils import baby_ai_bot

        make: Any = baby_ai_bot.BabyAIBot
        # a bot may fail after moves that it did not choose: then ask another
        for bot, last in ((self.bot, move), (None, None)):
            try:
                self.bot = bot or make(self.grid)
                self.advice = int(self.bot.replan(last))
                return
            except Exception:  # noqa: BLE001
                self.bot, self.advice = None, None

    def _look(self) -> str:
        self._see()
        carried = self.grid.carrying
        seen = ", ".join(f"{name}{self._how(at)} {self._where(at)}" for name, at in self.things.items()) or "nothing"
        carrying = f"{carried.color} {carried.type}" if carried else "nothing"
        return f"you see: {seen}. {self._wall()}. you carry: {carrying}.\nactions: {', '.join(self.actions)}"

    def _see(self) -> None:
        """Records the cells in view and names the things: `red ball 1` is the nearest red ball."""
        view, visible = self.grid.gen_obs_grid()
        found = []
        for i in range(view.width):
            for j in range(view.height):
                if not visible[i, j]:
                    continue
                ahead, side = _AHEAD - j, i - _SIDE
                at = self._at(ahead, side)
                self.seen.add(at)
                thing = view.get(i, j)
                if thing is not None and thing.type != "wall" and (ahead, side) != (0, 0):
                    found.append((ahead + abs(side), ahead, side, f"{thing.color} {thing.type}", at))
        self.things, counts = {}, Counter[str]()
        for *_, name, at in sorted(found):
            counts[name] += 1
            self.things[f"{name} {counts[name]}"] = at

    def _at(self, ahead: int, side: int) -> Cell:
        (x, y), (dx, dy) = self.grid.agent_pos, self.grid.dir_vec
        return int(x + ahead * dx - side * dy), int(y + ahead * dy + side * dx)

    def _how(self, at: Cell) -> str:
        thing = self.grid.grid.get(*at)
        if thing is None or thing.type != "door":
            return ""
        return " (open)" if thing.is_open else " (locked)" if thing.is_locked else " (closed)"

    def _where(self, at: Cell) -> str:
        (x, y), (dx, dy) = self.grid.agent_pos, self.grid.dir_vec
        ahead, side = (at[0] - x) * dx + (at[1] - y) * dy, (at[1] - y) * dx - (at[0] - x) * dy
        parts = [f"{ahead} ahead"] * bool(ahead) + [f"{abs(side)} {'right' if side > 0 else 'left'}"] * bool(side)
        return " ".join(parts)

    def _wall(self) -> str:
        for ahead in range(1, _AHEAD + 1):
            thing = self.grid.grid.get(*self._at(ahead, 0))
            if thing is not None:
                return f"{'a wall' if thing.type == 'wall' else 'something'} is {ahead} ahead"
        return "the way ahead is free"

    def _way(self, goal: Cell) -> list[int] | None:
        """Moves to stand before `goal` and face it, over cells seen so far."""
        start = (int(self.grid.agent_pos[0]), int(self.grid.agent_pos[1]))
        reached, paths = {start}, deque([[start]])
        while paths:
            path = paths.popleft()
            x, y = path[-1]
            if abs(x - goal[0]) + abs(y - goal[1]) == 1:
                return self._moves([*path, goal])[:-1]
            for dx, dy in _HEADINGS:
                new = (x + dx, y + dy)
                if new in self.seen and new not in reached and self._free(new):
                    reached.add(new)
                    paths.append([*path, new])
        return None

    def _free(self, cell: Cell) -> bool:
        thing = self.grid.grid.get(*cell)
        return thing is None or bool(thing.can_overlap())

    def _moves(self, path: list[Cell]) -> list[int]:
        facing, moves = int(self.grid.agent_dir), []
        for (x, y), (to_x, to_y) in pairwise(path):
            wanted = _HEADINGS.index((to_x - x, to_y - y))
            turns = (wanted - facing) % 4
            moves += [MOVES["turn left"]] if turns == 3 else [MOVES["turn right"]] * turns
            moves.append(MOVES["move forward"])
            facing = wanted
        return moves


@cache
def level_ids() -> dict[str, str]:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import gymnasium
        import minigrid  # noqa: F401  (registers the levels)
        from minigrid.envs.babyai.core import roomgrid_level
    except ImportError as error:
        missing = f"babyai needs minigrid, which is not installed ({error})"
        raise ConfigError(f'{missing}: pip install "ludus[worlds]"') from None
    roomgrid_level.print = lambda *_: None  # it prints every mission that it rejects
    names = (name for name in gymnasium.registry if name.startswith("BabyAI-"))
    return {name.removeprefix("BabyAI-").rpartition("-")[0]: name for name in names}
