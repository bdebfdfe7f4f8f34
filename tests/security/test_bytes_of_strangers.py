"""Arbitrary bytes: frames, messages and handshakes refuse bytes by a single kind of error, and hold no more memory than
the bytes received.
"""

import hmac
import pickle
import struct
import tracemalloc
import zlib
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from doctor import Bomb
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.coordinator.wire.codec import MAX_MESSAGE_BYTES, decode_to_coordinator, decode_to_slot, encode
from barrier_runtime.coordinator.wire.framing import FRAME_OVERHEAD, FrameRejected, Framing
from barrier_runtime.coordinator.wire.handshake import MAX_HANDSHAKE_BYTES, Acceptor, Initiator
from barrier_runtime.coordinator.wire.messages import PROTOCOL_VERSION, Ack, Deploy, Heartbeat, SubtaskId, Trigger
from barrier_runtime.data.elements import Barrier, Batch, Watermark
from barrier_runtime.runtime.network.frames import (
    BATCH,
    FEW_ROWS,
    HEADER_SIZE,
    MAX_PAYLOAD,
    SCHEMA,
    FrameError,
    FrameReader,
    FrameWriter,
)
from barrier_runtime.state.errors import ProtocolViolation
from tests.drawn import examples

KEY = b"k" * 32
NONCE = b"n" * 32
ROWS = pa.record_batch({"a": pa.array(range(100)), "s": [str(i) for i in range(100)]})
WRITER = FrameWriter()
WIRE = b"".join(bytes(p) for e in (Batch(ROWS, 1), Watermark(7), Barrier(1, 2, 3)) for p in WRITER.encode(e))
LITTLE = 200_000  # bytes allowed for a refusal: the exception, text, traceback
VERSION = bytes([PROTOCOL_VERSION])


def memory_taken(work) -> int:
    """Peak of the memory that `work` allocates in Python."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def acceptor() -> Acceptor:
    return Acceptor(nonce=NONCE, purpose="control", secret_of=lambda hello: KEY)


def initiator(claims: bytes = b"") -> Initiator:
    return Initiator(KEY, job="flights", run_id="r", purpose="control", claims=claims, nonce=b"c" * 32)


def data_frame(kind: int, payload: bytes, sequence: int, version: int = 0) -> bytes:
    """A frame of the data plane with correct length, sequence and checksum."""
    part = struct.pack(">IBQq", len(payload), kind, sequence, 0)
    return part + struct.pack(">IB3x", zlib.crc32(payload, zlib.crc32(part, version)), version) + payload


# ---------------------------------------------------------------- lengths


@pytest.mark.parametrize("announced", [MAX_PAYLOAD + 1, 2**31, 2**32 - 1])
def test_a_data_frame_that_announces_too_much_takes_no_memory(announced: int) -> None:
    """B3: refused by the frame's header."""
    header = announced.to_bytes(4, "big") + bytes(HEADER_SIZE - 4)

    def read() -> None:
        with pytest.raises(FrameError, match="cap"):
            FrameReader().feed(header)

    assert memory_taken(read) < LITTLE


@pytest.mark.parametrize("announced", [MAX_MESSAGE_BYTES + 1, 2**32 - 1])
def test_a_control_frame_that_announces_too_much_takes_no_memory(announced: int) -> None:
    """B3"""
    header = announced.to_bytes(4, "big") + bytes(FRAME_OVERHEAD - 4)

    def read() -> None:
        with pytest.raises(FrameRejected, match="cap"):
            Framing(KEY, KEY).feed(header)

    assert memory_taken(read) < LITTLE


@pytest.mark.parametrize("announced", [MAX_PAYLOAD, 1_000_000])
def test_an_announced_length_below_the_cap_takes_only_what_has_come(announced: int) -> None:
    """B3: the announcement alone does not allocate."""
    data = announced.to_bytes(4, "big") + bytes(HEADER_SIZE - 4) + b"x" * 1_000
    reader = FrameReader()
    assert memory_taken(lambda: reader.feed(data)) < LITTLE
    framing = Framing(KEY, KEY, max_payload=announced)
    assert memory_taken(lambda: framing.feed(announced.to_bytes(4, "big") + bytes(1_000))) < LITTLE


def test_a_handshake_that_announces_too_much_takes_no_memory_on_either_side() -> None:
    """B3, H3"""
    announced = (MAX_HANDSHAKE_BYTES + 1).to_bytes(2, "big") + b"x" * 1_000

    def read() -> None:
        for side in (acceptor(), initiator()):
            with pytest.raises(ProtocolViolation, match="cap"):
                side.feed(announced)

    assert memory_taken(read) < LITTLE


