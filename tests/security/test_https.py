"""REST and page by HTTPS: a real daemon with a generated or a given certificate, and clients that verify it."""

import datetime
import socket
import ssl
import sys
import tempfile
from pathlib import Path

import pytest
from coordinator_world import spec
from living_daemon import TOKEN, Daemon, living_daemon

from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator, WebOptions
from barrier_runtime.coordinator.client.generated_certificate import certificate_pem, pin
from barrier_runtime.coordinator.client.trust import Trust
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.sockets import PortRange, listening_on
from barrier_runtime.state.tls import context_of
from barrier_runtime.tools.coordinators import all_jobs
from tests.addresses import LOOPBACKS
from tests.certificates import Authority
from tests.waiting import PATIENCE_S, until


def refused(daemon: Daemon, token: str = TOKEN, trust: Trust = Trust()) -> str:
    with pytest.raises(Unavailable) as error:
        CoordinatorClient(daemon.url, token, trust=trust, timeout_s=PATIENCE_S).jobs()
    return str(error.value)


def jobs(address: str | None, token_file: Path | None, ca: str | None = None) -> list[str]:
    """Names of jobs, as `barrier-runtime status` finds them."""
    return [job.job for job in all_jobs(address, token_file, ca)]


def test_the_key_of_a_generated_certificate_is_never_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform == "linux":
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    pem = certificate_pem("7" * 64, ["127.0.0.1"], datetime.datetime.now(datetime.timezone.utc))
    assert isinstance(context_of(pem), ssl.SSLContext)


@pytest.mark.slow
def test_the_token_pins_a_generated_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H2"""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with living_daemon(tmp_path, "--https", "generated", scheme="https") as daemon:
        assert len(daemon.client.submit(spec(job="safe")).secret) == 64
        assert daemon.client.page_link("safe").startswith(f"{daemon.url}/login?once=")
        assert "is not trusted: the peer's certificate is not of a known authority" in refused(daemon, "8" * 64)
        assert pin(TOKEN) in daemon.log.read_text()

        assert jobs(None, None) == ["safe"], "commands find the daemon, and know the certificate by the token"

        plain = CoordinatorClient(daemon.url.replace("https", "http"), TOKEN)
        with pytest.raises(InvalidJob, match="this port speaks HTTPS: use https:// in the address"):
            plain.jobs()
        until(lambda: "the peer speaks without TLS" in daemon.log.read_text(), "the line about plain HTTP")


@pytest.mark.slow
def test_a_given_certificate_is_verified_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    ours, strange = Authority(tmp_path / "ours"), Authority(tmp_path / "strange")
    trust = Trust(str(ours.file))
    files = ours.issue("127.0.0.1", "::1")
    options = ("--https", str(files.certificate), "--https-key", str(files.key))
    with living_daemon(tmp_path, *options, scheme="https", trust=trust) as daemon:
        daemon.client.submit(spec(job="safe"))
        assert jobs(None, None) == ["safe"], "commands know the certificate on the daemon's host"
        assert jobs(daemon.url, tmp_path / "operator.token", str(ours.file)) == ["safe"]
        assert "not of a known authority" in refused(daemon), "neither by the token nor by the system"
        assert "not of a known authority" in refused(daemon, trust=Trust(str(strange.file)))

        client = daemon.client
        files.replace(ours.issue(expired=True))
        assert "has expired: renew the certificate" in refused(daemon, trust=trust)
        files.replace(ours.issue("127.0.0.9"))
        assert "for another address" in refused(daemon, trust=trust)
        files.certificate.write_text("nonsense")
        assert "for another address" in refused(daemon, trust=trust), "the previous certificate stays in use"
        until(lambda: "the previous certificate stays in use" in daemon.log.read_text(), "the line about the file")
        files.replace(ours.issue())
        assert [job.job for job in client.jobs()] == ["safe"], "a client goes on after a renewal"

        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.deprecated_call():
            old.minimum_version = ssl.TLSVersion.TLSv1
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(OSError), socket.create_connection(daemon.http) as connection:  # noqa: PT011
            old.wrap_socket(connection)
        until(lambda: "another version of TLS" in daemon.log.read_text(), "the line about the old protocol")


@pytest.mark.slow
@pytest.mark.parametrize("host", [*(["::1"] if "::1" in LOOPBACKS else []), "127.0.0.1"])
def test_https_at_addresses_of_both_families(tmp_path: Path, host: str) -> None:
    authority = Authority(tmp_path / "ours")
    files = authority.issue("::1", "127.0.0.1")
    sockets = [listening_on(host, 0) for _ in range(2)]
    options = ("--https", str(files.certificate), "--https-key", str(files.key))
    trust = Trust(str(authority.file))
    with living_daemon(tmp_path, *options, scheme="https", trust=trust, sockets=sockets) as daemon:
        assert daemon.client.daemon().control_host == host


@pytest.mark.slow
def test_a_daemon_without_https_is_named_to_an_https_client(tmp_path: Path) -> None:
    with living_daemon(tmp_path) as daemon, pytest.raises(Unavailable, match="the peer speaks without TLS"):
        CoordinatorClient(daemon.url.replace("http", "https"), TOKEN).jobs()


@pytest.mark.slow
@pytest.mark.parametrize("given", [False, True])
def test_the_coordinator_of_a_program_speaks_https_on_a_chosen_port(tmp_path: Path, given: bool) -> None:
    files = Authority(tmp_path).issue("a-host-of-the-operator", expired=True)
    https, key = (str(files.certificate), str(files.key)) if given else ("generated", "")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    web = WebOptions(ports=PortRange(port, port), https=https, https_key=key)
    with EmbeddedCoordinator(str(tmp_path / "store"), web=web) as coordinator:
        coordinator.wait_ready(PATIENCE_S)
        assert coordinator.url == f"https://127.0.0.1:{port}"
        coordinator.submit(spec(job="own"))
        assert coordinator.client.page_link("own").startswith(coordinator.url)


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    web = WebOptions(https=str(tmp_path / "missing.pem"))
    with pytest.raises(InvalidJob, match=r"missing.pem cannot be used \(No such file or directory"):
        EmbeddedCoordinator(str(tmp_path / "store"), web=web)
