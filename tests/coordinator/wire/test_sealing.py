"""Encrypted connections: keys of both ends, frames that nobody else reads or changes, refusals in one line."""

import msgspec
import pytest

from barrier_runtime.coordinator.wire import handshake, sealing
from barrier_runtime.coordinator.wire.framing import FRAME_OVERHEAD, FrameRejected
from barrier_runtime.coordinator.wire.handshake import Acceptor, HandshakeFailed, Initiator, job_secret

SECRET = job_secret(b"k" * 32, "flights", "run-1")
PRIVATE, OTHER_PRIVATE = b"p" * 32, b"q" * 32


def initiator(secret=SECRET, private=PRIVATE, purpose="control"):
    return Initiator(
        secret, job="flights", run_id="run-1", purpose=purpose, claims=b"slot 0", nonce=b"c" * 32, private=private
    )


def acceptor(secret=SECRET, private=OTHER_PRIVATE, encrypted=True, purpose="control"):
    return Acceptor(
        nonce=b"s" * 32, purpose=purpose, secret_of=lambda hello: secret, private=private, encrypted=encrypted
    )


def shaken(left=None, right=None):
    left, right = left or initiator(), right or acceptor()
    right.feed(left.feed(right.feed(left.hello())))
    return left.session, right.session


def pair():
    left, right = shaken()
    return left.framing(), right.framing()


def test_both_ends_have_the_same_keys_and_talk_both_ways():
    left, right = shaken()
    assert left.encrypted
    assert right.encrypted
    a, b = left.framing(), right.framing()
    assert b.feed(a.frame(b"one") + a.frame(b"") + a.frame(memoryview(b"two"))) == [b"one", b"", b"two"]
    assert a.feed(b.frame(b"three")) == [b"three"]


def test_bytes_may_come_one_by_one():
    sender, receiver = pair()
    stream = sender.frame(b"payload") + sender.frame(b"more")
    assert [payload for byte in stream for payload in receiver.feed(bytes([byte]))] == [b"payload", b"more"]


def test_payload_is_not_in_the_frame_and_costs_a_fixed_number_of_bytes():
    sender, _ = pair()
    frame = sender.frame(b"a row of a person")
    assert b"row" not in frame
    assert len(frame) == len(b"a row of a person") + FRAME_OVERHEAD
    assert frame[12:] != sender.frame(b"a row of a person")[12:], "each frame has a nonce of its own"


def test_keys_need_the_exchange_and_not_only_the_secret():
    """A listener who learns the secret later, from Spark's broadcast, cannot decrypt a recorded connection."""
    first, _ = shaken()
    second, _ = shaken(right=acceptor(private=b"r" * 32))
    third, _ = shaken(left=initiator(private=b"t" * 32))
    plain, _ = shaken(left=initiator(private=b""), right=acceptor(encrypted=False))
    assert len({each.send_key for each in (first, second, third, plain)}) == 4
    assert len({first.send_key, first.receive_key}) == 2


def test_private_keys_do_not_outlive_the_handshake():
    """Memory of a process that is read later must not decrypt a recorded connection."""
    left, right = initiator(), acceptor()
    right.feed(left.feed(right.feed(left.hello())))
    assert left.session.encrypted
    assert right.session.encrypted
    for end in (left, right):
        assert not {PRIVATE, OTHER_PRIVATE} & {value for value in vars(end).values() if isinstance(value, bytes)}


def test_a_changed_bit_anywhere_is_refused():
    frame = pair()[0].frame(b"payload")
    for position in range(4, len(frame)):
        damaged = bytearray(frame)
        damaged[position] ^= 1
        with pytest.raises(FrameRejected):
            pair()[1].feed(bytes(damaged))


def test_a_repeated_lost_or_mirrored_frame_is_refused():
    sender, receiver = pair()
    first, second = sender.frame(b"1"), sender.frame(b"2")
    with pytest.raises(FrameRejected, match="was changed on its way"):
        sender.feed(first)
    with pytest.raises(FrameRejected, match="was due"):
        receiver.feed(second)
    _, receiver = pair()
    receiver.feed(first)
    with pytest.raises(FrameRejected, match="was due"):
        receiver.feed(first)


