"""How many tokens a GPU draws in a row before the host looks. Promise: few while the device is what is waited for, so that the end of a
sequence is heard of soon; more when the host is, which then has less to do per token.

In a training run the trainer, and sessions that have no process of their own, share the host's interpreter with the engine.
"""

from __future__ import annotations

FEW, MANY = 8, 16
HOST, DEVICE = 0.1, 0.35
"""Shares of the engine's time spent waiting for the device, which has the next block while the host looks at the last: below the first it
may be out of work, above the second the host has time for more of them."""
BLOCKS = 4
"""That are looked at together."""


class Pace:
    def __init__(self) -> None:
        self.steps = FEW
        self._blocks = 0
        self._waited_s = self._since_s = 0.0

    def landed(self, *, waited_s: float, busy_s: float, decoded: bool) -> None:
        """A pass was waited for so long; until now the engine has been busy for `busy_s`, waiting included."""
        self._waited_s += waited_s
        self._blocks += decoded
        if self._blocks < BLOCKS or busy_s <= self._since_s:
            return
        share = self._waited_s / (busy_s - self._since_s)
        self.steps = MANY if share < HOST else FEW if share > DEVICE else self.steps
        self._blocks, self._waited_s, self._since_s = 0, 0.0, busy_s
