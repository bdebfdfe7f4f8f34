"""Both ends prove that they know the secret; frames prove their origin and order."""

import hmac
import pickle

import pytest

from barrier_runtime.coordinator.wire import handshake
from barrier_runtime.coordinator.wire.framing import FRAME_OVERHEAD, FrameRejected, Framing
from barrier_runtime.coordinator.wire.handshake import (
    MAX_HANDSHAKE_BYTES,
    Acceptor,
    HandshakeFailed,
    Initiator,
    job_secret,
)
from barrier_runtime.coordinator.wire.messages import PROTOCOL_VERSION
from barrier_runtime.state.errors import ProtocolViolation

SECRET = job_secret(b"k" * 32, "flights", "run-1")
CLIENT_NONCE, SERVER_NONCE = b"c" * 32, b"s" * 32


def initiator(secret=SECRET, claims=b"slot 0", nonce=CLIENT_NONCE, purpose="control"):
    return Initiator(secret, job="flights", run_id="run-1", purpose=purpose, claims=claims, nonce=nonce)


def acceptor(secret=SECRET, nonce=SERVER_NONCE, purpose="control"):
    return Acceptor(nonce=nonce, purpose=purpose, secret_of=lambda hello: secret)


def shaken():
    left, right = initiator(), acceptor()
    right.feed(left.feed(right.feed(left.hello())))
    assert left.session is not None
    assert right.session is not None
    return left.session, right.session


def test_both_prove_themselves_and_can_talk_both_ways():
    left, right = shaken()
    assert right.hello.claims == b"slot 0"
    a, b = left.framing(), right.framing()
    assert b.feed(a.frame(b"one") + a.frame(b"")) == [b"one", b""]
    assert a.feed(b.frame(b"two")) == [b"two"]


def test_bytes_may_come_one_by_one():
    left, right = initiator(), acceptor()
    challenge = b"".join(right.feed(bytes([byte])) for byte in left.hello())
    proof = b"".join(left.feed(bytes([byte])) for byte in challenge)
    stream = proof + left.session.framing().frame(b"early")
    for byte in proof:
        right.feed(bytes([byte]))
    right.feed(stream[len(proof) :])
    frames = right.session.framing()
    payloads = [payload for byte in right.unread() for payload in frames.feed(bytes([byte]))]
    assert payloads == [b"early"]


def test_a_peer_without_the_secret_is_refused_on_either_side():
    """G7."""
    left, right = initiator(), acceptor(secret=b"x" * 32)
    with pytest.raises(HandshakeFailed, match="does not know its secret"):
        left.feed(right.feed(left.hello()))
    left, right = initiator(secret=b"x" * 32), acceptor()
    challenge = right.feed(left.hello())
    with pytest.raises(HandshakeFailed):
        left.feed(challenge)
    forged = initiator(secret=b"x" * 32)
    answer = forged.feed(acceptor(secret=b"x" * 32).feed(forged.hello()))
    with pytest.raises(HandshakeFailed, match="does not know its secret"):
        right.feed(answer)
    assert right.session is None


def test_a_recorded_handshake_can_not_be_replayed():
    left, right = initiator(), acceptor()
    hello = left.hello()
    proof = left.feed(right.feed(hello))
    again = acceptor(nonce=b"t" * 32)
    again.feed(hello)
    with pytest.raises(HandshakeFailed):
        again.feed(proof)


def test_the_claims_are_bound_into_the_proof():
    """G7: a peer that knows the secret of an exchange can't swap the identity in it."""
    honest, right = initiator(claims=b"slot 0"), acceptor()
    right.feed(initiator(claims=b"slot 1").hello())
    proof = honest.feed(acceptor().feed(honest.hello()))
    with pytest.raises(HandshakeFailed):
        right.feed(proof)


def test_a_connection_for_another_purpose_or_version_is_refused():
    with pytest.raises(HandshakeFailed, match="data connection came to a control port"):
        acceptor().feed(initiator(purpose="data").hello())
    newer = initiator(purpose="data").hello().replace(b"barrier-runtime\x04", b"barrier-runtime\x05")
    with pytest.raises(HandshakeFailed, match="version 5, this release reads 4: run the same release"):
        acceptor(purpose="data").feed(newer)
    assert handshake._HELLO.decode(initiator().hello()[2:]).version == PROTOCOL_VERSION


