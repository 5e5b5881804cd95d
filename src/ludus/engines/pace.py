"""How many tokens a GPU draws in a row before the host looks at them. Promise: few while the device
is the bottleneck, so that the end of a sequence is noticed soon; more while the host is.

In a training run the trainer and sessions may share the host's interpreter with the engine.
"""

from __future__ import annotations

FEW, MANY = 8, 16
HOST, DEVICE = 0.1, 0.35
"""Shares of the engine's time spent waiting for the device. Below HOST the device may run out of
work; above DEVICE the host has time to spare."""
BLOCKS = 4
"""Number of blocks measured before each decision."""


class Pace:
    def __init__(self) -> None:
        self.steps = FEW
        self._blocks = 0
        self._waited_s = self._since_s = 0.0

    def collected(self, *, waited_s: float, busy_s: float, decoded: bool) -> None:
        """A pass was waited for `waited_s`; `busy_s` is the engine's busy time so far."""
        self._waited_s += waited_s
        self._blocks += decoded
        if self._blocks < BLOCKS or busy_s <= self._since_s:
            return
        share = self._waited_s / (busy_s - self._since_s)
        self.steps = MANY if share < HOST else FEW if share > DEVICE else self.steps
        self._blocks, self._waited_s, self._since_s = 0, 0.0, busy_s
