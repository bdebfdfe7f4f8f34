"""Upserts into Delta tables, on a local folder and on S3: the last row of each key, deletions, one MERGE per
checkpoint.
"""

import contextlib
import datetime
import decimal
import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from barrier_runtime import DeltaUpsertSink, InvalidJob, Unavailable
from barrier_runtime.connectors.delta import table as delta_table
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.testing import certify
from examples.servers import S3Server

HTTP = {"AWS_ALLOW_HTTP": "true"}
Rows = Sequence[tuple[int, str | None]]  # key, value; a value of None deletes


class World:
    """A table, and sinks of a job that share a store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.job_store = MemoryStore("checkpoints")
        self._target: ObjectStore | None = None

    def store(self, url: str) -> ObjectStore:
        if self._target is None:
            self._target = open_store(url)
        return self._target

    def open(self, token: int = 1, subtask: int = 0, parallelism: int = 1, **options: Any) -> DeltaUpsertSink:
        sink = DeltaUpsertSink(self.url, **{"key": ["k"], "deletes": "gone", **options})
        sink.open(SinkContext("job", "out", token, subtask, parallelism, self.store, self.job_store, "lineage"))
        return sink

    def table(self) -> DeltaTable:
        return DeltaTable(self.store(self.url).url, storage_options=HTTP)

    def rows(self) -> dict[int, str]:
        found = self.table().to_pyarrow_table().to_pylist()
        assert len({row["k"] for row in found}) == len(found)
        return {row["k"]: row["v"] for row in found}


@pytest.fixture(params=["folder", "s3"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "folder":
        return World(str(tmp_path / "a table"))
    s3: S3Server = request.getfixturevalue("s3")
    return World(f"{s3.url}/tables/upserts")


@pytest.fixture
def local(tmp_path: Path) -> World:
    return World(str(tmp_path / "table"))


def staged(sink: DeltaUpsertSink, checkpoint: int, rows: Rows | pa.Table) -> bytes:
    if not isinstance(rows, pa.Table):
        columns = [[key for key, _ in rows], [value for _, value in rows], [value is None for _, value in rows]]
        rows = pa.table(
            {"k": pa.array(columns[0], pa.int64()), "v": pa.array(columns[1], pa.string()), "gone": columns[2]}
        )
    transaction = sink.begin_transaction()
    for batch in rows.to_batches():
        sink.write(transaction, batch)
    committable = sink.pre_commit(transaction, checkpoint)
    assert committable is not None
    return committable


# ---------------------------------------------------------------- certified


@pytest.mark.parametrize("partition_by", [None, "key"])
def test_the_sink_is_certified(local: World, partition_by: str | None) -> None:
    """T1, T2, T3, T6, T7, T8, T9, T10, T11, T14, T15"""

    def look() -> list[dict[str, Any]]:
        there = DeltaTable.is_deltatable(local.url)
        return local.table().to_pyarrow_table().to_pylist() if there else []

    def empty() -> None:
        local.store(local.url).delete([info.key for info in local.store(local.url).list("")])

    certificate = certify(
        lambda: DeltaUpsertSink(local.url, key=["id"], partition_by=partition_by),
        look,
        scenarios=12 if partition_by is None else 0,
        seeds=range(2 if partition_by is None else 0),
        make_store=local.store,
        reset=empty,
    )
    print(certificate)
    assert certificate.crashes > 20


# ---------------------------------------------------------------- effects of a checkpoint


def test_the_last_row_of_a_key_stays_and_a_deletion_removes_it(world: World) -> None:
    sink = world.open()
    sink.commit_globally(1, [staged(sink, 1, [(1, "a"), (2, "b"), (1, "c"), (3, None), (4, "d"), (4, None)])])
    assert world.rows() == {1: "c", 2: "b"}
    sink.commit_globally(2, [staged(sink, 2, [(2, None), (1, "e"), (5, "f"), (4, None), (4, "g")])])
    assert world.rows() == {1: "e", 4: "g", 5: "f"}
    assert "gone" not in world.table().schema().to_arrow().names
    versions = [entry.get("operation") for entry in world.table().history()]
    assert versions == ["MERGE", "MERGE", "CREATE TABLE"], "one commit per checkpoint"
    assert world.table().transaction_version("job/out/lineage") == 2


@pytest.mark.parametrize("others", [0, 1, 4])
def test_a_table_that_is_made_anew_while_the_sink_runs_gets_later_rows(world: World, others: int) -> None:
    sink = world.open()
    for checkpoint in (1, 2):
        sink.commit_globally(checkpoint, [staged(sink, checkpoint, [(checkpoint, "old")])])
    store = world.store(world.url)
    store.delete([info.key for info in store.list("")])
    for number in range(others):
        rows = pa.table({"k": pa.array([100 + number], pa.int64()), "v": ["other"]})
        write_deltalake(store.url, rows, mode="append", storage_options=HTTP)
    for checkpoint in (3, 4):
        sink.commit_globally(checkpoint, [staged(sink, checkpoint, [(checkpoint, "new")])])
    assert world.rows() == {3: "new", 4: "new", **dict.fromkeys(range(100, 100 + others), "other")}


def test_rows_of_all_subtasks_are_merged_at_once_and_what_is_repeated_does_nothing(world: World) -> None:
    """Also by a successor whose staged rows are gone, and by a successor with more checkpoints to commit."""
    sinks = [world.open(subtask=subtask, parallelism=2) for subtask in range(2)]
    one = [staged(sink, 1, [(subtask, "x"), (9, f"{subtask}")]) for subtask, sink in enumerate(sinks)]
    sinks[0].commit_globally(1, one)
    assert world.rows() == {0: "x", 1: "x", 9: "1"}
    successor = world.open(token=2)
    two = staged(successor, 2, [(0, None)])
    successor.recover([*one, two])
    successor.commit_globally(2, [*one, two])
    successor.commit_globally(2, [*one, two])
    sinks[0].commit_globally(2, [*one, two])
    assert world.rows() == {1: "x", 9: "1"}
    assert world.table().version() == 2
    assert not [info.key for info in world.job_store.list("") if "staged" in info.key]


def test_checkpoints_that_were_decided_meanwhile_are_one_merge(local: World) -> None:
    sink = local.open()
    changes = [[(1, "a"), (2, "a")], [(1, "b"), (4, "b")], [(2, "c"), (3, "c"), (4, None)]]
    decided = [staged(sink, checkpoint, rows) for checkpoint, rows in enumerate(changes, start=1)]
    sink.commit_globally(1, decided[:1])
    version = local.table().version()
    sink.commit_globally(3, decided)
    assert local.table().version() == version + 1
    assert local.rows() == {1: "b", 2: "c", 3: "c"}
    sink.commit_globally(3, decided)
    assert local.table().version() == version + 1


def test_a_zombie_whose_successor_has_merged_loses(local: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The zombie has read the table before, and merges on top of that version. Newer rows of the key have arrived
    since.
    """
    zombie, successor = local.open(token=1), local.open(token=2)
    zombie.commit_globally(1, [staged(zombie, 1, [(1, "first")])])
    old, new = staged(zombie, 2, [(1, "second"), (2, "x")]), staged(successor, 3, [(1, "third")])
    look = delta_table.DeltaLog._committed
    late: list[bool] = []

    def after_the_look(log: Any, table: Any, application: str) -> int:
        found = look(log, table, application)
        if log is zombie._log and not late:
            late.append(True)
            successor.commit_globally(3, [old, new])
        return found

    monkeypatch.setattr(delta_table.DeltaLog, "_committed", after_the_look)
    contents = {each.key: zombie._read(each) for each in zombie._decoded(old).objects}  # before they were dropped
    monkeypatch.setattr(zombie, "_read", lambda each: contents[each.key])
    zombie.commit_globally(2, [old])
    assert late
    assert local.rows() == {1: "third", 2: "x"}
    assert local.table().version() == 2, "created, the first, and one commit for both others"


