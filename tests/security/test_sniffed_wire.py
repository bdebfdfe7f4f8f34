"""A listener who hears every byte between slots and with the coordinator learns no secret, no column and no row."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coordinator_world import spec
from sniffer import Sniffer
from tcp_job import TcpJob

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.memory.collect import CollectSink
from barrier_runtime.connectors.memory.iterator import IteratorSource
from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from barrier_runtime.coordinator.wire.peers import Policy, never
from barrier_runtime.operators.aggregation.functions import count
from tests.waiting import PATIENCE_S

COLUMN, VALUE, STEP = "diagnosis_column", "canary-value", "grouping_step"
ROWS = 40
JOB = spec(job="sniffed")


def always(peer: Any) -> bool:
    return True


def rows(index: int, of: int) -> Iterator[dict[str, str]]:
    return ({COLUMN: f"{VALUE}-{number}"} for number in range(index, ROWS, of))


async def sniffed(folder: Path, encrypts: Policy) -> tuple[Sniffer, list[dict[str, Any]], bytes]:
    """Returns a listener who heard a whole job of two slots, the job's rows, and the job's secret."""
    out = CollectSink()
    flow = Dataflow("sniffed")
    source = flow.source("rows", IteratorSource(rows, schema={COLUMN: str}))
    source.key_by(COLUMN).aggregate(STEP, n=count()).sink("out", out)
    options: dict[str, Any] = {"parallelism": 2, "checkpoint_interval": 0.1}
    async with Sniffer() as sniffer:
        async with TcpJob(flow, folder, encrypts=encrypts, via=sniffer.before, **options) as job:
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


async def test_sniffer_hears_columns_rows_and_steps_without_encryption(tmp_path: Path) -> None:
    """The test above notices a leak."""
    sniffer, _, secret = await sniffed(tmp_path, never)
    assert [sniffer.heard(hidden.encode()) for hidden in (COLUMN, VALUE, STEP)] == [True] * 3
    assert not sniffer.heard(secret)


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
