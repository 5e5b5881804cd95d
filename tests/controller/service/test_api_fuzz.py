"""Whatever the OpenAPI description allows, and what it does not: the controller has an answer for
it.
"""

import asyncio
import threading

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from ludus.controller.service.api import make_app
from ludus.controller.service.server import Controller, Settings
from tests.controller.plane import plane, settle, wish

description = schemathesis.openapi.from_dict(make_app(Controller(Settings())).openapi())


@pytest.fixture(scope="module")
def live():
    """A controller with a worker and an open session, on a thread with its own loop."""
    ready, stop, facts = threading.Event(), threading.Event(), {}

    async def serve():
        async with plane(heartbeat_s=100, max_rate=0, slots=10_000) as (served, _, client):
            settle(served)
            facts.update(url=served.url, session_id=(await client.open()).session_id)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    yield facts
    stop.set()
    thread.join(20)


def test_the_live_controller_answers(live):
    """Otherwise the rest of this file would prove nothing."""
    answer = httpx.post(f"{live['url']}/sessions", json=msgspec.to_builtins(wish(1)))
    assert answer.status_code == 201
    assert httpx.post(f"{live['url']}/sessions/{live['session_id']}/start").status_code == 200


@description.parametrize()
@settings(
    max_examples=10, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), derandomize=True
)
def test_nothing_is_answered_with_500(case, live):
    if isinstance(case.body, dict) and case.path == "/sessions":  # seldom would an invented name be the one we have
        case.body["wait_s"] = 0.1
        if isinstance(case.body.get("task"), dict):
            case.body["task"]["environment"] = "maze"
    if "session_id" in (case.path_parameters or {}) and case.method != "DELETE":
        case.path_parameters["session_id"] = live["session_id"]
    response = case.call(base_url=live["url"], timeout=60)
    assert response.status_code != 500, response.text
    case.validate_response(response, checks=CHECKS)


CHECKS = [
    schemathesis.checks.CHECKS.get_one(name)
    for name in ("status_code_conformance", "response_schema_conformance", "content_type_conformance")
]