def test_both_ends_replace_the_key_at_the_same_frame(monkeypatch):
    monkeypatch.setattr(sealing, "_FRAMES_OF_A_KEY", 3)
    sender, receiver = pair()
    before = sender._send_key
    payloads = [bytes([number]) * number for number in range(8)]
    assert receiver.feed(b"".join(map(sender.frame, payloads))) == payloads
    assert sender._send_key == receiver._receive_key != before


def test_plaintext_peer_is_refused_in_one_line():
    with pytest.raises(HandshakeFailed, match="does not encrypt: connections from other hosts must be encrypted"):
        acceptor().feed(initiator(private=b"").hello())
    shaken(left=initiator(private=b""), right=acceptor(encrypted=False))


def test_wrong_secret_is_refused_on_either_side():
    left, right = initiator(), acceptor(secret=b"x" * 32)
    with pytest.raises(HandshakeFailed, match="does not know its secret"):
        left.feed(right.feed(left.hello()))
    forged = initiator(secret=b"x" * 32)
    proof = forged.feed(acceptor(secret=b"x" * 32).feed(forged.hello()))
    right = acceptor()
    right.feed(initiator().hello())
    with pytest.raises(HandshakeFailed, match="does not know its secret"):
        right.feed(proof)


@pytest.mark.parametrize("key", [b"", sealing.public_key(b"m" * 32)])
def test_an_intermediary_cannot_remove_or_replace_a_key(key):
    """H2"""
    left = initiator()
    hello = handshake._HELLO.decode(left.hello()[2:])
    changed = handshake._small_frame(msgspec.structs.replace(hello, key=key))
    with pytest.raises(HandshakeFailed, match="does not know its secret"):
        left.feed(acceptor(encrypted=False).feed(changed))
    left, right = initiator(), acceptor()
    challenge = handshake._CHALLENGE.decode(right.feed(left.hello())[2:])
    with pytest.raises(HandshakeFailed, match="does not know its secret"):
        left.feed(handshake._small_frame(msgspec.structs.replace(challenge, key=key)))


@pytest.mark.parametrize("key", [b"short", bytes(32)])
def test_a_key_that_gives_no_secret_is_refused(key):
    """All zeros would give everybody the same secret."""
    left, right = initiator(), acceptor()
    hello = msgspec.structs.replace(handshake._HELLO.decode(left.hello()[2:]), key=key)
    left._hello = hello
    challenge = right.feed(handshake._small_frame(hello))
    proof = handshake._Proof(
        handshake._mac(SECRET, b"initiator", handshake._transcript(hello, b"s" * 32, sealing.public_key(OTHER_PRIVATE)))
    )
    assert challenge
    with pytest.raises(HandshakeFailed, match="key cannot be used"):
        right.feed(handshake._small_frame(proof))


def test_old_protocol_is_refused_by_name(monkeypatch):
    """By a slot at once; by a coordinator after the proof, so that only a peer with the secret can fail a job."""
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", 2)
    monkeypatch.setattr(handshake, "DATA_VERSION", 3)
    older_data, older_control = initiator(private=b"", purpose="data"), initiator(private=b"")
    monkeypatch.undo()
    with pytest.raises(HandshakeFailed, match="has version 3, this release reads 4"):
        acceptor(purpose="data").feed(older_data.hello())
    _, session = shaken(left=older_control)
    assert session.hello.version == 2
    assert not session.encrypted


def test_loopback_messages_have_the_fields_of_earlier_versions():
    """So that an earlier version reads the hello and is refused by name."""
    left, right = initiator(private=b""), acceptor(encrypted=False)
    hello = left.hello()
    assert len(msgspec.msgpack.decode(hello[2:])) == 7
    assert len(msgspec.msgpack.decode(right.feed(hello)[2:])) == 2
