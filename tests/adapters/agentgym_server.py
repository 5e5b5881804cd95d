"""AgentGym's wire, family by family, with worlds that mean nothing: the action that contains `win` wins, after that all is over.

Written from the description of the real servers, not from the adapter: what is asked for in another way is answered 422 or with an error.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse

FAMILY_KEYS = {
    "textcraft": ("id", "data_idx"), "babyai": ("id", "data_idx"), "sciworld": ("id", "data_idx"), "alfworld": ("id", "game"),
    "maze": ("id", "game"), "wordle": ("id", "seed"), "searchqa": ("env_idx", "id"), "sqlgym": ("env_idx", "item_id"),
    "webshop": ("env_idx", "session_id"), "webarena": ("env_idx", "idx"),
    **dict.fromkeys(("weather", "movie", "academia", "sheet", "todo"), ("env_idx", "id")),
}  # fmt: skip
CLOSING = {"textcraft", "babyai", "sciworld", "searchqa", "webarena"}
TAKES_ID_AT_CREATE = {"searchqa", "weather", "movie", "academia", "sheet", "todo"}


class FakeServer:
    """`say` replaces the next answers of a path, in order; `asked` is everything that came in."""

    def __init__(self, family: str, *, max_instances: int = 10**9) -> None:
        self.family, self.max_instances = family, max_instances
        self.key, self.task_key = FAMILY_KEYS[family]
        self.worlds: dict[int, dict[str, Any]] = {}
        self.asked: list[tuple[str, Any]] = []
        self.say: dict[str, list[Any]] = {}
        self.num_created = 0
        self.app = FastAPI()
        prefix = f"/{family}" if family in ("maze", "wordle") else ""
        self.app.post(prefix + "/create")(self.create)
        self.app.post(prefix + "/reset")(self.reset)
        self.app.post(prefix + "/step")(self.step)
        self.app.get(prefix + "/observation")(self.observation)
        if family == "wordle":
            self.app.get(prefix + "/filtered_vocab")(self.vocabulary)
        if family in CLOSING:
            self.app.post(prefix + "/close")(self.close)

    async def create(self, request: Request) -> Any:
        body = await self.heard("create", request)
        if self.say.get("create"):
            return self.say["create"].pop(0)
        if self.family in TAKES_ID_AT_CREATE and body != {"id": 0}:
            raise HTTPException(422, "id is missing")
        instance = self.num_created % self.max_instances
        self.num_created += 1
        self.worlds.setdefault(instance, {})
        if self.family == "webarena":
            return {"env_idx": instance}
        if self.key == "env_idx":
            return instance
        return (
            {"id": instance, "observation": "", "done": False, "reward": 0}
            if self.family == "textcraft"
            else {"id": instance}
        )

    async def reset(self, request: Request) -> Any:
        body = await self.heard("reset", request)
        extra = {"alfworld": {"world_type"}, "webarena": {"seed"}}.get(self.family, set())
        if set(body) != {self.key, self.task_key} | extra:
            raise HTTPException(422, f"unexpected fields {sorted(body)}")
        if body[self.key] not in self.worlds:
            return {"error": f"The id {body[self.key]} is not valid."}
        text = f"task {body[self.task_key]}"
        self.worlds[body[self.key]] = {"text": text, "done": False, "turns": 0}
        if self.say.get("reset"):
            return self.say["reset"].pop(0)
        instance = body[self.key]
        return {
            "textcraft": {"id": instance, "observation": text, "done": False, "reward": 0},
            "babyai": {"observation": text, "reward": 0, "score": 0, "done": False},
            "sciworld": {
                "task_name": "boil", "var_num": 1, "task_description": "Boil water.", "observation": text, "reward": 0, "score": 0,
                "done": False, "deleted": False,
            },
            "alfworld": {"id": instance, "observation": text, "available_actions": ["go to desk 1", "look"], "task_type": "a/b"},
            "maze": {"observation": text}, "wordle": {"id": instance, "observation": "Let's start Wordle!"},
            "webarena": {"observation": text, "sites": [], "object": ""}, "sqlgym": [text, None], "webshop": [text, None],
        }.get(self.family, text)  # fmt: skip

    async def step(self, request: Request) -> Any:
        body = await self.heard("step", request)
        if self.say.get("step"):
            answer = self.say["step"].pop(0)
            if isinstance(answer, int):
                raise HTTPException(answer, "as ordered")
            return answer
        world = self.worlds[body[self.key]]
        if world["done"]:
            return {"error": f"The task with environment {body[self.key]} has finished."}
        won = "win" in body["action"]
        world.update(text=f"saw {body['action']}", done=won, turns=world["turns"] + 1)
        text = world["text"]
        return {
            "babyai": {"observation": text, "reward": 0.7 * won, "score": 0.7 * won, "done": won},
            "sciworld": {"observation": text, "reward": 5, "score": 100 if won else 5 * world["turns"], "done": won},
            "alfworld": {"observation": text, "reward": float(won), "available_actions": ["look"], "done": won},
            "maze": {"observation": text, "reward": 0 if won else -1, "done": won},
            "webshop": {"state": text, "reward": float(won), "done": won, "info": None},
            "sqlgym": {"state": text, "reward": float(won), "done": won, "info": {}},
            "webarena": {"observation": text, "reward": 1.0, "terminated": won, "truncated": False, "info": {}},
        }.get(self.family, {"observation": text, "reward": float(won), "done": won})  # fmt: skip

    def observation(self, id: int | None = None, env_idx: int | None = None) -> Any:
        instance = id if self.key == "id" else env_idx
        self.asked.append(("observation", instance))
        return self.worlds[instance]["text"]  # type: ignore[index]

    def vocabulary(self, id: int) -> Any:
        return ["c r a n e", "s h i r e"]

    async def close(self, request: Request) -> Any:
        body = await self.heard("close", request)
        del self.worlds[body[self.key]]
        if self.family == "webarena":
            return PlainTextResponse("closed")
        return True if self.family == "searchqa" else {"closed": True}

    async def heard(self, path: str, request: Request) -> Any:
        body = await request.json() if await request.body() else None
        self.asked.append((path, body))
        return body

    def actions(self) -> list[str]:
        return [body["action"] for path, body in self.asked if path == "step"]
