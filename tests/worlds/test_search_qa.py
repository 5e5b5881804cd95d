import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.environments import make
from ludus.errors import ConfigError
from ludus.types import Action, ToolCall
from ludus.worlds.retrieval import Index
from ludus.worlds.search_qa.corpus import corpus_of
from ludus.worlds.search_qa.world import f1, normal
from tests.worlds.contract import (
    MEGABYTE,
    assert_splits_are_apart,
    assert_the_solver_wins,
    call,
    first_prompts,
    opened,
    random_success,
    read,
)
from tests.worlds.playing import play, won, world


def test_the_splits_are_apart_by_question_and_by_what_they_are_about():
    environment = world("search_qa")
    assert_splits_are_apart(environment, by=lambda data: data["question"])
    about = {
        split: {hop for t in environment.tasks(split) for hop in t.data["hops"]} for split in ("train", "dev", "test")
    }
    assert not about["train"] & about["test"]
    assert not about["train"] & about["dev"]


def test_the_solver_always_wins_and_a_random_player_seldom():
    assert_the_solver_wins(world("search_qa"))
    assert random_success(world("search_qa")) < 0.05


def test_no_answer_is_in_the_prompt():
    for task, prompt in first_prompts(world("search_qa")):
        assert task.data["answers"][0] not in prompt


def test_every_hop_is_found_by_searching_for_it_and_names_the_next():
    corpus = corpus_of("")
    for task in world("search_qa").tasks("test"):
        way = [*task.data["hops"], task.data["answers"][0]]
        for here, onward in itertools.pairwise(way):
            assert any(onward in document.text for document in corpus.search(here, count=3)), (here, onward)


def test_the_answer_to_two_hops_is_not_in_the_first_documents():
    corpus = corpus_of("")
    tasks = [
        t.data
        for t in world("search_qa").tasks("test")
        if len(t.data["hops"]) > 2 and not t.data["answers"][0].isdigit()
    ]
    found = [any(t["answers"][0] in d.text for d in corpus.search(t["question"], count=3)) for t in tasks]
    assert sum(found) / len(found) < 0.1


def test_one_answer_ends_the_session_and_nobody_learns_what_it_was_worth():
    environment = world("search_qa")
    task = environment.tasks("test")[0]
    ends = []
    for said in (task.data["answers"][0], "nonsense"):
        session = environment.open(task, seed=0)
        session.start()
        ends.append(call(session, "answer", answer=said))
    assert [end.reward for end in ends] == [1.0, 0.0]
    assert all(end.done for end in ends)
    assert ends[0].messages == ends[1].messages


def test_answers_match_but_for_case_articles_and_punctuation():
    assert normal("The  Song of Boron!") == normal("song of boron")
    assert normal("Borons") != normal("boron")
    assert f1("the red house", "house") == pytest.approx(2 / 3)
    assert f1("", "house") == 0.0


@pytest.mark.parametrize("said", ["", "the", "...", MEGABYTE])
def test_an_empty_or_huge_answer_is_no_match(said):
    end = call(opened(world("search_qa")), "answer", answer=said)
    assert (end.done, end.reward) == (True, 0.0)


@pytest.mark.parametrize(
    "query", ["", "?!", '" OR 1=1 --', "title:* NEAR(a b)", "\0", "'; DROP TABLE texts; --", MEGABYTE, "ü" * 50]
)
def test_any_query_gets_an_answer(query):
    seen = call(opened(world("search_qa")), "search", query=query)
    assert not seen.done
    assert 0 < len(read(seen)) < 4_000


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_the_index_takes_any_text(query):
    assert len(Index([("a title", "some words"), ("another", "more words")]).search(query, count=1)) <= 1


def test_wrong_types_are_explained():
    assert opened(world("search_qa")).act(Action(tool_calls=(ToolCall("search", {"query": ["a"]}),))).invalid


def test_titles_count_more_than_texts_and_ties_go_by_order():
    index = Index([("apple", "a fruit"), ("pear", "not an apple"), ("plum", "fruit"), ("peach", "fruit")])
    assert index.search("apples", count=2) == [0, 1]
    assert index.search("fruit", count=3) == [2, 3, 0]
    assert index.search("unknown", count=3) == []


# ------------------------------------------------------------------------------------------------ the user's own


def own(tmp_path, *, questions):
    documents = [{"title": "Rex", "text": "Rex is a dog of Ann."}, {"title": "Ann", "text": "Ann lives in Oslo."}]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    return {"corpus": str(tmp_path / "corpus.jsonl"), "questions": str(tmp_path / "questions.jsonl")}


def test_a_corpus_and_questions_of_the_users(tmp_path):
    asked = {"id": "q1", "question": "Where does Rex's owner live?", "answers": ["Oslo", "Christiania"]}
    environment = make("search_qa", options=own(tmp_path, questions=[asked | {"split": "test"}]))
    (task,) = environment.tasks("test")
    assert task.id == "search_qa/test/q1"
    assert environment.tasks("train") == []
    session = environment.open(task, seed=0)
    session.start()
    assert read(call(session, "search", query="rex")) == "Rex: Rex is a dog of Ann."
    assert call(session, "answer", answer="christiania").reward == 1.0
    assert won(play(environment, task=task, seed=0))


def test_questions_without_a_split_are_divided_by_their_text(tmp_path):
    asked = [{"question": f"Question {n}?", "answers": ["x"]} for n in range(200)]
    environment = make("search_qa", options=own(tmp_path, questions=asked))
    assert_splits_are_apart(environment, by=lambda data: data["question"])
    assert sum(len(environment.tasks(split)) for split in ("train", "dev", "test")) == 200


def test_broken_files_are_named_with_their_line(tmp_path):
    options = own(tmp_path, questions=[{"question": "?", "answers": ["x"]}, {"question": "?"}])
    with pytest.raises(ConfigError, match="line 2"):
        make("search_qa", options=options).tasks("train")
    (tmp_path / "corpus.jsonl").write_text('{"title": "a", "text": "b"}\n{"ti')
    with pytest.raises(ConfigError, match="line 2"):
        corpus_of(options["corpus"])
    with pytest.raises(ConfigError, match="belong together"):
        make("search_qa", options={"corpus": options["corpus"]})