def test_control_connection_proves_the_secret_in_any_version(monkeypatch):
    """The coordinator refuses the slot by name then, which only a peer that knows the secret may cause."""
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 1)
    older, right = initiator(), acceptor()
    right.feed(older.feed(right.feed(older.hello())))
    assert right.session.hello.version == 1
    wrong = acceptor(secret=b"another")
    with pytest.raises(HandshakeFailed, match="does not know its secret"):
        initiator().feed(wrong.feed(initiator().hello()))


def test_an_unknown_job_is_refused():
    with pytest.raises(HandshakeFailed, match="not known"):
        acceptor(secret=None).feed(initiator().hello())


def test_garbage_pickles_and_oversized_hellos_are_refused_before_they_are_stored():
    """B3, B4, H3."""
    for body in (b"\xc1" * 20, pickle.dumps({"job": "flights"})):
        with pytest.raises(HandshakeFailed):
            acceptor().feed(len(body).to_bytes(2, "big") + body)
    with pytest.raises(HandshakeFailed, match="cap"):
        acceptor().feed((MAX_HANDSHAKE_BYTES + 1).to_bytes(2, "big"))
    with pytest.raises(HandshakeFailed):
        initiator(claims=b"x" * MAX_HANDSHAKE_BYTES).hello()


def test_secrets_differ_by_job_run_and_daemon():
    secrets = {job_secret(key, job, run) for key in (b"a", b"b") for job in ("x", "y") for run in ("1", "2")}
    assert len(secrets) == 8


def test_a_session_never_shows_its_keys():
    left, _ = shaken()
    assert left.send_key.hex() not in repr(left)
    assert repr(left.send_key) not in repr(left)


# ---------------------------------------------------------------- frames


def pair():
    left, right = shaken()
    return left.framing(), right.framing()


def test_a_flipped_bit_anywhere_is_refused():
    """B3."""
    sender, _ = pair()
    frame = sender.frame(b"payload")
    for position in range(4, len(frame)):
        _, receiver = pair()
        damaged = bytearray(frame)
        damaged[position] ^= 1
        with pytest.raises(FrameRejected):
            receiver.feed(bytes(damaged))


def test_a_lost_repeated_or_reordered_frame_is_refused():
    """B3: sequence gap."""
    sender, receiver = pair()
    first, second = sender.frame(b"1"), sender.frame(b"2")
    with pytest.raises(FrameRejected, match="was due"):
        receiver.feed(second)
    sender, receiver = pair()
    frame = sender.frame(b"1")
    receiver.feed(frame)
    with pytest.raises(FrameRejected, match="was due"):
        receiver.feed(frame)
    assert first != second


def test_a_frame_of_one_direction_is_no_frame_of_the_other():
    sender, _ = pair()
    with pytest.raises(FrameRejected, match="wrong MAC"):
        sender.feed(sender.frame(b"mirror"))


def test_an_announced_length_over_the_cap_is_refused_before_anything_is_kept():
    """B3: no allocation."""
    receiver = Framing(b"k" * 32, b"k" * 32, max_payload=100)
    header = (101).to_bytes(4, "big") + bytes(FRAME_OVERHEAD - 4)
    with pytest.raises(FrameRejected, match="cap"):
        receiver.feed(header)
    with pytest.raises(FrameRejected, match="cap"):
        receiver.frame(b"x" * 101)


def test_frame_errors_are_protocol_violations():
    assert issubclass(FrameRejected, ProtocolViolation)
    assert issubclass(HandshakeFailed, ProtocolViolation)


@pytest.mark.parametrize("size", [16, 32, 64, 65, 200])
def test_mac_of_a_frame_is_the_hmac_of_earlier_releases(size: int) -> None:
    key, payload = bytes(range(size)), b"payload"
    framing = Framing(key, key)
    for sequence in range(2):
        expected = hmac.digest(key, sequence.to_bytes(8, "big") + payload, "sha256")[:16]
        assert (
            framing.frame(memoryview(payload))
            == len(payload).to_bytes(4, "big") + sequence.to_bytes(8, "big") + expected + payload
        )
