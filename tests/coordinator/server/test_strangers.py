"""Peers that prove nothing write a bounded number of log lines; how connections of slots end."""

import asyncio
import contextlib
import errno
import logging
import socket

from coordinator_world import spec
from tcp_slot import TcpSlot

from barrier_runtime.coordinator.server.control import ControlServer
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.wire import handshake
from barrier_runtime.coordinator.wire.codec import encode
from barrier_runtime.coordinator.wire.handshake import LINES, PER_S, LineLimit
from barrier_runtime.coordinator.wire.messages import Heartbeat
from barrier_runtime.state.store.memory import MemoryStore
from tests.waiting import eventually


def test_lines_of_a_period_are_bounded_and_the_others_counted():
    limit = LineLimit()
    assert [limit.left_out_before(100.0) for _ in range(LINES)] == [0] * LINES
    assert [limit.left_out_before(100.0 + PER_S / 2) for _ in range(5)] == [None] * 5
    assert limit.left_out_before(100.0 + PER_S) == 5
    assert limit.left_out_before(100.0 + PER_S) == 0


@contextlib.asynccontextmanager
async def served():
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    directory = JobDirectory(MemoryStore(), daemon_key=b"k" * 32, leader="a", host="h")
    server = ControlServer(directory, listening)
    await server.start()
    yield server, directory
    await server.close()
    await directory.close()


class HastySlot(TcpSlot):
    """Sends Register and a heartbeat together."""

    def say(self, message):
        together = (message, Heartbeat(0, {}))
        self._connection.sendall(b"".join(self._framing.frame(encode(each)) for each in together))


async def connected(server, directory, kind=TcpSlot):
    runner = await directory.submit(spec(slot_timeout_ms=600_000))
    slot = kind("flights", "run-1", directory.secret("flights", "run-1"), 0)
    await asyncio.to_thread(slot.connect, server.address)
    return runner, slot


async def test_a_slot_whose_network_times_out_is_no_stranger(caplog):
    """ETIMEDOUT is a `TimeoutError`, as is the end of the time for a handshake."""
    caplog.set_level(logging.DEBUG, "coordinator.control")
    async with served() as (server, directory):
        runner, _slot = await connected(server, directory)
        await eventually(lambda: runner.connected_slots, "the slot is served")
        [connection] = server._connections
        connection.connection_lost(TimeoutError(errno.ETIMEDOUT, "the network is gone"))
        await eventually(lambda: not server._connections, "the connection ended")
    [record] = [each for each in caplog.records if "the network is gone" in each.getMessage()]
    assert record.levelno == logging.DEBUG
    assert "broke" in record.getMessage()


async def test_a_slot_that_leaves_is_lost_at_once_though_bytes_to_it_are_unsent():
    """The way to the slot is cut: unsent bytes stay unsent until the kernel gives up."""
    async with served() as (server, directory):
        runner, slot = await connected(server, directory)
        await eventually(lambda: runner.connected_slots, "the slot is served")
        [connection] = server._connections
        connection.transport.write(bytes(64 << 20))
        assert connection.transport.get_write_buffer_size()
        slot._connection.shutdown(socket.SHUT_WR)
        await eventually(lambda: not runner.connected_slots, "the slot is lost")
        await eventually(lambda: not server._connections, "the connection ended")
        slot.close()


async def test_a_bug_while_a_slot_registers_is_logged_and_ends_the_connection(caplog, monkeypatch):
    def broken(*arguments):
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(JobRunner, "slot_message", broken)
    async with served() as (server, directory):
        runner, slot = await connected(server, directory, HastySlot)
        await eventually(lambda: not server._connections, "the connection ended")
        assert not runner.connected_slots
        slot.close()
    [record] = [each for each in caplog.records if each.name == "coordinator.control"]
    assert "closed by an internal error" in record.getMessage()
    assert isinstance(record.exc_info[1], ZeroDivisionError)


async def test_a_crowd_of_malformed_hellos_writes_few_lines(caplog, monkeypatch):
    monkeypatch.setattr(handshake, "PER_S", float("inf"))
    caplog.set_level(logging.DEBUG, "coordinator.control")
    async with served() as (server, _directory):
        for _ in range(3 * LINES):
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(b"\x00\x04GET ")
            assert await reader.read() == b"", "closed without a word"
            writer.close()
        await eventually(lambda: not server._connections, "the last connection ended")
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == LINES
    assert all("not a handshake of barrier-runtime" in line for line in lines)
