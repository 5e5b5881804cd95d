"""Writes docs/configuration.md from the docstrings in src/ludus/config/: `python docs/make_configuration.py`."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from ludus.config import RunConfig, Section

PAGE = Path(__file__).with_name("configuration.md")
SIGNS: dict[type, tuple[str, str]] = {Gt: (">", "gt"), Ge: (">=", "ge"), Lt: ("<", "lt"), Le: ("<=", "le")}
HEAD = """# Configuration

A run is a TOML file plus overrides on the command line: `ludus train configs/quickstart.toml trainer.lr=1e-4`. `--dry-run` prints the
resolved run, with every key. A key that is not listed here is refused, with the near name, and so is an override that the command
does not read, such as `trainer.lr` for `ludus sft`, which has its own.

Written by `docs/make_configuration.py` from the docstrings in `src/ludus/config/`; change it there.
"""


def page() -> str:
    keys = {name: field for name, field in RunConfig.model_fields.items() if section_of(field) is None}
    parts = [HEAD, "## At the top of the file\n", table(keys)]
    for name, field in RunConfig.model_fields.items():
        if section := section_of(field):
            heading = f"{name}.NAME" if get_origin(field.annotation) is dict else name
            parts += [f"## [{heading}]\n", table(section.model_fields)]
            for inner, own in section.model_fields.items():
                if named := section_of(own):
                    parts += [f"## [{name}.{inner}.NAME]\n", table(named.model_fields)]
    return "\n".join(parts)


def section_of(field: FieldInfo) -> type[Section] | None:
    """The section behind a key, also behind a mapping of names to sections; None for a plain value."""
    for candidate in (field.annotation, *get_args(field.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def table(fields: dict[str, FieldInfo]) -> str:
    rows = [f"| `{name}` | {kind(field)} | {default(field)} | {meaning(field)} |" for name, field in fields.items()]
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows, ""])


def kind(field: FieldInfo) -> str:
    limits = [f"{sign} {getattr(rule, name):g}" for rule in field.metadata for sign, name in limit(rule)]
    return ", ".join([spell(field.annotation), *limits])


def limit(rule: Any) -> list[tuple[str, str]]:
    return [SIGNS[type(rule)]] if type(rule) in SIGNS else []


def spell(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join("unset" if one is type(None) else spell(one) for one in arguments)
    if annotation is ...:
        return "..."
    if origin is tuple:
        return f"[{', '.join(map(spell, arguments))}]"
    return "table" if origin is dict else str(annotation.__name__)


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "unset" if field.default is None else f"`{to_json(field.default).decode()}`"


def meaning(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(page())
