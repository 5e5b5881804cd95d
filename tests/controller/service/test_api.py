import asyncio
import contextlib
import json

import httpx
import msgspec
import pytest

from ludus.controller.service.api import make_app
from ludus.controller.service.server import Controller, Settings
from tests.controller.plane import FakeWorker, controller, plane, run, settle, stop_time, task, until

TOKENS = "ann token-a\nbob token-b\nold token-o 2020-01-01\ncluster token-c 2999-12-31T00:00+00:00\n"


def bearer(token):
    return {"Authorization": f"Bearer {token}"} if token else {}


def opening(number=0, **options):
    return {"task": msgspec.to_builtins(task(number)), "seed": 7, "request_id": f"request-{number}", **options}


def patient(served):
    """A client that waits for as long as a busy machine may take."""
    return httpx.AsyncClient(base_url=served.url, timeout=60)


@contextlib.asynccontextmanager
async def web(**settings):
    async with plane(**settings) as (served, worker, _), patient(served) as client:
        yield served, worker, client


def test_a_whole_session_with_nothing_but_http():
    async def test():
        async with web() as (_, worker, http):
            [described] = (await http.get("/environments")).json()
            page = (await http.get(f"/environments/{described['name']}/tasks", params={"limit": 2, "offset": 1})).json()
            assert page["total"] == 5
            assert [each["id"] for each in page["tasks"]] == ["maze/train/1", "maze/train/2"]
            answer = await http.post("/sessions", json={"task": page["tasks"][0], "seed": 1, "request_id": "r"})
            assert answer.status_code == 201
            path = f"/sessions/{answer.json()['session_id']}"
            assert (await http.get(path)).json()["state"] == "open"
            first = (await http.post(f"{path}/start")).json()
            assert first["messages"][0]["content"] == "welcome to maze/train/1"
            solved = (await http.post(f"{path}/solve", json={})).json()
            acted = await http.post(f"{path}/act", json={"turn": 0, "action": solved})
            assert acted.json()["reward"] == 1.0
            assert (await http.delete(path)).status_code == 200
            assert (await http.delete(path)).status_code == 200
            assert (await http.get(path)).status_code == 410
            assert worker.sessions == {}

    run(test())


def test_two_clients_on_one_session_and_a_repeated_turn_are_the_workers_to_judge():
    """The relay passes turn and request id on, so that the worker can tell a repetition from a
    second player."""

    async def test():
        async with web() as (_, worker, http):
            session_id = (await http.post("/sessions", json=opening())).json()["session_id"]
            turn = {"turn": 0, "action": {"content": "left"}, "request_id": "same"}
            one, two = await asyncio.gather(*(http.post(f"/sessions/{session_id}/act", json=turn) for _ in range(2)))
            assert one.json() == two.json()
            assert {act.request_id for act in worker.acts} == {"same"}
            other = await http.post(f"/sessions/{session_id}/act", json={"turn": 0, "action": {"content": "right"}})
            assert other.status_code == 200
            assert worker.acts[-1].request_id not in ("", "same")

    run(test())


ROUTES = [
    ("GET", "/environments"),
    ("GET", "/environments/maze/tasks"),
    ("GET", "/sessions"),
    ("GET", "/sessions/abc"),
    ("POST", "/sessions"),
    ("POST", "/sessions/renew"),
    ("POST", "/sessions/withdraw"),
    ("POST", "/sessions/abc/start"),
    ("POST", "/sessions/abc/act"),
    ("POST", "/sessions/abc/solve"),
    ("DELETE", "/sessions/abc"),
    ("GET", "/workers"),
    ("POST", "/workers/w1/drain"),
    ("POST", "/workers/w1/undrain"),
    ("GET", "/metrics"),
]


def test_every_route_but_health_and_the_description_wants_a_good_token(tmp_path):
    (tmp_path / "tokens").write_text(TOKENS)

    async def test():
        async with (
            controller(tokens=str(tmp_path / "tokens")) as served,
            patient(served) as http,
        ):
            described = (await http.get("/openapi.json")).json()["paths"]
            assert {path.split("/")[1] for path in described} == {path.split("/")[1] for _, path in ROUTES} | {"health"}
            assert (await http.get("/health")).json()["status"] == "ok"
            for method, path in ROUTES:
                for token in ("", "wrong", "token-o", "token-a extra", "TOKEN-A"):
                    answer = await http.request(method, path, headers=bearer(token))
                    assert answer.status_code == 401, (method, path, token)
                    assert answer.json()["kind"] == "ControllerFailed"
                    assert "WWW-Authenticate" in answer.headers
                good = await http.request(method, path, headers=bearer("token-a"))
                assert good.status_code not in (401, 403), (method, path)

    run(test())


