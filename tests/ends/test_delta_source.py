"""Delta tables as a source: a version, then the appended rows, from any position on."""

import datetime
import json
import random
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from barrier_runtime import CollectSink, Dataflow, DeltaSource
from barrier_runtime.connectors.source_bases.table_reader import TableReader, TableRows
from barrier_runtime.state.errors import InvalidJob
from examples.servers import S3Server
from tests.ends.test_iceberg_source import keep, reading, taken
from tests.waiting import until

SOON = datetime.timedelta(milliseconds=50)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "a table")


def append(url: str, *numbers: int, **options: Any) -> None:
    write_deltalake(url, pa.table({"n": pa.array(numbers, pa.int64())}), mode="append", **options)


def source(url: str, **options: Any) -> TableRows:
    return DeltaSource(url, **{"every": SOON, **options}).named("numbers")


def test_the_newest_version_comes_first_then_what_is_appended_from_any_row_on(folder: str) -> None:
    append(folder, 1, 2, 3)
    append(folder, 4, 5)
    rows = source(folder)
    with reading(rows) as reader:
        whole = taken(reader, 5)
        assert sorted(whole) == [1, 2, 3, 4, 5]
        append(folder, 6, 7)
        append(folder, 8)
        added = taken(reader, 3)
    assert added == [6, 7, 8]
    cut: list[int] = []
    position = json.dumps({"snapshot": 1}).encode()
    for _ in range(8):
        with reading(rows, position) as reader:
            cut += taken(reader, 1)
            position = reader.position()
    assert cut == whole + added


@pytest.mark.parametrize("rows_read", [1, 2], ids=["within-a-version", "after-a-version"])
def test_a_table_made_anew_is_not_read_on_at_its_own_versions(folder: str, rows_read: int) -> None:
    append(folder, 1)
    append(folder, 2)
    with reading(source(folder)) as reader:
        taken(reader, rows_read)
        position = reader.position()
    shutil.rmtree(folder)
    for number in range(3, 8):
        append(folder, number)
    another = r"version 1 of the table is another one .*restore='none'"
    with reading(source(folder), position) as reader, pytest.raises(InvalidJob, match=another):
        taken(reader, 1)


def test_a_version_of_a_table_made_anew_gets_another_mark_at_the_next_look(folder: str) -> None:
    append(folder, 1)
    history = source(folder).history()
    before = history.mark(0)
    shutil.rmtree(folder)
    append(folder, 1)
    history.refresh()
    assert history.mark(0) != before != ""
    assert history.mark(7) == ""


def test_partition_columns_with_strange_names_come_too(folder: str) -> None:
    def write(*rows: dict[str, Any]) -> None:
        write_deltalake(folder, pa.Table.from_pylist(list(rows)), mode="append", partition_by=["p a"])

    write({"n": 1, "p a": "x y"}, {"n": 2, "p a": "%/b"})
    with reading(source(folder)) as reader:
        assert sorted(taken(reader, 2)) == [1, 2]
        write({"n": 3, "p a": "x y"}, {"n": 4, "p a": None})
        assert sorted(taken(reader, 2)) == [3, 4]


def test_compactions_are_passed_over_and_changed_rows_end_the_job(folder: str) -> None:
    append(folder, 1)
    append(folder, 2)
    with reading(source(folder)) as reader:
        taken(reader, 2)
        DeltaTable(folder).optimize.compact()
        append(folder, 3)
        assert taken(reader, 1) == [3]
        DeltaTable(folder).delete("n = 1")
        with pytest.raises(InvalidJob, match=r"only appended rows can be followed.*restore='none'"):
            taken(reader, 1)


def test_a_log_that_was_removed_unread_ends_the_job(folder: str) -> None:
    append(folder, 1)
    rows = source(folder)
    with reading(rows) as reader:
        taken(reader, 1)
        until(lambda: reader.poll(1, 0) is None, "the end of the version")
        position = reader.position()
    append(folder, 2)
    append(folder, 3)
    DeltaTable(folder).create_checkpoint()
    Path(folder, "_delta_log", f"{1:020d}.json").unlink()
    with reading(rows, position) as reader, pytest.raises(InvalidJob, match="has no version 1 any more"):
        taken(reader, 1)


def test_what_is_no_table_is_refused(folder: str) -> None:
    Path(folder).mkdir()
    with pytest.raises(InvalidJob, match="there is no Delta table"):
        source(folder)
    with pytest.raises(InvalidJob, match="use a folder, file:// or s3://"):
        source("gs://bucket/table")


def test_a_table_with_deletion_vectors_is_refused_until_the_feature_is_dropped(folder: str) -> None:
    """The protocols are those written by Delta's jar 4.4."""

    def commit(version: int, reader: int, **features: list[str]) -> None:
        protocol = {"minReaderVersion": reader, "minWriterVersion": 7, **features}
        lines = (json.dumps({"commitInfo": {"timestamp": 0}}), json.dumps({"protocol": protocol}))
        (Path(folder) / "_delta_log" / f"{version:020d}.json").write_text("\n".join(lines))

    append(folder, 1, 2, 3)
    common = ["invariants", "appendOnly"]
    commit(1, 3, readerFeatures=["deletionVectors"], writerFeatures=["deletionVectors", *common])
    with pytest.raises(
        InvalidJob, match=r"version 1 of the table \S+ has deletion vectors.*DROP FEATURE deletionVectors"
    ):
        source(folder)
    commit(2, 1, writerFeatures=[*common, "checkpointProtection"])
    with reading(source(folder)) as reader:
        assert sorted(taken(reader, 3)) == [1, 2, 3]


