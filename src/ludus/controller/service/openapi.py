"""The OpenAPI description, generated from the records that the decoder enforces."""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ludus import __version__

PLACE = "#/components/schemas/{name}"
DESCRIPTION = """Places sessions of environments on workers and relays their turns.

Open a session for a task, `start` it, `act` turn by turn until an observation is `done`, and close it. A session
without a call or a renewal within its lease is closed. Repeating a request with the same `request_id` is safe.

The same calls can be made over a websocket at `/link`, many at once."""
_FAULTS = {
    400: "The body is not JSON.",
    401: "No access token, or one that is unknown, revoked or expired.",
    403: "The session belongs to another client.",
    404: "Not found.",
    409: "The request contradicts an earlier one.",
    410: "The session is over.",
    413: "The request is too large.",
    422: "A field is missing or wrong.",
    429: "Too many calls; wait a moment.",
    502: "The environment's own code failed.",
    503: "The worker is lost, or no slot became free in time.",
    504: "The environment's code exceeded its time limit.",
}


def documented(answer: Any, *, body: Any = None, status: int = 200, faults: tuple[int, ...] = ()) -> dict[str, Any]:
    """Arguments for a route with this body and answer; `faults`: statuses of its failures."""
    responses: dict[int, Any] = {status: {"description": "Done.", "content": {} if answer is None else _json(answer)}}
    fault = {"application/json": {"schema": {"$ref": PLACE.format(name="Fault")}}}
    for code, why in _FAULTS.items():
        if code in (401, 422, 429, *faults):
            responses[code] = {"description": why, "content": fault}
    extra = None if body is None else {"requestBody": {"required": True, "content": _json(body)}}
    return {"responses": responses, "status_code": status, "openapi_extra": extra}


def describe(app: FastAPI, *, records: tuple[type, ...]) -> dict[str, Any]:
    """The description of the app; generated once."""
    if app.openapi_schema is None:
        schema = get_openapi(title="Ludus controller", version=__version__, description=DESCRIPTION, routes=app.routes)
        components = schema.setdefault("components", {})
        _, schemas = msgspec.json.schema_components(records, ref_template=PLACE)
        for record in records:
            _add_field_texts(schemas[record.__name__], record)
        components.setdefault("schemas", {}).update(schemas)
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"token": []}]
        app.openapi_schema = schema
    return app.openapi_schema


def _json(record: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([record], ref_template=PLACE)
    return {"application/json": {"schema": schema}}


def _add_field_texts(schema: dict[str, Any], record: type) -> None:
    """The docstring below a field becomes its description."""
    source = inspect.getsource(sys.modules[record.__module__])
    block = re.split(rf"^class {record.__name__}\b", source, flags=re.MULTILINE)[1]
    block = re.split(r"\n(?=\S)", block, maxsplit=1)[0]
    for name, text in re.findall(r'^    (\w+): [^\n]*\n    """(.+?)"""', block, flags=re.MULTILINE | re.DOTALL):
        prop = schema["properties"][name]
        # Beside a $ref, other keys would be ignored.
        schema["properties"][name] = {**({"allOf": [prop]} if "$ref" in prop else prop), "description": text}
