"""OpenEnv servers: the real package (run as a program, in an interpreter that has it), and its wire with faults to order.

python openenv_server.py PORT KIND    KIND: text, action or tools
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from fastapi import FastAPI, WebSocket, WebSocketDisconnect

SCHEMAS = {
    "text": {"properties": {"metadata": {}, "message": {"type": "string"}}, "required": ["message"]},
    "action": {
        "description": "Move.",
        "properties": {
            "metadata": {},
            "move": {"type": "string", "enum": ["left", "right"]},
            "num": {"type": "integer"},
        },
        "required": ["move", "num"],
    },
    "tools": {"properties": {"metadata": {}, "type": {"const": "call_tool"}, "tool_name": {}, "arguments": {}}},
}
NEVER = "never"


class FakeOpenEnv:
    """A counter: reach 2. `say` replaces the next answers; a str is sent as it is, NEVER keeps silent, None hangs up."""

    def __init__(self, kind: str, *, max_sessions: int = 1000) -> None:
        self.kind, self.max_sessions = kind, max_sessions
        self.live = self.most = 0
        self.say: list[Any] = []
        self.app = FastAPI()
        self.app.get("/schema")(lambda: {"action": SCHEMAS[kind], "observation": {}, "state": {}})
        self.app.websocket("/ws")(self.session)

    async def session(self, socket: WebSocket) -> None:
        await socket.accept()
        if self.live >= self.max_sessions:
            await socket.send_json(error("CAPACITY_REACHED", "no place"))
            await socket.close()
            return
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            await self.converse(socket)
        except WebSocketDisconnect:
            pass
        finally:
            self.live -= 1

    async def converse(self, socket: WebSocket) -> None:
        count = 0
        while True:
            message = await socket.receive_json()
            if message["type"] == "close":
                return
            if message["type"] == "step" and self.say:
                answer = self.say.pop(0)
                if answer == NEVER:
                    await asyncio.sleep(0.5)
                elif answer is None:
                    await socket.close()
                    return
                else:
                    await socket.send_text(answer if isinstance(answer, str) else json.dumps(answer))
                continue
            if message["type"] == "reset":
                count = 0
                await socket.send_json(observation({"text": f"seed {message['data']['seed']}"}, reward=None))
            elif message["data"].get("type") == "list_tools":
                tool = {
                    "name": "add",
                    "description": "Add.",
                    "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}},
                }
                await socket.send_json(observation({"tools": [tool]}, reward=None))
            else:
                count += 1
                await socket.send_json(self.after(message["data"], count))

    def after(self, data: Any, count: int) -> Any:
        if data == {"move": "up", "num": 1}:
            bad = {"loc": ["move"], "msg": "Input should be 'left' or 'right'"}
            return error("VALIDATION_ERROR", "Invalid message", errors=[bad])
        seen: dict[str, Any] = {"count": count, "said": data}
        if self.kind == "tools":
            result = {"content": [{"type": "text", "text": f"now {count}"}], "is_error": False}
            seen = {"tool_name": data["tool_name"], "result": result, "error": None}
        return observation(seen, reward=float(count == 2), done=count == 2)


def observation(seen: Any, *, reward: float | None, done: bool = False) -> Any:
    return {"type": "observation", "data": {"observation": seen, "reward": reward, "done": done}}


def error(code: str, message: str, **more: Any) -> Any:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


def real_app(kind: str) -> Any:
    from typing import Literal

    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

    class Said(Action):
        message: str

    class Move(Action):
        """Move."""

        move: Literal["left", "right"]
        num: int

    class Seen(Observation):
        text: str

    class Counter(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed: Any = None, episode_id: Any = None, **more: Any) -> Any:
            self.count = 0
            return Seen(text=f"seed {seed}")

        def step(self, action: Any, timeout_s: Any = None, **more: Any) -> Any:
            self.count += 1
            return Seen(text=f"now {self.count}", reward=float(self.count == 2), done=self.count == 2)

        @property
        def state(self) -> Any:
            return State()

    if kind != "tools":
        return create_fastapi_app(Counter, {"text": Said, "action": Move}[kind], Seen, max_concurrent_envs=2)

    from fastmcp import FastMCP

    class Tools(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            server: Any = FastMCP("counter")
            self.count = 0

            @server.tool
            def add(n: int) -> str:
                """Add."""
                self.count += n
                return f"now {self.count}"

            super().__init__(server)

        def reset(self, seed: Any = None, episode_id: Any = None, **more: Any) -> Any:
            self.count = 0
            return Seen(text=f"seed {seed}")

        def _step_impl(self, action: Any, timeout_s: Any = None, **more: Any) -> Any:
            return Seen(text="?")

        @property
        def state(self) -> Any:
            return State()

    return create_fastapi_app(Tools, CallToolAction, CallToolObservation, max_concurrent_envs=2)


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(real_app(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
