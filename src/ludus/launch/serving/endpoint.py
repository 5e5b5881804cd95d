"""A model behind an OpenAI-compatible endpoint.

Promise: token ids are exact; unsupported options are refused.

    POST /v1/completions        prompt as ids or text; return_token_ids adds the sampled ids
    POST /v1/chat/completions   messages and tools, rendered and parsed as in training
    GET  /v1/models, /health

If LUDUS_API_KEY is set, every request but /health must send it; beyond loopback it must be set. A
request that extends an earlier prompt of the same `user` reuses its key-value cache.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from transformers import PreTrainedTokenizerBase

from ludus.config import RunConfig
from ludus.controller.service.access import is_loopback
from ludus.engines.engine import Engine
from ludus.engines.http import KEY
from ludus.errors import ConfigError, EnvironmentFailed, LudusError, nearest
from ludus.launch.context import make_chat
from ludus.launch.engines import make_engine
from ludus.models.loading.load import load_tokenizer
from ludus.openai_format import call_to_openai, read_message, read_tool
from ludus.rollout.chat import Chat
from ludus.types import Completion, Sampling

MAX_TOKENS = 256
"""The limit of a request without one."""


class Request(BaseModel):
    """The fields of both kinds of completion. An unknown field is refused, because an ignored
    sampling option would change the tokens; fields at their default are accepted."""

    model_config = ConfigDict(extra="forbid")

    model: str = ""
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=100)
    seed: int | None = None
    n: Literal[1] = 1
    stream: Literal[False] = False
    top_p: float = Field(default=1, ge=1, le=1)
    top_k: Literal[-1, 0] = -1
    min_p: float = Field(default=0, ge=0, le=0)
    repetition_penalty: float = Field(default=1, ge=1, le=1)
    frequency_penalty: float = Field(default=0, ge=0, le=0)
    presence_penalty: float = Field(default=0, ge=0, le=0)
    user: str = ""


class CompletionRequest(Request):
    prompt: str | list[int]
    logprobs: int | None = Field(default=None, ge=0, le=1)
    prompt_logprobs: int | None = Field(default=None, ge=0, le=1)
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    """End a generation at `stop_token_ids` alone."""
    return_token_ids: bool = False


class ChatRequest(Request):
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] = []
    tool_choice: Literal["auto"] = "auto"
    max_completion_tokens: int | None = Field(default=None, ge=1)


class Endpoint:
    """Answers requests with `engine`. `max_tokens` limits prompt and samples together."""

    def __init__(
        self, engine: Engine, *, chat: Chat, tokenizer: PreTrainedTokenizerBase, name: str, max_tokens: int
    ) -> None:
        self._engine, self._chat, self._tokenizer = engine, chat, tokenizer
        self._name, self._max_tokens = name, max_tokens

    async def complete(self, request: CompletionRequest) -> dict[str, Any]:
        self._check_model(request.model)
        prompt = request.prompt
        ids = list(self._tokenizer.encode(prompt)) if isinstance(prompt, str) else prompt
        choice: dict[str, Any] = {"index": 0, "text": "", "finish_reason": "length", "logprobs": None}
        if request.prompt_logprobs is not None:
            scores = await self._engine.score(ids)
            scored = [{str(token): {"logprob": score}} for token, score in zip(ids[1:], scores, strict=True)]
            choice["prompt_logprobs"] = [None, *scored]
        ends = () if request.ignore_eos else self._chat.stop_ids
        completion = await self._generate(ids, request, stop_ids=(*request.stop_token_ids, *ends))
        choice["text"] = self._text(completion)
        choice["finish_reason"] = "stop" if completion.stop == "end" else "length"
        if request.logprobs is not None:
            tokens = [self._chat.text.decode([token]) for token in completion.ids]
            choice["logprobs"] = {"tokens": tokens, "token_logprobs": list(completion.logprobs)}
        if request.return_token_ids:
            choice |= {"token_ids": list(completion.ids), "prompt_token_ids": ids}
        return self._answer("text_completion", choice, prompt=ids, completion=completion)

    async def chat(self, request: ChatRequest) -> dict[str, Any]:
        self._check_model(request.model)
        tools = [read_tool(tool) for tool in request.tools]
        ids = self._chat.transcript().start([read_message(message) for message in request.messages], tools)
        if request.max_completion_tokens is not None:
            request = request.model_copy(update={"max_tokens": request.max_completion_tokens})
        completion = await self._generate(ids, request, stop_ids=self._chat.stop_ids)
        action = self._chat.parse(completion.ids, tools=bool(tools))
        calls = [call_to_openai(call, default_id=f"call_{uuid.uuid4().hex[:12]}") for call in action.tool_calls]
        # a call that cannot be parsed is returned as it was written
        text = self._text(completion) if action.problem else action.content
        message = {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
        reason = "length" if completion.stop == "length" else "tool_calls" if calls else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return self._answer("chat.completion", choice, prompt=ids, completion=completion)

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": self._name, "object": "model", "owned_by": "ludus"}]}

    def _text(self, completion: Completion) -> str:
        return self._chat.text.decode(self._chat.without_stop(completion.ids))

    def _check_model(self, name: str) -> None:
        if name and name != self._name:
            raise ConfigError(
                f"model {name!r} is not served here; this is {self._name!r}.{nearest(name, [self._name])}"
            )

    async def _generate(self, ids: list[int], request: Request, *, stop_ids: tuple[int, ...]) -> Completion:
        room = self._max_tokens - len(ids)
        if room < 1:
            raise ConfigError(f"a prompt of {len(ids)} tokens; this endpoint allows {self._max_tokens} with the answer")
        sampling = Sampling(
            max_tokens=min(request.max_tokens or MAX_TOKENS, room),
            temperature=request.temperature,
            stop_ids=stop_ids,
            seed=uuid.uuid4().int & (2**63 - 1) if request.seed is None else request.seed,
        )
        session_id = request.user or uuid.uuid4().hex
        try:
            return await self._engine.generate(ids, sampling=sampling, session_id=session_id)
        finally:
            if not request.user:
                await self._engine.release(session_id)

    def _answer(
        self, kind: str, choice: dict[str, Any], *, prompt: list[int], completion: Completion
    ) -> dict[str, Any]:
        num, sampled = len(prompt), len(completion.ids)
        usage = {"prompt_tokens": num, "completion_tokens": sampled, "total_tokens": num + sampled}
        made = {"id": uuid.uuid4().hex, "object": kind, "created": int(time.time()), "model": self._name}
        return {**made, "choices": [choice], "usage": usage}


def serve_engine(config: RunConfig, *, host: str, port: int) -> None:
    """`ludus serve engine`: serve the run file's model until it is stopped."""
    if config.engine.kind != "embedded":
        raise ConfigError(f"engine.kind is {config.engine.kind!r}; `ludus serve engine` serves the embedded engine")
    key = os.environ.get(KEY, "")
    if not key and not is_loopback(host):
        raise ConfigError(
            f"the endpoint would listen on {host} without authentication; set {KEY} here and for its clients, "
            "or listen on 127.0.0.1"
        )
    folder, max_tokens = config.model.name, config.rollout.max_tokens
    if folder == "tiny":
        raise ConfigError("model.name is 'tiny', which has no weights; name a run's export folder, or another model")
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error}; choose another with --host and --port"
        ) from None
    tokenizer = load_tokenizer(folder)
    engine = make_engine(config, model_folder=folder, trains=False)
    endpoint = Endpoint(
        engine, chat=make_chat(config, tokenizer), tokenizer=tokenizer, name=Path(folder).name, max_tokens=max_tokens
    )
    print(f"Serving {Path(folder).name} at http://{host}:{listener.getsockname()[1]}/v1", flush=True)
    server = uvicorn.Server(uvicorn.Config(make_app(endpoint, key=key), log_level="warning"))
    asyncio.run(server.serve(sockets=[listener]))


def make_app(endpoint: Endpoint, *, key: str = "") -> FastAPI:
    app = FastAPI(title="Ludus engine")

    async def known(authorization: Annotated[str, Header()] = "") -> None:
        if key and not hmac.compare_digest(authorization.encode(), f"Bearer {key}".encode()):
            raise HTTPException(401, "this endpoint requires the header `Authorization: Bearer KEY`")

    @app.exception_handler(LudusError)
    async def failed(_: Any, error: LudusError) -> JSONResponse:
        """400 for a request that the caller can fix, 503 for a broken engine."""
        status = 400 if isinstance(error, ConfigError | EnvironmentFailed) else 503
        return JSONResponse({"error": {"message": str(error), "type": type(error).__name__}}, status_code=status)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    callers = [Depends(known)]
    app.get("/v1/models", dependencies=callers)(endpoint.models)
    app.post("/v1/completions", dependencies=callers)(endpoint.complete)
    app.post("/v1/chat/completions", dependencies=callers)(endpoint.chat)
    return app