def test_another_clients_session_is_403_and_a_revoked_token_401(tmp_path):
    file = tmp_path / "tokens"
    file.write_text(TOKENS)

    async def test():
        async with controller(tokens=str(file)) as served, patient(served) as http:
            worker = await FakeWorker(served.url, token="token-c").join()
            opened = (await http.post("/sessions", json=opening(), headers=bearer("token-a"))).json()
            path = f"/sessions/{opened['session_id']}"
            for method, rest, body in [
                ("GET", "", None),
                ("POST", "/start", None),
                ("POST", "/act", {"turn": 0, "action": {}}),
                ("POST", "/solve", {}),
                ("DELETE", "", None),
            ]:
                answer = await http.request(method, path + rest, json=body, headers=bearer("token-b"))
                assert answer.status_code == 403, (method, rest)
            listed = (await http.get("/sessions", headers=bearer("token-b"))).text
            assert opened["key"] not in listed
            assert (await http.post(f"{path}/start", headers=bearer("token-a"))).status_code == 200
            file.write_text(TOKENS.replace("ann token-a\n", ""))
            assert (await http.post(f"{path}/start", headers=bearer("token-a"))).status_code == 401
            await worker.close()

    run(test())


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/sessions", b"{not json", 400),
        ("/sessions", b"", 400),
        ("/sessions", b"\xff\xfe", 400),
        ("/sessions", b'{"task": {"data": {"x": ' + b"[" * 100_000, 400),
        ("/sessions", b'"\\ud800"', 400),
        ("/sessions", b"[]", 422),
        ("/sessions", b'{"task": {"id": 3}}', 422),
        ("/sessions", json.dumps(opening(wait_s=-1)).encode(), 422),
        ("/sessions", json.dumps(opening(lease_s=0)).encode(), 422),
        ("/sessions", json.dumps({**opening(), "request_id": ""}).encode(), 422),
        ("/sessions", json.dumps(opening()).replace("maze", "mase").encode(), 404),
        ("/sessions/nope/act", b'{"turn": 0, "action": {}}', 404),
        ("/sessions/nope/act", b'{"turn": -1, "action": {}}', 422),
        ("/sessions/nope/start", b"", 404),
        ("/workers/nope/drain", b"", 404),
        ("/sessions/renew", b'{"session_ids": "x"}', 422),
        ("/nowhere", b"", 404),
    ],
)
def test_a_bad_request_gets_the_status_that_fits_and_a_message(path, body, status):
    async def test():
        async with web() as (served, _, http):
            settle(served)
            answer = await http.post(path, content=body)
            assert answer.status_code == status, answer.text
            assert len(answer.json()["message"]) > 3

    run(test())


def test_a_wrong_query_is_422_with_the_name_of_the_parameter():
    async def test():
        async with web() as (_, _, http):
            answer = await http.get("/sessions", params={"limit": 100_000})
            assert answer.status_code == 422
            assert "limit" in answer.json()["message"]

    run(test())


