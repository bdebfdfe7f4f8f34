"""A listener who hears every byte between slots and with the coordinator learns no secret, no column and no row."""

import asyncio
import contextlib
import http.client
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from coordinator_world import spec
from living_daemon import TOKEN, listening, living_daemon
from sniffer import Sniffer
from tcp_job import TcpJob

from barrier_runtime import JsonlSink
from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.memory.collect import CollectSink
from barrier_runtime.connectors.memory.iterator import IteratorSource
from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from barrier_runtime.coordinator.client.rest_token import daemon_key
from barrier_runtime.coordinator.wire.handshake import Policy, job_secret, never
from barrier_runtime.operators.aggregation.functions import count
from barrier_runtime.state.tls import CertificateFiles, PeerTls
from tests.certificates import Authority
from tests.waiting import PATIENCE_S

COLUMN, VALUE, STEP = "diagnosis_column", "canary-value", "grouping_step"
ROWS = 40
JOB = spec(job="sniffed")


def always(peer: Any) -> bool:
    return True


def rows(index: int, of: int) -> Iterator[dict[str, str]]:
    return ({COLUMN: f"{VALUE}-{number}"} for number in range(index, ROWS, of))


async def sniffed(
    folder: Path, encrypts: Policy, tls: PeerTls | None = None
) -> tuple[Sniffer, list[dict[str, Any]], bytes]:
    """Returns a listener who heard a whole job of two slots, the job's rows, and the job's secret."""
    out = CollectSink()
    flow = Dataflow("sniffed")
    source = flow.source("rows", IteratorSource(rows, schema={COLUMN: str}))
    source.key_by(COLUMN).aggregate(STEP, n=count()).sink("out", out)
    options: dict[str, Any] = {"parallelism": 2, "checkpoint_interval": 0.1}
    async with Sniffer() as sniffer:
        async with TcpJob(flow, folder, encrypts=encrypts, via=sniffer.before, tls=tls, **options) as job:
            status = await job.outcome()
            assert status.outcome == "finished", status.error
            secret = job._directory.secret(job.spec.job, job.spec.run_id)
        return sniffer, out.rows(), secret


async def test_sniffed_bytes_of_a_job_hold_no_secret_no_column_and_no_row(tmp_path: Path) -> None:
    """H2"""
    sniffer, output, secret = await sniffed(tmp_path, always)
    assert len({row[COLUMN] for row in output}) == ROWS
    assert len(sniffer.streams) >= 8, "two control connections and two data connections, both ways"
    for hidden in (COLUMN, VALUE, STEP):
        assert not sniffer.heard(hidden.encode()), hidden
    for spelled in (secret, secret.hex().encode()):
        assert not sniffer.heard(spelled)


def own_certificates(folder: Path) -> CertificateFiles:
    authority = Authority(folder / "certificates")
    issued = authority.issue()
    return CertificateFiles(str(issued.certificate), str(issued.key), str(authority.file))


@pytest.mark.slow
async def test_sniffed_bytes_of_a_job_with_own_certificates_hold_not_even_its_name(tmp_path: Path) -> None:
    """H2"""
    sniffer, output, secret = await sniffed(tmp_path, never, PeerTls(own_certificates(tmp_path)))
    assert len({row[COLUMN] for row in output}) == ROWS
    assert len(sniffer.streams) >= 8
    for hidden in (b"sniffed", *(each.encode() for each in (COLUMN, VALUE, STEP)), secret, secret.hex().encode()):
        assert not sniffer.heard(hidden), hidden


@pytest.mark.slow
async def test_sniffed_bytes_of_real_processes_hold_no_token_no_secret_and_no_row(tmp_path: Path) -> None:
    """H2: a daemon, a program and two slots, each a process; slots connect by TLS, programs and people by HTTPS."""
    files, sockets = own_certificates(tmp_path), listening()
    paths = {"tls_certificate": files.certificate, "tls_key": files.key, "tls_ca": files.ca}
    async with Sniffer() as sniffer:
        control, web = [await sniffer.before(*each.getsockname()[:2]) for each in sockets]
        given = [part for name, file in paths.items() for part in (f"--{name.replace('_', '-')}", file)]
        given += ["--https", "generated", "--advertise", f"{control[0]}:{control[1]}", "--lease", "0"]
        daemon = living_daemon(tmp_path, *given, scheme="https", sockets=sockets)
        with contextlib.ExitStack() as stack:
            running = await asyncio.to_thread(stack.enter_context, daemon)
            url, token_file = f"https://{web[0]}:{web[1]}", str(running.folder / "operator.token")
            flow = Dataflow("sniffed")
            ticks = flow.rate("ticks", 1_000_000, ROWS).map(lambda row: {COLUMN: f"{VALUE}-{row['value']}"})
            ticks.key_by(COLUMN).aggregate(STEP, n=count()).sink("out", JsonlSink(str(tmp_path / "out")))
            options: dict[str, Any] = {"coordinator": url, "token_file": token_file, "resource_wait_timeout": 3_600}
            options |= {"checkpoints": str(running.folder / "store"), "processes": 2, "ui": False, **paths}
            result = await asyncio.to_thread(flow.run_local, **options)
            assert result.records == ROWS
            run_id = result.status.run_id
            await asyncio.to_thread(bearer_call, web)
    written = "".join(file.read_text() for file in (tmp_path / "out").rglob("*.jsonl"))
    assert written.count(VALUE) == ROWS
    assert len(sniffer.streams) >= 6, "two slots and several calls, both ways"
    secret = job_secret(daemon_key(TOKEN), "sniffed", run_id)
    for hidden in ("sniffed", run_id, COLUMN, VALUE, STEP, TOKEN, secret.hex()):
        assert not sniffer.heard(hidden.encode()), hidden
    assert not sniffer.heard(secret)


def bearer_call(web: tuple[str, int]) -> None:
    """Calls REST as curl does: the token itself is sent."""
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(*web, context=unverified)
    connection.request("GET", "/jobs", headers={"Authorization": f"Bearer {TOKEN}"})
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.slow
async def test_sniffer_hears_columns_rows_and_steps_without_encryption(tmp_path: Path) -> None:
    """The test above notices a leak."""
    sniffer, _, secret = await sniffed(tmp_path, never)
    assert [sniffer.heard(hidden.encode()) for hidden in (COLUMN, VALUE, STEP)] == [True] * 3
    assert not sniffer.heard(secret)


@pytest.mark.slow
async def test_sniffed_bytes_of_rest_hold_no_token_and_no_secret(tmp_path: Path) -> None:
    """G2"""
    with EmbeddedCoordinator(str(tmp_path / "store")) as coordinator:
        coordinator.wait_ready(PATIENCE_S)
        address = urlsplit(coordinator.url)
        assert address.hostname is not None
        assert address.port is not None
        async with Sniffer() as sniffer:
            host, port = await sniffer.before(address.hostname, address.port)
            client = CoordinatorClient(f"http://{host}:{port}", coordinator._token, timeout_s=PATIENCE_S)
            secret = (await asyncio.to_thread(client.submit, JOB)).secret
            await asyncio.to_thread(client.status, JOB.job)
        assert secret == coordinator.submit(JOB).secret
    assert sniffer.heard(b"BarrierRuntime-HMAC-SHA256")
    assert sniffer.heard(JOB.run_id.encode())
    for hidden in (coordinator._token.encode(), secret.encode(), bytes.fromhex(secret)):
        assert not sniffer.heard(hidden)
