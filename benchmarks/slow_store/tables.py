"""Cells about tables: time of an Iceberg commit after few and after many commits; sizes of a stream's files."""

import copy
import statistics
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from benchmarks.slow_store.job import PAYLOAD_BYTES, Order
from benchmarks.slow_store.place import START_S, Settings, place, result_of
from benchmarks.slow_store.result import CellResult, Value
from benchmarks.slow_store.running import running

_TABLE = "db.counts"
_KEPT = 100  # snapshots
_OWNER = "slow-store/out/"  # job and sink of the cells, which the table's snapshots name
_FILES = 2  # of a commit, a file per slot
_AT_ONCE = 5_000  # files in a commit of the preparation


def iceberg(settings: Settings, commits: int) -> CellResult:
    """A table with ever more commits in a local warehouse: times of the first and last commits.

    A checkpoint is taken every 10 ms, so that commits follow each other at once."""
    folder = (settings.folder / "iceberg" / uuid.uuid4().hex).resolve()
    folder.mkdir(parents=True)
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    noted = folder / "commits"
    order = Order(
        store=str(folder / "ck"),
        sink="iceberg",
        target=_TABLE,
        properties=properties,
        sink_options={"commit_every": 0, "keep_snapshots": _KEPT},  # earlier releases have neither
        interval_s=0.01,
        rate=1_000,
        warm_up_s=0.0,
        seconds=1e9,
        commit_times=str(noted),
    )
    ends_at = time.monotonic() + (settings.table_seconds or max(120.0, commits * 0.5))
    found: list[Commit] = []
    with running(order, settings.folder / "job", settings.tree) as job:
        job.until("visible", START_S)
        while len(found) < commits and time.monotonic() < ends_at:
            job.next(min(1.0, commits / 500))
            found = noted_commits(noted)
        resident_mb = job.resident_mb()
    return result_of(settings, {**_of_commits(found), **_of_table(properties), "resident MB": resident_mb})


class Commit(NamedTuple):
    ended_s: float
    wall_ms: float
    cpu_ms: float  # of the commit's own thread


def noted_commits(file: Path) -> list[Commit]:
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [Commit(*map(float, line.split())) for line in lines if line.endswith("\n")]


