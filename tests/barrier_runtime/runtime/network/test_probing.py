"""Answer of a slot to a probe, over real sockets."""

import asyncio
import contextlib
import socket
import threading

from barrier_runtime.coordinator.wire.messages import Peer, Probe
from barrier_runtime.runtime.host.inspection import probed
from barrier_runtime.state.errors import Unavailable


def peer(slot: int, port: int) -> Peer:
    return Peer(slot, f"u{slot}", "127.0.0.1", port)


async def test_reached_slots_and_store_bring_no_error():
    with socket.create_server(("127.0.0.1", 0)) as other:
        found = await probed(Probe((peer(0, 1), peer(1, other.getsockname()[1]))), 0, lambda: None)
    assert (found.store, found.unreached) == ("", {})


async def test_refused_connection_and_broken_store_are_named():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens

        def read() -> None:
            raise Unavailable("s3://jobs does not answer")

        found = await probed(Probe((peer(1, 1), peer(0, unused.getsockname()[1]))), 1, read)
    assert found.store == "Unavailable: s3://jobs does not answer"
    assert list(found.unreached) == [0]
    assert "refused" in found.unreached[0].lower() or "connect" in found.unreached[0].lower()


async def test_a_host_name_that_cannot_be_encoded_is_an_error_of_that_slot():
    odd = Peer(1, "u1", "x" * 64 + ".example", 7_200)
    found = await probed(Probe((peer(0, 1), odd)), 0, lambda: None)
    assert list(found.unreached) == [1]
    assert found.store == ""


async def test_no_exit_waits_for_a_store_that_never_answers():
    readers = list[threading.Thread]()
    found = await probed(Probe(()), 0, lambda: readers.append(threading.current_thread()), limit_s=600)
    assert found.store == ""
    assert [reader.daemon for reader in readers] == [True], "the interpreter joins other threads"


async def test_all_slots_of_a_job_of_64_are_tried_at_once(monkeypatch):
    tried, all_tried = list[int](), asyncio.Event()

    async def refused(host: str, port: int):
        tried.append(port)
        if len(tried) == 63:
            all_tried.set()
        await all_tried.wait()
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(asyncio, "open_connection", refused)
    found = await probed(Probe(tuple(peer(slot, slot + 1) for slot in range(64))), 20, lambda: None, limit_s=60)
    assert set(found.unreached.values()) == {"refused"}
    assert tried[0] == 22, "the next slot is the first: not all slots connect to slot 0 at once"


async def test_silent_store_and_address_end_after_the_limit():
    answer = threading.Event()
    try:
        with socket.socket() as full:  # a listener whose queue is full answers nothing
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            held = [_begun(full.getsockname()) for _ in range(4)]
            found = await probed(Probe((peer(1, full.getsockname()[1]),)), 0, answer.wait, limit_s=0.2)
            for each in held:
                each.close()
    finally:
        answer.set()
    assert found.store == "no answer for 0.2 s"
    assert found.unreached == {1: "no answer for 0.2 s"}


def _begun(address: tuple[str, int]) -> socket.socket:
    """A connection that has begun and may never be accepted."""
    client = socket.socket()
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        client.connect(address)
    return client
