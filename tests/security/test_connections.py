"""Limits of unauthenticated peers: a bounded place, little memory and a few seconds (H3, G5); authenticated peers get
their own place only. Against real processes and sockets.
"""

import asyncio
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from coordinator_world import spec
from living_daemon import TOKEN, Daemon, living_daemon
from tcp_slot import TcpSlot

from barrier_runtime.coordinator.server.control import MAX_UNPROVEN
from barrier_runtime.coordinator.server.serving import MAX_CONNECTIONS
from barrier_runtime.coordinator.wire.handshake import NONCE_BYTES, Acceptor, Initiator
from barrier_runtime.coordinator.wire.messages import Deploy, Peer, Registered
from barrier_runtime.runtime.network import tcp as data_plane
from barrier_runtime.runtime.network.channels import ChannelId, InputChannel, Route
from barrier_runtime.runtime.network.tcp import TcpDataPlane
from barrier_runtime.state.sockets import own_address_towards
from tests.waiting import until

MIB = 1 << 20
CHUNK = 64 * 1024
PATIENCE_S = 60.0


def dial(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=PATIENCE_S)


def wait_until_closed(connection: socket.socket) -> bytes:
    """The bytes sent by the other side before the close."""
    said = b""
    while True:
        try:
            data = connection.recv(CHUNK)
        except ConnectionError:
            return said
        if not data:
            return said
        said += data


def pour(connection: socket.socket, total: int) -> int:
    """Sends until all bytes are sent or the other side closes the connection."""
    sent = 0
    try:
        while sent < total:
            connection.sendall(b"\x00" * CHUNK)
            sent += CHUNK
    except OSError:
        return sent
    return sent


def read_for_ever(slot: TcpSlot) -> None:
    while True:
        slot.receive()


def a_slot_comes_and_is_served(daemon: Daemon) -> None:
    job = spec(parallelism=1)
    secret = bytes.fromhex(daemon.client.submit(job).secret)
    slot = TcpSlot(job.job, job.run_id, secret, 0).connect(daemon.control, timeout_s=PATIENCE_S)
    slot.until(Registered)
    slot.until(Deploy)
    slot.close()


# ---------------------------------------------------------------- control connections


@pytest.mark.slow
def test_a_crowd_of_strangers_costs_the_coordinator_little_and_goes_in_time(tmp_path: Path) -> None:
    """H3: more connections than places, some silent, some mid-handshake, some sending without end."""
    with living_daemon(tmp_path, "--handshake-timeout", "2") as daemon:
        before = daemon.memory_bytes
        hello = Initiator(b"x" * 32, job="flights", run_id="r", purpose="control", claims=b"", nonce=b"n" * NONCE_BYTES)
        crowd = [dial(daemon.control) for _ in range(MAX_UNPROVEN + 100)]
        for number, connection in enumerate(crowd):
            try:
                if number % 3 == 0:
                    connection.sendall(b"\x0f")  # half a length
                elif number % 3 == 1:
                    connection.sendall(hello.hello())
                else:
                    connection.sendall(b"\x0f\xff" + b"x" * 4_000)  # nearly a hello
            except ConnectionError:
                continue  # above the limit: refused at once
        for connection in crowd:
            wait_until_closed(connection)
            connection.close()
        assert daemon.memory_bytes - before < 32 * MIB
        until(lambda: daemon.connections == 0, "all of them to be forgotten", patience_s=PATIENCE_S)
        a_slot_comes_and_is_served(daemon)


@pytest.mark.slow
def test_silent_strangers_do_not_delay_a_slot(tmp_path: Path) -> None:
    """H3: with any number of strangers; they are dropped one by one when their places are needed, without a timeout."""
    with living_daemon(tmp_path, "--handshake-timeout", str(10 * PATIENCE_S)) as daemon:
        crowd = [dial(daemon.control) for _ in range(MAX_UNPROVEN + 300)]
        a_slot_comes_and_is_served(daemon)
        for connection in crowd:
            connection.close()


