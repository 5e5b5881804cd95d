"""The pieces that an algorithm is put together from, by kind and name.

A piece is a function with an argument `options`, whose annotation names the pydantic model of the
piece's own keys in [algorithm]. `ludus.algorithms` registers the built-in ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from ludus.config.section import Section
from ludus.errors import ConfigError, describe
from ludus.plugins import Registry

P = TypeVar("P", bound="Piece")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Piece:
    name: str
    function: Callable[..., Any]
    options: type[BaseModel]
    """The keys that the function reads."""

    def read(self, values: Mapping[str, Any]) -> BaseModel:
        """The piece's options, from the values of the whole section."""
        return self.options.model_validate({k: values[k] for k in self.options.model_fields if k in values})


@dataclass(frozen=True, slots=True)
class Advantage(Piece):
    """function(group, options) -> per trajectory: a number, an array (K,) over its turns, or, with
    `per = "token"`, an array (M,) over its sampled tokens.

    With `critics` it is function(group, options, values), where `values` are the critic's per
    sampled token, and it may return a `Credit` per trajectory, from which the critic learns."""

    per: Literal["turn", "token"] = "turn"
    critics: tuple[str, ...] = ()
    """The values of critic.kind that can be asked. Empty: it asks no critic."""
    trains_critic: bool = False
    """Asking for values trains the critic, so they are asked for once per batch."""
    compares: bool = False
    """It compares the attempts of a group with each other, so it needs at least two."""
    filter: str = "none"
    """The default of algorithm.filter."""
    in_loss: Callable[..., Any] | None = None
    """Computes the advantages from `Tokens` instead, where the reference's logprobs are known."""
    metrics: Callable[..., dict[str, float]] | None = None
    """Metrics of a batch, from its groups."""


@dataclass(frozen=True, slots=True)
class Filter(Piece):
    """function(groups, options) -> the groups that are trained."""

    replaces: bool = False
    """The loop plays another group in place of one that the filter drops."""


def _made(kind: str, type_: type[P], first: str, name: str, function: Any) -> P:
    """A piece from a function and the traits that its decorator set."""
    traits = getattr(function, "__ludus_traits__", {})
    what = f"algorithm.{kind} {name!r}"
    if first:
        _check_call(function, [first, "options", *(["values"] if traits.get("critics") else [])], what=what)
    return type_(name, function, _options_of(function, what), **traits)


def _check_call(function: Any, arguments: list[str], *, what: str) -> None:
    called = f"function({', '.join(arguments)})"
    if not callable(function):
        raise ConfigError(f"{what} is {function!r}; expected a {called}")
    try:
        inspect.signature(function).bind(None, **dict.fromkeys(arguments[1:]))
    except TypeError as error:
        signature = inspect.signature(function)
        raise ConfigError(f"{what} is called as {called}, but its signature is {signature}: {error}") from None


def _options_of(function: Callable[..., Any], what: str) -> type[BaseModel]:
    annotation: Any = inspect.signature(function).parameters["options"].annotation
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, getattr(function, "__globals__", {}))
        except Exception as error:  # noqa: BLE001
            raise ConfigError(f"{what}: the type of its options, {annotation}, is unknown: {describe(error)}") from None
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else Section


def _registry(kind: str, type_: type[P], first: str = "", *, group: str = "") -> Registry[P]:
    """With `group` for pieces from outside, whose first argument is named `first`."""
    make = partial(_made, kind, type_, first)
    return Registry(f"algorithm.{kind}", make=make, home="ludus.algorithms", group=group)


ADVANTAGES = _registry("advantage", Advantage, "group", group="ludus.advantages")
KINDS: dict[str, Registry[Any]] = {
    "advantage": ADVANTAGES,
    "rewards": _registry("rewards", Piece, "group", group="ludus.rewards"),
    "filter": _registry("filter", Filter, "groups", group="ludus.filters"),
    "task_normalise": _registry("task_normalise", Piece),
    "aggregate": _registry("aggregate", Piece),
    "loss": _registry("loss", Piece, "tokens", group="ludus.losses"),
    "ratio_base": _registry("ratio_base", Piece),
    "kl": _registry("kl", Piece),
}
"""By the key that chooses a piece."""


def piece(kind: str, name: str = "", **traits: Any) -> Callable[[F], F]:
    """Makes a function a piece. `traits`: fields of `Advantage` or `Filter`. Without a name, a run
    file names it by its import path."""

    def register(function: F) -> F:
        function.__ludus_traits__ = traits  # type: ignore[attr-defined]
        if name:
            KINDS[kind].add(name, function)
        return function

    return register


advantage = partial(piece, "advantage")
loss = partial(piece, "loss")
group_filter = partial(piece, "filter")
reward = partial(piece, "rewards")
