"""The mesh between slots over real loopback sockets: who may connect, what arrives, what happens when it breaks."""

import asyncio

import pyarrow as pa
import pytest

from barrier_runtime.elements import Barrier, Batch, EndOfInput, Watermark
from barrier_runtime.slot.channels import InputChannel
from barrier_runtime.slot.data_plane import ChannelId, TcpDataPlane
from coordinator.messages import Peer
from state.errors import Unavailable

SECRET = b"s" * 32


def run(main):
    return asyncio.run(asyncio.wait_for(main, 60))


async def until(condition):
    while not condition():
        await asyncio.sleep(0.002)


def channel(token=3):
    return ChannelId(token, 0, 0, 1)


class Receiver:
    """The downstream slot's plane with one expected channel."""

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


def test_elements_arrive_in_order_through_one_connection():
    async def main():
        receiver = Receiver()
        peer = await receiver.listen()
        receiver.expect()
        sender = TcpDataPlane(SECRET, "job", "run")
        output = await sender.connect(peer, channel(), lambda: None)
        await receiver.plane.all_connected()
        sent = [batch(3), Watermark(5), batch(2), EndOfInput()]
        for element in sent:
            output.send(element)
        received = []

        def all_there():
            received.extend(receiver.taken())
            return len(received) == len(sent)

        await until(all_there)
        assert received == sent
        sender.close()
        receiver.plane.close()
        await asyncio.sleep(0)
        assert receiver.broken == []  # the input had ended: no failure

    run(main())


def test_a_connection_of_a_newer_generation_waits_until_this_slot_has_heard_of_it():
    async def main():
        receiver = Receiver()
        peer = await receiver.listen()
        receiver.expect(token=2)
        sender = TcpDataPlane(SECRET, "job", "run")
        connecting = asyncio.ensure_future(sender.connect(peer, channel(3), lambda: None))
        done, _ = await asyncio.wait({connecting}, timeout=0.2)
        assert not done
        receiver.expect(token=3)
        output = await connecting
        output.send(Watermark(1))
        await until(lambda: receiver.input.readable)
        sender.close()
        receiver.plane.close()

    run(main())


@pytest.mark.parametrize(
    ("secret", "job", "run_id", "token"),
    [
        (SECRET, "job", "run", 2),  # an older generation (Z8)
        (b"x" * 32, "job", "run", 3),  # another secret (B3)
        (SECRET, "other", "run", 3),
        (SECRET, "job", "older-run", 3),
    ],
)
def test_who_is_not_expected_is_refused(secret, job, run_id, token):
    async def main():
        receiver = Receiver()
        peer = await receiver.listen()
        receiver.expect()
        sender = TcpDataPlane(secret, job, run_id)
        with pytest.raises(Unavailable):
            await sender.connect(peer, channel(token), lambda: None)
        assert not receiver.input.readable
        sender.close()
        receiver.plane.close()

    run(main())


def test_a_second_connection_for_a_channel_is_refused():
    async def main():
        receiver = Receiver()
        peer = await receiver.listen()
        receiver.expect()
        first, second = TcpDataPlane(SECRET, "job", "run"), TcpDataPlane(SECRET, "job", "run")
        await first.connect(peer, channel(), lambda: None)
        with pytest.raises(Unavailable):
            await second.connect(peer, channel(), lambda: None)
        assert receiver.broken == []
        for plane in (first, second, receiver.plane):
            plane.close()

    run(main())


def test_a_broken_connection_is_reported_by_both_ends():
    async def main():
        receiver = Receiver()
        peer = await receiver.listen()
        receiver.expect()
        sender = TcpDataPlane(SECRET, "job", "run")
        broken_at_sender = []
        sender.expect(3, {}, lambda c, reason: broken_at_sender.append(c))
        await sender.connect(peer, channel(), lambda: None)
        for connection in list(receiver.plane._open):
            connection.abort()
        await until(lambda: receiver.broken and broken_at_sender)
        sender.close()
        receiver.plane.close()

    run(main())


def test_garbage_instead_of_frames_breaks_the_channel():
    """B3"""

    async def main():
        receiver = Receiver()
        peer = await receiver.listen()
        receiver.expect()
        sender = TcpDataPlane(SECRET, "job", "run")
        output = await sender.connect(peer, channel(), lambda: None)
        output.transport.write(b"\x00" * 64)
        await until(lambda: receiver.broken)
        assert not receiver.input.readable
        sender.close()
        receiver.plane.close()

    run(main())


def test_a_slow_reader_stops_the_writer_and_lets_it_go_on_later():
    async def main():
        receiver = Receiver(window=256 * 1024)
        peer = await receiver.listen()
        receiver.expect()
        sender = TcpDataPlane(SECRET, "job", "run")
        woken = []
        output = await sender.connect(peer, channel(), lambda: woken.append(1))
        sent = 0

        async def fill():
            nonlocal sent
            while output.writable:
                output.send(batch(10_000))
                sent += 1
                await asyncio.sleep(0)

        await fill()
        assert (sent - 1) * 80_000 < 256 * 1024  # the window, and what was sent last
        received = 0

        def drained():
            nonlocal received
            received += sum(element.rows.num_rows for element in receiver.taken())
            return received == sent * 10_000

        await until(drained)
        await until(lambda: output.writable)
        assert woken
        sender.close()
        receiver.plane.close()

    run(main())


def test_a_barrier_comes_through_while_nobody_takes_the_rows_before_it():
    """U1: what is in flight is bounded by the window, and nothing of it waits in a socket that is not read."""

    async def main():
        receiver = Receiver(window=256 * 1024)
        peer = await receiver.listen()
        receiver.expect()
        sender = TcpDataPlane(SECRET, "job", "run")
        output = await sender.connect(peer, channel(), lambda: None)
        sent = 0
        while output.writable:
            output.send(batch(1_000))
            sent += 1
        output.send(Barrier(1, 3, 0, 0))
        await until(lambda: receiver.input.arrivals)
        assert list(receiver.input.arrivals) == [(0, Barrier(1, 3, 0, 0))]
        assert len(receiver.input.record(1)) == sent
        assert receiver.input.bytes < 256 * 1024 + 2 * 10_000
        assert not output.writable
        sender.close()
        receiver.plane.close()

    run(main())