def test_a_peer_connects_to_a_slot_whose_places_are_all_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """H3"""
    monkeypatch.setattr(data_plane, "MAX_UNPROVEN", 20)

    async def main() -> None:
        one, other = TcpDataPlane(SECRET, "job", "run"), TcpDataPlane(SECRET, "job", "run")
        host, port = await one.listen()
        crowd = [await asyncio.open_connection(host, port) for _ in range(50)]
        channel = ChannelId(1, 0, 1, 0)
        one.expect(1, {channel: InputChannel(0, 0, lambda: None, 1 << 20)}, lambda channel, reason: None)
        await other.connect(Peer(0, "uuid", host, port), [channel], lambda: None)
        await one.all_connected()
        for _, writer in crowd:
            writer.close()
        other.close()
        one.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.slow
def test_a_stranger_that_pours_is_cut_off_at_once(tmp_path: Path) -> None:
    """H3, B3: bytes that are no handshake are not collected."""
    with living_daemon(tmp_path) as daemon:
        before = daemon.memory_bytes
        for _ in range(4):
            connection = dial(daemon.control)
            assert pour(connection, 256 * MIB) < 64 * MIB, "refused long before all of it was sent"
            connection.close()
        assert daemon.memory_bytes - before < 32 * MIB
        a_slot_comes_and_is_served(daemon)


@pytest.mark.slow
def test_a_proven_slot_that_announces_a_huge_frame_is_cut_off(tmp_path: Path) -> None:
    """B3: the announcement takes no memory; the slot may connect again."""
    with living_daemon(tmp_path) as daemon:
        job = spec(parallelism=1)
        secret = bytes.fromhex(daemon.client.submit(job).secret)
        slot = TcpSlot(job.job, job.run_id, secret, 0).connect(daemon.control, timeout_s=PATIENCE_S)
        slot.until(Registered)
        before = daemon.memory_bytes
        assert slot._socket is not None
        slot._socket.sendall(b"\xff\xff\xff\xff" + bytes(24) + b"x" * 1_000)
        with pytest.raises(ConnectionError):
            read_for_ever(slot)
        assert daemon.memory_bytes - before < 16 * MIB
        assert slot.connect(daemon.control, timeout_s=PATIENCE_S).until(Registered)
        slot.close()


