"""The OpenAPI description, made from the records themselves. Promise: what it says about a body is what the decoder enforces."""

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
DESCRIPTION = """Places sessions of environments on workers, and passes their turns on.

Open a session for a task, `start` it, `act` turn by turn until an observation is `done`, and close it. A session that nobody calls or
renews within its lease is closed. Repeating a request with the same `request_id` is safe.

The same calls go over a websocket at `/link`, many at once."""


def takes(record: type) -> dict[str, Any]:
    """For a route's `openapi_extra`: its body is this record."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _ref(record)}}}}


def answers(record: Any, *, status: int = 200, faults: tuple[int, ...] = ()) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: it answers with this record, or one of these statuses and a Fault."""
    content = {"application/json": {"schema": _ref(record)}} if record is not None else {}
    responses: dict[int | str, dict[str, Any]] = {status: {"description": "Done.", "content": content}}
    for fault, why in _FAULTS.items():
        if fault in (401, 422, 429, *faults):
            responses[fault] = {
                "description": why,
                "content": {"application/json": {"schema": {"$ref": PLACE.format(name="Fault")}}},
            }
    return responses


_FAULTS = {
    400: "The body is not JSON.",
    401: "No token, or one that is unknown, revoked or expired.",
    403: "The session is another client's.",
    404: "There is no such thing here.",
    409: "It contradicts an earlier call.",
    410: "The session is over.",
    413: "The request is too large.",
    422: "A field is missing or wrong.",
    429: "Too many calls; wait a moment.",
    502: "The environment's own code failed.",
    503: "The worker is lost, or no slot became free in time.",
    504: "The environment's code took longer than it may.",
}


def describe(app: FastAPI, *, records: tuple[type, ...]) -> dict[str, Any]:
    """The description, kept once it has been made."""
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


def _ref(record: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([record], ref_template=PLACE)
    return schema


def _add_field_texts(schema: dict[str, Any], record: type) -> None:
    """A field's docstring is its help text, here too."""
    source = inspect.getsource(sys.modules[record.__module__])
    block = re.split(rf"^class {record.__name__}\b", source, flags=re.MULTILINE)[1]
    block = re.split(r"\n(?=\S)", block, maxsplit=1)[0]
    for name, text in re.findall(r'^    (\w+): [^\n]*\n    """(.+?)"""', block, flags=re.MULTILINE | re.DOTALL):
        prop = schema["properties"][name]
        # Beside a $ref, other keys would be ignored.
        schema["properties"][name] = {**({"allOf": [prop]} if "$ref" in prop else prop), "description": text}
