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
_RANKED = "SELECT rowid - 1 FROM texts WHERE texts MATCH ? ORDER BY bm25(texts, 2.0, 1.0), rowid LIMIT ?"


class Index:
    def __init__(self, texts: Iterable[tuple[str, str]]) -> None:
        """texts: (title, body); a word in the title counts twice."""
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute("CREATE VIRTUAL TABLE texts USING fts5(title, body, tokenize = 'porter unicode61')")
        self._connection.executemany("INSERT INTO texts VALUES (?, ?)", texts)
        self._lock = threading.Lock()

    def search(self, query: str, *, count: int) -> list[int]:
        """Positions of the best texts, best first; empty if no word of the query is known."""
        words = dict.fromkeys(_WORD.findall(query[:_MAX_QUERY_CHARS].lower()))
        if not words:
            return []
        match = " OR ".join(f'"{word}"' for word in list(words)[:_MAX_WORDS])
        with self._lock:
            return [position for (position,) in self._connection.execute(_RANKED, (match, count))]
