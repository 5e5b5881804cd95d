"""What a sequence will probably say next, from what others said lately: several tokens for one pass, where a CPU pays most for the pass.

An agent's actions are mostly form: the brackets and names of a tool call follow from the tokens before them. A draft of such tokens is
computed behind what must be computed anyway, and each of its places is then drawn with the noise of its own position. The draft stands
as far as it says what was drawn. Promise: it changes how many passes a completion takes, never a token or its logprob.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 8
"""Tokens of a draft."""
CONTEXTS = (8, 5, 3, 2)
"""Tokens that a guess looks back on; the longest that is sure decides. On the quickstart's worlds 2.8 tokens a
pass; 1.9 with (3, 2, 1)."""
SURE, MOST, LOSS = 3, 12, 4
"""A context that was right gains 1, up to MOST, and loses LOSS when wrong: it is sure only of what comes in four cases out of five."""
MOST_CONTEXTS = 100_000
"""Beyond, all is forgotten: text that never repeats would otherwise fill the memory."""


class Drafts:
    """A predictor of branches, as in a processor: by the last few tokens, the one that followed, and a counter of how often it did."""

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

    def after(self, ids: Sequence[int], *, most: int, stop_ids: Sequence[int]) -> tuple[int, ...]:
        """At most `most` tokens that probably follow `ids`. None of `stop_ids`: what is drawn after it nobody needs."""
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