def test_a_job_reads_a_table_on_s3_to_its_end(s3: S3Server, tmp_path: Path) -> None:
    url = f"{s3.url}/tables/numbers"
    options = {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_ALLOW_HTTP": "true", "aws_conditional_put": "etag"}
    append(url, *range(2_000), storage_options=options)
    flow, out = Dataflow("from-delta"), CollectSink()
    flow.source("numbers", DeltaSource(url)).sink("out", out)
    flow.run_local(parallelism=2, checkpoints=str(tmp_path / "checkpoints"), checkpoint_interval=0.05)
    assert sorted(row["n"] for row in out.rows()) == list(range(2_000))


def changed(reader: TableReader, count: int, most: int = 100) -> list[tuple[Any, ...]]:
    """(key, value, deleted) of rows."""
    found: list[tuple[Any, ...]] = []

    def enough() -> bool:
        polled = reader.poll(min(most, count - len(found)), time.time_ns())
        for row in polled.rows.to_pylist() if polled is not None else ():
            assert datetime.datetime.now(datetime.timezone.utc) - row["changed_at"] < datetime.timedelta(hours=1)
            found.append((row["k"], row["v"], row["deleted"]))
        return len(found) >= count

    until(enough, f"{count} rows had come")
    return found


def write(folder: str, *rows: tuple[Any, ...], feed: bool = True, **options: Any) -> None:
    table = pa.Table.from_pylist(
        [{"k": k, "v": v} for k, v in rows], schema=pa.schema([("k", pa.int64()), ("v", pa.string())])
    )
    configuration = {"delta.enableChangeDataFeed": str(feed).lower()}
    write_deltalake(folder, table, **{"mode": "append", "configuration": configuration, **options})


def merged(folder: str, *rows: tuple[Any, ...]) -> None:
    """Merges rows by key: rows whose value is None are deleted, others replace the row of their key."""
    source = pa.table({"k": [k for k, _ in rows], "v": pa.array([v for _, v in rows], pa.string())})
    merge = DeltaTable(folder).merge(source, "t.k = s.k", source_alias="s", target_alias="t")
    merge.when_matched_delete("s.v is null").when_matched_update_all().when_not_matched_insert_all().execute()


@pytest.mark.parametrize("partition_by", [None, ["v"], ["k"]])
def test_by_a_key_changes_of_a_table_with_a_change_feed_are_upserts(
    folder: str, partition_by: list[str] | None
) -> None:
    """A table elsewhere, maintained by these upserts, has the same rows, whichever client changes the table, and each
    unchanged row is read once.
    """
    write(folder, (1, "a"), (2, "b"), (3, "c"), partition_by=partition_by)
    with reading(source(folder, key="k")) as reader:
        assert sorted(changed(reader, 3)) == [(1, "a", False), (2, "b", False), (3, "c", False)]
        DeltaTable(folder).update({"v": "'B'"}, predicate="k = 2")
        assert changed(reader, 1) == [(2, "B", False)]
        DeltaTable(folder).delete("k = 1")
        assert changed(reader, 1) == [(1, "a", True)]
        DeltaTable(folder).update({"k": "7"}, predicate="k = 3")
        assert changed(reader, 2) == [(3, "c", True), (7, "c", False)]
        merged(folder, (2, None), (7, "C"), (9, "n"))
        deleted, *new = changed(reader, 3)
        assert deleted == (2, "B", True)
        assert sorted(new) == [(7, "C", False), (9, "n", False)]
        DeltaTable(folder).optimize.compact()
        write(folder, (10, None))
        assert changed(reader, 1) == [(10, None, False)]


@pytest.mark.parametrize("feed", [True, False])
def test_by_a_key_a_table_that_is_kept_by_the_rows_is_the_same_at_each_version(folder: str, feed: bool) -> None:
    """Random changes, with and without a change feed; the reader begins anew at any row."""
    draw = random.Random(7)
    write(folder, *((k, "0") for k in range(6)), feed=feed)
    rows = source(folder, key=["k"])
    position = None
    kept: dict[int, str] = {}

    def took(reader: TableReader) -> bool:
        polled = reader.poll(draw.choice([1, 3, 100]), time.time_ns())
        for row in polled.rows.to_pylist() if polled is not None else ():
            keep(kept, row)
        return polled is not None

    for number in range(1, 25):
        do = draw.choice(["merge", "update", "delete", "append", "overwrite", "move"])
        table = DeltaTable(folder)
        if do == "merge":
            keys = draw.sample(range(20), 5)
            merged(folder, *((k, draw.choice([None, f"m{number}"])) for k in keys))
        elif do == "update":
            table.update({"v": f"'u{number}'"}, predicate=f"k % 3 = {number % 3}")
        elif do == "delete":
            table.delete(f"k = {draw.randrange(20)}")
        elif do == "append":
            write(folder, (100 + number, "a"), feed=feed)
        elif do == "move":
            table.update({"k": f"k + {1000 * number}"}, predicate="k < 3")
        else:
            write(folder, (1, f"o{number}"), (30 + number, "o"), (200, "o"), feed=feed, mode="overwrite")
        want = {row["k"]: row["v"] for row in DeltaTable(folder).to_pyarrow_table().to_pylist()}
        while kept != want:
            with reading(rows, position) as reader:
                until(partial(took, reader), f"after {do} there were more rows, for {want}")
                position = reader.position()


def test_keys_of_a_delta_source_are_columns_of_the_table(folder: str) -> None:
    append(folder, 1)
    with pytest.raises(InvalidJob, match=r"key=: there is no column 'm' \(did you mean 'n'\?\)|there is no column 'm'"):
        source(folder, key=["m"])
    write_deltalake(folder, pa.table({"n": [1], "deleted": [True]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(InvalidJob, match="has a column 'deleted'"):
        source(folder, key="n")