def _of_commits(found: Sequence[Commit]) -> dict[str, Value]:
    """Medians of the first and the last thousand, or tenth if there are fewer.

    The very first commit is left out, because it creates the table."""
    found = found[1:]
    some = min(1_000, max(5, len(found) // 10))
    first, last = found[:some], found[-some:]

    def median(part: Sequence[Commit], field: str) -> float | None:
        return statistics.median(getattr(each, field) for each in part) if part else None

    return {
        "commits": len(found) + 1,
        "compared": len(first),
        "ms per commit, first": median(first, "wall_ms"),
        "ms per commit, last": median(last, "wall_ms"),
        "CPU ms per commit, first": median(first, "cpu_ms"),
        "CPU ms per commit, last": median(last, "cpu_ms"),
        "CPU ms per commit, mean of the last": statistics.fmean(each.cpu_ms for each in last) if last else None,
    }


def _of_table(properties: dict[str, str]) -> dict[str, Value]:
    """The state of the table's metadata."""
    from pyiceberg.catalog import load_catalog

    table = load_catalog("default", **properties).load_table(_TABLE)
    snapshot = table.current_snapshot()
    manifests = [] if snapshot is None else snapshot.manifests(table.io)
    return {
        "metadata kB": len(table.io.new_input(table.metadata_location)) / 1000,
        "snapshots": len(table.metadata.snapshots),
        "manifests": len(manifests),
        "entries of manifests": sum(
            (each.added_files_count or 0) + (each.existing_files_count or 0) for each in manifests
        ),
        "manifests kB": sum(each.manifest_length for each in manifests) / 1000,
    }


def iceberg_on_store(settings: Settings, commits: int) -> CellResult:
    """Commits into a table on the store behind `commits` commits; the catalog is a local database."""
    folder = (settings.folder / "iceberg" / uuid.uuid4().hex).resolve()
    folder.mkdir(parents=True)
    noted = folder / "commits"
    with place(settings, settings.delay) as where:
        assert where.emulator is not None
        assert where.proxy is not None
        known = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"{where.url}/warehouse",
            "s3.region": "us-east-1",
        }
        direct = {**known, "s3.endpoint": where.emulator.endpoint}
        _prepared(direct, commits)
        before = _of_table(direct)
        order = Order(
            store=str(folder / "ck"),
            sink="iceberg",
            target=_TABLE,
            properties={**known, "s3.endpoint": where.proxy.endpoint},
            sink_options={"commit_every": 0, "keep_snapshots": _KEPT},
            interval_s=1.0,
            rate=1_000,
            warm_up_s=settings.warm_up_s,
            seconds=settings.seconds,
            commit_times=str(noted),
        )
        with running(order, settings.folder / "job", settings.tree) as job:
            begin = job.until("begin", START_S)
            end = job.until("end", settings.seconds + 60.0)
            requests = where.requests(begin.at, end.at)
        found = [each for each in noted_commits(noted) if begin.at <= each.ended_s <= end.at]
    figures: dict[str, Value] = {
        "commits before": commits,
        "commits": len(found),
        "ms per commit": statistics.median(each.wall_ms for each in found) if found else None,
        "CPU ms per commit": statistics.median(each.cpu_ms for each in found) if found else None,
        "requests per commit": len(requests) / max(1, len(found)),
    }
    return result_of(settings, {**figures, **before})


def _prepared(properties: Mapping[str, str], commits: int) -> None:
    """A table as `commits` commits of two files leave it, with the last hundred snapshots.

    Files are entries of manifests; a single file exists. Most entries come in few large commits; the last commits,
    and the merges of their manifests, are as from the sink."""
    from barrier_runtime.connectors.iceberg.data_files import data_files
    from barrier_runtime.connectors.iceberg.expiry import APPLICATION
    from barrier_runtime.connectors.iceberg.table import CHECKPOINT, IcebergTable

    table = IcebergTable(_TABLE, "default", properties, "benchmark", owner=_OWNER)
    schema = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("n", pa.int64())])
    batch = pa.RecordBatch.from_pydict({"key": [1], "value": [1], "n": [1]}, schema=schema)
    (file,) = data_files(table.write([batch], schema))
    left, checkpoint = commits, 0
    while left:
        together = 1 if left <= _KEPT else min(_AT_ONCE // _FILES, left - _KEPT)
        left -= together
        checkpoint += together
        opened = table.existing()
        summary = {APPLICATION: f"{_OWNER}before", CHECKPOINT: str(checkpoint)}
        with opened.transaction() as transaction, transaction._append_snapshot_producer(summary) as producer:
            for each in _copies(file, together * _FILES):
                producer.append_data_file(each)
    table.close()


def _copies(file: Any, many: int) -> Iterator[Any]:
    """Copies of a manifest entry with separate names."""
    place = file._data.index(file.file_path)
    for _ in range(many):
        made = copy.copy(file)
        made._data = [*file._data]
        made._data[place] = file.file_path.replace("00000-0-", f"00000-0-{uuid.uuid4().hex[:8]}-")
        yield made


def file_sizes(settings: Settings, sink: str) -> CellResult:
    """Data file sizes of a stream into a table in a local folder, with a commit every 30 s.

    The stream has `settings.megabytes` MB of Parquet per second."""
    folder = (settings.folder / "sizes" / uuid.uuid4().hex).resolve()
    folder.mkdir(parents=True)
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    order = Order(
        store=str(folder / "ck"),
        sink=sink,
        target=_TABLE if sink == "iceberg" else str(folder / "out"),
        properties=properties if sink == "iceberg" else {},
        sink_options={"commit_every": 30},
        interval_s=1.0,
        rate=settings.megabytes * 1e6 / PAYLOAD_BYTES,
        payload=True,
        warm_up_s=settings.warm_up_s,
        seconds=settings.seconds,
    )
    with running(order, settings.folder / "job", settings.tree) as job:
        job.until("end", START_S + settings.warm_up_s + settings.seconds + 60.0)
        resident_mb = job.resident_mb()
        cpu_s = job.cpu_s()
    sizes = _live_sizes(sink, order)
    figures: dict[str, Value] = {
        "seconds": settings.seconds,
        "files": len(sizes),
        "mean MB": statistics.fmean(sizes) / 1e6 if sizes else None,
        "median MB": statistics.median(sizes) / 1e6 if sizes else None,
        "MB": sum(sizes) / 1e6,
        "CPU s": cpu_s,
        "resident MB": resident_mb,
    }
    return result_of(settings, figures)


def _live_sizes(sink: str, order: Order) -> list[int]:
    """Bytes of each file of the table's newest version."""
    if sink == "delta":
        return delta_sizes(order.target)
    from pyiceberg.catalog import load_catalog

    return iceberg_sizes(load_catalog("default", **order.properties).load_table(order.target))


def delta_sizes(folder: str) -> list[int]:
    from deltalake import DeltaTable

    return [int(size) for size in pa.table(DeltaTable(folder).get_add_actions())["size_bytes"].to_pylist()]


def iceberg_sizes(table: Any) -> list[int]:
    return [int(task.file.file_size_in_bytes) for task in table.scan().plan_files()]