@pytest.mark.parametrize(
    "bomb", [b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"], ids=["array", "map", "bin", "str", "ext"]
)
@pytest.mark.parametrize(
    "place",
    [
        b"",
        b"\x82\xa4type\xa8Register\xa5ended",
        b"\x82\xa4type\xa8Register\xa9committed",
        b"\x82\xa4type\xa3Ack\xa9operators",
        b"\x82\xa4type\xa3Ack\xaaoperators2",
    ],
    ids=["top", "list", "dict", "nested", "unknown"],
)
def test_a_container_that_announces_four_billion_entries_takes_no_memory(place: bytes, bomb: bytes) -> None:
    """B3: inside a message with a correct length."""
    body = place + bomb + b"\xff\xff\xff\xff"

    def read() -> None:
        for decode in (decode_to_coordinator, decode_to_slot):
            with pytest.raises(ProtocolViolation):
                decode(VERSION + body)
        with pytest.raises(ProtocolViolation):
            acceptor().feed(len(body).to_bytes(2, "big") + body)

    assert memory_taken(read) < LITTLE


def test_a_peer_that_goes_on_talking_before_its_turn_is_refused() -> None:
    """H3: the peer's proof needs our nonce, so honest peers wait; early bytes are dropped."""
    with pytest.raises(ProtocolViolation, match="before it was its turn"):
        acceptor().feed(initiator().hello() + b"x" * 100_000)


# ---------------------------------------------------------------- contents


@examples(150)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_by_the_one_error_that_closes_the_connection(data: bytes) -> None:
    """B3"""
    for decode in (decode_to_coordinator, decode_to_slot):
        for prefix in (b"", VERSION):
            with pytest.raises(ProtocolViolation):
                decode(prefix + data)
    for side in (acceptor(), initiator()):
        try:
            assert side.feed(data) == b""
        except ProtocolViolation:
            continue
        assert side.session is None
    with pytest.raises(FrameError):
        FrameReader().feed(data_frame(SCHEMA, data, 0))


@examples(150)
@given(st.integers(0, len(WIRE) - 1), st.integers(1, 255))
def test_one_changed_byte_in_a_data_stream_is_a_frame_error_or_an_unfinished_frame(position: int, change: int) -> None:
    """B3: never another exception, and never an element that was not sent."""
    damaged = bytearray(WIRE)
    damaged[position] ^= change
    sent = [element for element, _ in FrameReader().feed(WIRE)]
    try:
        elements = [element for element, _ in FrameReader().feed(bytes(damaged))]
    except FrameError:
        return
    assert elements == sent[: len(elements)]


def test_every_truncation_of_a_data_stream_only_waits() -> None:
    """B3"""
    sent = [element for element, _ in FrameReader().feed(WIRE)]
    for end in range(len(WIRE)):
        elements = [element for element, _ in FrameReader().feed(WIRE[:end])]
        assert elements == sent[: len(elements)]
        assert len(elements) < len(sent)


@pytest.mark.parametrize("part", [0.0, 0.01, 0.05, 0.2, 0.5, 0.9])
def test_arrow_bytes_that_break_off_inside_a_correct_frame_are_a_frame_error(part: float) -> None:
    """B3: pyarrow raises many exceptions for such bytes; the connection raises one."""
    schema, rows = ROWS.schema.serialize().to_pybytes(), ROWS.serialize().to_pybytes()
    reader = FrameReader()
    reader.feed(data_frame(SCHEMA, schema, 0))
    with pytest.raises(FrameError):
        reader.feed(data_frame(BATCH, rows[: int(part * len(rows))], 1))
    with pytest.raises(FrameError):
        FrameReader().feed(data_frame(SCHEMA, schema[: int(part * len(schema))], 0))


def test_a_data_frame_of_unknown_kind_is_refused() -> None:
    """B3"""
    with pytest.raises(FrameError, match="unknown kind 11"):
        FrameReader().feed(data_frame(11, b"", 0))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        pickle.dumps([[1]]),
        b"\x91" * 100_000,  # nested without end
        b"\xdd\xff\xff\xff\xff",  # announces more bytes than exist
        msgspec.msgpack.encode([[1], [2, 3]]),
        msgspec.msgpack.encode([[1]]),
        msgspec.msgpack.encode([[], []]),
        msgspec.msgpack.encode({"a": [1]}),
    ],
)
def test_lists_that_are_no_rows_are_a_frame_error(payload: bytes) -> None:
    """B3, H4"""
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())]).serialize().to_pybytes()
    with pytest.raises(FrameError, match="cannot be decoded"):
        FrameReader().feed(data_frame(SCHEMA, schema, 0) + data_frame(FEW_ROWS, payload, 1, version=1))


