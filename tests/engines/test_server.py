"""The server engine against a real HTTP server that answers in the words of an OpenAI-compatible one, backed by an embedded engine."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ludus.engines.embedded import EmbeddedEngine
from ludus.engines.server import ServerEngine
from ludus.errors import EngineFailed
from ludus.types import Sampling
from ludus.weights.memory import MemoryChannel
from tests.engines.examples import embedded, small_llama, tokens

Twist = Callable[[dict[str, Any]], Any]


class Endpoint:
    """Serves /v1/models and /v1/completions. `twist` changes each answer; `statuses` are given first, before any real one."""

    def __init__(
        self, engine: EmbeddedEngine, *, twist: Twist = lambda answer: None, statuses: tuple[int, ...] = ()
    ) -> None:
        self.loop, self.engine, self.twist, self.statuses = asyncio.get_running_loop(), engine, twist, list(statuses)
        self.bodies: list[dict[str, Any]] = []
        self.connections: set[tuple[str, int]] = set()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer({"data": [{"id": "small"}]})

            def do_POST(self) -> None:
                endpoint.connections.add(self.client_address)
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.bodies.append(body)
                if endpoint.statuses:
                    self.answer({"error": "as told"}, status=endpoint.statuses.pop(0))
                else:
                    self.answer({"choices": [endpoint.complete(body)]})

            def answer(self, answer: dict[str, Any], *, status: int = 200) -> None:
                if status == 200 and "choices" in answer:
                    endpoint.twist(answer)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = body["prompt"]
        if "prompt_logprobs" in body:
            scores = asyncio.run_coroutine_threadsafe(self.engine.score(ids), self.loop).result(20)
            rows = [{str(token): {"logprob": score}} for token, score in zip(ids[1:], scores, strict=True)]
            return {"prompt_logprobs": [None, *rows]}
        sampling = Sampling(
            max_tokens=body["max_tokens"],
            temperature=body["temperature"],
            seed=body["seed"],
            stop_ids=tuple(body["stop_token_ids"]),
        )
        call = self.engine.generate(ids, sampling=sampling, session_id=str(len(self.bodies)))
        completion = asyncio.run_coroutine_threadsafe(call, self.loop).result(20)
        return {
            "token_ids": list(completion.ids),
            "logprobs": {"token_logprobs": list(completion.logprobs)},
            "finish_reason": "stop" if completion.stop == "end" else "length",
        }


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[tuple[ServerEngine, EmbeddedEngine, Endpoint]]:
    async with embedded(small_llama()) as behind:
        endpoint = Endpoint(behind, **options)
        engine = ServerEngine(endpoint.url, max_running=4, version=3)
        try:
            yield engine, behind, endpoint
        finally:
            await engine.close()
            endpoint.server.shutdown()
            endpoint.server.server_close()


def test_ids_and_logprobs_through_http_equal_those_of_the_engine_behind_it():
    prompts = [list(range(n, n + 15)) for n in range(8)]

    async def main():
        async with served() as (engine, behind, endpoint):
            plans = [tokens(12, seed=i, temperature=float(i % 2), stop_ids=(4, 9)) for i in range(8)]
            pairs = list(zip(prompts, plans, strict=True))
            remote = await asyncio.gather(
                *(engine.generate(ids, sampling=plan, session_id=f"r{i}") for i, (ids, plan) in enumerate(pairs))
            )
            local = [
                await behind.generate(ids, sampling=plan, session_id=f"l{i}") for i, (ids, plan) in enumerate(pairs)
            ]
            return remote, local, len(endpoint.connections)

    remote, local, num_connections = asyncio.run(main())
    for mine, theirs in zip(remote, local, strict=True):
        assert (mine.ids, mine.stop) == (theirs.ids, theirs.stop)
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
        assert set(mine.versions) == {3}
    assert num_connections <= 4


def test_scores_through_http_equal_those_of_the_engine_behind_it():
    ids = list(range(20))

    async def main():
        async with served() as (engine, behind, _):
            return await engine.score(ids), await behind.score(ids)

    remote, local = asyncio.run(main())
    assert remote == pytest.approx(local, abs=1e-6)


def test_the_request_leaves_nothing_of_the_distribution_to_the_servers_defaults():
    async def main():
        async with served() as (engine, _, endpoint):
            await engine.generate([1, 2], sampling=tokens(2, stop_ids=(4,)), session_id="a")
            return endpoint.bodies[-1]

    body = asyncio.run(main())
    assert (body["top_p"], body["top_k"], body["repetition_penalty"], body["ignore_eos"]) == (1.0, -1, 1.0, True)
    assert (body["model"], body["prompt"], body["stop_token_ids"]) == ("small", [1, 2], [4])


@pytest.mark.parametrize(
    ("twist", "message"),
    [
        (lambda answer: answer["choices"][0].pop("token_ids"), "lacks token_ids; .*return_token_ids"),
        (lambda answer: answer["choices"][0].pop("logprobs"), "lacks one logprob for each token"),
        (lambda answer: answer["choices"][0]["logprobs"]["token_logprobs"].pop(), "lacks one logprob for each token"),
        (lambda answer: answer["choices"][0]["logprobs"]["token_logprobs"].__setitem__(0, None), "None for a logprob"),
        (lambda answer: answer["choices"][0].update(finish_reason="stop"), "ended with 'stop' after 5 tokens"),
        (lambda answer: answer["choices"].clear(), "exactly one choice"),
    ],
)
def test_what_the_server_leaves_out_is_an_error_that_says_what_to_switch_on(twist: Twist, message: str):
    async def main():
        async with served(twist=twist) as (engine, _, _):
            with pytest.raises(EngineFailed, match=message):
                await engine.generate([1, 2, 3], sampling=tokens(5), session_id="a")

    asyncio.run(main())


def test_a_busy_server_is_asked_again_and_a_refusal_is_not():
    async def main():
        async with served(statuses=(503, 429)) as (engine, _, endpoint):
            completion = await engine.generate([1, 2, 3], sampling=tokens(5), session_id="a")
            assert len(completion.ids) == 5
            assert len(endpoint.bodies) == 3
        async with served(statuses=(400,)) as (engine, _, endpoint):
            with pytest.raises(EngineFailed, match=r"status 400: .*as told"):
                await engine.generate([1, 2, 3], sampling=tokens(5), session_id="a")
            assert len(endpoint.bodies) == 1

    asyncio.run(main())


def test_a_server_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr("ludus.engines.http.BACKOFF_S", 0.001)

    async def main():
        engine = ServerEngine("http://127.0.0.1:9/v1")
        with pytest.raises(EngineFailed, match=r"127\.0\.0\.1:9.* is the server up, and engine.url right"):
            await engine.generate([1], sampling=tokens(1), session_id="a")
        await engine.close()

    asyncio.run(main())


def test_what_a_server_cannot_do_is_said_and_not_ignored():
    async def main():
        async with served() as (engine, _, _):
            assert not engine.capabilities.load
            assert not engine.capabilities.policies
            with pytest.raises(EngineFailed, match="cannot load version 2"):
                await engine.load(2, source=MemoryChannel())
            with pytest.raises(EngineFailed, match="speaks as one policy"):
                await engine.generate([1], sampling=tokens(1), session_id="a", policy="reference")
            with pytest.raises(EngineFailed, match=r"temperature is 0\.7"):
                await engine.generate([1], sampling=tokens(1, temperature=0.7), session_id="a")

    asyncio.run(main())
