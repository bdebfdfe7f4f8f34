"""Bytes of messages, and size limits: a version byte, then MessagePack of the tagged struct.

Up to `MAX_CARRIED_BYTES` a message carries snapshots; a larger message names a manifest in the store. Every decided
checkpoint can be deployed at any parallelism, because a checkpoint beyond `MAX_MANIFEST_BYTES` is never decided, and an
ack beyond `MAX_ACK_BYTES` becomes a decline.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from barrier_runtime.coordinator.wire.messages import PROTOCOL_VERSION, ToCoordinator, ToSlot
from barrier_runtime.state.errors import UNREADABLE, ProtocolViolation
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.texts import counted
from barrier_runtime.state.versioned import Format

# Messages of the previous protocol version, for slots of an upgraded coordinator. Pure.
#
# A release that changes a message raises `PROTOCOL_VERSION`, keeps the version before in `ACCEPTED_PROTOCOLS`, and
# adds the changed messages here. A slot always speaks the protocol of its own release.

Fields = dict[str, Any]
TAG = "type"


@dataclass(frozen=True)
class Translation:
    """`to_slot`: fields of this release -> fields of the version before; None: the slot needs no such
    message. `to_coordinator`: the reverse.
    """

    to_slot: Mapping[str, Callable[[Fields], Fields | None]] = field(default_factory=dict)
    to_coordinator: Mapping[str, Callable[[Fields], Fields]] = field(default_factory=dict)


TRANSLATIONS: dict[int, Translation] = {}  # by version; every accepted version besides the newest

_DECODER = msgspec.msgpack.Decoder(Fields)


def for_slot(body: bytes, version: int) -> bytes | None:
    fields = _DECODER.decode(body)
    change = TRANSLATIONS[version].to_slot.get(fields[TAG])
    if change is None:
        return body
    changed = change(fields)
    return None if changed is None else _ENCODER.encode(changed)


def from_slot(body: bytes | memoryview, version: int) -> bytes | memoryview:
    fields = _DECODER.decode(body)
    change = TRANSLATIONS[version].to_coordinator.get(fields.get(TAG, ""))
    return body if change is None else _ENCODER.encode(change(fields))


MAX_MESSAGE_BYTES = 16 * 1024 * 1024

_CLOSE = "close the connection and register again"
_ONE_RELEASE = "run the same release of barrier-runtime in driver, slots and coordinator"
MESSAGES = Format(
    "a message",
    PROTOCOL_VERSION,
    damaged=_ONE_RELEASE,
    newer=_ONE_RELEASE,
    oldest=PROTOCOL_VERSION,
    refusal=ProtocolViolation,
)
_UNTRANSLATABLE = (LookupError, TypeError, AttributeError, ValueError)
_VERSION = bytes([PROTOCOL_VERSION])
_ENCODER = msgspec.msgpack.Encoder()
_TO_COORDINATOR: msgspec.msgpack.Decoder[ToCoordinator] = msgspec.msgpack.Decoder(ToCoordinator)
_TO_SLOT: msgspec.msgpack.Decoder[ToSlot] = msgspec.msgpack.Decoder(ToSlot)


def encode(message: ToCoordinator | ToSlot) -> bytes:
    """Raises `ProtocolViolation` above the limit."""
    data = _VERSION + _ENCODER.encode(message)
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolViolation(
            f"{type(message).__name__} of {len(data)} bytes is over the cap of {MAX_MESSAGE_BYTES} bytes: keep "
            "operator values small, large state belongs in snapshot files"
        )
    return data


def encode_to_slot(message: ToSlot, version: int) -> bytes | None:
    data = encode(message)
    if version not in TRANSLATIONS:
        return data
    body = for_slot(data[1:], version)
    return None if body is None else bytes([version]) + body


def decode_to_coordinator(payload: bytes, version: int = PROTOCOL_VERSION) -> ToCoordinator:
    """Raises `ProtocolViolation` unless `payload` is a message of protocol `version`."""
    earlier = version in TRANSLATIONS
    body = _bounded(payload) if earlier else _checked(payload)
    if earlier and payload[0] != version:
        raise ProtocolViolation(f"a message of version {payload[0]} from a slot of version {version}: {_CLOSE}")
    try:
        return _TO_COORDINATOR.decode(from_slot(body, version) if earlier else body)
    except (*UNREADABLE, *_UNTRANSLATABLE) as error:
        raise _refused(error) from error


def decode_to_slot(payload: bytes) -> ToSlot:
    body = _checked(payload)
    try:
        return _TO_SLOT.decode(body)
    except UNREADABLE as error:
        raise _refused(error) from error


def _checked(payload: bytes) -> memoryview:
    body = _bounded(payload)
    MESSAGES.check(payload[0])
    return body


def _bounded(payload: bytes) -> memoryview:
    if not payload:
        raise ProtocolViolation(f"empty message: {_CLOSE}")
    if len(payload) > MAX_MESSAGE_BYTES:
        raise ProtocolViolation(
            f"message of {len(payload)} bytes is over the cap of {MAX_MESSAGE_BYTES} bytes: close the connection"
        )
    return memoryview(payload)[1:]


def _refused(error: Exception) -> ProtocolViolation:
    return ProtocolViolation(f"not a message of this protocol ({error}): {_CLOSE}")


MAX_CARRIED_BYTES = 1 << 20  # per message to a slot
MAX_ACK_BYTES = MAX_MESSAGE_BYTES - (1 << 20)  # of an ack's snapshots; the rest is for the other fields
MAX_MANIFEST_BYTES = 64 << 20

_REMEDY = "remember less per subtask (fewer splits, states or pending commits), or raise the parallelism"


def encoded_size(snapshots: Iterable[OperatorSnapshot]) -> int:
    """Size in a message; in a manifest binary values take a third more."""
    return sum(len(_ENCODER.encode(each)) for each in snapshots)


def too_large_ack(snapshots: tuple[OperatorSnapshot, ...]) -> str:
    """Returns why no ack can carry these snapshots, or ""."""
    size = encoded_size(snapshots)
    if size <= MAX_ACK_BYTES:
        return ""
    return f"its snapshot takes {size:,} bytes of the manifest, more than {MAX_ACK_BYTES:,}: {_blame(snapshots)}"


def too_large_manifest(size: int, snapshots: tuple[OperatorSnapshot, ...]) -> str:
    """Returns why no manifest of `size` bytes is decided, or ""."""
    if size <= MAX_MANIFEST_BYTES:
        return ""
    return (
        f"its manifest of {size:,} bytes is over the bound of {MAX_MANIFEST_BYTES:,}, and no slot could be given it at "
        f"a restore: {_blame(snapshots)}"
    )


def _blame(snapshots: tuple[OperatorSnapshot, ...]) -> str:
    shares: dict[str, int] = {}
    for each in snapshots:
        shares[each.operator] = shares.get(each.operator, 0) + encoded_size((each,))
    operator, share = max(shares.items(), key=lambda item: item[1])
    mine = [each for each in snapshots if each.operator == operator]
    values = sum(len(each.values) + len(each.objects) for each in mine)
    files = sum(len(each.files) - len(each.objects) for each in mine)
    parts = f"{counted(values, 'value')}, {counted(files, 'file')}"
    return f"{counted(share, 'byte')} of these by operator {operator!r} ({parts}); {_REMEDY}"
