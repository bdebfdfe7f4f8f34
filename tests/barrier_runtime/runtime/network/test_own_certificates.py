"""TLS between slots and with the coordinator, with certificates of the user: what is refused, in which words."""

import asyncio
import contextlib
import socket
import ssl
import uuid

import pytest

from barrier_runtime.coordinator.server.control import ControlServer
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.wire.messages import Peer
from barrier_runtime.data.elements import Watermark
from barrier_runtime.runtime.network import connection
from barrier_runtime.runtime.network.channels import ChannelId, InputChannel
from barrier_runtime.runtime.network.control_link import TcpControlLink
from barrier_runtime.runtime.network.tcp import TcpDataPlane
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.sockets import listening_on
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.tls import CertificateFiles, PeerTls, peer_tls
from tests.certificates import Authority
from tests.waiting import eventually

SECRET = b"s" * 32
CHANNEL = ChannelId(3, 0, 0, 1)
UNKNOWN = "the peer's certificate is not of a known authority"


@pytest.fixture
def ours(tmp_path):
    return Authority(tmp_path / "ours")


@pytest.fixture
def strange(tmp_path):
    return Authority(tmp_path / "strange")


def tls(authority, issued=None):
    issued = issued or authority.issue()
    return PeerTls(CertificateFiles(str(issued.certificate), str(issued.key), str(authority.file)))


def plane(given):
    return TcpDataPlane(SECRET, "job", "run", tls=given)


@contextlib.asynccontextmanager
async def receiver(given):
    """Yields the downstream slot's data plane, the slot's address, and the channel that the slot expects."""
    here = plane(given)
    host, port = await here.listen()
    expected = InputChannel(0, 0, lambda: None, 8 << 20)
    here.expect(3, {CHANNEL: expected}, lambda channel, reason: None)
    try:
        yield Peer(1, "uuid", host, port), expected
    finally:
        here.close()


async def connect(given, peer):
    """Raises `Unavailable` if either end refuses."""
    sender = plane(given)
    try:
        [output] = await sender.connect(peer, [CHANNEL], lambda: None)
        return output, sender
    except BaseException:
        sender.close()
        raise


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "barrier_runtime.network"]


async def refused_by_receiver(given, peer, caplog):
    with pytest.raises(Unavailable):
        await connect(given, peer)
    await eventually(lambda: lines(caplog), "the line about the refused peer")
    [line] = lines(caplog)
    assert line.startswith("connection from ('127.0.0.1', ")
    return line


async def test_rows_pass_between_certificates_of_one_ca(ours):
    async with receiver(tls(ours)) as (peer, expected):
        output, sender = await connect(tls(ours), peer)
        output.send(Watermark(7))
        await eventually(lambda: expected.readable)
        assert expected.pop() == Watermark(7)
        assert next(iter(sender._open)).transport.get_extra_info("cipher")[1] == "TLSv1.3"
        sender.close()


async def test_plaintext_is_refused_at_both_ends(ours, caplog):
    async with receiver(tls(ours)) as (peer, _):
        said = await refused_by_receiver(None, peer, caplog)
        assert said.endswith("closed: the peer speaks without TLS, and this port requires TLS")
    caplog.clear()
    async with receiver(None) as (peer, _):
        said = await refused_by_receiver(tls(ours), peer, caplog)
        assert "a peer speaks TLS, and this process has no certificate" in said


async def test_another_ca_is_refused_at_both_ends(ours, strange, caplog):
    issued = strange.issue()
    knows_ours = PeerTls(CertificateFiles(str(issued.certificate), str(issued.key), str(ours.file)))
    async with receiver(tls(ours)) as (peer, _):
        assert "the peer's certificate is not of a known authority" in await refused_by_receiver(
            knows_ours, peer, caplog
        )
        with pytest.raises(Unavailable, match=f"cannot reach slot 1.*: {UNKNOWN}"):
            await connect(tls(strange), peer)


async def test_an_expired_certificate_is_refused_at_both_ends(ours, caplog):
    expired = tls(ours, ours.issue(expired=True))
    async with receiver(tls(ours)) as (peer, _):
        assert "the peer's certificate has expired: renew" in await refused_by_receiver(expired, peer, caplog)
    async with receiver(expired) as (peer, _):
        with pytest.raises(Unavailable, match="the peer's certificate has expired: renew the certificate on that host"):
            await connect(tls(ours), peer)


