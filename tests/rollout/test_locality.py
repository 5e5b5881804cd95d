from __future__ import annotations

import jinja2
import pytest

from ludus.rollout.locality import is_local, is_verbatim, tail
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


def tail_of(source: str) -> jinja2.nodes.Template | None:
    assert is_local(source)
    return tail(jinja2.Environment().parse(source))


SHOWING = "{% if tools %}{% for tool in tools %}{{ tool.name }}{% endfor %}{% endif %}"


@pytest.mark.parametrize(
    "source",
    [
        QWEN,
        loop("{{ message.content }}", before=SHOWING),
        loop("{{ message.content }}", before="{% set shown = tools | length %}{{ shown }}"),
        loop("{{ message.content }}", before="{% macro show(tool) %}{{ tool.name }}{% endmacro %}{{ show(tools[0]) }}"),
    ],
)
def test_what_is_only_written_before_the_messages_is_no_part_of_the_tail(source: str) -> None:
    rest = tail_of(source)
    assert rest is not None
    assert "tools" not in {name.name for name in rest.find_all(jinja2.nodes.Name)}


@pytest.mark.parametrize(
    "source",
    [
        loop("{% if tools and loop.last %}{{ tools | tojson }}{% endif %}{{ message.content }}"),
        loop("{{ message.content }}", after=SHOWING),
        loop("{% if offered %}!{% endif %}", before="{% set offered = tools is defined %}"),
        loop("{{ show() }}", before="{% macro show() %}{{ tools[0].name }}{% endmacro %}"),
        loop("{{ ns.seen }}", before="{% set ns = namespace(seen=0) %}{% if tools %}{% set ns.seen = 1 %}{% endif %}"),
    ],
)
def test_a_template_whose_messages_depend_on_what_precedes_them_has_no_tail(source: str) -> None:
    assert tail_of(source) is None


@pytest.mark.parametrize(
    "source",
    [
        QWEN,
        SMOLLM2,
        loop("{{ message.role ~ message['content'] ~ (message.name or '') }}"),
        loop("{% if loop.previtem.role == 'tool' or message.tool_calls %}{{ messages[0].content }}{% endif %}"),
        loop("{{ message.content }}", before="{% set opening = messages[0].content | trim %}{{ opening }}"),
    ],
)
def test_words_that_are_written_as_they_are_are_verbatim(source: str) -> None:
    rest = tail_of(source)
    assert rest is not None
    assert is_verbatim(rest)


@pytest.mark.parametrize(
    "source",
    [
        loop("{{ message.content | trim }}"),
        loop("{{ ('<' + message.content) | upper }}"),
        loop("{{ ('<' + message.content) * 2 }}"),
        loop("{{ message.content[1:] }}"),
        loop("{{ message.content or 'silence' }}"),
        loop("{{ message.content if loop.first else '' }}"),
        loop("{% if message.content %}x{% endif %}"),
        loop("{% if message.name is defined and message.name == 'x' %}x{% endif %}"),
        loop("{% if loop.nextitem.content == 'x' %}x{% endif %}"),
        loop("{% if messages[0]['content'] == 'x' %}x{% endif %}"),
        loop("{% if messages[loop.index0 - 1].content == 'x' %}x{% endif %}"),
        loop("{% set said = message.content %}{{ said | trim }}"),
        loop("{% set said %}{{ message.content }}{% endset %}{{ said | trim }}"),
        loop("{% filter upper %}{{ message.content }}{% endfilter %}"),
        loop("{% set other = message %}{{ other.content | trim }}"),
        loop("{{ message | tojson }}"),
        loop("{{ message.items() | list }}"),
        loop("{{ message['get']('content') | trim }}"),
        loop("{% set key = 'content' %}{{ message[key] | trim }}"),
        loop("{% for letter in message.content %}{{ letter }}-{% endfor %}"),
        loop("{{ say(message) }}", before="{% macro say(it) %}{{ it.content | trim }}{% endmacro %}"),
        loop("{{ say(message.content) }}", before="{% macro say(it) %}{{ it | trim }}{% endmacro %}"),
        loop("{% if opening %}x{% endif %}", before="{% set opening = messages[0].content %}"),
        "{% for role, content in messages %}{{ content }}{% endfor %}",
    ],
)
def test_words_that_are_changed_or_decide_something_are_not_verbatim(source: str) -> None:
    rest = tail_of(source)
    assert rest is not None
    assert not is_verbatim(rest)
