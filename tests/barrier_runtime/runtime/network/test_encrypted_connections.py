"""Data connections with a peer on another host: encrypted, with the same elements, credit and signs of life."""

import asyncio

import numpy as np
import pyarrow as pa
import pytest

from barrier_runtime.coordinator.wire.handshake import across_hosts, never
from barrier_runtime.coordinator.wire.messages import Peer
from barrier_runtime.data.elements import Batch, EndOfInput, Watermark
from barrier_runtime.runtime.network.channels import ChannelId, InputChannel
from barrier_runtime.runtime.network.tcp import TcpDataPlane
from barrier_runtime.state.errors import Unavailable
from tests.waiting import eventually

SECRET = b"s" * 32
CHANNEL = ChannelId(3, 0, 0, 1)
WINDOW = 8 << 20


def always(peer):
    return True


class Receiver:
    """The data plane of the downstream slot, with a single expected channel."""

    def __init__(self, encrypts=always):
        self.plane = TcpDataPlane(SECRET, "job", "run", encrypts=encrypts)
        self.broken = []
        self.input = InputChannel(0, 0, lambda: None, WINDOW)

    async def listen(self):
        host, port = await self.plane.listen()
        self.plane.expect(3, {CHANNEL: self.input}, lambda channel, reason: self.broken.append(reason))
        return Peer(1, "uuid", host, port)

    def take(self, elements):
        while self.input.readable:
            elements.append(self.input.pop())
        return elements


def batch(rows):
    return Batch(pa.record_batch({"v": pa.array(np.arange(rows))}), 1)


async def connected(receiver, encrypts=always):
    peer = await receiver.listen()
    sender = TcpDataPlane(SECRET, "job", "run", encrypts=encrypts)
    [output] = await sender.connect(peer, [CHANNEL], lambda: None)
    await receiver.plane.all_connected()
    return sender, output


async def test_small_and_large_elements_arrive_in_order():
    receiver = Receiver()
    sender, output = await connected(receiver)
    sent = [batch(3), Watermark(5), batch(10_000), batch(200_000), batch(1), EndOfInput()]
    for element in sent:
        output.send(element)
    received = []
    await eventually(lambda: len(receiver.take(received)) >= len(sent) and received[-1] == EndOfInput())
    rows = [element.rows for element in received if isinstance(element, Batch)]
    assert pa.Table.from_batches(rows) == pa.Table.from_batches([each.rows for each in sent if isinstance(each, Batch)])
    [incoming] = receiver.plane._open
    assert incoming.streams[CHANNEL.edge].received == output.sent, "credit counts bytes before encryption"
    sender.close()
    receiver.plane.close()


async def test_signs_of_life_go_both_ways():
    receiver = Receiver()
    sender, output = await connected(receiver)
    [incoming], [outgoing] = receiver.plane._open, sender._open
    await eventually(lambda: output.writable, "the first credit")
    outgoing._quiet = incoming._quiet = 1
    for plane in (sender, receiver.plane):
        plane.beat()
        plane.beat()
    await eventually(lambda: (outgoing._quiet, incoming._quiet) == (0, 0), "a sign of life")
    assert receiver.broken == []
    sender.close()
    receiver.plane.close()


async def test_plaintext_peer_is_refused(caplog):
    """H2: the acceptor logs the peer and the reason."""
    receiver = Receiver()
    peer = await receiver.listen()
    sender = TcpDataPlane(SECRET, "job", "run", encrypts=never)
    with pytest.raises(Unavailable, match="cannot reach slot 1"):
        await sender.connect(peer, [CHANNEL], lambda: None)
    assert not receiver.plane._open
    [line] = [record.getMessage() for record in caplog.records if record.name == "barrier_runtime.network"]
    assert line.startswith("connection from ('127.0.0.1', ")
    assert "a peer of job 'job' does not encrypt: connections from other hosts must be encrypted" in line
    sender.close()
    receiver.plane.close()


async def test_peer_that_encrypts_is_served_where_plaintext_is_allowed():
    receiver = Receiver(encrypts=never)
    sender, output = await connected(receiver)
    output.send(Watermark(1))
    await eventually(lambda: receiver.input.readable)
    sender.close()
    receiver.plane.close()


async def test_loopback_connections_are_not_encrypted_by_default():
    receiver = Receiver(encrypts=across_hosts)
    sender, _ = await connected(receiver, across_hosts)
    [outgoing] = sender._open
    assert not outgoing._handshake.session.encrypted
    sender.close()
    receiver.plane.close()


@pytest.mark.parametrize(
    ("peer", "encrypted"),
    [
        (("127.0.0.1", 1), False),
        (("::1", 1, 0, 0), False),
        (("::ffff:127.0.0.1", 1, 0, 0), False),
        (("10.0.0.7", 1), True),
        (("fe80::1%eth0", 1, 0, 2), True),
        (None, True),
        ("", True),
    ],
)
def test_every_address_but_loopback_is_encrypted(peer, encrypted):
    assert across_hosts(peer) is encrypted


async def test_closed_peer_ends_an_encrypted_connection():
    receiver = Receiver()
    sender, _ = await connected(receiver)
    sender.close()
    await eventually(lambda: receiver.broken)
    receiver.plane.close()
    await asyncio.sleep(0)