async def test_a_certificate_of_another_host_is_refused(ours):
    async with receiver(tls(ours, ours.issue("127.0.0.9", "node-9"))) as (peer, _):
        with pytest.raises(Unavailable, match="the peer's certificate is for another address: use a name of the"):
            await connect(tls(ours), peer)


async def test_an_older_protocol_is_refused(ours, caplog):
    async with receiver(tls(ours)) as (peer, _):
        old = ssl.create_default_context(cafile=str(ours.file))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with contextlib.suppress(OSError):
            await asyncio.open_connection(peer.host, peer.port, ssl=old)
        await eventually(lambda: lines(caplog), "the line about the old protocol")
        assert "another version of TLS: use TLS 1.3 at both ends" in lines(caplog)[0]


async def test_certificates_are_read_again_without_a_restart(ours, caplog):
    files = ours.issue()
    async with receiver(tls(ours, files)) as (peer, _):
        files.replace(ours.issue(expired=True))
        with pytest.raises(Unavailable, match="has expired"):
            await connect(tls(ours), peer)
        files.certificate.write_text("nonsense")
        with pytest.raises(Unavailable, match="has expired"):
            await connect(tls(ours), peer)
        assert "the previous certificate stays in use" in caplog.text
        files.replace(ours.issue())
        _, sender = await connect(tls(ours), peer)
        sender.close()


@contextlib.asynccontextmanager
async def coordinator(given):
    directory = JobDirectory(MemoryStore(), daemon_key=b"k" * 32, leader=uuid.uuid4().hex, host="h")
    server = ControlServer(directory, listening_on("127.0.0.1", 0), tls=given)
    await server.start()
    try:
        yield server.address
    finally:
        await server.close()
        await directory.close()


@contextlib.asynccontextmanager
async def linked(address, given):
    link = TcpControlLink((address,), SECRET, "job", "run", b"", lambda: None, lambda message: None)
    link.tls = given
    running = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        link.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("fault", "at_the_slot", "at_the_coordinator"),
    [
        ("plaintext", "closed by the coordinator", "the peer speaks without TLS, and this port requires TLS"),
        ("expired", "", "the peer's certificate has expired"),
        ("authority", "the peer's certificate is not of a known authority", ""),
        ("host", "the peer's certificate is for another address", ""),
    ],
)
async def test_the_coordinator_and_a_slot_refuse_each_other(
    ours, strange, caplog, fault, at_the_slot, at_the_coordinator
):
    own = tls(ours, ours.issue("127.0.0.9") if fault == "host" else None)
    slots = {"plaintext": None, "authority": tls(strange), "expired": tls(ours, ours.issue(expired=True))}
    async with coordinator(own) as address, linked(address, slots.get(fault, tls(ours))) as link:
        await eventually(lambda: at_the_slot in link.last_trouble and link.last_trouble, "the slot's reason")
        said = lambda: [each.getMessage() for each in caplog.records if each.name == "coordinator.control"]  # noqa: E731
        await eventually(lambda: not at_the_coordinator or any(at_the_coordinator in line for line in said()))


def test_files_belong_together_and_values_of_a_host_win(ours):
    class Options:
        tls_certificate = tls_key = tls_ca = ""

    assert peer_tls(Options(), {}) is None
    with pytest.raises(InvalidJob, match="tls_certificate= and tls_ca= belong together"):
        peer_tls(Options(), {"BARRIER_RUNTIME_TLS_CA": str(ours.file)})
    issued = ours.issue()
    environment = {
        "BARRIER_RUNTIME_TLS_CERTIFICATE": str(issued.certificate),
        "BARRIER_RUNTIME_TLS_KEY": str(issued.key),
        "BARRIER_RUNTIME_TLS_CA": str(ours.file),
    }
    assert peer_tls(Options(), environment).files.ca == str(ours.file)
    with pytest.raises(InvalidJob, match="certificate and key do not belong together"):
        peer_tls(Options(), {**environment, "BARRIER_RUNTIME_TLS_KEY": str(ours.issue().key)})


def ended(peer):
    peer.setblocking(False)
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


async def test_a_peer_that_says_nothing_makes_room_for_others(ours, monkeypatch):
    """H3"""
    monkeypatch.setattr(connection, "_HANDSHAKES", 4)
    async with receiver(tls(ours)) as (peer, _):
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection((peer.host, peer.port))) for _ in range(20)]
            _, sender = await connect(tls(ours), peer)
            assert [ended(each) for each in silent[:16]] == [True] * 16, "each newer peer takes the place of the oldest"
        sender.close()