def test_an_extension_type_that_carries_a_pickle_is_not_loaded(tmp_path: Path) -> None:
    """H4, B4: Arrow metadata of this name was unpickled by older releases of pyarrow."""
    bomb = pickle.dumps(Bomb(tmp_path / "trace"))
    field = pa.field(
        "x",
        pa.int64(),
        metadata={b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": bomb},
    )
    reader = FrameReader()
    reader.feed(data_frame(SCHEMA, pa.schema([field]).serialize().to_pybytes(), 0))
    [(batch, _)] = reader.feed(data_frame(BATCH, pa.record_batch({"x": pa.array([1, 2])}).serialize().to_pybytes(), 1))
    batch.rows.column(0).to_pylist()
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("unknown tag", {"type": "Exec", "code": "print()"}),
        ("no tag", {"token": 1}),
        ("unknown field", {"type": "Heartbeat", "token": 1, "code": "x"}),
        ("wrong type", {"type": "Heartbeat", "token": "1"}),
        ("missing field", {"type": "Committed", "token": 1}),
        ("a message of the other direction", msgspec.to_builtins(Trigger(1, 2, 3))),
        ("nested unknown field", {**msgspec.to_builtins(Ack(1, 1, SubtaskId(0, 0), ())), "times": {"when": 1}}),
    ],
)
def test_what_is_no_message_is_refused_with_the_reason(what: str, body: dict) -> None:
    """B3, G7"""
    with pytest.raises(ProtocolViolation, match="not a message of this protocol"):
        decode_to_coordinator(VERSION + msgspec.msgpack.encode(body))


def test_another_version_is_refused_before_anything_of_it_is_read() -> None:
    """B6"""
    for other in (0, PROTOCOL_VERSION + 1, 255):
        with pytest.raises(
            ProtocolViolation, match=f"has version {other}, this release reads {PROTOCOL_VERSION}: run the same"
        ):
            decode_to_coordinator(bytes([other]) + encode(Heartbeat(1))[1:])


def test_a_deeply_nested_message_is_refused() -> None:
    """B3"""
    for body in (b"\x91" * 100_000, b"\x82\xa4type\xa3Ack\xa9operators" + b"\x91" * 100_000):
        with pytest.raises(ProtocolViolation):
            decode_to_coordinator(VERSION + body)


@pytest.mark.parametrize("place", ["message", "handshake", "frame"])
def test_a_pickle_is_refused_undecoded(place: str, tmp_path: Path) -> None:
    """B4, H4: with correct envelopes around the pickle."""
    bomb = pickle.dumps(Bomb(tmp_path / "trace"))
    reading = {
        "message": lambda: decode_to_coordinator(VERSION + bomb),
        "handshake": lambda: acceptor().feed(len(bomb).to_bytes(2, "big") + bomb),
        "frame": lambda: FrameReader().feed(data_frame(SCHEMA, bomb, 0)),
    }
    with pytest.raises((ProtocolViolation, FrameError)):
        reading[place]()
    assert not (tmp_path / "trace").exists()


def test_a_frame_with_the_mac_of_another_connection_is_refused() -> None:
    """B3, H1: keys derive from both nonces, so bytes recorded on one connection are worthless on another."""

    def connection(nonce: bytes) -> Framing:
        left, right = initiator(), Acceptor(nonce=nonce, purpose="control", secret_of=lambda hello: KEY)
        right.feed(left.feed(right.feed(left.hello())))
        assert left.session is not None
        return left.session.framing()

    recorded = connection(b"1" * 32).frame(encode(Heartbeat(1)))
    left, right = initiator(), Acceptor(nonce=b"2" * 32, purpose="control", secret_of=lambda hello: KEY)
    right.feed(left.feed(right.feed(left.hello())))
    assert right.session is not None
    with pytest.raises(FrameRejected, match="wrong MAC"):
        right.session.framing().feed(recorded)


def test_a_mac_that_is_right_for_another_length_or_sequence_is_refused() -> None:
    """B3: the MAC covers sequence and payload; a length changed on the way meets other bytes."""
    payload = b"payload"
    mac = hmac.digest(KEY, (1).to_bytes(8, "big") + payload, "sha256")[:16]
    with pytest.raises(FrameRejected, match="wrong MAC"):
        Framing(KEY, KEY).feed(struct.pack(">IQ16s", len(payload), 0, mac) + payload)
    right = Framing(KEY, KEY).frame(payload)
    with pytest.raises(FrameRejected, match="wrong MAC"):
        Framing(KEY, KEY).feed((len(payload) - 1).to_bytes(4, "big") + right[4:])


def test_a_deployment_survives_encoding_so_the_refusals_above_are_not_of_everything() -> None:
    deploy = Deploy(3, 7, ())
    assert decode_to_slot(encode(deploy)) == deploy
    assert Framing(KEY, KEY).feed(Framing(KEY, KEY).frame(encode(deploy))) == [encode(deploy)]