def merging(url: str, number: int) -> None:
    world = World(url)
    sink = world.open(token=number)
    sink._context = SinkContext("job", f"out-{number}", number, 0, 1, world.store, world.job_store, "lineage")
    for checkpoint in range(1, 6):
        committable = staged(sink, checkpoint, [(number * 10 + checkpoint, "x"), (number, str(checkpoint))])
        for _ in range(20):
            with contextlib.suppress(Unavailable):
                sink.commit_globally(checkpoint, [committable])
                break


def test_two_jobs_that_merge_into_one_table_at_once_lose_nothing(local: World) -> None:
    context = multiprocessing.get_context("spawn")
    jobs = [context.Process(target=merging, args=(local.url, number)) for number in (1, 2)]
    for each in jobs:
        each.start()
    for each in jobs:
        each.join()
        assert each.exitcode == 0
    assert local.rows() == {1: "5", 2: "5", **{number * 10 + c: "x" for number in (1, 2) for c in range(1, 6)}}


def test_a_killed_process_leaves_a_table_that_its_successor_goes_on_with(local: World) -> None:
    """The process is killed at any moment of the merges; the successor commits the uncommitted rest."""
    rows = {number: str(number) for number in range(40)}
    sink = local.open()
    committables = [staged(sink, 1 + number, [(number, "old"), (number, text)]) for number, text in rows.items()]
    kept = {info.key: local.job_store.get(info.key) for info in local.job_store.list("")}
    context = multiprocessing.get_context("spawn")
    for kills in range(3):
        ready = context.Event()
        process = context.Process(target=committing, args=(local.url, kept, committables, ready))
        process.start()
        assert ready.wait(300)
        process.join(0.3 + 0.2 * kills)
        process.kill()
        process.join()
    successor = local.open(token=9)
    local.job_store = MemoryStore("checkpoints")
    committing(local.url, kept, committables, None)
    assert local.rows() == rows
    assert local.table().transaction_version("job/out/lineage") == 40
    del successor


