"""Iceberg tables as a source: a snapshot, then the appended rows, from any position on."""

import contextlib
import datetime
import json
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.connectors.iceberg.source import IcebergSource
from barrier_runtime.connectors.source_bases.table_reader import TableReader, TableRows
from barrier_runtime.state.errors import InvalidJob
from examples.servers import IcebergRestServer
from tests.waiting import until

NAME = "db.numbers"
SOON = datetime.timedelta(milliseconds=50)


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "warehouse").mkdir()
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/warehouse"}


@pytest.fixture
def catalog(properties: dict[str, str]) -> Catalog:
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("db")
    catalog.create_table(NAME, pa.schema([("n", pa.int64())]))
    return catalog


def append(catalog: Catalog, *numbers: int) -> None:
    catalog.load_table(NAME).append(pa.table({"n": pa.array(numbers, pa.int64())}))


def source(properties: dict[str, str], **options: Any) -> TableRows:
    return IcebergSource(NAME, properties=properties, **{"every": SOON, **options}).named("numbers")


@contextlib.contextmanager
def reading(rows: TableRows, position: bytes | None = None) -> Iterator[TableReader]:
    reader = rows.reader(rows.splits(1)[0])
    if position is not None:
        reader.seek(position)
    try:
        yield reader
    finally:
        reader.close()
        assert reader.join(60), "the reader's thread did not end"


def keep(kept: dict[int, str], row: dict[str, Any]) -> None:
    """Applies an upsert to `kept`, a table: column `v` by `k`."""
    if row["deleted"]:
        kept.pop(row["k"], None)
    else:
        kept[row["k"]] = row["v"]


def taken(reader: TableReader, count: int, most: int = 100) -> list[int]:
    found: list[int] = []

    def enough() -> bool:
        polled = reader.poll(min(most, count - len(found)), time.time_ns())
        if polled is not None:
            found.extend(polled.rows.to_pydict()["n"])
        return len(found) >= count

    until(enough, f"{count} rows had come")
    return found


def test_the_newest_snapshot_comes_first_then_what_is_appended(properties: dict[str, str], catalog: Catalog) -> None:
    append(catalog, 1, 2)
    append(catalog, 3)
    with reading(source(properties)) as reader:
        assert sorted(taken(reader, 3)) == [1, 2, 3]
        append(catalog, 4)
        append(catalog, 5, 6)
        assert taken(reader, 3) == [4, 5, 6]


def test_an_empty_table_is_waited_for(properties: dict[str, str], catalog: Catalog) -> None:
    with reading(source(properties)) as reader:
        assert reader.poll(10, 0) is None
        append(catalog, 1)
        assert taken(reader, 1) == [1]


def test_a_reader_goes_on_exactly_behind_any_row(properties: dict[str, str], catalog: Catalog) -> None:
    append(catalog, 1, 2, 3)
    append(catalog, 4, 5)
    rows = source(properties)
    with reading(rows) as reader:
        whole = taken(reader, 5)
        append(catalog, 6, 7)
        append(catalog, 8)
        whole += taken(reader, 3)
    # Reads from the first snapshot on, by the snapshot's position.
    cut: list[int] = []
    position = json.dumps({"snapshot": catalog.load_table(NAME).snapshots()[1].snapshot_id}).encode()
    for _ in range(8):
        with reading(rows, position) as reader:
            cut += taken(reader, 1)
            position = reader.position()
    assert cut == whole


def test_columns_of_later_are_left_out_and_a_lost_one_ends_the_job(
    properties: dict[str, str], catalog: Catalog
) -> None:
    append(catalog, 1)
    rows = source(properties)
    table = catalog.load_table(NAME)
    with table.update_schema() as update:
        update.add_column("m", table.schema().find_field("n").field_type)
    table.append(pa.table({"n": pa.array([2], pa.int64()), "m": pa.array([2], pa.int64())}))
    with reading(rows) as reader:
        assert sorted(taken(reader, 2)) == [1, 2]
        with catalog.load_table(NAME).update_schema() as update:
            update.rename_column("n", "k")
        catalog.load_table(NAME).append(pa.table({"k": pa.array([3], pa.int64())}))
        with pytest.raises(InvalidJob, match="has lost a column"):
            taken(reader, 1)


def test_rows_that_change_end_the_job(properties: dict[str, str], catalog: Catalog) -> None:
    append(catalog, 1, 2)
    with reading(source(properties)) as reader:
        taken(reader, 2)
        catalog.load_table(NAME).overwrite(pa.table({"n": pa.array([9], pa.int64())}))
        with pytest.raises(InvalidJob, match=r"only appended rows can be followed.*restore='none'"):
            taken(reader, 1)


