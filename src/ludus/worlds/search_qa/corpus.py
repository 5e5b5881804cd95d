"""The documents that can be searched: an encyclopaedia of the made-up societies, or a user's file.

There is one document for each person, place or work; it describes it and names its neighbours. So
no document that a question of two or more hops names holds the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ludus.worlds.files import own_data, read_jsonl
from ludus.worlds.retrieval import Index
from ludus.worlds.society import SPLITS, Society, society

_TEXTS = own_data("search_qa/texts.toml")


class Document(NamedTuple):
    title: str
    text: str


@dataclass(frozen=True, eq=False)
class Corpus:
    documents: tuple[Document, ...]
    index: Index

    def search(self, query: str, *, count: int) -> list[Document]:
        return [self.documents[position] for position in self.index.search(query, count=count)]


@cache
def corpus_of(path: str) -> Corpus:
    """The corpus in a JSONL file; without a path, that of all societies together."""
    expected = "a JSON object with title and text"
    found = read_jsonl(Path(path).expanduser(), _document, option="corpus", expected=expected) if path else _generated()
    documents = tuple(found)
    return Corpus(documents, Index(documents))


def _document(_: int, row: dict[str, Any]) -> Document:
    return Document(str(row["title"]), str(row["text"]))


def _generated() -> Iterator[Document]:
    for split in SPLITS:
        people = society(split)
        for name, kind in people.types.items():
            yield Document(name, _TEXTS["sentences"][kind].format_map(_facts(people, name)))


def _facts(people: Society, name: str) -> dict[str, str]:
    facts = {"name": name} | {attribute.split(".")[1]: str(value) for attribute, value in people.numbers[name].items()}
    for relation in people.relations(name):
        fact = relation.split(".")[1]
        facts[fact] = _TEXTS["optional"].get(fact, "{}").format(people.edges[name, relation][0])
    return dict.fromkeys(_TEXTS["optional"], "") | facts
