"""Interleavings between slots that once ended in a hang or a leak: slow peers, cancelled deployments, silent errors."""

import asyncio

import pytest

from barrier_runtime.coordinator.wire.messages import Peer
from barrier_runtime.data.elements import Watermark
from barrier_runtime.runtime.network import control_link
from barrier_runtime.runtime.network import tcp as data_plane
from barrier_runtime.runtime.network.channels import ChannelId, InputChannel
from barrier_runtime.runtime.network.control_link import TcpControlLink
from barrier_runtime.runtime.network.tcp import TcpDataPlane
from barrier_runtime.state.errors import Unavailable
from tests.waiting import eventually

SECRET = b"s" * 32


def plane():
    return TcpDataPlane(SECRET, "job", "run")


async def listening(receiver):
    host, port = await receiver.listen()
    return Peer(1, "uuid", host, port)


# ---------------------------------------------------------------- data connections


async def test_a_peer_that_restores_for_longer_than_a_handshake_may_take_is_waited_for(monkeypatch):
    """Otherwise the faster slots would fail a generation with a large download again and again."""
    receiver, sender = plane(), plane()
    peer = await listening(receiver)
    channel = ChannelId(3, 0, 0, 1)
    connecting = asyncio.ensure_future(sender.connect(peer, [channel], lambda: None))
    await eventually(lambda: receiver._waiting and all(each.proven.done() for each in sender._connecting))
    await asyncio.sleep(0.01)  # a turn of the sender
    loop, time_s = asyncio.get_running_loop(), asyncio.get_running_loop().time
    monkeypatch.setattr(loop, "time", lambda: time_s() + 3 * data_plane.HANDSHAKE_TIMEOUT_S)
    done, _ = await asyncio.wait({connecting}, timeout=0.1)
    assert not done
    target = InputChannel(0, 0, lambda: None)
    receiver.expect(3, {channel: target}, lambda c, reason: None)
    [output] = await connecting
    output.send(Watermark(1))
    await eventually(lambda: target.readable)
    sender.close()
    receiver.close()


@pytest.mark.parametrize(("address", "shown"), [("127.0.0.1", r"127\.0\.0\.1:\d"), ("::1", r"\[::1\]:\d")])
async def test_a_peer_that_accepts_and_then_says_nothing_is_not_waited_for(monkeypatch, address, shown):
    monkeypatch.setattr(data_plane, "HANDSHAKE_TIMEOUT_S", 0.05)
    connected = []
    stalled = await asyncio.start_server(lambda r, w: connected.append(w), address, 0)
    host, port = stalled.sockets[0].getsockname()[:2]
    sender = plane()
    with pytest.raises(Unavailable, match=f"cannot reach slot 1 at {shown}"):
        await sender.connect(Peer(1, "uuid", host, port), [ChannelId(3, 0, 0, 1)], lambda: None)
    sender.close()
    for writer in connected:
        writer.close()
    stalled.close()


async def test_a_peer_that_dies_while_it_is_waited_for_is_reported(monkeypatch):
    receiver, sender = plane(), plane()
    peer = await listening(receiver)
    connecting = asyncio.ensure_future(sender.connect(peer, [ChannelId(3, 0, 0, 1)], lambda: None))
    await eventually(lambda: receiver._waiting)
    receiver.close()
    with pytest.raises(Unavailable):
        await connecting
    sender.close()


async def test_a_connection_whose_deployment_was_cancelled_is_closed():
    """A later admission would connect a slot to a generation that the slot has already left."""
    receiver, sender = plane(), plane()
    peer = await listening(receiver)
    connecting = asyncio.ensure_future(sender.connect(peer, [ChannelId(3, 0, 0, 1)], lambda: None))
    await eventually(lambda: receiver._waiting)
    connecting.cancel()
    await eventually(lambda: not receiver._waiting)
    sender.close()
    receiver.close()


@pytest.mark.slow
async def test_more_connections_than_a_small_job_has_may_wait_for_a_slow_slot():
    receiver, sender = plane(), plane()
    peer = await listening(receiver)
    channels = [ChannelId(3, 0, slot, 1) for slot in range(300)]
    connecting = [asyncio.ensure_future(sender.connect(peer, [channel], lambda: None)) for channel in channels]
    await eventually(lambda: len(receiver._waiting) == len(channels) or any(c.done() for c in connecting))
    receiver.expect(3, {c: InputChannel(0, 0, lambda: None) for c in channels}, lambda c, reason: None)
    await asyncio.gather(*connecting)
    sender.close()
    receiver.close()


# ---------------------------------------------------------------- control connections


async def test_a_coordinator_that_stays_out_of_reach_is_named_in_the_log_once(monkeypatch, caplog):
    """The error for a missing slot refers the user to the executors' logs."""
    monkeypatch.setattr(control_link, "_LASTING_S", 0.0)
    refused = []

    async def refuse(reader, writer):
        refused.append(await reader.read(1))
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()[:2]
    link = TcpControlLink((address,), SECRET, "job", "run", b"", lambda: None, lambda message: None)
    running = asyncio.ensure_future(link.run())
    await eventually(lambda: len(refused) >= 4)
    link.close()
    running.cancel()
    server.close()
    lines = [record.getMessage() for record in caplog.records if "out of reach" in record.getMessage()]
    assert len(lines) == 1
