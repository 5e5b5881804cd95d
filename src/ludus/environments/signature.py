"""Typed Python signatures as JSON schemas. Promise: what the schema says is accepted.

Used for the arguments of tools and for the options of environments.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, Required, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, PydanticInvalidForJsonSchema
from typing_extensions import TypedDict

from ludus.errors import ConfigError, nearest

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_ARGUMENT_LINE = re.compile(r"^\s*(?:[-*]\s+|:param\s+)?(\w+)\s*(?:\([^)]*\))?\s*:\s+(\S.*)$")
_HEADINGS = {"args:", "arguments:", "parameters:"}


class BadArguments(ValueError):
    """The message is one short line: what, got, expected."""


class _PlainSchema(GenerateJsonSchema):
    """Without pydantic's titles, which repeat the names and cost tokens in every prompt."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class Signature:
    """The named parameters of a function or constructor."""

    names: tuple[str, ...]
    schema: Mapping[str, Any]
    _adapter: TypeAdapter[dict[str, Any]]

    def read_json(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments from a model. Strict: "5" is no int."""
        try:
            return self._adapter.validate_json(json.dumps(dict(arguments)), strict=True)
        except (TypeError, ValueError) as error:
            raise BadArguments(self._explain(error)) from None

    def read_python(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments from a run file or code. "8" is an int; unknown names are refused."""
        try:
            return self._adapter.validate_python(dict(arguments))
        except ValidationError as error:
            raise BadArguments(self._explain(error)) from None

    def _explain(self, error: Exception) -> str:
        if not isinstance(error, ValidationError):
            return f"arguments are not JSON: {str(error)[:60]}"
        return "; ".join(self._explain_one(detail) for detail in error.errors(include_url=False)[:3])

    def _explain_one(self, detail: Any) -> str:
        where = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            known = ", ".join(self.names) or "none"
            return f"unknown argument {where}; expected {known}.{nearest(where, self.names)}"
        if detail["type"] == "missing":
            return f"{where} is missing; expected {self._type_of(where)}"
        got = repr(detail["input"])
        got = got if len(got) <= 24 else got[:21] + "..."
        return f"{where}: got {got}, expected {str(detail['msg']).removeprefix('Input should be ')}"

    def _type_of(self, name: str) -> str:
        schema = self.schema["properties"].get(name, {})
        return " or ".join(map(str, schema["enum"])) if "enum" in schema else str(schema.get("type", "a value"))


def read_signature(function: Callable[..., Any], *, what: str) -> Signature:
    """The parameters of `function` without self. `what` names it in errors, e.g. "tool guess"."""
    target = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        hints = get_type_hints(target, include_extras=True)
    except NameError as error:
        raise ConfigError(f"{what}: {error}; import the type at module level, not under TYPE_CHECKING") from None
    described = dict(found for _, found in _doc_lines(function) if found)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        if parameter.kind not in _NAMED or name not in hints:
            raise ConfigError(f"{what}: parameter {str(parameter)!r} needs a name and a type, e.g. `number: int = 3`")
        fields[name] = _field(parameter, hint=hints[name], description=described.get(name, ""))
    shape = TypedDict("Arguments", fields)  # type: ignore[misc]
    shape.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)  # type: ignore[attr-defined]
    try:
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(shape)  # type: ignore[arg-type]
    except PydanticUserError as error:
        raise ConfigError(f"{what}: a type cannot be used: {str(error).splitlines()[0]}") from None
    return Signature(tuple(fields), _schema(adapter, what=what), adapter)


def description(function: Callable[..., Any]) -> str:
    """The docstring without the lines about arguments."""
    kept = [line for line, found in _doc_lines(function) if not found and line.strip().lower() not in _HEADINGS]
    return " ".join(" ".join(kept).split())


def _doc_lines(function: Callable[..., Any]) -> Iterator[tuple[str, tuple[str, str] | None]]:
    """Lines of the docstring, each with the argument it describes and the description."""
    names = inspect.signature(function).parameters
    for line in (inspect.getdoc(function) or "").splitlines():
        match = _ARGUMENT_LINE.match(line)
        yield line, (match[1], match[2].strip()) if match and match[1] in names else None


def _field(parameter: inspect.Parameter, *, hint: Any, description: str) -> Any:
    if get_origin(hint) is Annotated:
        description = next((extra for extra in get_args(hint)[1:] if isinstance(extra, str)), description)
    extra: dict[str, Any] = {}
    optional = parameter.default is not inspect.Parameter.empty
    if optional and isinstance(parameter.default, str | int | float | bool):
        extra["default"] = getattr(parameter.default, "value", parameter.default)
    field = Annotated[hint, Field(description=description or None, json_schema_extra=extra or None)]
    return NotRequired[field] if optional else Required[field]


def _schema(adapter: TypeAdapter[Any], *, what: str) -> dict[str, Any]:
    try:
        raw = adapter.json_schema(schema_generator=_PlainSchema)
    except PydanticInvalidForJsonSchema as error:
        if what.startswith("tool"):
            raise ConfigError(f"{what}: a type has no JSON form: {error}") from None
        return {"type": "object", "properties": {}}  # an option may be any Python object
    schema = _inlined(raw, raw.get("$defs", {}), what=what, above=())
    # without additionalProperties: extra arguments are refused anyway, and it would cost tokens
    kept = {key: schema[key] for key in ("type", "properties", "required") if key in schema}
    return {"type": "object", "properties": {}} | kept


def _inlined(node: Any, defs: Mapping[str, Any], *, what: str, above: tuple[str, ...]) -> Any:
    """The schema with references resolved: shorter for a model, simpler to draw values from."""
    if isinstance(node, list):
        return [_inlined(item, defs, what=what, above=above) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        if name in above:
            raise ConfigError(f"{what}: type {name} contains itself; a tool's argument must have a finite schema")
        target = {key: value for key, value in defs[name].items() if key != "title"}
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _inlined(target | rest, defs, what=what, above=(*above, name))
    return {key: _inlined(value, defs, what=what, above=above) for key, value in node.items() if key != "$defs"}