# ---------------------------------------------------------------- REST


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for tests that occupy no place and do not measure memory."""
    with living_daemon(tmp_path_factory.mktemp("shared")) as daemon:
        yield daemon


@pytest.mark.slow
def test_http_connections_without_a_request_are_closed_in_time(tmp_path: Path) -> None:
    """G5, H3: silent connections, slow heads and slow bodies."""
    with living_daemon(tmp_path, "--handshake-timeout", "1") as daemon:
        before = daemon.memory_bytes
        crowd = [dial(daemon.http) for _ in range(MAX_CONNECTIONS // 2)]
        for connection in crowd:
            assert wait_until_closed(connection) == b""
            connection.close()
        slow_head, slow_body = dial(daemon.http), dial(daemon.http)
        slow_head.sendall(b"GET /jobs HTTP/1.1\r\nHost: x\r\n")
        slow_body.sendall(
            b"PUT /jobs/flights HTTP/1.1\r\nHost: x\r\nX-Barrier-Runtime: 1\r\nContent-Length: 1000\r\n"
            b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n{"
        )
        assert wait_until_closed(slow_head) == b""
        assert b"200" not in wait_until_closed(slow_body)
        for connection in (slow_head, slow_body):
            connection.close()
        assert daemon.memory_bytes - before < 32 * MIB
        a_slot_comes_and_is_served(daemon)


@pytest.mark.slow
def test_one_more_http_connection_than_there_are_places_is_refused(tmp_path: Path) -> None:
    """G5, H3: at once; no timeout could be this fast."""
    with living_daemon(tmp_path, "--handshake-timeout", "600") as daemon:
        crowd = [dial(daemon.http) for _ in range(2 * MAX_CONNECTIONS)]
        until(lambda: daemon.connections <= MAX_CONNECTIONS, "the surplus to be closed", patience_s=PATIENCE_S)
        for connection in crowd:
            connection.close()
        until(daemon.answers, "places to be free again", patience_s=PATIENCE_S)


@pytest.mark.parametrize("head", [b"GET /" + b"x" * 1_000_000, b"GET / HTTP/1.1\r\nX: " + b"y" * 1_000_000])
def test_a_request_head_without_an_end_is_cut_off(shared_daemon: Daemon, head: bytes) -> None:
    """G5"""
    with dial(shared_daemon.http) as connection:
        try:
            connection.sendall(head)
        except ConnectionError:
            return  # cut off during the sending
        assert b" 200 " not in wait_until_closed(connection)


@pytest.mark.slow
def test_a_body_is_not_read_for_who_has_no_token(tmp_path: Path) -> None:
    """G2, G5: the head alone decides the answer, and the following bytes are not kept."""
    with living_daemon(tmp_path, "--handshake-timeout", "2") as daemon:
        before = daemon.memory_bytes
        connection = dial(daemon.http)
        connection.sendall(
            b"PUT /jobs/flights HTTP/1.1\r\nHost: x\r\nX-Barrier-Runtime: 1\r\nContent-Length: 999999999\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")
        pour(connection, 64 * MIB)
        connection.close()
        assert daemon.memory_bytes - before < 32 * MIB


def test_answers_over_the_wire_tell_nothing_of_the_server_and_allow_no_other_origin(shared_daemon: Daemon) -> None:
    """G5: as a browser would see them."""
    for method, path, headers, status in (
        ("GET", "/healthz", {}, 200),
        ("GET", "/jobs", {}, 401),
        ("GET", "/jobs", {"Authorization": f"Bearer {TOKEN}"}, 200),
        ("OPTIONS", "/jobs", {"Access-Control-Request-Method": "PUT"}, 401),
        ("GET", "/jobs/%252e%252e", {"Authorization": f"Bearer {TOKEN}"}, 400),
        ("GET", "/jobs/%2e%2e/x", {"Authorization": f"Bearer {TOKEN}"}, 404),
        ("GET", "/../../etc/passwd", {"Authorization": f"Bearer {TOKEN}"}, 404),
    ):
        connection = http.client.HTTPConnection(*shared_daemon.http, timeout=PATIENCE_S)
        connection.request(method, path, headers={"Origin": "http://evil", **headers})
        answer = connection.getresponse()
        body = answer.read()
        names = {name.lower() for name, _ in answer.getheaders()}
        assert answer.status == status, (path, body)
        assert not {name for name in names if name.startswith("access-control")}
        assert "server" not in names
        assert answer.getheader("content-type") == "application/json"
        assert TOKEN.encode() not in body
        connection.close()


# ---------------------------------------------------------------- data connections

SECRET = b"s" * 32


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def crowd_of_mutes(monkeypatch: pytest.MonkeyPatch, handshake_timeout_s: float, the_oldest_goes: bool) -> None:
    """20 places, all taken by connections that send half a length."""
    monkeypatch.setattr(data_plane, "MAX_UNPROVEN", 20)
    monkeypatch.setattr(data_plane, "HANDSHAKE_TIMEOUT_S", handshake_timeout_s)

    async def main() -> None:
        plane = TcpDataPlane(SECRET, "job", "run")
        address = await plane.listen()
        crowd = [await asyncio.open_connection(*address) for _ in range(20)]
        for _, writer in crowd:
            writer.write(b"\x00")
        if the_oldest_goes:
            while plane.unproven < 20:
                await asyncio.sleep(0)
            _, surplus = await asyncio.open_connection(*address)
            assert await until_closed(crowd[0][0]) == b""
            assert plane.unproven == 20, "the others keep their places"
            assert not crowd[1][0].at_eof()
            surplus.close()
        else:
            for reader, _ in crowd:
                assert await until_closed(reader) == b""
            assert plane.unproven == 0
        for _, writer in crowd:
            writer.close()
        plane.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_one_more_data_connection_than_there_are_places_takes_that_of_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H3: at once; no timeout could be this fast."""
    crowd_of_mutes(monkeypatch, handshake_timeout_s=10 * PATIENCE_S, the_oldest_goes=True)


