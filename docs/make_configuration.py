"""Writes docs/configuration.md from the docstrings in src/ludus/config/: `python docs/make_configuration.py`."""

from __future__ import annotations

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from ludus.config import AlgorithmConfig, RunConfig, Section
from ludus.config.algorithm import every_piece
from ludus.config.pieces import KINDS

PAGE = Path(__file__).with_name("configuration.md")
SIGNS: dict[type, tuple[str, str]] = {Gt: (">", "gt"), Ge: (">=", "ge"), Lt: ("<", "lt"), Le: ("<=", "le")}
HEAD = """# Configuration

A run is a TOML file plus overrides on the command line:
`ludus train configs/quickstart.toml trainer.lr=1e-4`. `--dry-run` prints the resolved run, with every
key. An unknown key is refused with the near name. So is an override that the command does not read,
such as `trainer.lr` for `ludus sft`, which has its own.

Written by `docs/make_configuration.py` from the docstrings in `src/ludus/config/`; change it there.
"""


OPTIONS = """Each choice has its own keys in [algorithm]. A key that the chosen ones do not have is refused.
Where a type ends in `module:name`, an import path names a function of your own: see
[algorithms.md](algorithms.md#your-own-method).
"""


def page() -> str:
    keys = {name: field for name, field in RunConfig.model_fields.items() if section_of(field) is None}
    parts = [HEAD, "## At the top of the file\n", table(keys)]
    for name, field in RunConfig.model_fields.items():
        if section := section_of(field):
            heading = f"{name}.NAME" if get_origin(field.annotation) is dict else name
            parts += [f"## [{heading}]\n", table(section.model_fields)]
            parts += [OPTIONS, options()] if section is AlgorithmConfig else []
            for inner, own in section.model_fields.items():
                if named := section_of(own):
                    parts += [f"## [{name}.{inner}.NAME]\n", table(named.model_fields)]
    return "\n".join(parts)


def options() -> str:
    """The keys of the pieces; pieces with the same key share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for choice, piece in every_piece():
        for name, field in piece.options.model_fields.items():
            if name not in AlgorithmConfig.model_fields:
                row = (name, kind(field), default(field), choice, meaning(field))
                rows.setdefault(row, []).append(f"`{piece.name}`")
    keys = list(dict.fromkeys(row[0] for row in rows))
    rows = dict(sorted(rows.items(), key=lambda item: keys.index(item[0][0])))
    lines = [f"| `{n}` | {k} | {d} | {c} {', '.join(names)} | {m} |" for (n, k, d, c, m), names in rows.items()]
    return "\n".join(["| key | type | default | with | meaning |", "|---|---|---|---|---|", *lines, ""])


def choices(name: str) -> str:
    registry = KINDS[name]
    return " or ".join([*(f"`{each}`" for each in registry.names()), *(["`module:name`"] if registry.group else [])])


def section_of(field: FieldInfo) -> type[Section] | None:
    """The section behind a key, also behind a mapping of names to sections; None for a plain value."""
    for candidate in (field.annotation, *get_args(field.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def table(fields: Mapping[str, FieldInfo]) -> str:
    named = KINDS if fields is AlgorithmConfig.model_fields else {}
    rows = [
        f"| `{name}` | {choices(name) if name in named else kind(field)} | {default(field)} | {meaning(field)} |"
        for name, field in fields.items()
    ]
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
