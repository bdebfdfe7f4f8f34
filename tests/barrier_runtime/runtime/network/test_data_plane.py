"""The mesh between slots over real loopback sockets: authentication, delivery, broken connections."""

import asyncio
import socket
import struct

import pyarrow as pa
import pytest

from barrier_runtime.coordinator.wire.messages import Peer
from barrier_runtime.data.elements import Barrier, Batch, EndOfInput, Watermark
from barrier_runtime.runtime.network import tcp as data_plane
from barrier_runtime.runtime.network.channels import ChannelId, InputChannel
from barrier_runtime.runtime.network.tcp import TcpDataPlane
from barrier_runtime.state.errors import InvalidJob, Unavailable
from tests.waiting import eventually

SECRET = b"s" * 32


def channel(token=3):
    return ChannelId(token, 0, 0, 1)


class Receiver:
    """The data plane of the downstream slot, with a single expected channel."""

    def __init__(self, window=1 << 20):
        self.plane = TcpDataPlane(SECRET, "job", "run")
        self.woken = 0
        self.broken = []
        self.input = InputChannel(0, 0, self._wake, window)

    def _wake(self):
        self.woken += 1

    async def listen(self):
        host, port = await self.plane.listen()
        return Peer(1, "uuid", host, port)

    def expect(self, token=3):
        self.plane.expect(token, {channel(token): self.input}, lambda c, reason: self.broken.append((c, reason)))

    def taken(self):
        elements = []
        while self.input.readable:
            elements.append(self.input.pop())
        return elements


def batch(size):
    return Batch(pa.record_batch({"v": pa.array(range(size), pa.int64())}), 1)


async def test_elements_arrive_in_order_through_one_connection():
    receiver = Receiver()
    peer = await receiver.listen()
    receiver.expect()
    sender = TcpDataPlane(SECRET, "job", "run")
    [output] = await sender.connect(peer, [channel()], lambda: None)
    await receiver.plane.all_connected()
    sent = [batch(3), Watermark(5), batch(2), EndOfInput()]
    for element in sent:
        output.send(element)
    received = []

    def all_there():
        received.extend(receiver.taken())
        return len(received) == len(sent)

    await eventually(all_there)
    assert received == sent
    sender.close()
    receiver.plane.close()
    await asyncio.sleep(0)
    assert receiver.broken == []  # the input had ended: no failure


async def test_a_connection_of_a_newer_generation_waits_until_this_slot_has_heard_of_it():
    receiver = Receiver()
    peer = await receiver.listen()
    receiver.expect(token=2)
    sender = TcpDataPlane(SECRET, "job", "run")
    connecting = asyncio.ensure_future(sender.connect(peer, [channel(3)], lambda: None))
    done, _ = await asyncio.wait({connecting}, timeout=0.2)
    assert not done
    receiver.expect(token=3)
    [output] = await connecting
    output.send(Watermark(1))
    await eventually(lambda: receiver.input.readable)
    sender.close()
    receiver.plane.close()


async def test_a_connection_that_breaks_while_it_waits_fails_the_generation_it_waited_for():
    """The broken connection may be the only sign: if a firewall dropped the connection, the other
    end notices nothing.
    """
    receiver = Receiver()
    peer = await receiver.listen()
    receiver.expect(token=2)
    sender = TcpDataPlane(SECRET, "job", "run")
    connecting = asyncio.ensure_future(sender.connect(peer, [channel(3)], lambda: None))
    await eventually(lambda: receiver.plane._waiting)
    for waiting in receiver.plane._waiting.values():
        waiting.abort()
    await eventually(lambda: not receiver.plane._waiting)
    assert receiver.broken == [], "the running generation has nothing to do with it"
    receiver.expect(token=3)
    await eventually(lambda: receiver.broken)
    assert [broken for broken, _ in receiver.broken] == [channel(3).route]
    with pytest.raises(Unavailable):
        await connecting
    sender.close()
    receiver.plane.close()