def test_data_connections_that_prove_nothing_give_their_places_back_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """H3"""
    crowd_of_mutes(monkeypatch, handshake_timeout_s=0.2, the_oldest_goes=False)


def test_only_expected_peers_reach_a_channel_and_nothing_may_come_before_admission() -> None:
    """H1, H3: the right secret is not enough: route, generation and turn must be right too."""

    async def attempt(address: tuple[str, int], claims: bytes, secret: bytes, early: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        initiator = Initiator(secret, job="job", run_id="run", purpose="data", claims=claims, nonce=b"n" * NONCE_BYTES)
        writer.write(initiator.hello())
        while initiator.session is None:
            data = await reader.read(CHUNK)
            if not data:
                writer.close()
                return b"refused"
            proof = initiator.feed(data)
        writer.write(proof + early)
        answer = await until_closed(reader) if early or claims != good else await reader.read(1)
        writer.close()
        return answer

    import msgspec

    good = msgspec.msgpack.encode(Route(3, 0, 1))
    bad_claims = [
        msgspec.msgpack.encode(Route(2, 0, 1)),  # an older generation
        msgspec.msgpack.encode(ChannelId(3, 0, 0, 1)),  # of an older release
        msgspec.msgpack.encode(Route(3, 5, 1)),  # another sender
        msgspec.msgpack.encode(Route(3, 0, 2)),  # addressed to another slot
        b"",
        b"\x80\x04K\x01.",
        b"\x91" * 3_000,
        good + b"x",
    ]

    async def main() -> None:
        plane = TcpDataPlane(SECRET, "job", "run")
        address = await plane.listen()
        input_channel = InputChannel(0, 0, lambda: None, 1 << 20)
        broken: list[str] = []
        plane.expect(3, {ChannelId(3, 0, 0, 1): input_channel}, lambda channel, reason: broken.append(reason))
        for claims in bad_claims:
            assert await attempt(address, claims, SECRET, b"") in (b"", b"refused")
        assert await attempt(address, good, SECRET, b"early frames") == b""
        assert not input_channel.readable
        assert broken == []
        assert await attempt(address, good, SECRET, b"") == b"\x01"
        assert plane.unproven == 0
        plane.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


@pytest.mark.slow
def test_a_slot_tells_no_secret_to_an_impostor_of_its_coordinator_or_peer() -> None:
    """H1: the handshake is mutual; an acceptor without the secret learns nothing useful."""
    impostor = Acceptor(nonce=b"i" * NONCE_BYTES, purpose="control", secret_of=lambda hello: b"guess")
    slot = Initiator(SECRET, job="job", run_id="run", purpose="control", claims=b"", nonce=b"n" * NONCE_BYTES)
    hello = slot.hello()
    assert SECRET not in hello
    with pytest.raises(Exception, match="does not know its secret"):
        slot.feed(impostor.feed(hello))
    assert slot.session is None


@pytest.mark.slow
def test_a_slot_listens_where_its_coordinator_is_and_nowhere_else() -> None:
    """G1, H3: on loopback when that is where the coordinator listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert own_address_towards(*listening.getsockname()) == "127.0.0.1"

    async def main() -> None:
        plane = TcpDataPlane(SECRET, "job", "run", "127.0.0.1")
        host, port = await plane.listen()
        assert (host, port > 1023) == ("127.0.0.1", True)
        plane.close()

    asyncio.run(main())
