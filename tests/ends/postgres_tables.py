"""Parts shared by the tests of the PostgreSQL sink: private tables, and sinks opened by hand."""

import uuid
from collections.abc import Sequence
from typing import Any

import psycopg
import pyarrow as pa

from barrier_runtime.connectors.postgres.sink import PostgresSink
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.store.memory import MemoryStore

STORE = MemoryStore()


def new_table(connection: psycopg.Connection[Any], columns: str = "n bigint not null, t text") -> str:
    name = f"numbers_{uuid.uuid4().hex[:8]}"
    connection.execute(f"create table {name} ({columns})")
    return name


def new_job() -> str:
    return f"job-{uuid.uuid4().hex[:8]}"


def opened(
    url: str,
    table: str,
    job: str,
    *,
    token: int = 1,
    subtask: int = 0,
    parallelism: int = 1,
    lineage: str = "lineage",
    **arguments: Any,
) -> PostgresSink:
    sink = PostgresSink(url, table, **arguments)
    sink.open(
        SinkContext(
            job=job,
            sink="out",
            token=token,
            subtask=subtask,
            parallelism=parallelism,
            make_store=lambda url: STORE,
            job_store=STORE,
            lineage=lineage,
        )
    )
    return sink


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64()), "t": [f"text {value}" for value in values]})


def pre_committed(sink: PostgresSink, checkpoint: int, *values: int) -> bytes:
    transaction = sink.begin_transaction()
    sink.write(transaction, numbers(*values))
    committable = sink.pre_commit(transaction, checkpoint)
    assert committable is not None
    return committable


def made_visible(sink: PostgresSink, checkpoint: int, committables: Sequence[bytes]) -> None:
    """Takes all steps that follow the decision of a checkpoint."""
    sink.commit_globally(checkpoint, committables)


def seen(connection: psycopg.Connection[Any], table: str) -> list[int]:
    """Rows in the server's order."""
    return [n for (n,) in connection.execute(f"select n from {table}").fetchall()]


def left_over(job: str) -> list[str]:
    return [info.key for info in STORE.list(job) if "staged" in info.key]
