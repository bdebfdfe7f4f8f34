"""The slot's link among several daemons: stays with the leader, and leaves a dead or silent daemon."""

import asyncio
import contextlib
import os
import socket

import msgspec
import pytest

from barrier_runtime.coordinator.log.lease import Holder, Lease, encode_lease
from barrier_runtime.coordinator.server.control import ControlServer, TcpLink
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.leases import Leases
from barrier_runtime.coordinator.wire.handshake import NONCE_BYTES, Acceptor, job_secret
from barrier_runtime.coordinator.wire.messages import (
    PROTOCOL_VERSION,
    ChainSpec,
    Heard,
    Heartbeat,
    JobSpec,
    Register,
    Registered,
    SlotClaims,
)
from barrier_runtime.runtime.network import control_link
from barrier_runtime.runtime.network.connection import within
from barrier_runtime.runtime.network.control_link import TcpControlLink
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.paths import Paths
from tests.waiting import eventually

KEY = b"k" * 32
SPEC = JobSpec(
    job="flights",
    run_id="run-1",
    submitter="ann@host pid 1",
    parallelism=1,
    max_parallelism=128,
    chains=(ChainSpec(chain=0, operators=("numbers", "out"), sinks=("out",), is_source=True),),
)
LEASE_MS = 300


class Daemon:
    """The production server and directory, in this process."""

    def __init__(self, store, name):
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.setblocking(False)
        self.address = self.listening.getsockname()
        leases = Leases(store, Holder(name, name, f"http://{name}", LEASE_MS))
        self.directory = JobDirectory(store, daemon_key=KEY, leader=name, host="h", leases=leases)
        self.server = ControlServer(self.directory, self.listening)

    async def vanish(self):
        """Stops without notice: leases are not released."""
        await self.server.close()
        for task in [*self.directory._tasks.values(), *self.directory._keeping]:
            task.cancel()

    async def close(self):
        await self.server.close()
        await self.directory.close()


class SlotEnd:
    """A slot as seen by the link."""

    def __init__(self, *addresses, slot=0):
        self.heard = []
        self.slot = slot
        claims = msgspec.msgpack.encode(SlotClaims(slot, "me"))
        secret = job_secret(KEY, "flights", "run-1")
        self.link = TcpControlLink(addresses, secret, "flights", "run-1", claims, self.connected, self.heard.append)
        self.connections = 0

    def connected(self):
        self.connections += 1
        self.link.send(Register(self.slot, "me", 1, "h", 0, "127.0.0.1", 1, 0, "idle"))

    def registered(self):
        return sum(isinstance(message, Registered) for message in self.heard)


@contextlib.asynccontextmanager
async def linked(slot):
    running = asyncio.create_task(slot.link.run())
    try:
        yield
    finally:
        slot.link.close()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_the_link_goes_to_the_standby_when_the_leader_is_gone_and_stays_there(store):
    leader, standby = Daemon(store, "a"), Daemon(store, "b")
    for daemon in (leader, standby):
        await daemon.server.start()
    await leader.directory.submit(SPEC)
    slot = SlotEnd(standby.address, leader.address)
    async with linked(slot):
        await eventually(lambda: slot.registered() == 1, "the leader to greet")
        assert leader.directory.run("flights", "run-1").connected_slots == 1
        assert standby.directory.run("flights", "run-1") is None
        await leader.vanish()
        await eventually(lambda: slot.registered() == 2, "the standby to greet")
        assert standby.directory.run("flights", "run-1").connected_slots == 1
    await standby.close()
    await leader.close()


async def test_long_messages_of_two_slots_arrive_whole(store):
    daemon = Daemon(store, "a")
    await daemon.server.start()
    await daemon.directory.submit(msgspec.structs.replace(SPEC, parallelism=2))
    slots = [SlotEnd(daemon.address, slot=slot) for slot in range(2)]
    async with linked(slots[0]), linked(slots[1]):
        await eventually(lambda: all(slot.registered() for slot in slots), "the greetings")
        for at in range(5):
            for slot in slots:
                slot.link.send(Heartbeat(0, {f"{slot.slot} {at} {figure:060}": 1.0 for figure in range(4_000)}))
        answered = lambda slot: sum(isinstance(message, Heard) for message in slot.heard)  # noqa: E731
        await eventually(lambda: [*map(answered, slots)] == [5, 5], "answers to all heartbeats")
        assert [slot.connections for slot in slots] == [1, 1]
    await daemon.close()


