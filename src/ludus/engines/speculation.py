"""Speculative decoding without a draft model: several tokens per pass on a CPU.

Most tokens of a tool call, its brackets and names, follow from the tokens before them. A draft of
such tokens is computed behind the tokens of the pass, and a token is drawn at each of its places
with the noise of that position. The draft is kept as far as it equals what was drawn. Promise: it
changes the number of passes, never a token or its logprob.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 8
"""Tokens of a draft."""
CONTEXTS = (8, 5, 3, 2)
"""Lengths of context that are looked up; the longest confident one decides. On the quickstart's
worlds 2.8 tokens a pass; 1.9 with (3, 2, 1)."""
SURE, MOST, LOSS = 3, 12, 4
"""A context gains 1 when right, up to MOST, and loses LOSS when wrong: it is confident, at SURE,
only of what follows in four cases out of five."""
MOST_CONTEXTS = 100_000
"""Above this, everything is forgotten: text that never repeats would fill the memory."""


class Speculator:
    """As a processor predicts branches: by context, the token that followed and a counter."""

    def __init__(self) -> None:
        self._followed: dict[tuple[int, ...], tuple[int, int]] = {}

    def learn(self, ids: Sequence[int], *, start: int) -> None:
        """`ids` from `start` on were drawn."""
        if len(self._followed) > MOST_CONTEXTS:
            self._followed.clear()
        for place in range(start, len(ids)):
            drawn = ids[place]
            for length in CONTEXTS:
                if length > place:
                    continue
                context = tuple(ids[place - length : place])
                token, count = self._followed.get(context, (drawn, 0))
                if token == drawn:
                    self._followed[context] = drawn, min(count + 1, MOST)
                else:
                    self._followed[context] = (token, count - LOSS) if count >= LOSS else (drawn, 0)

    def draft(self, ids: Sequence[int], *, most: int, stop_ids: Sequence[int]) -> tuple[int, ...]:
        """At most `most` tokens that probably follow `ids`, up to the first of `stop_ids`."""
        tail = list(ids[-CONTEXTS[0] :])
        draft: list[int] = []
        while len(draft) < most and (token := self._next(tail)) is not None and token not in stop_ids:
            draft.append(token)
            tail.append(token)
        return tuple(draft)

    def _next(self, tail: list[int]) -> int | None:
        for length in CONTEXTS:
            token, count = self._followed.get(tuple(tail[-length:]), (0, 0)) if length <= len(tail) else (0, 0)
            if count >= SURE:
                return token
        return None
