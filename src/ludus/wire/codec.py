"""The codec of every connection between our processes: JSON frames of envelopes, by msgspec. A failure keeps its name and cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ludus.errors import (
    ConfigError,
    ControllerFailed,
    EnvironmentFailed,
    LudusError,
    SandboxFailed,
    TurnTimeout,
    WorkerLost,
    describe,
)

VERSION = 2
"""Both ends of a link must speak the same one."""
MAX_FRAME_BYTES = 64 * 2**20
T = TypeVar("T")


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A body on the wire. Fields with a default may be missing, unknown fields are ignored: old and new versions understand each other."""


class Fault(Record, frozen=True):
    """A failure on the wire: the name of the border it crossed, what happened, and the HTTP status that fits it."""

    kind: str
    message: str
    status: int = 500


class Envelope(Record, frozen=True):
    """A call has `call` and, where an answer is wanted, an id; an answer has the id of its call and a body or an error."""

    id: int = 0
    call: str = ""
    body: msgspec.Raw = msgspec.Raw(b"null")
    error: Fault | None = None


# ------------------------------------------------------------------------------------------------ coding

_encoder = msgspec.json.Encoder()
_envelopes = msgspec.json.Decoder(tuple[Envelope, ...])
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def encode(value: Any) -> bytes:
    """JSON of a record or a type of ours. Half a surrogate pair, which a model can well produce, becomes a question mark."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_scrubbed(msgspec.to_builtins(value)))


def decode(data: bytes | msgspec.Raw, as_type: type[T]) -> T:
    """Raises ConfigError, naming the field, where `data` is not what `as_type` says."""
    decoder = _decoders.get(as_type)
    if decoder is None:
        decoder = _decoders[as_type] = msgspec.json.Decoder(as_type)
    try:
        return decoder.decode(data)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not a valid {getattr(as_type, '__name__', as_type)}: {error}") from None


def decode_frame(data: bytes | str) -> tuple[Envelope, ...]:
    try:
        return _envelopes.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not a frame of Ludus' protocol {VERSION}: {error}") from None


_FAULTS: Mapping[str, tuple[type[LudusError], int]] = {
    "ConfigError": (ConfigError, 400),
    "SandboxFailed": (SandboxFailed, 502),
    "TurnTimeout": (TurnTimeout, 504),
    "EnvironmentFailed": (EnvironmentFailed, 502),
    "WorkerLost": (WorkerLost, 503),
    "ControllerFailed": (ControllerFailed, 503),
}


def fault_of(error: BaseException) -> Fault:
    for kind, (failure, status) in _FAULTS.items():
        if isinstance(error, failure):
            return Fault(kind, str(error), getattr(error, "status", status))
    return Fault("ControllerFailed", describe(error), 500)


def error_of(fault: Fault) -> LudusError:
    failure, _ = _FAULTS.get(fault.kind, (ControllerFailed, 500))
    return (
        ControllerFailed(fault.message, status=fault.status) if failure is ControllerFailed else failure(fault.message)
    )


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_scrubbed(key): _scrubbed(item) for key, item in value.items()}
    return [_scrubbed(item) for item in value] if isinstance(value, list | tuple) else value