async def test_a_broken_connection_of_a_generation_that_never_came_is_forgotten():
    receiver = Receiver()
    peer = await receiver.listen()
    receiver.expect(token=2)
    given_up, sender = TcpDataPlane(SECRET, "job", "run"), TcpDataPlane(SECRET, "job", "run")
    connecting = asyncio.ensure_future(given_up.connect(peer, [channel(3)], lambda: None))
    await eventually(lambda: receiver.plane._waiting)
    given_up.disconnect()
    with pytest.raises(Unavailable):
        await connecting
    await eventually(lambda: not receiver.plane._waiting)
    receiver.expect(token=4)
    await sender.connect(peer, [channel(4)], lambda: None)
    assert receiver.broken == []
    assert not receiver.plane._lost
    for plane in (given_up, sender, receiver.plane):
        plane.close()


async def test_a_peer_that_does_not_hear_the_proof_is_given_up_in_time(monkeypatch):
    """The connection breaks during the handshake, and this end is not notified."""
    monkeypatch.setattr(data_plane, "HANDSHAKE_TIMEOUT_S", 0.3)
    receiver = Receiver()
    peer = await receiver.listen()
    receiver.expect()
    writers = []

    async def forward_all_but_the_proof(reader, writer):
        onwards, back = await asyncio.open_connection(peer.host, peer.port)
        writers.extend((writer, back))
        back.write(await reader.read(65_536))
        writer.write(await onwards.read(65_536))

    proxy = await asyncio.start_server(forward_all_but_the_proof, "127.0.0.1", 0)
    host, port = proxy.sockets[0].getsockname()[:2]
    sender = TcpDataPlane(SECRET, "job", "run")
    with pytest.raises(Unavailable):
        await sender.connect(Peer(1, "uuid", host, port), [channel()], lambda: None)
    for each in (sender, receiver.plane, proxy, *writers):
        each.close()
    await proxy.wait_closed()


@pytest.mark.parametrize(
    ("secret", "job", "run_id", "token"),
    [
        (SECRET, "job", "run", 2),  # an older generation (Z8)
        (b"x" * 32, "job", "run", 3),  # another secret (B3)
        (SECRET, "other", "run", 3),
        (SECRET, "job", "older-run", 3),
    ],
)
async def test_who_is_not_expected_is_refused(secret, job, run_id, token):
    receiver = Receiver()
    peer = await receiver.listen()
    receiver.expect()
    sender = TcpDataPlane(secret, job, run_id)
    with pytest.raises(Unavailable):
        await sender.connect(peer, [channel(token)], lambda: None)
    assert not receiver.input.readable
    sender.close()
    receiver.plane.close()


async def test_a_second_connection_for_a_channel_is_refused():
    receiver = Receiver()
    peer = await receiver.listen()
    receiver.expect()
    first, second = TcpDataPlane(SECRET, "job", "run"), TcpDataPlane(SECRET, "job", "run")
    await first.connect(peer, [channel()], lambda: None)
    with pytest.raises(Unavailable):
        await second.connect(peer, [channel()], lambda: None)
    assert receiver.broken == []
    for plane in (first, second, receiver.plane):
        plane.close()


async def test_a_broken_connection_is_reported_by_both_ends():
    receiver = Receiver()
    peer = await receiver.listen()
    receiver.expect()
    sender = TcpDataPlane(SECRET, "job", "run")
    broken_at_sender = []
    sender.expect(3, {}, lambda c, reason: broken_at_sender.append(c))
    await sender.connect(peer, [channel()], lambda: None)
    for connection in list(receiver.plane._open):
        connection.abort()
    await eventually(lambda: receiver.broken and broken_at_sender)
    sender.close()
    receiver.plane.close()