async def test_redirecting_standby_is_asked_with_pauses_and_does_not_count_as_coordinator(store):
    """Z9: a slot without a coordinator must exit in the end, so only a leader counts as contact."""
    standby = Daemon(store, "b")
    await standby.server.start()
    changing = asyncio.create_task(keep_changing(store))
    slot = SlotEnd(standby.address)
    before = slot.link.last_contact
    async with linked(slot):
        await eventually(lambda: slot.connections >= 5, "some attempts")
        assert "is led by daemon a" in slot.link.last_trouble
        assert slot.link.last_contact == before
        assert slot.heard == []
    changing.cancel()
    await standby.close()


async def keep_changing(store):
    """Renews another leader's lease, which is the only visible sign of that leader."""
    sequence = 0
    while True:
        sequence += 1
        lease = Lease(
            job="flights",
            run_id="run-1",
            leader="a",
            control="a",
            http="http://a",
            position=1,
            sequence=sequence,
            lease_ms=LEASE_MS,
        )
        store.put(Paths("flights").lease, encode_lease(lease))
        await asyncio.sleep(LEASE_MS / 10_000)


async def proven(reader, writer):
    """Accepts a slot. Returns the session."""
    acceptor = Acceptor(
        nonce=os.urandom(NONCE_BYTES),
        purpose="control",
        secret_of=lambda hello: job_secret(KEY, hello.job, "run-1"),
    )
    while acceptor.session is None:
        writer.write(acceptor.feed(await reader.read(4096)))
    return acceptor.session


async def test_a_coordinator_that_leaves_is_left_at_once_though_bytes_to_it_are_unsent():
    """The way to the coordinator is cut: unsent bytes stay unsent until the kernel gives up."""
    leave = asyncio.Event()
    writers = []

    async def leaving(reader, writer):
        writers.append(writer)
        await proven(reader, writer)
        await leave.wait()
        writer.write_eof()

    coordinator = await asyncio.start_server(leaving, "127.0.0.1", 0)
    slot = SlotEnd(coordinator.sockets[0].getsockname()[:2])
    slot.link.timeout_s = 600.0
    async with linked(slot):
        await eventually(lambda: slot.connections == 1, "the slot to connect")
        transport = slot.link._connection.transport
        transport.write(bytes(64 << 20))
        assert transport.get_write_buffer_size()
        leave.set()
        await eventually(lambda: slot.connections == 2, "the slot to connect again")
    for each in (coordinator, *writers):
        each.close()


async def test_a_wait_with_a_time_limit_can_be_closed():
    """As at the end of a loop; a coroutine that then awaits is never finished."""
    waited = asyncio.get_running_loop().create_future()
    waiting = within(60, waited)
    waiting.send(None)
    waiting.close()
    assert not waited.done()


async def test_a_leader_that_keeps_the_connection_but_says_nothing_is_left(monkeypatch, store):
    """Z8: a stopped process keeps connections open."""
    monkeypatch.setattr(control_link, "_SILENT_S", 0.2)

    async def mute(reader, writer):
        session = await proven(reader, writer)
        link = TcpLink(successor.server, writer.transport, session.framing(), PROTOCOL_VERSION)
        link.send(Registered(0, 0, 1_000))
        while await reader.read(4096):
            pass
        writer.close()

    successor = Daemon(store, "b")
    silent = await asyncio.start_server(mute, "127.0.0.1", 0)
    await successor.server.start()
    await successor.directory.submit(SPEC)
    slot = SlotEnd(silent.sockets[0].getsockname()[:2], successor.address)
    async with linked(slot):
        await eventually(lambda: slot.registered() >= 2, "the second daemon to greet")
        await eventually(lambda: successor.directory.run("flights", "run-1").connected_slots == 1)
    silent.close()
    await successor.close()


def test_a_link_without_an_address_is_refused():
    with pytest.raises(InvalidJob, match="no coordinator address"):
        SlotEnd()
