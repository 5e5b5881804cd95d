"""Questions of one to four hops about the made-up societies, and those of a user's file.

`hops` are the texts to search for, in turn; the answer is the name or the number at the end.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from ludus.worlds.drawing import split_of
from ludus.worlds.files import own_data, read_jsonl
from ludus.worlds.society import RELATIONS, Society, society

_MAX_HOPS = 4
_ASKED = own_data("search_qa/texts.toml")["asked"]


def draw(rng: random.Random, *, split: str) -> dict[str, Any]:
    """Follows relations with a single target, and asks for its name or one of its numbers."""
    people = society(split)
    while True:
        start = rng.choice(people.names["work"] + people.names["person"] + people.names["university"])
        nodes, words = _walk(people, start, hops=rng.randint(1, _MAX_HOPS), rng=rng)
        if len(nodes) < 2:
            continue
        numbers = [attribute for attribute in people.numbers[nodes[-1]] if attribute in _ASKED]
        if numbers and len(nodes) <= _MAX_HOPS and rng.random() < 0.4:
            attribute = rng.choice(numbers)
            question, answer, hops = _ASKED[attribute].format(words), str(people.numbers[nodes[-1]][attribute]), nodes
        else:
            question, answer, hops = f"What is {words}?", nodes[-1], nodes[:-1]
        if answer not in question:
            return {"category": f"{len(hops)} hops", "question": question, "answers": [answer], "hops": hops}


def _walk(people: Society, start: str, *, hops: int, rng: random.Random) -> tuple[list[str], str]:
    nodes, words = [start], start
    while len(nodes) <= hops:
        onward = [relation for relation in people.relations(nodes[-1]) if RELATIONS[relation].single]
        if not onward:
            break
        relation = rng.choice(onward)
        nodes.append(people.edges[nodes[-1], relation][0])
        words = RELATIONS[relation].phrase.format(words)
    return nodes, words


def read_questions(path: Path, split: str) -> list[dict[str, Any]]:
    """The questions of a split; without a key `split`, the hash of the text decides."""
    expected = "a JSON object with question and answers"
    found = read_jsonl(path, _question, option="questions", expected=expected)
    return [task for own, task in found if own == split]


def _question(number: int, row: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    question, answers = str(row["question"]), [str(answer) for answer in row["answers"]]
    if not answers:
        raise ValueError("no answers")
    task = {"id": str(row.get("id", number)), "question": question, "answers": answers}
    own = row.get("split", split_of(question, seed="search_qa"))
    return own, task | {"hops": [str(hop) for hop in row.get("hops", [question])]}
