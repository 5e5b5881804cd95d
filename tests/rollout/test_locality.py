from __future__ import annotations

import pytest

from ludus.rollout.locality import is_local
from tests.rollout.families import LLAMA3, MISTRAL, QWEN, QWEN3, SMOLLM2


def loop(body: str, *, before: str = "", after: str = "") -> str:
    return before + "{% for message in messages %}" + body + "{% endfor %}" + after


@pytest.mark.parametrize(
    "source",
    [
        QWEN,
        SMOLLM2,
        loop("{{ message.content }}", after="{% if add_generation_prompt %}assistant{% endif %}"),
        loop("{{ messages[0].role }}{{ loop.previtem.role }}{{ loop.nextitem.role }}"),
        loop("{% if loop.index == 1 %}{{ bos_token }}{% endif %}{% if loop.index0 > 0 %} {% endif %}"),
        loop("{% for call in message.tool_calls %}{{ loop.index }}{{ call.name }}{% endfor %}"),
        loop("{% set said = message.content | trim %}{{ said }}"),
    ],
)
def test_a_template_whose_messages_know_their_neighbours_only_is_local(source: str) -> None:
    assert is_local(source)


@pytest.mark.parametrize(
    "source",
    [
        QWEN3,
        MISTRAL,
        LLAMA3,
        loop("{{ loop.index }}"),
        loop("{{ loop.length }}{{ loop.revindex }}"),
        loop("{{ messages[-1].content }}"),
        loop("{{ messages | length }}"),
        loop("{{ messages[loop.index0 - 2].content }}"),
        loop("{{ messages[loop.index0 + messages | length - 1].content }}"),
        loop("{% set ns.seen = true %}", before="{% set ns = namespace(seen=false) %}"),
        loop("{{ comma() }}", before="{% set comma = joiner(',') %}"),
        loop("{{ loop.changed(message.role) }}"),
        loop("x", after="{{ messages[-1].role }}"),
        loop("x", before="{% set messages = messages[1:] %}"),
        loop("x") + loop("y"),
        loop("{% for other in messages %}{{ other.content }}{% endfor %}"),
        loop("{% for call in message.tool_calls %}{{ messages[loop.index0 - 1].role }}{% endfor %}"),
        loop("{% if message.role == 'stop' %}{% break %}{% endif %}"),
        "{% for message in messages if message.role != 'system' %}{{ loop.first }}{% endfor %}",
        "{% for message in messages | reverse %}x{% endfor %}",
        "{% macro all() %}{{ messages | length }}{% endmacro %}" + loop("{{ all() }}"),
        "{% if tools %}" + loop("x") + "{% endif %}",
        "{{ broken",
        "",
    ],
)
def test_a_template_that_could_look_further_is_not(source: str) -> None:
    assert not is_local(source)
