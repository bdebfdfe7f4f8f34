"""The product's cost meter and the proxy count the same requests to S3."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from barrier_runtime.launch.local_handle import LocalJobHandle
from barrier_runtime.state.store.clouds import SINGLE_PUT_BYTES
from barrier_runtime.state.store.object_store import CopiesStaged, ObjectNotFound, ReadsVersions, sha256_of
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.use import StoreCounts, counts_of
from benchmarks.slow_store.delay import NONE
from benchmarks.slow_store.job import Order, flow_of
from benchmarks.slow_store.requests import Request
from benchmarks.slow_store.servers import slow_s3
from tests.waiting import until

READS = ("GET", "HEAD")
FREE = ("DELETE", "DELETE MANY", "ABORT")


def billed(requests: Iterable[Request]) -> StoreCounts:
    found = list(requests)
    reads = sum(each.operation in READS for each in found)
    free = sum(each.operation in FREE for each in found)
    return StoreCounts(len(found) - reads - free, reads)


@pytest.mark.slow
@pytest.mark.parametrize("client", ["obstore", "boto3"])
def test_every_operation_is_counted_as_the_proxy_counts_it(client: str, tmp_path: Path) -> None:
    large = bytes(SINGLE_PUT_BYTES + 1)
    with slow_s3(NONE) as server:
        store = open_store(f"{server.url}/job?client={client}")
        before, begin = counts_of(store), len(server.requests())
        store.put("a", b"12345")
        store.put_if_absent("b", b"1")
        store.put_if_absent("b", b"2")
        assert store.get("a", 1, 2) == b"23"
        with pytest.raises(ObjectNotFound):
            store.get("c")
        (listed,) = store.list("a")
        assert isinstance(store, ReadsVersions)
        assert isinstance(store, CopiesStaged)
        assert store.get_version("a", listed.etag, 0, 5) == b"12345"
        store.show("a", "d", sha256_of([b"12345"]), fresh=True)
        store.show("a", "d", sha256_of([b"12345"]))
        store.put("large", large)
        store.get_file("large", tmp_path / "large")
        assert (tmp_path / "large").read_bytes() == large
        store.delete(["a", "b", "large"])
        after, expected = counts_of(store), billed(server.requests()[begin:])
    assert (after.writes - before.writes, after.reads - before.reads) == (expected.writes, expected.reads)


@pytest.mark.slow
def test_a_job_reports_its_requests_and_no_others() -> None:
    """A report lacks requests before a slot's first heartbeat, and those after the last checkpoint."""
    with slow_s3(NONE) as server:
        order = Order(store=f"{server.url}/ck", sink="discard", rate=1_000.0)
        handle = flow_of(order).start_local(checkpoints=order.store, checkpoint_interval=0.1, parallelism=2)
        assert isinstance(handle, LocalJobHandle)
        until(lambda: handle.status().checkpoints.completed >= 30)
        handle.stop("now")
        handle.wait()
        told = [each.store for each in handle.status().checkpoints.history if each.store is not None]
        sent = billed(each for each in server.requests() if each.key.startswith("ck/"))
    writes, reads = sum(each.writes for each in told), sum(each.reads for each in told)
    assert len(told) <= writes <= sent.writes
    assert reads <= sent.reads
