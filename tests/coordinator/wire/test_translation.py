"""A coordinator speaks the protocol before its own with slots of that version; here the version before is 2."""

import msgspec
import pytest

from barrier_runtime.coordinator.wire.codec import (
    TAG,
    TRANSLATIONS,
    Fields,
    Translation,
    decode_to_coordinator,
    encode,
    encode_to_slot,
)
from barrier_runtime.coordinator.wire.messages import (
    ACCEPTED_PROTOCOLS,
    PROTOCOL_VERSION,
    Committed,
    Heard,
    Heartbeat,
    Start,
    Trigger,
)
from barrier_runtime.state.errors import ProtocolViolation

BEFORE = 2


def trigger_before(fields: Fields) -> Fields:
    return {("at_ms" if name == "triggered_at_ms" else name): value for name, value in fields.items()}


def failed_now(fields: Fields) -> Fields:
    return {**fields, "error": fields["error"].strip() + fields["count"][0]}


def heartbeat_now(fields: Fields) -> Fields:
    return {("sent_at_ms" if name == "sent_ms" else name): value for name, value in fields.items()}


@pytest.fixture(autouse=True)
def changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        TRANSLATIONS,
        BEFORE,
        Translation(
            {"Trigger": trigger_before, "Heard": lambda fields: None},
            {"Heartbeat": heartbeat_now, "Failed": failed_now},
        ),
    )


def of_slot(**fields: object) -> bytes:
    return bytes([BEFORE]) + msgspec.msgpack.encode(fields)


def test_a_changed_message_reaches_an_older_slot_in_the_form_of_its_version() -> None:
    data = encode_to_slot(Trigger(7, 3, triggered_at_ms=11), BEFORE)
    assert data is not None
    assert data[0] == BEFORE
    assert msgspec.msgpack.decode(data[1:]) == {TAG: "Trigger", "token": 7, "checkpoint": 3, "at_ms": 11}


def test_unchanged_messages_differ_only_by_the_version_and_new_ones_are_left_out() -> None:
    assert encode_to_slot(Start(7), BEFORE) == bytes([BEFORE]) + encode(Start(7))[1:]
    assert encode_to_slot(Heard(), BEFORE) is None
    assert encode_to_slot(Trigger(7, 3, 11), PROTOCOL_VERSION) == encode(Trigger(7, 3, 11))


def test_messages_of_an_older_slot_are_read_as_those_of_this_release() -> None:
    heartbeat = decode_to_coordinator(of_slot(type="Heartbeat", token=7, sent_ms=11), BEFORE)
    assert heartbeat == Heartbeat(7, sent_at_ms=11)
    committed = Committed(7, 3, "out", 0)
    assert decode_to_coordinator(bytes([BEFORE]) + encode(committed)[1:], BEFORE) == committed


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        encode(Start(7)),
        of_slot(type="Heartbeat", token=7, unknown=1),
        of_slot(token=7),
        of_slot(type=[7]),
        of_slot(type="Failed"),
        of_slot(type="Failed", error=7, count="7"),
        of_slot(type="Failed", error="lost", count=""),
        of_slot(type="Failed", error="lost", count=7),
        bytes([BEFORE]) + b"\xc1",
    ],
)
def test_other_bytes_of_an_older_slot_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="close the connection"):
        decode_to_coordinator(payload, BEFORE)


def test_every_accepted_version_before_the_newest_has_a_translation() -> None:
    assert set(ACCEPTED_PROTOCOLS) - {PROTOCOL_VERSION} <= TRANSLATIONS.keys()
    assert set(ACCEPTED_PROTOCOLS) <= {PROTOCOL_VERSION - 1, PROTOCOL_VERSION}
