"""Typed Python signatures as JSON schemas. Promise: what the schema says is what `read` accepts.

Serves both what a model may send to a tool and what a run file may set on an environment.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
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
    """One short line: what, got, expected."""


class _PlainSchema(GenerateJsonSchema):
    """Without the titles that pydantic makes from names: they repeat the name and cost tokens in every prompt."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@dataclass(frozen=True)
class Signature:
    """The named parameters of a function or constructor."""

    names: tuple[str, ...]
    schema: Mapping[str, Any]
    _adapter: TypeAdapter[dict[str, Any]]

    def read_json(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as a model sent them: strict, so "5" is not 5."""
        try:
            return self._adapter.validate_json(json.dumps(dict(arguments)), strict=True)
        except (TypeError, ValueError) as error:
            raise BadArguments(self._explain(error)) from None

    def read_python(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments from a run file or from code: "8" may be 8, an unknown name may not pass."""
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
    """Parameters of `function` but self. `what` names it in errors, e.g. "tool guess"."""
    hints = _hints(function, what=what)
    described = argument_descriptions(function)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind not in _NAMED or parameter.name not in hints:
            raise ConfigError(f"{what}: parameter {str(parameter)!r} needs a name and a type, e.g. `number: int = 3`")
        fields[parameter.name] = _field(
            parameter, hint=hints[parameter.name], description=described.get(parameter.name, "")
        )
    shape = TypedDict("Arguments", fields)  # type: ignore[misc]
    shape.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)  # type: ignore[attr-defined]
    try:
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(shape)  # type: ignore[arg-type]
    except PydanticUserError as error:
        raise ConfigError(f"{what}: a type cannot be used: {str(error).splitlines()[0]}") from None
    return Signature(tuple(fields), _schema(adapter, what=what), adapter)


def description(function: Callable[..., Any]) -> str:
    """The docstring without the lines about arguments."""
    doc, names = inspect.getdoc(function) or "", _parameters(function)
    kept = [
        line for line in doc.splitlines() if not _argument_line(line, names) and line.strip().lower() not in _HEADINGS
    ]
    return " ".join(" ".join(kept).split())


def argument_descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """From docstring lines such as `number: the guess`."""
    doc, names = inspect.getdoc(function) or "", _parameters(function)
    return dict(found for line in doc.splitlines() if (found := _argument_line(line, names)))


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _argument_line(line: str, names: frozenset[str]) -> tuple[str, str] | None:
    match = _ARGUMENT_LINE.match(line)
    return (match[1], match[2].strip()) if match and match[1] in names else None


def _hints(function: Callable[..., Any], *, what: str) -> dict[str, Any]:
    target = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        return get_type_hints(target, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"{what}: {error}; import the type at the top of the module, not under TYPE_CHECKING"
        ) from None


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
    # extra arguments are refused with a message, so the schema need not spend tokens on saying so
    kept = {key: schema[key] for key in ("type", "properties", "required") if key in schema}
    return {"type": "object", "properties": {}} | kept


def _inlined(node: Any, defs: Mapping[str, Any], *, what: str, above: tuple[str, ...]) -> Any:
    """References replaced by what they refer to: shorter for a model to read, simpler to draw values from."""
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
