"""An OpenAI-compatible chat endpoint that gives text alone, on a real socket, and a small world with categories."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ludus.environments import Reply

Say = Callable[[dict[str, Any]], dict[str, Any]]


class Successor:
    """Say the next number."""

    max_turns = 1
    tasks = {
        split: [{"n": n, "category": "even" if n % 2 == 0 else "odd"} for n in range(start, start + 8)]
        for split, start in (("train", 0), ("test", 100))
    }

    def setup(self, task: dict[str, Any], rng: Any) -> str:
        self.n = task["n"]
        return f"after {self.n}?"

    def act(self, text: str) -> Reply:
        return Reply("so be it", reward=text == str(self.n + 1), done=True)

    def solve(self) -> str:
        return str(self.n + 1)


SUCCESSOR = {"successor": {"source": "tests.launch.chat_stub:Successor"}}


def knows_even(body: dict[str, Any]) -> dict[str, Any]:
    """Plays Successor, right after even numbers only."""
    number = int(re.findall(r"\d+", body["messages"][-1]["content"])[-1])
    return {"content": str(number + 1 if number % 2 == 0 else number)}


def guesses(body: dict[str, Any]) -> dict[str, Any]:
    """Plays guess by calls: the middle of what is left."""
    left = [m["content"] for m in body["messages"] if "left" in m["content"]][-1]
    numbers = [int(number) for number in re.findall(r"\d+", left.rpartition("left")[2])]
    arguments = json.dumps({"number": numbers[len(numbers) // 2]})
    return {"content": None, "tool_calls": [{"id": "c1", "function": {"name": "guess", "arguments": arguments}}]}


class ChatStub:
    """Serves /v1/models and /v1/chat/completions as `say` says. After `answers` answers it holds its tongue, or, with `status`, answers
    that. It remembers every body."""

    def __init__(self, say: Say, *, answers: int | None = None, status: int = 0, usage: bool = True) -> None:
        self.say, self.answers, self.status, self.usage = say, answers, status, usage
        self.bodies: list[dict[str, Any]] = []
        self.full, self.released = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer({"data": [{"id": "stub"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.answer(*stub.complete(body))

            def answer(self, answer: dict[str, Any], status: int = 200) -> None:
                data = json.dumps(answer).encode()
                with suppress(OSError):  # whoever asked may have been killed
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

    def complete(self, body: dict[str, Any]) -> tuple[dict[str, Any], int]:
        with self._lock:
            self.bodies.append(body)
            spent = self.answers is not None and len(self.bodies) > self.answers
        if spent:
            self.full.set()
            if self.status:
                return {"error": "as told"}, self.status
            self.released.wait(300)
        message = {"role": "assistant", **self.say(body)}
        answer: dict[str, Any] = {"choices": [{"message": message, "finish_reason": "stop"}]}
        if self.usage:
            answer["usage"] = {"prompt_tokens": 10, "completion_tokens": 3}
        return answer, 200

    @property
    def sessions(self) -> list[str]:
        """Who asked, less the probe at the start."""
        return [body["user"] for body in self.bodies if body["user"] != "probe"]

    def __enter__(self) -> ChatStub:
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
