"""Message <-> bytes: one version byte, then MessagePack of the tagged struct.

Decoding is strict (types, unknown tags and unknown fields are refused) and bounded. Whatever arrives that is not a
message of ours, a pickle included, becomes a `ProtocolViolation` that names what was wrong; nothing is ever executed.

How much of a manifest travels in a message, how large a manifest may get, and who is to blame when it is too large.

A snapshot is small by design: what is large is an object that it names. But a checkpoint has many snapshots, and each
names many files, so what a message may carry must be bounded whatever the job is. Up to `MAX_CARRIED_BYTES` a message
has the snapshots themselves; above that it names the manifest and its hash, and the slot reads it from the store. So
whatever is decided can be deployed, at any parallelism, as long as a slot can hold the manifest: `MAX_MANIFEST_BYTES`.
A checkpoint beyond that is never decided; an ack beyond `MAX_ACK_BYTES` is a decline.
"""

from collections.abc import Iterable

import msgspec

from barrier_runtime.coordinator.wire.messages import PROTOCOL_VERSION, ToCoordinator, ToSlot
from barrier_runtime.state.errors import UNREADABLE, ProtocolViolation
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
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


MAX_CARRIED_BYTES = 1 << 20  # per message to a slot
MAX_ACK_BYTES = MAX_MESSAGE_BYTES - (1 << 20)  # the snapshots of an ack; the rest is room for what is around them
MAX_MANIFEST_BYTES = 64 << 20

_REMEDY = "remember less per subtask (fewer splits, states or pending commits), or raise the parallelism"


def encoded_size(snapshots: Iterable[OperatorSnapshot]) -> int:
    """Bytes that they take in a message; in a manifest about the same, and a third more of what is binary."""
    return sum(len(_ENCODER.encode(each)) for each in snapshots)


def too_large_ack(snapshots: tuple[OperatorSnapshot, ...]) -> str:
    """Why no ack can carry these; "" if one can."""
    size = encoded_size(snapshots)
    if size <= MAX_ACK_BYTES:
        return ""
    return f"its snapshot takes {size:,} bytes of the manifest, more than {MAX_ACK_BYTES:,}: {_blame(snapshots)}"


def too_large_manifest(size: int, snapshots: tuple[OperatorSnapshot, ...]) -> str:
    """Why a manifest of `size` bytes with these is not decided; "" if it may be."""
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
    return f"{share:,} bytes are of operator {operator!r} ({values:,} values, {files:,} files); {_REMEDY}"
