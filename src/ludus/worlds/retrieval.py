"""BM25 over short texts, by SQLite's full-text index.

Promise: the same words find the same texts in the same order, in any process. One index serves all
sessions of a process. A query is words, never the index's own query language.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterable

_WORD = re.compile(r"\w+")
_MAX_WORDS = 32
_MAX_QUERY_CHARS = 2_000


class Index:
    def __init__(self, texts: Iterable[tuple[str, str]], *, title_weight: float = 2.0) -> None:
        """texts: (title, body); a word in the title counts `title_weight` times."""
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute("CREATE VIRTUAL TABLE texts USING fts5(title, body, tokenize = 'porter unicode61')")
        self._connection.executemany("INSERT INTO texts VALUES (?, ?)", texts)
        order = f"bm25(texts, {title_weight}, 1.0), rowid"
        self._ranked = f"SELECT rowid - 1 FROM texts WHERE texts MATCH ? ORDER BY {order} LIMIT ?"
        self._lock = threading.Lock()

    def search(self, query: str, *, count: int) -> list[int]:
        """Positions of the best texts, best first; empty if no word of the query is known."""
        words = dict.fromkeys(_WORD.findall(query[:_MAX_QUERY_CHARS].lower()))
        if not words:
            return []
        match = " OR ".join(f'"{word}"' for word in list(words)[:_MAX_WORDS])
        with self._lock:
            return [position for (position,) in self._connection.execute(self._ranked, (match, count))]
