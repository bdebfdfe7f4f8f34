"""Relations among the inputs of a new chain."""

import asyncio
import socket
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, count
from barrier_runtime.coordinator.wire.messages import Peer
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.runtime.network.channels import LocalOutput
from barrier_runtime.runtime.network.tcp import TcpDataPlane
from barrier_runtime.runtime.network.wiring import Wiring
from barrier_runtime.state.errors import Unavailable
from tests.waiting import eventually


def from_source(stream: Any) -> Any:
    return stream.key_by("key").aggregate("last", n=count())


def by_keys(stream: Any) -> Any:
    return stream.key_by("key").aggregate("first", m=count()).key_by("key").aggregate("last", n=count())


def by_an_even_spread(stream: Any) -> Any:
    return stream.key_by("key").aggregate("first", m=count()).rebalance().map_batches(lambda batch: batch, name="last")


@pytest.mark.parametrize(("build", "hear_the_same"), [(from_source, False), (by_keys, True), (by_an_even_spread, True)])
@pytest.mark.filterwarnings("ignore:.*counts every update")
def test_channels_are_idle_together_when_their_subtasks_hear_the_same(build: Any, hear_the_same: bool) -> None:
    """A source's subtasks have their own splits, so each is idle independently."""
    flow = Dataflow("wired")
    build(flow.rate("numbers", 100, keys=3)).sink("out", CollectSink())
    graph = compile_plan(flow.plan, parallelism=2, max_parallelism=16)
    wiring: Any = Wiring(graph, 1, 0, None, lambda: None, 1, LocalOutput)  # type: ignore[arg-type] # connects nothing
    wiring.make_inputs()
    (chain,) = [chain for chain in graph.chains if any("last" in spec.name for spec in chain.operators)]
    channels = wiring.inputs[chain.id]
    assert len(channels) == 2
    assert [channel.together is not None for channel in channels] == [hear_the_same] * 2
    assert channels[0].together == channels[1].together


def silent() -> tuple[socket.socket, list[socket.socket]]:
    """A listening socket whose queue is full: the kernel drops further requests, as if the host were away."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = [socket.socket() for _ in range(3)]
    for each in waiting:
        each.setblocking(False)
        each.connect_ex(listening.getsockname())
    return listening, waiting


@pytest.mark.filterwarnings("ignore:.*counts every update")
async def test_silent_host_holds_up_no_other_connection_and_is_named() -> None:
    flow = Dataflow("wired")
    by_keys(flow.rate("numbers", 100, keys=3)).sink("out", CollectSink())
    graph = compile_plan(flow.plan, parallelism=3, max_parallelism=16)
    planes = [TcpDataPlane(b"s" * 32, "job", "run") for _ in range(3)]
    addresses = [await plane.listen() for plane in planes]
    listening, waiting = silent()
    addresses[1] = listening.getsockname()[:2]
    wirings = [Wiring(graph, 1, slot, planes[slot], lambda: None, 1 << 20, LocalOutput) for slot in (0, 2)]
    for wiring in wirings:
        wiring.make_inputs()
        wiring.expect(lambda route, reason: None)
    peers = [Peer(slot, f"uuid{slot}", *address) for slot, address in enumerate(addresses)]
    connecting = [asyncio.ensure_future(wiring.connect(peers)) for wiring in wirings]
    await eventually(lambda: len(planes[0]._open) == len(planes[2]._open) == 2, "slots 0 and 2 to connect both ways")
    assert not any(each.done() for each in connecting)
    for each in (listening, *waiting):
        each.close()
    for slot, task in zip((0, 2), connecting, strict=True):
        with pytest.raises(Unavailable, match=f"slot {slot} cannot reach slot 1 at "):
            await task
    for plane in planes:
        plane.close()
