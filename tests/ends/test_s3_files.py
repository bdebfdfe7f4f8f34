"""Files on S3 against a private server that goes away and returns."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from barrier_runtime.connectors.files.sink.commit_log import jobs_and_sinks, read_commit_log
from barrier_runtime.connectors.files.sink.sink import ParquetSink
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.retrying import RetryBudget
from barrier_runtime.state.store.s3.by_obstore import ObstoreS3Store
from barrier_runtime.testing import certify
from examples.servers import S3Server
from tests.waiting import until

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def store(s3: S3Server) -> ObstoreS3Store:
    """A store with short timeouts."""
    store = open_store(f"{s3.url}/target")
    assert isinstance(store, ObstoreS3Store)
    store._budget = RetryBudget(attempts=2, first_wait_s=0.01)
    return store


def rows_in(store: ObstoreS3Store) -> list[dict[str, Any]]:
    """The rows that readers of the commit logs see."""
    records = [record for writer in jobs_and_sinks(store) for record in read_commit_log(store, *writer)]
    names = [file.name for record in records for file in record.files]
    return [row for name in names for row in pq.read_table(io.BytesIO(store.get(name))).to_pylist()]


class Reader:
    """Sees the rows of `rows_in`, and requests each record and file once."""

    def __init__(self, store: ObstoreS3Store) -> None:
        self._store = store
        self._records: dict[tuple[str, str], int] = {}
        self._rows: list[dict[str, Any]] = []

    def look(self) -> list[dict[str, Any]]:
        for writer in jobs_and_sinks(self._store):
            new = read_commit_log(self._store, *writer, after=self._records.get(writer, 0))
            self._records[writer] = self._records.get(writer, 0) + len(new)
            for name in (file.name for record in new for file in record.files):
                self._rows += pq.read_table(io.BytesIO(self._store.get(name))).to_pylist()
        return list(self._rows)

    def empty(self) -> None:
        self._store.delete([info.key for info in self._store.list("")])
        self._records, self._rows = {}, []


def staged_in(store: ObstoreS3Store) -> list[str]:
    return [info.key for info in store.list("_staging/")]


def opened(store: ObstoreS3Store, token: int = 1) -> ParquetSink:
    sink = ParquetSink(store.url)
    sink.open(SinkContext("job", "out", token, 0, 1, lambda url: store, MemoryStore(), "lineage"))
    return sink


def pre_committed(sink: ParquetSink, checkpoint: int) -> bytes:
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.RecordBatch.from_pydict({"n": [checkpoint]}, schema=SCHEMA))
    committable = sink.pre_commit(transaction, checkpoint)
    assert committable is not None
    return committable


def test_the_sink_is_certified(store: ObstoreS3Store) -> None:
    """T1, T2, T3, T6, T7, T8, T9, T10, T12, T14, T15, Z11"""
    reader = Reader(store)
    print(
        certify(
            lambda: ParquetSink(store.url),
            reader.look,
            scenarios=6,
            seeds=range(1),
            make_store=lambda url: store,
            reset=reader.empty,
            leftovers=lambda: staged_in(store),
        )
    )


def test_decided_rows_outlive_an_outage_and_are_committed_by_another_process(
    s3: S3Server, store: ObstoreS3Store
) -> None:
    """T4, T10: S3 is away from the pre-commit until long after the decision."""
    sink = opened(store)
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
    assert {"2", "4"} <= {key.rpartition("-")[2].partition(".")[0] for key in staged_in(store)}
    successor = opened(store, token=2)
    successor.recover([one, two])
    until(lambda: staged_in(store) == [])  # checkpoint 3 was never decided; deletions follow the commit
    successor.commit_globally(2, [one, two])
    assert rows_in(store) == [{"n": 1}, {"n": 2}]
