"""An OpenAI-compatible server with a model that plays by rule: it doubles numbers after one bad
answer, and finds numbers by bisection.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def assistant_message(messages: list[dict[str, Any]]) -> dict[str, Any]:
    texts = [str(message.get("content") or "") for message in messages]
    left = re.search(r"left ([\d ]+)", texts[-1])
    if left:
        numbers = left[1].split()
        return {"content": "", "tool_calls": [call("guess", number=int(numbers[len(numbers) // 2]))]}
    number = next((int(found[1]) for text in texts if (found := re.search(r"number (\d+)", text))), None)
    if number is None:
        return {"content": "hi"}
    if texts[-1].startswith("number"):
        return {"content": "let me think", "reasoning_content": "twice is plus itself"}
    return {"content": str(2 * number)}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": f"call-{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", **assistant_message(asked["messages"])}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": "rule",
            "choices": [choice],
            "usage": usage,
        }
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        return None


@contextmanager
def model() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
