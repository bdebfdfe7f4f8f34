"""Certificates that clients of an https URL accept, at a TLS listener of the test."""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from barrier_runtime.coordinator.client.private_directory import PrivateDirectory
from barrier_runtime.coordinator.client.trust import HttpsConnections, Trust
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.sockets import listening_on
from barrier_runtime.state.tls import CertificateFiles, Certificates, TlsListener, server_context
from barrier_runtime.tools.coordinators import client_of
from tests.certificates import Authority, Issued
from tests.waiting import PATIENCE_S

TOKEN = "7" * 64


@contextlib.contextmanager
def daemon_with(issued: Issued) -> Iterator[int]:
    """Yields the port."""
    files = CertificateFiles(str(issued.certificate), str(issued.key))
    certificates = Certificates("the certificate", files.stamp, lambda: files.load_into(server_context()))
    listening = listening_on("127.0.0.1", 0)
    listener = TlsListener(listening, certificates, asyncio.Protocol, lambda peer, reason: None, timeout_s=PATIENCE_S)
    try:
        yield listening.getsockname()[1]
    finally:
        listener.close()


async def connect(issued: Issued, trust: Trust) -> None:
    """Raises `Unavailable` if the certificate is not trusted."""
    with daemon_with(issued) as port:
        connections = HttpsConnections(TOKEN, trust)
        (await asyncio.to_thread(connections.open, "127.0.0.1", port, PATIENCE_S)).close()


def full_chain(authority: Authority, issued: Issued) -> Path:
    """File with key, certificate and authority, as certificate managers write them."""
    file = issued.certificate.with_suffix(".chain")
    file.write_bytes(b"".join(each.read_bytes() for each in (issued.key, issued.certificate, authority.file)))
    return file


async def test_only_the_first_certificate_of_the_daemons_file_is_accepted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("a-host-of-the-operator", expired=True)
    trust = Trust(certificate=str(full_chain(authority, own)))
    await connect(own, trust)
    for other in (authority.issue("127.0.0.1"), authority.issue("another-host", expired=True)):
        with pytest.raises(Unavailable, match="is not trusted: the daemon has another certificate than the first of"):
            await connect(other, trust)


async def test_an_authority_without_key_usage_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ssl.create_default_context

    def as_python_3_13(**given: str) -> ssl.SSLContext:
        context = made(**given)  # type: ignore[arg-type]
        context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    monkeypatch.setattr(ssl, "create_default_context", as_python_3_13)
    authority = Authority(tmp_path, key_usage=False)
    await connect(authority.issue("127.0.0.1"), Trust(str(authority.file)))
    with pytest.raises(Unavailable, match="the peer's certificate is for another address"):
        await connect(authority.issue("127.0.0.9"), Trust(str(authority.file)))


async def test_an_announced_certificate_belongs_to_its_own_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    token_file = tmp_path / "daemon.token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    issued = Authority(tmp_path).issue("a-host-of-the-operator")
    announced = PrivateDirectory(parent=tmp_path)
    with daemon_with(issued) as here, daemon_with(issued) as elsewhere:
        announced.announce(f"https://127.0.0.1:{here}", token_file, issued.certificate)
        client = client_of("flights", f"https://127.0.0.1:{here},https://127.0.0.1:{elsewhere}", None)
        own, other = client._clients
        (await asyncio.to_thread(own._https.open, "127.0.0.1", here, PATIENCE_S)).close()
        with pytest.raises(Unavailable, match="is not trusted: the peer's certificate is not of a known authority"):
            await asyncio.to_thread(other._https.open, "127.0.0.1", elsewhere, PATIENCE_S)
    announced.remove()
