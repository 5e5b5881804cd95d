import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from ludus.environments import make
from ludus.errors import ConfigError, EnvironmentFailed
from ludus.types import Action, ToolCall
from ludus.worlds.drawing import split_of
from ludus.worlds.knowledge_graph.graphs import SocietyGraph, SparqlGraph, TooMany, largest
from ludus.worlds.society import ATTRIBUTES, RELATIONS, SPLITS, society
from tests.worlds.contract import MEGABYTE, call, first_prompts, opened, read, say
from tests.worlds.playing import play, won, world

ITEMS = Path(os.environ.get("LUDUS_DATA", "../shared/data")) / "agentbench" / "knowledgegraph" / "std.json"
NS = "http://rdf.freebase.com/ns/"
TRIPLES = [
    ("m.dog", "biology.animal.breed", "m.shepherd"),
    ("m.shepherd", "biology.breed.temperament", "m.calm"),
    ("m.shepherd", "biology.breed.temperament", "m.clever"),
    ("m.collie", "biology.breed.temperament", "m.clever"),
    ("m.collie", "type.object.name", "collie"),
    ("m.calm", "measure.rank", 2),
    ("m.clever", "measure.rank", 10),
]


class Endpoint(BaseHTTPRequestHandler):
    """Speaks as much SPARQL as SparqlGraph does, over TRIPLES."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        query = parse_qs(body)["query"][0]
        self.server.queries.append(query)
        if self.server.broken:
            self.send_response(self.server.broken)
            self.end_headers()
            self.wfile.write(b"<html>")
            return
        answer = json.dumps({"results": {"bindings": list(self.rows(query))}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def rows(self, query):
        nodes = set(re.findall(rf"<{NS}([^>]+)>", query.split("{")[2].split("}")[0]))
        wanted = re.search(rf"\?x <{NS}([^>]+)> \?found", query)
        for one, relation, other in TRIPLES:
            if one not in nodes or (wanted and wanted[1] != relation):
                continue
            if "isLiteral" in query and not isinstance(other, int):
                continue
            found = (str(other) if isinstance(other, int) else NS + other) if wanted else NS + relation
            yield {"x": {"value": NS + one}, "found": {"value": found}}

    def log_message(self, *_):
        pass


@pytest.fixture
def endpoint():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    server.queries, server.broken = [], 0
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def url(server):
    return f"http://127.0.0.1:{server.server_port}/sparql"


# ------------------------------------------------------------------------------------------------ our own society


def test_a_society_is_sound():
    for split in SPLITS:
        people = society(split)
        for (one, relation), others in people.edges.items():
            assert people.types[one] == RELATIONS[relation].subject
            assert len(others) == 1 or not RELATIONS[relation].single
            for other in others:
                assert people.types[other] == RELATIONS[relation].object
                assert one in people.edges[other, RELATIONS[relation].inverse]


def test_no_name_is_in_two_societies():
    for split in SPLITS:
        assert {split_of(name, seed="society") for name in society(split).types} == {split}
    names = [set(society(split).types) for split in SPLITS]
    assert not names[0] & names[1]
    assert not names[0] & names[2]
    assert not names[1] & names[2]


def test_no_answer_is_in_the_prompt():
    for task, prompt in first_prompts(world("knowledge_graph")):
        assert not any(answer in prompt for answer in task.data["answer"] if not answer.isdigit())


def test_a_question_is_answered_by_hand():
    environment = world("knowledge_graph")
    task = next(task for task in environment.tasks("test") if task.data["category"] == "argmax")
    session = environment.open(task, seed=0)
    session.start()
    for name, arguments in task.data["calls"]:
        seen = call(session, name, **arguments)
    variable = read(seen).split(":")[0]
    end = say(session, f"It must be this one.\nFinal Answer: {variable}")
    assert (end.reward, end.done, end.metrics["f1"], read(end)) == (1.0, True, 1.0, "answered")


def test_a_larger_set_than_the_right_one_is_wrong_and_f1_says_how_near():
    environment = world("knowledge_graph")
    task = next(task for task in environment.tasks("test") if task.data["category"] == "intersection")
    session = environment.open(task, seed=0)
    session.start()
    for name, arguments in task.data["calls"][:-1]:
        call(session, name, **arguments)
    end = say(session, "Find Answer: #0")
    assert (end.reward, end.done) == (0.0, True)
    assert end.metrics["f1"] < 1


def test_what_is_not_there_is_said():
    session = opened(world("knowledge_graph"))
    entity = next(iter(world("knowledge_graph").tasks("test")[0].data["entities"]))
    for name, arguments, answer in [
        ("get_relations", {"variable": "#0"}, "no variable or entity '#0'"),
        ("get_relations", {"variable": MEGABYTE}, "no variable or entity 'xxx"),
        ("get_neighbors", {"variable": entity, "relation": "city.mayor"}, "nothing by 'city.mayor'"),
        ("argmax", {"variable": entity, "attribute": "work.weight"}, "nothing has 'work.weight'"),
        ("intersection", {"variable1": entity, "variable2": "#99999"}, "no variable or entity '#99999'"),
    ]:
        seen = call(session, name, **arguments)
        assert seen.invalid
        assert read(seen).startswith(answer)
        assert len(read(seen)) < 500
    call(session, "count", variable=entity)
    assert read(call(session, "get_neighbors", variable="#0", relation="x")) == "#0 is a number"
    assert session.act(Action(tool_calls=(ToolCall("count", {"variable": 3}),))).invalid


def test_text_without_an_answer_goes_on_and_an_unknown_variable_ends_without_reward():
    session = opened(world("knowledge_graph"))
    for text in ("", "I think it is Paris", MEGABYTE, "Final Answer: Paris"):
        seen = say(session, text)
        assert (seen.invalid, seen.done) == (True, False)
    end = say(session, "Final Answer: #7")
    assert (end.invalid, end.done, end.reward) == (True, True, 0.0)


def test_the_graph_knows_relations_attributes_and_extremes():
    people = society("test")
    graph = SocietyGraph(people)
    city = people.names["city"][0]
    assert "city.country" in graph.relations((city,))
    assert graph.attributes((city,)) == tuple(sorted(ATTRIBUTES["city"]))
    assert graph.kind((city,)) == "city"
    assert largest({"a": ["9"], "b": ["10"]}, sign=1) == ("b",)
    assert largest({"a": ["9"], "b": ["10"], "c": ["9"]}, sign=-1) == ("a", "c")
    assert largest({"a": ["2001-05-01"], "b": ["1999-01-01"]}, sign=-1) == ("b",)
    assert largest({}, sign=1) == ()


# ------------------------------------------------------------------------------------------------ a SPARQL endpoint


def test_an_endpoint_is_asked_for_relations_neighbours_and_values(endpoint):
    graph = SparqlGraph(url(endpoint))
    assert graph.relations(("m.shepherd",)) == ("biology.breed.temperament",)
    assert graph.relations(("m.collie",)) == ("biology.breed.temperament",)  # type.* is bookkeeping
    assert graph.neighbours(("m.shepherd", "m.collie"), "biology.breed.temperament") == ("m.calm", "m.clever")
    assert graph.attributes(("m.calm",)) == ("measure.rank",)
    assert largest(graph.values(("m.calm", "m.clever"), "measure.rank"), sign=1) == ("m.clever",)


def test_nothing_but_names_goes_into_a_query(endpoint):
    graph = SparqlGraph(url(endpoint))
    assert graph.neighbours(("m.dog",), "a.b> ?y } ; DROP ALL #") == ()
    assert graph.values(("m.dog",), "x y") == {}
    assert endpoint.queries == []


def test_large_sets_are_asked_in_parts_and_floods_refused(endpoint, monkeypatch):
    graph = SparqlGraph(url(endpoint))
    many = tuple(f"m.n{i}" for i in range(450))
    assert graph.relations(many) == ()
    assert len(endpoint.queries) == 3
    monkeypatch.setitem(SparqlGraph._ask.__globals__, "MAX_NODES", 1)  # wherever its module was imported from
    with pytest.raises(TooMany):
        graph.neighbours(("m.shepherd",), "biology.breed.temperament")


@pytest.mark.parametrize("broken", [500, 200])
def test_an_endpoint_that_answers_nonsense_or_is_gone_fails_the_session(endpoint, broken):
    endpoint.broken = broken
    with pytest.raises(EnvironmentFailed, match="gave no answer"):
        SparqlGraph(url(endpoint)).relations(("m.dog",))
    with pytest.raises(EnvironmentFailed, match="gave no answer"):
        SparqlGraph("http://127.0.0.1:9/sparql").relations(("m.dog",))


def item(**changes):
    calls = ["get_relations(m.dog)", "get_neighbors(m.dog,biology.animal.breed)", "get_relations(#0)"]
    calls += ["get_neighbors(#0,biology.breed.temperament)", "get_relations(m.collie)"]
    calls += ["get_neighbors(m.collie,biology.breed.temperament)", "intersection(#1,#2)"]
    answer = [{"answer_type": "Entity", "answer_argument": "m.clever"}]
    entities = {"the dog": "m.dog", "collies": "m.collie"}
    return {"question": "what?", "qid": "1_g", "entities": entities, "actions": calls, "answer": answer} | changes


def test_an_item_is_solved_through_the_endpoint(endpoint, tmp_path):
    (tmp_path / "std.json").write_text(json.dumps([item()]))
    environment = make("knowledge_graph", options={"sparql": url(endpoint), "items": str(tmp_path / "std.json")})
    (task,) = environment.tasks("test")
    assert task.id == "knowledge_graph/test/1_g"
    assert len(environment.tasks("train")) == 1000
    assert won(play(environment, task=task, seed=0))
    session = environment.open(task, seed=0)
    assert "entities: the dog, collies" in session.start().messages[-1].content
    assert read(call(session, "get_neighbors", variable="the dog", relation="biology.animal.breed")) == "#0"


@pytest.mark.skipif(not ITEMS.is_file(), reason="no KG items")
def test_all_150_items_of_agentbench_load():
    environment = make("knowledge_graph", options={"sparql": "http://127.0.0.1:9/", "items": str(ITEMS)})
    tasks = environment.tasks("test")
    assert len(tasks) == len({task.id for task in tasks}) == 150
    assert all(task.data["answer"] for task in tasks)


def test_broken_items_and_half_an_option_are_refused(tmp_path):
    (tmp_path / "half.json").write_text(json.dumps([item(actions=["fly(m.dog)"])]))
    environment = make("knowledge_graph", options={"sparql": "http://x/", "items": str(tmp_path / "half.json")})
    with pytest.raises(ConfigError, match="unknown action"):
        environment.tasks("test")
    with pytest.raises(ConfigError, match="belong together"):
        make("knowledge_graph", options={"sparql": "http://x/"})
