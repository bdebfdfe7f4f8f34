"""Message <-> bytes: one version byte, then MessagePack of the tagged struct.

Decoding is strict (types, unknown tags and unknown fields are refused) and bounded. Whatever arrives that is not a
message of ours, a pickle included, becomes a `ProtocolViolation` that names what was wrong; nothing is ever executed.
"""

import msgspec

from barrier_runtime.coordinator.wire.messages import PROTOCOL_VERSION, ToCoordinator, ToSlot
from barrier_runtime.state.errors import UNREADABLE, ProtocolViolation
from barrier_runtime.state.versioned import Format

MAX_MESSAGE_BYTES = 16 * 1024 * 1024

_ONE_RELEASE = "run the same release of barrier-runtime in driver, slots and coordinator"
MESSAGES = Format(
    "a message",
    PROTOCOL_VERSION,
    damaged=_ONE_RELEASE,
    newer=_ONE_RELEASE,
    oldest=PROTOCOL_VERSION,
    refusal=ProtocolViolation,
)
_VERSION = bytes([PROTOCOL_VERSION])
_ENCODER = msgspec.msgpack.Encoder()
_TO_COORDINATOR: msgspec.msgpack.Decoder[ToCoordinator] = msgspec.msgpack.Decoder(ToCoordinator)
_TO_SLOT: msgspec.msgpack.Decoder[ToSlot] = msgspec.msgpack.Decoder(ToSlot)


def encode(message: ToCoordinator | ToSlot) -> bytes:
    """Bytes of one message. Raises `ProtocolViolation` when it is over the cap."""
    data = _VERSION + _ENCODER.encode(message)
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolViolation(
            f"{type(message).__name__} of {len(data)} bytes is over the cap of {MAX_MESSAGE_BYTES} bytes: keep "
            "operator values small, large state belongs in snapshot files"
        )
    return data


def decode_to_coordinator(payload: bytes) -> ToCoordinator:
    """The message a slot sent. Raises `ProtocolViolation` for anything else."""
    body = _checked(payload)
    try:
        return _TO_COORDINATOR.decode(body)
    except UNREADABLE as error:
        raise _refused(error) from error


def decode_to_slot(payload: bytes) -> ToSlot:
    """The message a coordinator sent. Raises `ProtocolViolation` for anything else."""
    body = _checked(payload)
    try:
        return _TO_SLOT.decode(body)
    except UNREADABLE as error:
        raise _refused(error) from error


def _checked(payload: bytes) -> memoryview:
    if not payload:
        raise ProtocolViolation("empty message: close the connection and register again")
    if len(payload) > MAX_MESSAGE_BYTES:
        raise ProtocolViolation(
            f"message of {len(payload)} bytes is over the cap of {MAX_MESSAGE_BYTES} bytes: close the connection"
        )
    MESSAGES.check(payload[0])
    return memoryview(payload)[1:]


def _refused(error: Exception) -> ProtocolViolation:
    return ProtocolViolation(f"not a message of this protocol ({error}): close the connection and register again")
