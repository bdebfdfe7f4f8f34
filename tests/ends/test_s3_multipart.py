"""Multipart staging against a server of its own, which goes away and comes back."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from barrier_runtime.sinks.base import SinkContext
from barrier_runtime.sinks.commit_log import committed_files
from barrier_runtime.sinks.files import ParquetSink
from barrier_runtime.testing import certify
from examples.servers import S3Server
from state.errors import InvalidJob, Unavailable
from state.memory_store import MemoryStore
from state.open_store import open_store
from state.s3_store import RetryBudget, S3Store

SCHEMA = pa.schema([("n", pa.int64())])


def rows_in(url: str) -> list[dict[str, Any]]:
    """What a reader of the commit log sees."""
    store = open_store(url)
    try:
        names = committed_files(url)
    except InvalidJob:  # nothing is committed yet
        return []
    tables = (pq.read_table(io.BytesIO(store.get(name.rsplit("/", 1)[-1]))) for name in names)
    return [row for table in tables for row in table.to_pylist()]


def uploads_in(url: str) -> list[str]:
    store = open_store(url)
    assert isinstance(store, S3Store)
    return [key for key, _ in store.multipart().list("")]


def impatient(url: str) -> S3Store:
    store = open_store(url)
    assert isinstance(store, S3Store)
    store._budget = RetryBudget(attempts=2, first_wait_s=0.01)
    return store


def opened(url: str, token: int = 1) -> ParquetSink:
    sink = ParquetSink(url, staging="multipart")
    sink.open(SinkContext("job", "out", token, 0, 1, impatient, MemoryStore(), "lineage"))
    return sink


def pre_committed(sink: ParquetSink, checkpoint: int) -> bytes:
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.RecordBatch.from_pydict({"n": [checkpoint]}, schema=SCHEMA))
    committable = sink.pre_commit(transaction, checkpoint)
    assert committable is not None
    return committable


def test_the_sink_is_certified(s3: S3Server) -> None:
    """T1, T2, T3, T6, T7, T8, T9, T10, T12, T14, T15, Z11"""
    url = f"{s3.url}/certified"

    def empty() -> None:
        store = open_store(url)
        store.delete([info.key for info in store.list("")])

    print(
        certify(
            lambda: ParquetSink(url, staging="multipart"),
            lambda: rows_in(url),
            scenarios=25,
            seeds=range(4),
            reset=empty,
            leftovers=lambda: uploads_in(url),
        )
    )


def test_decided_rows_outlive_an_outage_and_are_committed_by_another_process(s3: S3Server) -> None:
    """T4, T10: S3 is away from the pre-commit until long after the decision."""
    url = f"{s3.url}/away"
    sink = opened(url)
    one, two = pre_committed(sink, 1), pre_committed(sink, 2)
    sink.commit(one)
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.RecordBatch.from_pydict({"n": [3]}, schema=SCHEMA))
    s3.kill()
    with pytest.raises(Unavailable):
        sink.commit(two)
    with pytest.raises(Unavailable):
        sink.pre_commit(transaction, 3)
    s3.start()
    three = sink.pre_commit(transaction, 3)
    assert three is not None
    assert len(uploads_in(url)) == 2
    successor = opened(url, token=2)
    successor.recover([one, two])
    assert uploads_in(url) == [], "checkpoint 3 was never decided"
    successor.commit_globally(2, [one, two])
    assert rows_in(url) == [{"n": 1}, {"n": 2}]
