import asyncio

import httpx
import pytest

from ludus.engines.http import Wire
from ludus.errors import EngineFailed


def asked(answer):
    async def main():
        wire = Wire("http://nowhere/v1", model="", max_running=1, timeout_s=1)
        wire._client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, json=answer)))
        try:
            return await wire.model_name()
        finally:
            await wire.close()

    return asyncio.run(main())


@pytest.mark.parametrize("data", [[1], "small", [{"name": "small"}], {"id": "small"}, [None]])
def test_a_list_of_models_that_is_none_is_named(data):
    with pytest.raises(EngineFailed, match=r"lacks the names of its models; .*engine.model"):
        asked({"data": data})


@pytest.mark.parametrize(("data", "served"), [([], "nothing"), (None, "nothing"), ([{"id": "a"}, {"id": "b"}], "a, b")])
def test_the_only_model_is_asked_for_and_of_several_one_must_be_named(data, served):
    assert asked({"data": [{"id": "small"}]}) == "small"
    with pytest.raises(EngineFailed, match=f"serves {served}; expected one model"):
        asked({"data": data})