async def test_a_peer_that_leaves_is_lost_at_once_though_bytes_to_it_are_unsent():
    """The way to the peer is cut: unsent bytes stay unsent until the kernel gives up."""
    receiver = Receiver()
    peer = await receiver.listen()
    receiver.expect()
    sender = TcpDataPlane(SECRET, "job", "run", timeout_s=600.0)
    broken_at_sender = []
    sender.expect(3, {}, lambda c, reason: broken_at_sender.append(c))
    await sender.connect(peer, [channel()], lambda: None)
    [connection], [sending] = receiver.plane._open, sender._open
    connection.transport.pause_reading()
    sending.transport.write(bytes(64 << 20))
    assert sending.transport.get_write_buffer_size()
    connection.transport.get_extra_info("socket").shutdown(socket.SHUT_WR)
    await eventually(lambda: broken_at_sender, "the sender to notice")
    sender.close()
    receiver.plane.close()


async def test_garbage_instead_of_frames_breaks_the_channel():
    """B3"""
    receiver = Receiver()
    peer = await receiver.listen()
    receiver.expect()
    sender = TcpDataPlane(SECRET, "job", "run")
    await sender.connect(peer, [channel()], lambda: None)
    [connection] = sender._open
    connection.transport.write(b"\x00" * 64)
    await eventually(lambda: receiver.broken)
    assert not receiver.input.readable
    sender.close()
    receiver.plane.close()


async def test_a_slow_reader_stops_the_writer_and_lets_it_go_on_later():
    receiver = Receiver(window=256 * 1024)
    peer = await receiver.listen()
    receiver.expect()
    sender = TcpDataPlane(SECRET, "job", "run")
    woken = []
    [output] = await sender.connect(peer, [channel()], lambda: woken.append(1))
    sent = 0

    async def fill():
        nonlocal sent
        while output.writable:
            output.send(batch(10_000))
            sent += 1
            await asyncio.sleep(0)

    await fill()
    assert (sent - 1) * 80_000 < 256 * 1024  # the window, and the last batch sent
    received = 0

    def drained():
        nonlocal received
        received += sum(element.rows.num_rows for element in receiver.taken())
        return received == sent * 10_000

    await eventually(drained)
    await eventually(lambda: output.writable)
    assert woken
    sender.close()
    receiver.plane.close()


async def test_a_barrier_comes_through_while_nobody_takes_the_rows_before_it():
    """U1: the window bounds the rows in flight, and none of them wait in a socket that is not read."""
    receiver = Receiver(window=256 * 1024)
    peer = await receiver.listen()
    receiver.expect()
    sender = TcpDataPlane(SECRET, "job", "run")
    [output] = await sender.connect(peer, [channel()], lambda: None)
    sent = 0
    while output.writable:
        output.send(batch(1_000))
        sent += 1
    output.send(Barrier(1, 3, 0, 0))
    await eventually(lambda: receiver.input.announcements)
    assert list(receiver.input.announcements) == [(0, Barrier(1, 3, 0, 0))]
    assert len(receiver.input.record(1)) == sent
    assert receiver.input.bytes < 256 * 1024 + 2 * 10_000
    assert not output.writable
    sender.close()
    receiver.plane.close()


async def test_channels_of_two_slots_share_a_connection_and_a_slow_one_delays_no_other():
    receiver, second = Receiver(window=64 * 1024), InputChannel(1, 0, lambda: None, 64 * 1024)
    peer = await receiver.listen()
    slow, fast = channel(), ChannelId(3, 1, 0, 1)
    receiver.plane.expect(3, {slow: receiver.input, fast: second}, lambda route, reason: receiver.broken.append(reason))
    sender = TcpDataPlane(SECRET, "job", "run")
    to_slow, to_fast = await sender.connect(peer, [slow, fast], lambda: None)
    await receiver.plane.all_connected()
    assert len(sender._open) == len(receiver.plane._open) == 1
    await eventually(lambda: to_slow.writable and to_fast.writable, "the first credit")
    while to_slow.writable:
        to_slow.send(batch(1_000))
    sent, taken = 0, []

    def took():
        while second.readable:
            taken.append(second.pop().count)
        return to_fast.writable

    while sent < 100:
        await eventually(took, "the reader that takes its rows")
        to_fast.send(batch(1_000))
        sent += 1
    await eventually(lambda: took() and sum(taken) == 1_000 * sent)
    assert not to_slow.writable
    assert not receiver.broken
    sender.close()
    receiver.plane.close()


