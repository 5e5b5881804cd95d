"""Questions whose answer takes several searches, one leading to the next.

`search` shows the best documents by BM25. `answer` ends the session: 1 for an exact match up to
case, articles and punctuation, else 0; the reply does not tell which. Metrics: `f1` of the words,
and `searches`. The corpus is generated, or a user's file with its questions.
"""

from __future__ import annotations

import random
import re
import string
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ludus.environments import Reply, tool
from ludus.types import ToolCall
from ludus.worlds.drawing import draw_split
from ludus.worlds.search_qa.corpus import corpus_of
from ludus.worlds.search_qa.questions import draw, read_questions

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation, " "))
_MAX_ANSWER_CHARS = 500
_MAX_DOCUMENT_CHARS = 1_000


class SearchQa:
    """Answer the question. Search as often as you need: one document often leads to the next. Then call answer once, with the
    answer and nothing else: it ends the session."""

    capabilities = ("tool use", "memory", "reasoning")

    def __init__(
        self,
        *,
        corpus: str = "",
        questions: str = "",
        results: Annotated[int, Field(ge=1, le=10)] = 3,
        max_turns: Annotated[int, Field(ge=2)] = 10,
    ) -> None:
        """corpus: a JSONL file of documents; questions: a JSONL file of questions about it;
        results: documents shown per search."""
        if bool(corpus) != bool(questions):
            raise ValueError("corpus and questions belong together: generated questions are about the generated corpus")
        self.corpus, self.questions, self.results, self.max_turns = corpus, questions, results, max_turns

    def tasks(self, split: str) -> list[dict[str, Any]]:
        if self.questions:
            return read_questions(Path(self.questions).expanduser(), split)
        return draw_split(draw, split=split, seed="search_qa")

    def setup(self, task: dict[str, Any], rng: random.Random) -> str:
        self.library = corpus_of(self.corpus)
        self.right, self.hops, self.searches = task["answers"], task["hops"], 0
        return str(task["question"])

    @tool
    def search(self, query: str) -> Reply:
        """Find documents by words.

        query: words of what you look for"""
        self.searches += 1
        found = self.library.search(query, count=self.results)
        if not found:
            return Reply("nothing found")
        return Reply("\n".join(f"{document.title}: {document.text[:_MAX_DOCUMENT_CHARS]}" for document in found))

    @tool
    def answer(self, answer: str) -> Reply:
        """Finish with the answer.

        answer: a name or a number"""
        said = answer if len(answer) <= _MAX_ANSWER_CHARS else ""
        exact = any(normal(said) == normal(right) for right in self.right) and bool(normal(said))
        metrics = {"f1": max(f1(said, right) for right in self.right), "searches": float(self.searches)}
        return Reply("answered", reward=float(exact), done=True, metrics=metrics)

    def solve(self) -> ToolCall:
        if self.searches < min(len(self.hops), self.max_turns - 1):
            return ToolCall("search", {"query": self.hops[self.searches]})
        return ToolCall("answer", {"answer": self.right[0]})

    def random_action(self, rng: random.Random) -> ToolCall:
        title = rng.choice(self.library.documents).title
        return ToolCall("search", {"query": title}) if rng.random() < 0.7 else ToolCall("answer", {"answer": title})


def normal(text: str) -> str:
    """Without case, articles, punctuation and extra spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def f1(said: str, right: str) -> float:
    one, other = Counter(normal(said).split()), Counter(normal(right).split())
    common = (one & other).total()
    return 2 * common / (one.total() + other.total()) if common else 0.0