async def sent(url, *, head, chunk, max_chunks):
    """What a server answers to a request that never ends, and how many chunks it let us write."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head)
    written = 0
    answer = asyncio.ensure_future(reader.read(2000))
    with contextlib.suppress(ConnectionError):
        while not answer.done() and written < max_chunks:
            writer.write(chunk)
            await writer.drain()
            written += 1
            await asyncio.sleep(0)
    text = (await answer).decode()
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 60) == b"", "the connection is closed"
    writer.close()
    return text, written


def test_a_hundred_megabytes_are_refused_without_being_read():
    async def test():
        async with controller() as served:
            megabyte = b"x" * 2**20
            announced = b"POST /sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 104857600\r\n\r\n"
            text, _ = await sent(served.url, head=announced, chunk=b"", max_chunks=1)
            assert "413" in text.splitlines()[0], "the head alone is enough"
            text, _ = await sent(served.url, head=announced, chunk=megabyte, max_chunks=100)
            assert "413" in text.splitlines()[0]
            chunked = b"POST /sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            text, written = await sent(
                served.url, head=chunked, chunk=b"100000\r\n" + megabyte + b"\r\n", max_chunks=100
            )
            assert "413" in text.splitlines()[0]
            assert written < 40, "16 MB is the limit, and buffers hold some"

    run(test())


def test_a_request_below_the_limit_is_read():
    async def test():
        async with web() as (_, worker, http):
            data = {"number": 0, "text": "x" * 2**20}
            answer = await http.post(
                "/sessions", json={**opening(), "task": {**msgspec.to_builtins(task()), "data": data}}
            )
            assert answer.status_code == 201
            assert worker.opened[0].task.data == data

    run(test())


def test_a_client_that_calls_too_fast_hears_429():
    async def test():
        async with controller(max_rate=5) as served, patient(served) as http:
            stop_time(served)
            statuses = [(await http.get("/workers")).status_code for _ in range(20)]
            assert statuses == [200] * 5 + [429] * 15
            assert (await http.get("/health")).status_code == 200

    run(test())


def test_sessions_are_listed_with_filters_and_by_pages():
    async def test():
        async with web(slots=3) as (_, _, http):
            for number in range(3):
                await http.post("/sessions", json=opening(number))
            waiting = asyncio.ensure_future(http.post("/sessions", json=opening(9)))
            async with asyncio.timeout(60):
                while (await http.get("/sessions", params={"state": "waiting"})).json()["total"] == 0:
                    await asyncio.sleep(0.01)
            everything = (await http.get("/sessions")).json()
            assert everything["total"] == 4
            page = (await http.get("/sessions", params={"state": "open", "limit": 2, "offset": 1})).json()
            assert page["total"] == 3
            assert [row["task_id"] for row in page["sessions"]] == ["maze/train/1", "maze/train/2"]
            for filters in (
                {"worker": "w1"},
                {"owner": "local", "state": "open"},
                {"environment": "maze", "worker": "w1"},
            ):
                assert (await http.get("/sessions", params=filters)).json()["total"] == 3
            assert (await http.get("/sessions", params={"environment": "chess"})).json() == {"total": 0, "sessions": []}
            await http.post("/sessions/withdraw", json={"request_id": "request-9"})
            assert (await waiting).status_code == 410

    run(test())


def test_a_worker_is_drained_and_undrained():
    async def test():
        async with web() as (served, worker, http):
            assert (await http.post("/workers/w1/drain")).json()["state"] == "drained"
            [row] = (await http.get("/workers")).json()
            assert row["state"] == "drained"
            assert row["slots"] == 4
            late = await http.post("/sessions", json=opening(wait_s=0.1))
            assert late.status_code == 503
            queued = asyncio.ensure_future(http.post("/sessions", json=opening()))
            await until(lambda: len(served.controller.roster.waiting) == 1)
            assert (await http.post("/workers/w1/undrain")).json()["state"] == "fit"
            await until(lambda: worker.drains == [True, False])
            assert (await queued).status_code == 201

    run(test())


def test_a_client_that_hangs_up_leaves_the_queue():
    async def test():
        async with web(slots=1) as (served, _, http):
            await http.post("/sessions", json=opening(0))
            queued = asyncio.ensure_future(http.post("/sessions", json=opening(1)))
            await until(lambda: len(served.controller.roster.waiting) == 1)
            queued.cancel()
            await until(lambda: len(served.controller.roster.waiting) == 0)
            assert len(served.controller.roster.sessions) == 1, "and what is open stays"

    run(test())


def test_an_environments_failure_is_502_and_a_lost_worker_503():
    async def test():
        async with web() as (_, worker, http):
            session_id = (await http.post("/sessions", json=opening())).json()["session_id"]
            worker.fails = "act raised KeyError"
            turn = {"turn": 0, "action": {"content": "x"}}
            answer = await http.post(f"/sessions/{session_id}/act", json=turn)
            assert (answer.status_code, answer.json()["kind"]) == (502, "EnvironmentFailed")
            await worker.cut()
            answer = await http.post(f"/sessions/{session_id}/act", json=turn)
            assert (answer.status_code, answer.json()["kind"]) == (503, "WorkerLost")

    run(test())


def test_metrics_count_what_happened():
    async def test():
        async with web() as (_, _, http):
            opened = (await http.post("/sessions", json=opening())).json()
            await http.get("/nowhere")
            text = (await http.get("/metrics")).text
            assert 'ludus_sessions{environment="maze"} 1.0' in text
            assert "ludus_slots 4.0" in text
            assert 'ludus_calls_total{by="http",call="open_session"} 1.0' in text
            assert "ludus_open_seconds_count 1.0" in text
            assert 'ludus_refused_total{status="404"} 1.0' in text
            await http.delete(f"/sessions/{opened['session_id']}")
            assert 'ludus_sessions_ended_total{cause="closed"} 1.0' in (await http.get("/metrics")).text

    run(test())


def test_the_description_says_what_a_body_is():
    described = make_app(Controller(Settings())).openapi()
    assert described["openapi"].startswith("3.")
    opening = described["components"]["schemas"]["Open"]
    assert opening["required"] == ["task", "seed", "request_id"]
    assert "queue for a free slot" in opening["properties"]["wait_s"]["description"]
    assert (
        "repeat of the turn" in described["components"]["schemas"]["ActBody"]["properties"]["request_id"]["description"]
    )
    body = described["paths"]["/sessions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/Open"}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description") or operation.get("summary"), (method, path)
            assert_refs_exist(operation, described["components"]["schemas"])


def assert_refs_exist(part, schemas):
    if isinstance(part, dict):
        if "$ref" in part:
            assert part["$ref"].removeprefix("#/components/schemas/") in schemas
        for value in part.values():
            assert_refs_exist(value, schemas)
    elif isinstance(part, list):
        for value in part:
            assert_refs_exist(value, schemas)