def committing(url: str, kept: dict[str, bytes], committables: list[bytes], ready: Any) -> None:
    world = World(url)
    for key, data in kept.items():
        world.job_store.put(key, data)
    sink = world.open(token=2)
    if ready is not None:
        ready.set()
    for checkpoint, committable in enumerate(committables, 1):
        sink.commit_globally(checkpoint, [committable])


# ---------------------------------------------------------------- tables and types


def test_a_merge_reads_only_the_partitions_of_its_rows(local: World) -> None:
    sink = local.open(key=["day", "k"], deletes=None, partition_by="day")
    days = [datetime.date(2026, 1, 1 + number) for number in range(3)]
    first = pa.table({"day": days, "k": [1, 1, 1], "v": ["a", "b", "c"]})
    sink.commit_globally(1, [staged(sink, 1, first)])
    before = set(local.table().file_uris())
    sink.commit_globally(2, [staged(sink, 2, pa.table({"day": days[:1], "k": [1], "v": ["z"]}))])
    assert len(before & set(local.table().file_uris())) == 2, "files of the other days stay"
    found = local.table().to_pyarrow_table().to_pylist()
    assert sorted((row["day"], row["v"]) for row in found) == [(days[0], "z"), (days[1], "b"), (days[2], "c")]


KEYS: dict[str, pa.Array] = {
    "text": pa.array(["a", "ä b'`\"", "A"]),
    "whole": pa.array([1, -2, 2**62], pa.int64()),
    "small": pa.array([1, -2, 3], pa.int8()),
    "day": pa.array([datetime.date(2026, 1, day) for day in (1, 2, 3)], pa.date32()),
    "at": pa.array([datetime.datetime(2026, 1, 1, 0, 0, 0, micro) for micro in (1, 2, 3)], pa.timestamp("us")),
    "zoned": pa.array([datetime.datetime(2026, 1, 1, hour) for hour in (1, 2, 3)], pa.timestamp("us", "UTC")),
    "money": pa.array([decimal.Decimal(f"1.{cents}0") for cents in (1, 2, 3)], pa.decimal128(10, 2)),
    "Mixed Case": pa.array(["a", "b", "c"]),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_of_each_type_finds_its_row(local: World, name: str) -> None:
    sink = local.open(key=[name], deletes=None)
    for checkpoint, value in ((1, "old"), (2, "new")):
        sink.commit_globally(checkpoint, [staged(sink, checkpoint, pa.table({name: KEYS[name], "v": [value] * 3}))])
    assert local.table().to_pyarrow_table().column("v").to_pylist() == ["new"] * 3


def test_a_table_that_is_there_keeps_the_columns_that_the_rows_lack(local: World) -> None:
    write_deltalake(local.url, pa.table({"k": [1, 2], "v": ["a", "b"], "more": [7, 8]}))
    sink = local.open()
    sink.commit_globally(1, [staged(sink, 1, [(2, "c"), (3, "d")])])
    found = local.table().to_pyarrow_table().to_pylist()
    assert sorted((row["k"], row["v"], row["more"]) for row in found) == [(1, "a", 7), (2, "c", 8), (3, "d", None)]


@pytest.mark.parametrize(
    ("options", "rows", "message"),
    [
        ({}, {"k": [None], "v": ["x"], "gone": [False]}, "key column 'k' of a row is null, .*'v': 'x'"),
        ({}, {"k": [1.5], "v": ["x"], "gone": [False]}, "key column 'k' is double, which cannot be compared"),
        ({}, {"k": [1], "v": ["x"], "gone": ["no"]}, r"column 'gone' \(deletes=\) is string: make it boolean"),
        ({"key": ["absent"]}, {"k": [1], "v": ["x"], "gone": [False]}, "there is no column 'absent'"),
        ({"deletes": None}, {"k": [1], "v`": ["x"]}, "has a backtick in its name"),
        ({"key": []}, {}, r"give the columns of the key, key=\['id'\]"),
        ({"key": "k", "deletes": "k"}, {}, "another column for deletes"),
    ],
)
def test_what_cannot_be_merged_is_refused_before_the_decision(
    local: World, options: dict[str, Any], rows: dict[str, Any], message: str
) -> None:
    table = pa.table(rows)
    if rows.get("k") == [None]:
        table = table.set_column(0, "k", pa.nulls(1, pa.int64()))
    with pytest.raises(InvalidJob, match=message):
        staged(local.open(**options), 1, table)


def test_nested_nulls_that_the_table_forbids_are_refused_before_the_decision(local: World) -> None:
    tags = pa.list_(pa.field("element", pa.string(), nullable=False))
    DeltaTable.create(local.url, pa.schema([("k", pa.int64()), ("tags", tags)]))
    rows = pa.table({"k": [1, 2, 3], "tags": [["a"], None, ["b", None]], "gone": [False, False, False]})
    sink = local.open()
    with pytest.raises(InvalidJob, match=r"column 'tags' has nulls, .* The first is tags\[\] of row 2: "):
        staged(sink, 1, rows)
    sink.commit_globally(2, [staged(local.open(), 2, rows[:2])])
    found = local.table().to_pyarrow_table().to_pylist()
    assert sorted((row["k"], row["tags"]) for row in found) == [(1, ["a"]), (2, None)]


def test_a_table_whose_rows_must_not_change_is_refused(local: World) -> None:
    write_deltalake(local.url, pa.table({"k": [1], "v": ["a"]}), configuration={"delta.appendOnly": "true"})
    with pytest.raises(InvalidJob, match=r"has delta\.appendOnly=true, so no row may be replaced"):
        local.open()


def test_what_is_visible_survives_a_power_cut(local: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs does not sync files; each file that a version adds is synced before the version counts
    as committed.
    """
    synced: list[str] = []
    real = delta_table._synced

    def noted(path: Path) -> None:
        synced.append(path.name)
        real(path)

    monkeypatch.setattr(delta_table, "_synced", noted)
    sink = local.open()
    sink.commit_globally(1, [staged(sink, 1, [(1, "a")])])
    record = json.loads((Path(local.url) / "_delta_log" / f"{1:020d}.json").read_text().splitlines()[0])
    assert record
    assert {Path(uri).name for uri in local.table().file_uris()} <= set(synced)
    assert f"{1:020d}.json" in synced
