"""Reads and writes run files: TOML plus dotted overrides such as `trainer.lr=1e-4`.

Promise: a key is used or refused, with the near name; nothing is silently ignored.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import tomli_w
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ludus.config.run import RunConfig
from ludus.config.section import Section
from ludus.errors import ConfigError, nearest

RENAMED = {
    "algorithm.trace": "algorithm.gae_lambda",
    "algorithm.centre": "algorithm.ratio_base",
    "algorithm.foreign": "algorithm.off_policy",
    "speakers": "cross_policy",
}
"""Keys by their former name. They are refused with the new one."""


def load_config(
    path: str | Path | None = None,
    overrides: Iterable[str] = (),
    *,
    without: Iterable[str] = (),
    environments: Mapping[str, str] | None = None,
) -> RunConfig:
    """The resolved run: the TOML file (if any) without the sections `without`, plus `environments`
    (name to source; the file's keys for them stay), plus overrides such as "trainer.lr=1e-4"."""
    data = {} if path is None else _read(Path(path))
    for section in without:
        data.pop(section, None)
    for name, source in (environments or {}).items():
        _section(data, ["environments", name]).update({"source": source} if source else {})
    for override in overrides:
        _apply(data, override)
    return parse_config(data)


def parse_config(data: Mapping[str, Any]) -> RunConfig:
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(detail) for detail in error.errors())) from None


def dump_config(config: RunConfig) -> str:
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"run file {str(path)!r} does not exist; expected a TOML file. The checkout's configs/ has examples."
        ) from None
    except OSError as error:
        raise ConfigError(f"run file {str(path)!r} cannot be read: {error.strerror}; expected a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"run file {str(path)!r} is not valid TOML: {error}") from None


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"override {override!r} is not of the form key=value, e.g. trainer.lr=1e-4")
    *sections, name = key.strip().split(".")
    _section(data, sections)[name] = _value(text, annotation=_annotation_at([*sections, name]))


def _section(data: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """The section at this path, created if there is none."""
    for name in path:
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{'.'.join(path)}: {name!r} is a value, not a section")
    return data


def _value(text: str, *, annotation: Any) -> Any:
    """As a TOML value; as it is if it is none (model.name=tiny) or text is expected (name=2024)."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return text if annotation is str and not isinstance(value, str) else value


def _explain(detail: Any) -> str:
    """A validation error in one sentence."""
    path = [str(part) for part in detail["loc"]]
    key, kind, given = ".".join(path), detail["type"], detail["input"]
    message = str(detail["msg"]).removeprefix("Value error, ")
    beside = _fields_of(_annotation_at(path[:-1]))
    meaning = " ".join((beside[path[-1]].description or "").split()) if path and path[-1] in beside else ""
    if key in RENAMED:
        return f"{key} was renamed to {RENAMED[key]}"
    if kind == "extra_forbidden":
        return f"unknown key {key!r}.{nearest(path[-1], sorted(beside))} Known here: {', '.join(sorted(beside))}."
    if kind == "option":
        return message
    if kind == "missing":
        return f"{key} is required. {meaning}"
    if kind == "model_type":
        keys = ", ".join(sorted(_fields_of(_annotation_at(path))))
        return f"{key}: expected a section with keys {keys} (got {given!r})"
    if kind == "string_pattern_mismatch":
        return f"{key} is {given!r}; expected another form. {meaning}"
    got = "" if kind == "value_error" else f" (got {given!r})"
    near = nearest(str(given), map(str, get_args(_annotation_at(path)))) if kind == "literal_error" else ""
    named = not key or message.startswith((f"{key} ", f"{key}."))
    return f"{message}{got}{near}" if named else f"{key}: {message}{got}{near}"


def _annotation_at(path: Sequence[str]) -> Any:
    """The type at a dotted path of the tree; None if the tree has no such key."""
    annotation: Any = RunConfig
    for part in path:
        if fields := _fields_of(annotation):
            annotation = fields[part].annotation if part in fields else None
        else:  # a name inside a mapping: environments.NAME
            annotation = get_args(annotation)[1] if get_origin(annotation) is dict else None
    return annotation


def _fields_of(annotation: Any) -> dict[str, FieldInfo]:
    return annotation.fields() if isinstance(annotation, type) and issubclass(annotation, Section) else {}
