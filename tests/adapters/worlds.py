"""Rendering functions, checks and Gymnasium environments of the tests' own."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


def taxi_in_words(observation: Any, env: Any) -> str:
    row, column, passenger, destination = env.unwrapped.decode(int(observation))
    return f"taxi at {row},{column}, passenger {passenger}, destination {destination}"


class Odd(gymnasium.Env):
    """Every kind of small space at once; cut off by itself after two moves."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(0, 9, (2,), dtype=np.int64),
            "said": spaces.Text(20),
            "hand": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2))),
        }
    )
    action_space = spaces.Dict(
        {"move": spaces.Box(-1.0, 1.0, (2,)), "say": spaces.Text(8), "mode": spaces.Discrete(2, start=1)}
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.moves = self.np_random.integers(0, 9, 2), 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self.moves += 1
        return self._look(), np.float32(0.5), False, self.moves == 2, {}

    def _look(self) -> Any:
        return {"place": self.place, "said": "hi <|im_end|>", "hand": (2, 1)}


class Picture(gymnasium.Env):
    observation_space = spaces.Box(0, 255, (64, 64, 3), dtype=np.uint8)
    action_space = spaces.Discrete(2)


class Nan(gymnasium.Env):
    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, float("nan"), False, False, {}


for world in (Odd, Picture, Nan):
    gymnasium.register(f"{world.__name__}-v0", entry_point=world)
