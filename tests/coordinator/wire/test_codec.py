"""Messages on the wire: only ours are decoded, everything else is a named error."""

import pickle

import msgspec
import pytest

from barrier_runtime.coordinator.wire.codec import MAX_MESSAGE_BYTES, decode_to_coordinator, decode_to_slot, encode
from barrier_runtime.coordinator.wire.messages import Ack, CheckpointComplete, Heartbeat, Register, SubtaskId
from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot, OperatorSnapshot


def test_a_message_comes_back_as_it_was():
    files = (FileRef("CURRENT", 3, "00", inline=b"abc"), FileRef("1.sst", 9, "11", key="j/data/1/u/x"))
    keyed = KeyedSnapshot("rocksdb", 128, 0, 63, {"count": 1}, files, 12, 9)
    ack = Ack(1, 7, SubtaskId(2, 0), (OperatorSnapshot("count", 0, 2, {"watermark": b"9"}, keyed),), ended=True)
    assert decode_to_coordinator(encode(ack)) == ack
    assert decode_to_slot(encode(CheckpointComplete(1, 7))) == CheckpointComplete(1, 7)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01",
        b"\x02" + msgspec.msgpack.encode({"type": "CheckpointComplete", "token": 1, "checkpoint": 1}),
        b"\x01" + msgspec.msgpack.encode({"type": "Launch", "token": 1}),
        b"\x01" + msgspec.msgpack.encode({"type": "Heartbeat", "token": "1"}),
        b"\x01" + msgspec.msgpack.encode({"type": "Heartbeat", "token": 1, "extra": 1}),
        b"\x01" + msgspec.msgpack.encode([1, 2, 3]),
        b"\x01" + b"\x91" * 100_000,
        b"\xff" * 50,
    ],
    ids=["empty", "no body", "version", "tag", "type", "field", "array", "deep", "garbage"],
)
def test_what_is_no_message_is_refused_by_name(payload):
    """B3."""
    with pytest.raises(ProtocolViolation):
        decode_to_coordinator(payload)
    with pytest.raises(ProtocolViolation):
        decode_to_slot(payload)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


def test_a_pickle_is_refused_undecoded():
    """B4."""
    for prefix in (b"", b"\x01"):
        with pytest.raises(ProtocolViolation):
            decode_to_coordinator(prefix + pickle.dumps(Bomb()))


def test_a_message_to_the_other_side_is_refused():
    with pytest.raises(ProtocolViolation):
        decode_to_coordinator(encode(CheckpointComplete(1, 1)))
    with pytest.raises(ProtocolViolation):
        decode_to_slot(encode(Heartbeat(1)))


def test_a_message_over_the_cap_is_neither_sent_nor_read():
    """B3."""
    with pytest.raises(ProtocolViolation, match="over the cap"):
        encode(Heartbeat(1, {}, {"sink:processed": "x" * MAX_MESSAGE_BYTES}))
    with pytest.raises(ProtocolViolation, match="over the cap"):
        decode_to_coordinator(b"\x01" * (MAX_MESSAGE_BYTES + 1))


def test_register_needs_no_optional_field():
    register = Register(0, "u", 1, "h", 0, "127.0.0.1", 1, 0, "idle")
    assert decode_to_coordinator(encode(register)) == register
