"""Peers that prove nothing write a bounded number of log lines."""

import asyncio
import errno
import logging
import socket

from coordinator_world import spec
from tcp_slot import TcpSlot

from barrier_runtime.coordinator.server.control import ControlServer
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.wire import peers
from barrier_runtime.coordinator.wire.peers import LINES, PER_S, LineLimit
from barrier_runtime.state.store.memory import MemoryStore
from tests.waiting import eventually


def test_lines_of_a_period_are_bounded_and_the_others_counted():
    limit = LineLimit()
    assert [limit.left_out_before(100.0) for _ in range(LINES)] == [0] * LINES
    assert [limit.left_out_before(100.0 + PER_S / 2) for _ in range(5)] == [None] * 5
    assert limit.left_out_before(100.0 + PER_S) == 5
    assert limit.left_out_before(100.0 + PER_S) == 0


async def test_a_slot_whose_network_times_out_is_no_stranger(caplog):
    """ETIMEDOUT is a `TimeoutError`, as is the end of the time for a handshake."""
    caplog.set_level(logging.DEBUG, "coordinator.control")
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    directory = JobDirectory(MemoryStore(), daemon_key=b"k" * 32, leader="a", host="h")
    server = ControlServer(directory, listening)
    await server.start()
    runner = await directory.submit(spec())
    slot = TcpSlot("flights", "run-1", directory.secret("flights", "run-1"), 0)
    await asyncio.to_thread(slot.connect, server.address)
    await eventually(lambda: runner.connected_slots, "the slot is served")
    [connection] = server._connections
    connection.connection_lost(TimeoutError(errno.ETIMEDOUT, "the network is gone"))
    await eventually(lambda: not server._connections, "the connection ended")
    [record] = [each for each in caplog.records if "the network is gone" in each.getMessage()]
    assert record.levelno == logging.DEBUG
    assert "broke" in record.getMessage()
    await server.close()
    await directory.close()


async def test_a_crowd_of_malformed_hellos_writes_few_lines(caplog, monkeypatch):
    monkeypatch.setattr(peers, "PER_S", float("inf"))
    caplog.set_level(logging.DEBUG, "coordinator.control")
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    directory = JobDirectory(MemoryStore(), daemon_key=b"k" * 32, leader="a", host="h")
    server = ControlServer(directory, listening)
    await server.start()
    for _ in range(3 * LINES):
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"\x00\x04GET ")
        assert await reader.read() == b"", "closed without a word"
        writer.close()
    await eventually(lambda: not server._connections, "the last connection ended")
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == LINES
    assert all("not a handshake of barrier-runtime" in line for line in lines)
    await server.close()
    await directory.close()
