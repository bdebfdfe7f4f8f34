"""The TLS listener: bounds for peers that have proven nothing, and certificates that are read again."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from barrier_runtime.state.sockets import listening_on
from barrier_runtime.state.tls import CertificateFiles, Certificates, TlsListener, server_context
from tests.certificates import Authority, Issued
from tests.waiting import PATIENCE_S

PLACES = 4


@pytest.fixture
def issued(tmp_path: Path) -> Issued:
    return Authority(tmp_path).issue()


def certificates(issued: Issued) -> Certificates:
    files = CertificateFiles(str(issued.certificate), str(issued.key))
    return Certificates("the certificate", files.stamp, lambda: files.load_into(server_context()))


@contextlib.contextmanager
def listener(listening: socket.socket, issued: Issued) -> Iterator[TlsListener]:
    made = TlsListener(
        listening,
        certificates(issued),
        asyncio.Protocol,
        lambda peer, reason: None,
        timeout_s=PATIENCE_S,
        most=PLACES,
        answer=b"speak TLS",
    )
    try:
        yield made
    finally:
        made.close()


def ended(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


async def test_silent_peers_never_have_more_than_their_places(issued: Issued) -> None:
    """H3"""
    listening = listening_on("127.0.0.1", 0)
    with contextlib.ExitStack() as stack:
        peers = [
            stack.enter_context(socket.create_connection(listening.getsockname())) for _ in range(3 * PLACES)
        ]  # all wait before the listener accepts the first
        for peer in peers:
            peer.setblocking(False)
        shaking = stack.enter_context(listener(listening, issued))._shaking
        oldest = peers[: 2 * PLACES]
        while not all(ended(peer) for peer in oldest):
            await asyncio.sleep(0)
            assert len(shaking) <= PLACES
        assert not any(ended(peer) for peer in peers[2 * PLACES :]), "the newest keep their places"


async def test_a_peer_that_sends_plain_bytes_without_end_is_closed(issued: Issued) -> None:
    """H3"""
    loop, listening = asyncio.get_running_loop(), listening_on("127.0.0.1", 0)
    with listener(listening, issued), socket.create_connection(listening.getsockname()) as peer:
        peer.setblocking(False)
        with pytest.raises(ConnectionError):
            await loop.sock_sendall(peer, bytes(64 << 20))


def test_files_that_cannot_be_used_are_logged_once_and_read_again(
    issued: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    read = certificates(issued)
    first, text = read.context(), issued.certificate.read_text()
    issued.certificate.unlink()
    assert {read.context(), read.context()} == {first}
    issued.certificate.write_text("nonsense")
    assert {read.context(), read.context()} == {first}
    missing, unreadable = caplog.messages
    assert f"No such file or directory: {issued.certificate}" in missing
    assert unreadable.endswith("the previous certificate stays in use")
    issued.certificate.write_text(text)
    assert read.context() is not first


def test_a_failed_attempt_to_read_is_repeated_though_no_file_changed(issued: Issued) -> None:
    files = CertificateFiles(str(issued.certificate), str(issued.key))
    faults = [ValueError("not yet")]

    def make() -> ssl.SSLContext:
        context = files.load_into(server_context())
        if stamp[0] == 1 and faults:
            raise faults.pop()
        return context

    stamp = [0]
    read = Certificates("the certificate", lambda: stamp[0], make)
    first = read.context()
    stamp[0] = 1
    assert read.context() is first
    assert read.context() is not first