def test_snapshots_that_expired_unread_end_the_job(properties: dict[str, str], catalog: Catalog) -> None:
    append(catalog, 1)
    rows = source(properties)
    with reading(rows) as reader:
        taken(reader, 1)
        until(lambda: reader.poll(1, 0) is None, "the end of the snapshot")
        position = reader.position()
    for number in (2, 3):
        append(catalog, number)
    table = catalog.load_table(NAME)
    for snapshot in table.snapshots()[:2]:
        table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    with reading(rows, position) as reader, pytest.raises(InvalidJob, match="snapshots were expired"):
        taken(reader, 1)


def test_what_is_no_table_is_refused(properties: dict[str, str], catalog: Catalog) -> None:
    with pytest.raises(InvalidJob, match=r"no table db\.nothing"):
        IcebergSource("db.nothing", properties=properties).named("numbers")
    with pytest.raises(InvalidJob, match=r"write 'namespace\.table'"):
        IcebergSource("nothing", properties=properties).named("numbers")


def test_a_job_reads_a_table_to_its_end(properties: dict[str, str], catalog: Catalog, tmp_path: Path) -> None:
    append(catalog, *range(3_000))
    flow, out = Dataflow("from-iceberg"), CollectSink()
    flow.source("numbers", IcebergSource(NAME, properties=properties)).sink("out", out)
    flow.run_local(parallelism=2, checkpoints=str(tmp_path / "checkpoints"), checkpoint_interval=0.05)
    assert sorted(row["n"] for row in out.rows()) == list(range(3_000))


def test_a_catalog_that_is_killed_is_waited_for(iceberg_rest: IcebergRestServer) -> None:
    if not iceberg_rest.running:
        iceberg_rest.start()
    catalog = load_catalog("default", **iceberg_rest.properties)
    with contextlib.suppress(Exception):
        catalog.create_namespace("db")
    catalog.create_table(NAME, pa.schema([("n", pa.int64())]))
    append(catalog, 1)
    with reading(source(iceberg_rest.properties)) as reader:
        assert taken(reader, 1) == [1]
        iceberg_rest.kill()
        time.sleep(0.2)
        iceberg_rest.start()
        append(load_catalog("default", **iceberg_rest.properties), 2)
        assert taken(reader, 1) == [2]
    catalog.drop_table(NAME)


def test_by_a_key_a_table_that_is_kept_by_the_rows_is_the_same_at_each_snapshot(properties: dict[str, str]) -> None:
    """Random changes; the reader begins anew at any row."""
    draw = random.Random(11)
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("db")
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    table = catalog.create_table(NAME, schema)

    def rows_of(*rows: tuple[int, str]) -> pa.Table:
        return pa.Table.from_pylist([{"k": k, "v": v} for k, v in rows], schema=schema)

    table.append(rows_of(*((k, "0") for k in range(6))))
    rows = source(properties, key="k")
    position = None
    kept: dict[int, str] = {}
    seen: set[bool] = set()

    def took(reader: TableReader) -> bool:
        polled = reader.poll(draw.choice([1, 3, 100]), time.time_ns())
        for row in polled.rows.to_pylist() if polled is not None else ():
            seen.add(row["deleted"])
            assert datetime.datetime.now(datetime.timezone.utc) - row["changed_at"] < datetime.timedelta(hours=1)
            keep(kept, row)
        return polled is not None

    for number in range(1, 15):
        do = draw.choice(["append", "delete", "overwrite", "upsert", "whole"])
        table = catalog.load_table(NAME)
        some = sorted(draw.sample(range(12), 3))
        if do == "append":
            table.append(rows_of((100 + number, "a")))
        elif do == "delete":
            table.delete(f"k = {some[0]} or k = {some[1]}")
        elif do == "overwrite":
            table.overwrite(rows_of((some[0], f"o{number}")), overwrite_filter=f"k = {some[0]}")
        elif do == "upsert":
            table.upsert(rows_of(*((k, f"u{number}") for k in some)), join_cols=["k"])
        else:
            table.overwrite(rows_of(*((k, f"w{number}") for k in some)))
        want = {row["k"]: row["v"] for row in catalog.load_table(NAME).scan().to_arrow().to_pylist()}
        while kept != want:
            with reading(rows, position) as reader:
                until(partial(took, reader), f"after {do} there were more rows, for {want}")
                position = reader.position()
    assert seen == {True, False}


def test_keys_of_an_iceberg_source_are_columns_of_the_table(properties: dict[str, str], catalog: Catalog) -> None:
    with pytest.raises(InvalidJob, match="key=: there is no column 'm'"):
        source(properties, key=["m"])
    with pytest.raises(InvalidJob, match="give the names of the columns"):
        source(properties, key=["n", "n"])
