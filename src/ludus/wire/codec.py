"""The codec of every connection between our processes: JSON frames of envelopes, by msgspec.

Promise: what is decoded equals what was encoded, arrays bit for bit; a failure keeps its class.
"""

from __future__ import annotations

import binascii
from array import array
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from ludus import errors
from ludus.errors import ConfigError, ControllerFailed, LudusError, describe
from ludus.types import Completion

VERSION = 2
"""Both ends of a connection must have the same."""
MAX_FRAME_BYTES = 64 * 2**20
T = TypeVar("T")


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A body on the wire. Fields may be np.ndarray or array.array. For the sake of other versions,
    fields with a default may be missing and unknown fields are ignored."""


class Fault(Record, frozen=True):
    """A failure on the wire: its class in `ludus.errors`, its text, and the HTTP status."""

    kind: str
    message: str
    status: int = 500


class Envelope(Record, frozen=True):
    """A call has `call` and, where an answer is wanted, an id. An answer has the id of its call
    and a body or an error. `cancel` is the id of a call that the sender no longer waits for."""

    id: int = 0
    call: str = ""
    body: msgspec.Raw = msgspec.Raw(b"null")
    error: Fault | None = None
    cancel: int = 0


class _Completion(Record, frozen=True):
    """A completion with its numbers packed: quick for thousands of tokens, and JSON has no NaN."""

    ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    stop: Literal["end", "length"]
    policy: str


def encode(value: Any) -> bytes:
    """JSON of a record or a type of `ludus.types`. A lone surrogate becomes a question mark."""
    if type(value) is Completion:
        ids, versions = np.array(value.ids, "<i8"), np.array(value.versions, "<i8")
        value = _Completion(ids, np.array(value.logprobs, "<f8"), versions, value.stop, value.policy)
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_scrubbed(msgspec.to_builtins(value, enc_hook=_to_json)))


def decode(data: bytes | msgspec.Raw, as_type: type[T]) -> T:
    """Raises ConfigError, naming the field, where `data` does not fit `as_type`."""
    decoder = _decoders.get(as_type)
    if decoder is None:
        form: Any = _Completion if as_type is Completion else as_type
        decoder = _decoders[as_type] = msgspec.json.Decoder(form, dec_hook=_from_json)
    try:
        value = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not a valid {getattr(as_type, '__name__', as_type)}: {error}") from None
    if isinstance(value, _Completion):
        ids, logprobs, versions = (tuple(each.tolist()) for each in (value.ids, value.logprobs, value.versions))
        return Completion(ids, logprobs, versions, value.stop, value.policy)  # type: ignore[return-value]
    return value  # type: ignore[no-any-return]


def decode_frame(data: bytes | str) -> tuple[Envelope, ...]:
    try:
        return _envelopes.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"not a frame of Ludus' protocol {VERSION}: {error}") from None


def _to_json(value: Any) -> Any:
    """Arrays as [dtype, shape, base64 of the little-endian bytes]."""
    if isinstance(value, array):
        value = np.frombuffer(value, value.typecode)
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        raise TypeError(f"{type(value).__name__} cannot be sent to another process; expected plain data or numbers")
    value = value.astype(value.dtype.newbyteorder("<"), copy=False)
    return value.dtype.str, value.shape, value.tobytes()


def _from_json(kind: type, value: Any) -> Any:
    """Arrays are read-only, because they lie in the decoded bytes."""
    try:
        dtype, shape, text = value
        numbers = np.frombuffer(binascii.a2b_base64(text), np.dtype(dtype)).reshape(shape)
    except Exception as error:  # numpy raises a SyntaxError too  # noqa: BLE001
        raise ValueError(f"expected dtype, shape and base64 of an array: {describe(error)}") from None
    return array(numbers.dtype.char, numbers.tobytes()) if kind is array else numbers


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_scrubbed(key): _scrubbed(item) for key, item in value.items()}
    return [_scrubbed(item) for item in value] if isinstance(value, list | tuple) else value


_encoder = msgspec.json.Encoder(enc_hook=_to_json)
_envelopes = msgspec.json.Decoder(tuple[Envelope, ...])
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


_FAILURES: dict[str, type[LudusError]] = {
    name: each for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, LudusError)
}
_STATUS = {"ConfigError": 400, "SandboxFailed": 502, "EnvironmentFailed": 502, "TurnTimeout": 504, "WorkerLost": 503}


def fault_of(error: BaseException) -> Fault:
    if not isinstance(error, LudusError):
        return Fault("ControllerFailed", describe(error), 500)
    kind = next(each.__name__ for each in type(error).__mro__ if each.__name__ in _FAILURES)
    return Fault(kind, str(error), getattr(error, "status", _STATUS.get(kind, 500)))


def error_of(fault: Fault) -> LudusError:
    failure = _FAILURES.get(fault.kind, ControllerFailed)
    if failure is ControllerFailed:
        return ControllerFailed(fault.message, status=fault.status)
    return failure(fault.message)
