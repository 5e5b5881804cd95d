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
    """The resolved run: the TOML file (if any) less its sections `without`, with `environments` and their sources beside those it has
    (what it says about one of them stays), then overrides such as "trainer.lr=1e-4"."""
    data: dict[str, Any] = {}
    if path is not None:
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f"run file {str(path)!r} does not exist; expected a TOML file. Those that are shipped are in the checkout's configs/."
            ) from None
        except OSError as error:
            raise ConfigError(
                f"run file {str(path)!r} cannot be read: {error.strerror}; expected a TOML file"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"run file {str(path)!r} is not valid TOML: {error}") from None
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


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"override {override!r} is not of the form key=value, e.g. trainer.lr=1e-4")
    *sections, name = key.strip().split(".")
    _section(data, sections)[name] = _value(text, annotation=_annotation_at([*sections, name]))


def _section(data: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """The section at this path, made where there is none."""
    for name in path:
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{'.'.join(path)}: {name!r} is a value, not a section")
    return data


def _value(text: str, *, annotation: Any) -> Any:
    """A TOML value where it is one; else, and wherever text is expected, the characters themselves: name=2024, model.name=tiny."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return text if annotation is str and not isinstance(value, str) else value


def _explain(detail: Any) -> str:
    path = [str(part) for part in detail["loc"]]
    key = ".".join(path)
    if detail["type"] == "extra_forbidden":
        if key in RENAMED:
            return f"{key} was renamed to {RENAMED[key]}"
        known = _fields_at(path[:-1])
        near = nearest(path[-1], known)
        return f"unknown key {key!r}.{near} Known here: {', '.join(known)}."
    if detail["type"] == "model_type":
        return f"{key}: expected a section with keys {', '.join(_fields_at(path))} (got {detail['input']!r})"
    if detail["type"] == "string_pattern_mismatch":
        return f"{key} is {detail['input']!r}; expected another form. {_description_at(path)}"
    got = "" if detail["type"] == "value_error" else f" (got {detail['input']!r})"
    near = nearest(str(detail["input"]), _choices_at(path)) if detail["type"] == "literal_error" else ""
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"{key}: {message}{got}{near}" if key else message


def _annotation_at(path: Sequence[str]) -> Any:
    """The type at a dotted path of the tree; Any inside an environment's own options, None where the tree has nothing."""
    annotation: Any = RunConfig
    for part in path:
        if isinstance(annotation, type) and issubclass(annotation, Section):
            field = annotation.model_fields.get(part)
            annotation = field.annotation if field else None
        else:  # a name inside a mapping: environments.NAME
            annotation = get_args(annotation)[1] if get_origin(annotation) is dict else None
    return annotation


def _fields_at(path: Sequence[str]) -> list[str]:
    section = _annotation_at(path)
    return sorted(section.model_fields) if isinstance(section, type) and issubclass(section, Section) else []


def _description_at(path: Sequence[str]) -> str:
    section = _annotation_at(path[:-1])
    return section.model_fields[path[-1]].description or ""


def _choices_at(path: Sequence[str]) -> list[str]:
    return [str(choice) for choice in get_args(_annotation_at(path))]