@pytest.mark.parametrize("ended", [1, 2])
async def test_the_end_of_a_connection_is_no_failure_after_the_end_of_all_channels(ended):
    receiver, second = Receiver(), InputChannel(1, 0, lambda: None)
    peer = await receiver.listen()
    channels = [channel(), ChannelId(3, 1, 0, 1)]
    inputs = dict(zip(channels, [receiver.input, second], strict=True))
    receiver.plane.expect(3, inputs, lambda route, reason: receiver.broken.append(route))
    sender = TcpDataPlane(SECRET, "job", "run")
    outputs = await sender.connect(peer, channels, lambda: None)
    for output in outputs[:ended]:
        output.send(EndOfInput())
    await eventually(lambda: all(each.readable for each in list(inputs.values())[:ended]))
    [connection] = receiver.plane._open
    sender.close()
    await eventually(connection.transport.is_closing, "the receiver to notice")
    await asyncio.sleep(0)
    assert receiver.broken == ([channel().route] if ended == 1 else [])
    receiver.plane.close()


async def test_bytes_for_an_unknown_edge_break_the_connection():
    receiver = Receiver()
    peer = await receiver.listen()
    receiver.expect()
    sender = TcpDataPlane(SECRET, "job", "run")
    await sender.connect(peer, [channel()], lambda: None)
    [connection] = sender._open
    connection.transport.write(struct.pack(">HQ", 5, 1) + b"x")
    await eventually(lambda: receiver.broken)
    assert not receiver.input.readable
    sender.close()
    receiver.plane.close()


async def test_an_idle_connection_carries_signs_of_life_in_both_directions():
    """A full window of signs of life must not use up the credit."""
    receiver = Receiver(window=1_000)
    peer = await receiver.listen()
    receiver.expect()
    sender = TcpDataPlane(SECRET, "job", "run")
    [output] = await sender.connect(peer, [channel()], lambda: None)
    await receiver.plane.all_connected()
    for _ in range(200):
        sender.beat()
        receiver.plane.beat()
        await asyncio.sleep(0)
    await eventually(lambda: sender.beat() == receiver.plane.beat() == {}, "both ends to hear each other")
    await eventually(lambda: output.writable, "the credit to grow with the signs of life")
    assert receiver.taken() == []
    for _ in range(4):
        unheard = sender.beat()  # the other end stands still
    assert unheard[1] >= 4
    receiver.plane.close()
    sender.close()


@pytest.mark.parametrize(("number", "kind"), [(socket.EAI_NONAME, InvalidJob), (socket.EAI_AGAIN, Unavailable)])
async def test_an_interface_that_is_missing_is_named_when_a_slot_listens(monkeypatch, number, kind):
    def unknown(*arguments, **options):
        raise socket.gaierror(number, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said = r"cannot listen on 'eth7' \(no such name, and the interfaces of this host are .*\): give"
    with pytest.raises(kind, match=said):
        await TcpDataPlane(b"s" * 32, "job", "run", "eth7").listen()


async def test_the_end_sent_into_a_closing_connection_hides_no_loss():
    receiver = Receiver()
    peer = await receiver.listen()
    receiver.expect()
    sender, broken = TcpDataPlane(SECRET, "job", "run"), []
    sender.expect(3, {}, lambda route, reason: broken.append(route))
    [output] = await sender.connect(peer, [channel()], lambda: None)
    [connection] = sender._open
    connection.abort()
    output.send(EndOfInput())
    await eventually(lambda: broken == [channel().route], "the sender to notice")
    sender.close()
    receiver.plane.close()
