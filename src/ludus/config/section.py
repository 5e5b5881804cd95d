"""The base of every section of a run file: frozen, and closed to unknown keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """The docstring under a field is its help text."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @classmethod
    def fields(cls) -> dict[str, FieldInfo]:
        """Every key that a run file may have here."""
        return cls.model_fields

    def problems(self) -> Iterator[str]:
        """What is wrong between keys. A section with a problem is refused with the first one."""
        return iter(())

    def changed(self, *keys: str) -> Iterator[str]:
        """Those of the keys that do not have their default."""
        return (key for key in keys if getattr(self, key) != type(self).model_fields[key].default)

    @model_validator(mode="after")
    def _has_no_problem(self) -> Self:
        for problem in self.problems():
            raise ValueError(problem)
        return self

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Python counts True as 1, so `steps = true` would be a run of one step."""
        wanted = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and {int, float} & {wanted, *get_args(wanted)}:
            raise ValueError(f"expected a number (got {str(value).lower()})")
        return value


def password_problem(url: str, *, key: str) -> Iterator[str]:
    """A URL is stored with the run and appears in messages, so it must not hold a secret."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        yield f"{key} holds a password, which would be stored with the run; set LUDUS_API_KEY instead"
