"""Requests to the page that arrive while a local job ends: the program may live on, and their clients must not wait."""

import asyncio
import contextlib
import gc
import socket
from collections.abc import Iterator

import pytest
from coordinator_world import spec

from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.launch import local_page
from barrier_runtime.launch.local_page import with_page
from barrier_runtime.state.store.memory import MemoryStore

HEAD = (
    b"POST /jobs/flights/rescale HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"X-Barrier-Runtime: 1\r\nAuthorization: BarrierRuntime-HMAC-SHA256 1:0123456789abcdef:00\r\n"
)
HALF = HEAD + b"Content-Length: 9\r\n\r\n{"
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def no_collection() -> Iterator[None]:
    """The garbage collector would close forgotten sockets sooner or later."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 20])  # of the loop, in which the server accepts and reads
@pytest.mark.parametrize("sent", [b"", HEAD, HALF, WHOLE], ids=["nothing", "half a head", "half a body", "whole"])
def test_a_connection_of_the_last_moment_ends_with_the_job(
    sent: bytes, turns: int, no_collection: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_page, "_LEAVE_S", 0.3)

    async def whole() -> socket.socket:
        runner, store = JobRunner(spec(), MemoryStore(), leader="a", host="h"), MemoryStore()
        pages: list[CoordinatorClient] = []

        async def run() -> socket.socket:
            await asyncio.to_thread(pages[0].health)  # the server runs
            host, port = pages[0].url.removeprefix("http://").split(":")
            peer = socket.create_connection((host, int(port)), timeout=20)
            peer.sendall(sent)
            for _ in range(turns):
                await asyncio.sleep(0)
            return peer

        return await with_page(run, runner, store, ui=True, serves=pages.append)

    with asyncio.run(whole()) as peer, contextlib.suppress(ConnectionResetError):
        while peer.recv(4096):
            pass
