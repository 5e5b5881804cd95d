"""Our engine behind an OpenAI-compatible endpoint, over real HTTP, with our server engine and plain requests as its callers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import httpx
import pytest
import torch

from ludus.config import EngineConfig, ModelConfig
from ludus.engines.server import ServerEngine
from ludus.errors import EngineLost
from ludus.launch.serving.endpoint import make_app
from ludus.models.loading.load import load_model, load_tokenizer
from ludus.openai_format import tool_to_openai
from ludus.rollout.chat import Chat
from ludus.types import Message, Sampling, Tool
from tests.e2e.runs import make_config
from tests.launch.conftest import engine_server

GUESS = Tool("guess", "Guess.", {"type": "object", "properties": {"number": {"type": "integer"}}})
ASKED = [{"role": "system", "content": "Play."}, {"role": "user", "content": "1 to 9?"}]


@pytest.fixture(scope="module")
def url(engine_url):
    return engine_url


@pytest.fixture(scope="module")
def chat(small_model):
    return Chat(load_tokenizer(small_model))


def post(url, path, body):
    return httpx.post(url + path, json=body, timeout=120)


def test_its_logprobs_are_those_of_the_models_own_forward_pass(url, small_model, chat):
    ids = chat.transcript().start((Message("user", "1 to 9?"),), ())
    sampling = Sampling(max_tokens=6, seed=3, stop_ids=chat.stop_ids)

    async def generated():
        engine = ServerEngine(url)
        try:
            completion = await engine.generate(ids, sampling=sampling, session_id="s")
            return completion, await engine.score([*ids, *completion.ids])
        finally:
            await engine.close()

    completion, scores = asyncio.run(generated())
    model = load_model(small_model, device="cpu")
    with torch.no_grad():
        logprobs = model(torch.tensor([[*ids, *completion.ids]])).logits[0].log_softmax(-1)
    tokens = torch.tensor([*ids, *completion.ids])[1:]
    expected = logprobs[:-1].gather(1, tokens[:, None])[:, 0].tolist()
    assert scores == pytest.approx(expected, abs=1e-4)
    assert list(completion.logprobs) == pytest.approx(expected[len(ids) - 1 :], abs=1e-4)


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(url):
    body = {"prompt": "1 to 9?", "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    answers = [
        post(url, "/completions", {**body, "seed": seed}).json()["choices"][0]["token_ids"] for seed in (1, 1, 2)
    ]
    assert answers[0] == answers[1] != answers[2]
    assert len(answers[0]) == 12


def test_a_chat_is_rendered_and_read_as_in_training(url, chat):
    tools = [tool_to_openai(GUESS)]
    answer = post(url, "/chat/completions", {"messages": ASKED, "tools": tools, "max_tokens": 16, "seed": 1}).json()
    expected = chat.transcript().start((Message("system", "Play."), Message("user", "1 to 9?")), (GUESS,))
    assert answer["usage"]["prompt_tokens"] == len(expected)
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_a_conversation_with_calls_and_results_goes_on(url):
    call = {"id": "c1", "type": "function", "function": {"name": "guess", "arguments": json.dumps({"number": 4})}}
    history = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "higher"},
    ]
    answer = post(url, "/chat/completions", {"messages": history, "tools": [tool_to_openai(GUESS)], "max_tokens": 4})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/completions", {"prompt": [1], "top_p": 0.9}, 422, "top_p"),
        ("/completions", {"prompt": [1], "stop": ["x"]}, 422, "stop"),
        ("/completions", {"prompt": [10**9]}, 503, "ids from"),
        ("/completions", {"prompt": [1], "model": "gpt-9"}, 400, "not served here"),
        ("/completions", {"prompt": [1] * 100_000}, 400, "this endpoint allows"),
        ("/chat/completions", {"messages": []}, 422, "messages"),
        ("/chat/completions", {"messages": [{"role": "wizard", "content": "?"}]}, 400, "wizard"),
        ("/chat/completions", {"messages": ASKED, "tools": [{}]}, 400, "a tool is"),
        ("/chat/completions", {"messages": ASKED, "stream": True}, 422, "stream"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_name(url, path, body, status, says):
    answer = post(url, path, body)
    assert answer.status_code == status, answer.text
    assert says in answer.text


def test_ludus_eval_plays_a_server_and_gets_what_the_embedded_engine_gets(url, small_model, tmp_path):
    from ludus.launch.evaluate import evaluate_model

    def success(name, **engine):
        config = make_config(tmp_path, small_model, name=name, engine=engine, evaluation={"num_tasks": 4})
        report = asyncio.run(evaluate_model(config))
        return [row["num_trajectories"] for row in report["environments"]], report["mean_success"]

    assert success("there", kind="server", url=url) == success("here", deterministic=True)


def test_a_server_killed_while_it_is_asked_stops_an_evaluation_with_the_cause_and_another_one_takes_over(
    url, small_model, tmp_path
):
    from ludus.launch.evaluate import evaluate_model
    from ludus.store.run_folder import RunFolder

    def config(url):
        engine = {"kind": "server", "url": url, "max_running": 8}  # fewer than there are sessions
        return make_config(tmp_path, small_model, engine=engine, evaluation={"attempts": 20})

    with engine_server(small_model, log=tmp_path / "log") as (process, doomed):
        listeners = [lambda kind, _: process.kill() if kind == "trajectory" else None]
        with pytest.raises(EngineLost, match=r"in a row lost their model[\s\S]*run the same command again"):
            asyncio.run(evaluate_model(config(doomed), listeners=listeners))
    (row,) = asyncio.run(evaluate_model(config(url)))["environments"]
    assert (row["num_trajectories"], row["num_unscored"]) == (20 * row["num_tasks"], 0)
    played = [each.trajectory for each in RunFolder(config(url).folder).read_trajectories()]
    times = Counter((each.task.id, each.attempt) for each in played if each.stop.scored)
    assert set(times.values()) == {1}, "what was finished is not played again"
    assert any(not each.stop.scored for each in played)


def test_the_same_model_plays_the_same_in_text_as_in_tokens(url, small_model, tmp_path):
    """Greedy, so that only what is said can differ: the endpoint renders and reads a chat as training does."""
    from ludus.launch.evaluate import evaluate_model
    from ludus.store.run_folder import RunFolder

    def actions(name, **engine):
        greedy = {"num_tasks": 4, "temperature": 0.0}
        config = make_config(tmp_path, small_model, name=name, evaluation=greedy)
        config = config.model_copy(update={"engine": EngineConfig(url=url, **engine)})
        if engine["kind"] == "chat":
            config = config.model_copy(update={"model": ModelConfig()})
        asyncio.run(evaluate_model(config))
        played = [each.trajectory for each in RunFolder(config.folder).read_trajectories()]
        said = {each.task.id: [_spoken(turn.action) for turn in each.turns] for each in played}
        return said, [bool(each.sequences) for each in played], {each.stop for each in played}

    in_tokens, in_text = actions("tokens", kind="server"), actions("text", kind="chat")
    assert in_tokens[0] == in_text[0]
    assert in_tokens[2] == in_text[2]
    assert all(in_tokens[1])
    assert not any(in_text[1]), "text has nothing to train on"


def _spoken(action):
    return [(call.name, dict(call.arguments)) for call in action.tool_calls] or "no call"


@pytest.mark.parametrize(
    ("header", "status"), [({}, 401), ({"Authorization": "Bearer no"}, 401), ({"Authorization": "Bearer k"}, 200)]
)
def test_with_a_key_only_who_bears_it_is_answered_and_health_needs_none(header, status):
    class Served:
        def models(self):
            return {"data": []}

        complete = chat = models

    async def asked():
        transport = httpx.ASGITransport(make_app(Served(), key="k"))
        async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=header) as client:
            bodies = [("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": ASKED})]
            posted = [(await client.post(path, json=body)).status_code for path, body in bodies if status == 401]
            return posted, (await client.get("/v1/models")).status_code, (await client.get("/health")).status_code

    assert asyncio.run(asked()) == ([401] * 2 if status == 401 else [], status, 200)
