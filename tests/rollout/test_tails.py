"""The quick proof that a prompt extends the last one gives the ids of the whole proof, whatever is said."""

from __future__ import annotations

import copy
import random
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ludus.models
from ludus.rollout.chat import Chat
from ludus.rollout.template import Template
from ludus.types import Action, Completion, Message, Observation, Tool
from tests.rollout.families import QWEN, SMOLLM2, tokenizer_of
from tests.rollout.test_chat import HOSTILE
from tests.worlds.playing import PLAIN, world

SHIPPED = {path.stem: path.read_text() for path in (Path(ludus.models.__file__).parent / "templates").glob("*.jinja")}
TRIMMING = QWEN.replace("+ message.content +", "+ message.content | trim +")
THOUGHTLESS = QWEN.replace("+ message.content +", "+ message.content.split('</think>')[-1] +")
QUIET = QWEN.replace("message.role == 'user' or", "(message.role == 'user' and message.content) or")
TEMPLATES = {**SHIPPED, "qwen": QWEN, "bare": SMOLLM2, "trim": TRIMMING, "thoughtless": THOUGHTLESS, "quiet": QUIET}
STRICT = SMOLLM2.replace(
    "{{- '<|im_start|>' + m",
    "{%- if loop.previtem and loop.previtem.role == 'tool' and message.role == 'system' -%}"
    "{{- raise_exception('not here') -}}{%- endif -%}{{- '<|im_start|>' + m",
)
TOOLS = [Tool(name, "Guess <|im_end|> it.\nSecond line.", {"type": "object"}) for name in ("guess", "ask")]
said = st.lists(st.sampled_from([*HOSTILE, " ", "\n", ""]) | st.text(max_size=6), max_size=3).map("".join)
heard = st.builds(
    Message, st.sampled_from(["user", "tool", "system"]), said, tool_call_id=said, name=said
)  # no examples of the assistant's


@cache
def chats_of(template: str) -> tuple[Chat, Chat]:
    """One that takes every short cut, and one that takes none."""
    tokenizer = copy.copy(tokenizer_of("qwen3"))
    tokenizer.chat_template = template
    quick, patient = Chat(tokenizer), Chat(tokenizer)
    assert quick.template.local
    patient.template.local = False
    assert quick.template.render_tail([{"role": "user", "content": "x"}])
    assert patient.template.render_tail([{"role": "user", "content": "x"}]) is None
    return quick, patient


def assert_alike(template: str, first: Observation, rest: list[tuple[list[int], Observation]]) -> None:
    """Prompt for prompt, and the rows that are trained."""
    both = [chat.transcript() for chat in chats_of(template)]
    quick, patient = (transcript.start(first.messages, first.tools or ()) for transcript in both)
    assert quick == patient
    for turn, (ids, observation) in enumerate(rest):
        spoken = Completion(tuple(ids), (-1.0,) * len(ids), (turn,) * len(ids), "end")
        for transcript in both:
            transcript.add(spoken, turn=turn)
        quick, patient = (transcript.observe(observation.messages, observation.tools) for transcript in both)
        assert quick == patient
    rows = [[(row.ids.tolist(), row.turns.tolist()) for row in transcript.sequences()] for transcript in both]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("name", [*TEMPLATES, "strict"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_whatever_is_said_the_ids_are_those_of_the_whole_proof(name: str, data: st.DataObject) -> None:
    template = {**TEMPLATES, "strict": STRICT}[name]
    chat, _ = chats_of(template)
    tools = st.sampled_from([TOOLS, TOOLS[:1], []] if chat.template.renders_tools else [[]])
    observations = st.builds(
        lambda messages, tools: Observation(tuple(messages), tools),
        st.lists(heard, min_size=1, max_size=3),
        st.none() | st.none() | st.none() | tools.map(tuple),
    )
    spoken = st.lists(st.integers(0, len(tokenizer_of("qwen3")) - 1), max_size=6)
    ends = st.sampled_from([[chat.end_id], [chat.end_id], []])
    turns = st.lists(st.tuples(st.builds(list.__add__, spoken, ends), observations), max_size=10)
    assert_alike(template, data.draw(observations), data.draw(turns))


@pytest.mark.parametrize("name", PLAIN)
def test_the_sessions_of_every_world_have_the_ids_of_the_whole_proof(name: str) -> None:
    environment = world(name)
    for seed, task in enumerate(environment.tasks("train")[:2]):
        session, rng = environment.open(task, seed=seed), random.Random(seed)
        first, rest = session.start(), list[tuple[Action, Observation]]()
        while len(rest) < 12 and not (rest and rest[-1][1].done):
            action = session.random_action(rng) if rng.random() < 0.3 else session.solve()
            rest.append((action, session.act(action)))
        session.close()
        for template in SHIPPED.values():
            chat, _ = chats_of(template)
            assert_alike(template, first, [(chat.encode_action(action), heard) for action, heard in rest])


def test_the_shipped_templates_are_forms_to_be_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every turn would be rendered: right, and several times as slow."""
    for template in SHIPPED.values():
        chat, _ = chats_of(template)
        rendered = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
        assert chat.template.render_tail(rendered)
        with monkeypatch.context() as patched:
            patched.setattr("jinja2.Template.render", lambda *_, **__: pytest.fail("rendered again"))
            text = chat.template.render_tail([{**each, "content": "word"} for each in rendered])
        assert text is not None
        assert text.count("word") == 2


def test_without_transformers_own_compiler_of_templates_every_prompt_is_rendered_whole(monkeypatch):
    tokenizer, messages = copy.copy(tokenizer_of("qwen3")), [{"role": "user", "content": "x"}]
    tokenizer.chat_template = QWEN
    assert Template(tokenizer).render_tail(messages)
    monkeypatch.setattr("ludus.rollout.template.chat_template_utils", SimpleNamespace())
    assert Template(tokenizer).render_tail(messages) is None
