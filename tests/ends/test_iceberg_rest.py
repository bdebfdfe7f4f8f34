"""Iceberg tables in a REST catalog, the Iceberg project's own server, which is killed on the way."""

import threading
import uuid
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from barrier_runtime import Dataflow, IcebergSink
from barrier_runtime.connectors.iceberg.table import IcebergTable, has
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.testing import certify
from examples.servers import IcebergRestServer
from tests.waiting import until

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def name(iceberg_rest: IcebergRestServer) -> str:
    """Name of a table that does not exist yet."""
    if not iceberg_rest.running:
        iceberg_rest.start()
    return f"db.numbers_{uuid.uuid4().hex[:8]}"


def rows_of(server: IcebergRestServer, name: str) -> list[dict[str, Any]]:
    catalog = load_catalog("reader", **server.properties)
    if not catalog.namespace_exists("db") or not catalog.table_exists(name):
        return []
    rows: list[dict[str, Any]] = catalog.load_table(name).scan().to_arrow().to_pylist()
    return rows


def test_a_zombie_that_looked_before_its_successor_appended_appends_nothing(
    iceberg_rest: IcebergRestServer, name: str
) -> None:
    zombie, successor = (IcebergTable(name, "default", iceberg_rest.properties, "here") for _ in range(2))
    rows = pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA)

    written = zombie.write([rows], SCHEMA)
    seen = zombie.existing()
    successor.append(successor.existing(), "job/out/lineage", 1, [successor.write([rows], SCHEMA)])
    with pytest.raises(Unavailable, match="another writer has changed the table"):
        zombie.append(seen, "job/out/lineage", 1, [written])
    assert has(zombie.existing(), "job/out/lineage", 1)
    assert rows_of(iceberg_rest, name) == [{"n": 1}]


def test_what_a_killed_catalog_has_committed_is_not_appended_again(iceberg_rest: IcebergRestServer, name: str) -> None:
    store = MemoryStore()
    sink = IcebergSink(name, properties=iceberg_rest.properties)
    sink.open(SinkContext("job", "out", 1, 0, 1, lambda url: store, store, "lineage"))
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.RecordBatch.from_pydict({"n": [1, 2]}, schema=SCHEMA))
    committable = sink.pre_commit(transaction, 1)
    assert committable is not None
    iceberg_rest.kill()
    with pytest.raises(Unavailable):
        sink.commit_globally(1, [committable])
    iceberg_rest.start()
    sink.commit_globally(1, [committable])
    iceberg_rest.kill()
    iceberg_rest.start()
    sink.commit_globally(1, [committable])
    assert sorted(row["n"] for row in rows_of(iceberg_rest, name)) == [1, 2]


@pytest.mark.slow
def test_a_job_goes_on_through_kills_of_the_catalog(iceberg_rest: IcebergRestServer, name: str) -> None:
    flow = Dataflow("to-iceberg-rest")
    numbers = flow.rate("numbers", 1_500, 6_000).select({"n": "value"})
    numbers.sink("out", IcebergSink(name, properties=iceberg_rest.properties))
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            flow.run_local(
                parallelism=2, checkpoint_interval=0.3, restart="fixed_delay", restart_attempts=None, restart_delay=0.2
            )
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    job = threading.Thread(target=run)
    job.start()
    for rows in (500, 2_000):
        until(lambda least=rows: len(rows_of(iceberg_rest, name)) >= least or ended, f"{rows} rows")
        iceberg_rest.kill()
        iceberg_rest.start()
    job.join()
    assert ended == [None]
    assert sorted(row["n"] for row in rows_of(iceberg_rest, name)) == list(range(6_000))


@pytest.mark.slow
def test_the_sink_is_certified(iceberg_rest: IcebergRestServer, name: str) -> None:
    """Certified after foreign listings and commits; `test_iceberg.py` has all scenarios, on a catalog in SQLite."""

    def drop() -> None:
        catalog = load_catalog("reader", **iceberg_rest.properties)
        if catalog.namespace_exists("db") and catalog.table_exists(name):
            catalog.drop_table(name)

    make = partial(IcebergSink, name, properties=iceberg_rest.properties)
    for only in ("straight plain", "fresh start", "many pending", "rescale 2 1 3", "walk 0"):
        print(certify(make, partial(rows_of, iceberg_rest, name), reset=drop, only=only))
