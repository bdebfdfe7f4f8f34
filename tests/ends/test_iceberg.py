"""Iceberg tables in an SQL catalog: one snapshot per checkpoint, whichever process commits and however often."""

import json
from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from barrier_runtime import Dataflow
from barrier_runtime.connectors.iceberg.sink import IcebergSink
from barrier_runtime.connectors.iceberg.table import APPLICATION, CHECKPOINT, IcebergTable, has
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.testing import certify

SCHEMA = pa.schema([("n", pa.int64())])
NAME = "db.numbers"


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "warehouse").mkdir()
    return {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }


@pytest.fixture
def sink(properties: dict[str, str]) -> IcebergSink:
    return opened(properties)


def opened(properties: dict[str, str], store: MemoryStore | None = None, token: int = 1, **options: Any) -> IcebergSink:
    sink = IcebergSink(NAME, properties=properties, **options)
    store = store or MemoryStore()
    sink.open(SinkContext("job", "out", token, 0, 1, lambda url: store, store, "lineage"))
    return sink


def pre_committed(sink: IcebergSink, checkpoint: int, rows: list[int] | pa.RecordBatch) -> bytes:
    transaction = sink.begin_transaction()
    batch = pa.RecordBatch.from_pydict({"n": rows}, schema=SCHEMA) if isinstance(rows, list) else rows
    sink.write(transaction, batch)
    committable = sink.pre_commit(transaction, checkpoint)
    assert committable is not None
    return committable


def table(properties: dict[str, str]) -> Table:
    return load_catalog("default", **properties).load_table(NAME)


def numbers(properties: dict[str, str]) -> list[int]:
    return sorted(table(properties).scan().to_arrow()["n"].to_pylist())


def test_a_checkpoint_is_one_snapshot_that_names_it(sink: IcebergSink, properties: dict[str, str]) -> None:
    one, two = pre_committed(sink, 1, [1, 2]), pre_committed(sink, 2, [3])
    sink.commit_globally(1, [one])
    sink.commit_globally(2, [one, two])
    sink.commit_globally(2, [one, two])
    assert numbers(properties) == [1, 2, 3]
    summaries = [snapshot.summary for snapshot in table(properties).snapshots()]
    said = [each.additional_properties for each in summaries if each is not None]
    assert [(each[APPLICATION], each[CHECKPOINT]) for each in said] == [
        ("job/out/lineage", "1"),
        ("job/out/lineage", "2"),
    ]


def test_successor_whose_rows_are_gone_learns_of_their_append_from_the_table(
    properties: dict[str, str], store: MemoryStore
) -> None:
    sink = opened(properties, store)
    one = pre_committed(sink, 1, [1])
    sink.commit_globally(1, [one])
    assert list(store.list("")) == []
    opened(properties, store, token=2).commit_globally(1, [one])
    assert numbers(properties) == [1]


def test_expired_snapshots_are_not_forgotten(properties: dict[str, str], sink: IcebergSink) -> None:
    one = pre_committed(sink, 1, [1])
    sink.commit_globally(1, [one])
    table(properties).append(pa.table({"n": [100]}))
    first = table(properties).snapshots()[0]
    table(properties).maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    sink.commit_globally(1, [one])
    assert numbers(properties) == [1, 100]


def test_a_zombie_that_looked_before_its_successor_appended_appends_nothing(
    properties: dict[str, str],
) -> None:
    """The client library alone would append to the newest snapshot."""
    zombie, successor = (IcebergTable(NAME, "default", properties, "here") for _ in range(2))
    rows = pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA)
    written = zombie.write([rows], SCHEMA)
    zombie.append(zombie.existing(), "other/out/lineage", 1, [written])
    seen = zombie.existing()
    successor.append(successor.existing(), "job/out/lineage", 1, [successor.write([rows], SCHEMA)])
    with pytest.raises(Unavailable, match="another writer has changed the table"):
        zombie.append(seen, "job/out/lineage", 1, [zombie.write([rows], SCHEMA)])
    assert numbers(properties) == [1, 1]
    assert has(zombie.existing(), "job/out/lineage", 1)


def test_all_that_was_decided_meanwhile_is_one_snapshot(sink: IcebergSink, properties: dict[str, str]) -> None:
    decided = [pre_committed(sink, checkpoint, [checkpoint]) for checkpoint in range(1, 6)]
    sink.commit_globally(2, decided[:2])
    sink.commit_globally(5, decided)
    assert numbers(properties) == [1, 2, 3, 4, 5]
    assert [each.summary.additional_properties[CHECKPOINT] for each in table(properties).snapshots()] == ["2", "5"]


def data_files_of(properties: dict[str, str]) -> list[str]:
    return [task.file.file_path for task in table(properties).scan().plan_files()]


def test_small_files_of_many_checkpoints_become_one(sink: IcebergSink, properties: dict[str, str]) -> None:
    decided = [pre_committed(sink, checkpoint, [checkpoint]) for checkpoint in range(1, 6)]
    sink.commit_globally(2, decided[:2])
    sink.commit_globally(5, decided)
    assert table(properties).scan().to_arrow().column("n").to_pylist() in ([1, 2, 3, 4, 5], [3, 4, 5, 1, 2])
    assert len(data_files_of(properties)) == 2, "one file for each commit"
    sink._table._threads.shutdown(wait=True)
    assert metadata_files(properties, "*.parquet") == 2, "the small ones are gone"
    sink.commit_globally(5, decided)
    assert len(table(properties).snapshots()) == 2


def test_an_unknown_outcome_of_a_commit_with_joined_files_doubles_nothing(
    sink: IcebergSink, properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = [pre_committed(sink, checkpoint, [checkpoint]) for checkpoint in (1, 2)]
    commit = Table._do_commit

    def unanswered(self: Table, *arguments: Any, **named: Any) -> None:
        commit(self, *arguments, **named)
        raise CommitStateUnknownException("the answer is lost")

    with monkeypatch.context() as network:
        network.setattr(Table, "_do_commit", unanswered)
        with pytest.raises(Unavailable):
            sink.commit_globally(2, decided)
    sink.commit_globally(2, decided)
    assert numbers(properties) == [1, 2]
    assert len(table(properties).snapshots()) == 1


def test_an_attempt_that_failed_leaves_its_joined_files_for_the_next(
    sink: IcebergSink, properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = [pre_committed(sink, checkpoint, [checkpoint]) for checkpoint in (1, 2)]

    def refused(*_: Any, **__: Any) -> None:
        raise CommitFailedException("another writer was quicker")

    with monkeypatch.context() as catalog:
        catalog.setattr(Table, "_do_commit", refused)
        with pytest.raises(Unavailable):
            sink.commit_globally(2, decided)
    sink.commit_globally(2, decided)
    assert numbers(properties) == [1, 2]
    sink._table._threads.shutdown(wait=True)
    assert metadata_files(properties, "*.parquet") == 1


def test_the_plan_says_how_often_the_table_gets_a_commit(properties: dict[str, str]) -> None:
    flow = Dataflow("numbers")
    flow.rate("numbers", 10, 10).sink("out", IcebergSink(NAME, properties=properties))
    assert "a commit every 30 s" in flow.explain()


def metadata_files(properties: dict[str, str], pattern: str) -> int:
    return len(list(Path(properties["warehouse"].removeprefix("file://")).rglob(pattern)))


def test_metadata_stays_bounded_and_no_row_or_commit_is_forgotten(properties: dict[str, str]) -> None:
    bounded = opened(properties, keep_snapshots=3)
    decided: list[bytes] = []
    for checkpoint in range(1, 61):
        decided = [pre_committed(bounded, checkpoint, [checkpoint])]
        bounded.commit_globally(checkpoint, decided)
    assert numbers(properties) == list(range(1, 61))
    assert [each.summary.additional_properties[CHECKPOINT] for each in table(properties).snapshots()] == [
        "58",
        "59",
        "60",
    ]
    successor = opened(properties, bounded._context.job_store, token=2, keep_snapshots=3)
    successor.commit_globally(60, decided)
    assert len(table(properties).snapshots()) == 3, "a repeated commit is none"
    bounded._table._threads.shutdown(wait=True)
    assert metadata_files(properties, "*.metadata.json") <= 22
    assert metadata_files(properties, "snap-*.avro") <= 3 + 2 * 16
    assert numbers(properties) == list(range(1, 61))


def test_snapshots_of_others_and_what_branches_and_tags_refer_to_never_expire(properties: dict[str, str]) -> None:
    bounded = opened(properties, keep_snapshots=2)

    def commit(*checkpoints: int) -> None:
        for checkpoint in checkpoints:
            bounded.commit_globally(checkpoint, [pre_committed(bounded, checkpoint, [checkpoint])])

    commit(1, 2)
    table(properties).append(pa.table({"n": [100]}))
    commit(3, 4)
    tagged = table(properties).current_snapshot()
    table(properties).manage_snapshots().create_tag(tagged.snapshot_id, "audit").commit()
    commit(5)
    table(properties).manage_snapshots().create_branch(table(properties).current_snapshot().snapshot_id, "b").commit()
    commit(*range(6, 60))
    bounded._table._threads.shutdown(wait=True)
    said = [each.summary.additional_properties.get(CHECKPOINT) for each in table(properties).snapshots()]
    assert None in said, "another writer's"
    assert {"4", "5", "58", "59"} <= set(said)
    assert len(said) < 10
    assert numbers(properties) == [*range(1, 60), 100]
    assert table(properties).scan(snapshot_id=tagged.snapshot_id).to_arrow().num_rows == 5


def test_a_time_that_no_commit_can_be_held_back_for_is_refused(properties: dict[str, str]) -> None:
    for wrong in (-1, timedelta(days=1, seconds=1), "30s", float("nan"), True):
        with pytest.raises(InvalidJob, match="commit_every"):
            IcebergSink(NAME, properties=properties, commit_every=wrong)
    assert IcebergSink(NAME).commit_every_ms == 30_000
    assert IcebergSink(NAME, commit_every=timedelta(minutes=1)).commit_every_ms == 60_000


def test_another_writer_delays_an_append_and_does_not_lose_it(properties: dict[str, str]) -> None:
    ours = IcebergTable(NAME, "default", properties, "here")
    rows = pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA)
    first = ours.write([rows], SCHEMA)
    ours.append(ours.existing(), "job/out/lineage", 1, [first])
    seen, second = ours.existing(), ours.write([rows], SCHEMA)
    table(properties).append(pa.table({"n": [100]}))
    with pytest.raises(Unavailable):
        ours.append(seen, "job/out/lineage", 2, [second])
    ours.append(ours.existing(), "job/out/lineage", 2, [second])
    assert numbers(properties) == [1, 1, 100]


def test_an_existing_partitioned_table_takes_the_rows(properties: dict[str, str]) -> None:
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("db")
    made = catalog.create_table(NAME, pa.schema([("n", pa.int64()), ("day", pa.string())]))
    with made.update_spec() as update:
        update.add_identity("day")
    sink = opened(properties)
    rows = pa.RecordBatch.from_pydict({"n": [1, 2], "day": ["mon", "tue"]})
    sink.commit_globally(1, [pre_committed(sink, 1, rows)])
    files = list(table(properties).inspect.files().to_pylist())
    assert len(files) == 2
    assert numbers(properties) == [1, 2]


def test_a_table_with_other_columns_is_refused_with_the_first_row(properties: dict[str, str]) -> None:
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("db")
    catalog.create_table(NAME, pa.schema([("n", pa.string()), pa.field("must", pa.string(), nullable=False)]))
    for rows, says in [
        ({"n": [1]}, r"column 'n' is int64, in the table db.numbers it is string: cast it"),
        ({"m": ["x"]}, r"has no column 'm' \(it has n, must\)"),
        ({"n": ["x"]}, r"demands a value in \['must'\]"),
    ]:
        sink = opened(properties)
        with pytest.raises(InvalidJob, match=says):
            sink.write(sink.begin_transaction(), pa.RecordBatch.from_pydict(rows))
    with pytest.raises(InvalidJob, match="column 'must' has nulls"):
        pre_committed(
            opened(properties), 1, pa.RecordBatch.from_pydict({"n": ["x"], "must": pa.array([None], "string")})
        )


def test_nested_nulls_that_the_table_forbids_are_refused_with_their_place(properties: dict[str, str]) -> None:
    tags = ListType(2, StringType(), element_required=True)
    pair = StructType(NestedField(4, "a", LongType(), required=True))
    both = MapType(6, StringType(), 7, LongType(), value_required=True)
    fields = [NestedField(1, "tags", tags, False), NestedField(3, "s", pair, False), NestedField(5, "m", both, False)]
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("db")
    catalog.create_table(NAME, Schema(*fields))
    rows: dict[str, list[Any]] = {
        "tags": [None, ["a"], ["b", None], [], []],
        "s": [None, {"a": 1}, None, {"a": None}, None],
        "m": [None, [("k", 1)], None, None, [("k", None)]],
    }
    kinds = [pa.list_(pa.string()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64())]
    batch = pa.record_batch([pa.array(rows[each], kind) for each, kind in zip(rows, kinds, strict=True)], list(rows))
    sink = opened(properties)
    for row, place in ((2, r"tags\[\]"), (3, r"s\.a"), (4, r"m\[\]\.value")):
        with pytest.raises(InvalidJob, match=rf"has nulls, .* fill or filter them. The first is {place} of row 0: "):
            pre_committed(sink, 1, batch[row : row + 1])
    sink = opened(properties)
    sink.commit_globally(1, [pre_committed(sink, 1, batch[:2])])
    assert table(properties).scan().to_arrow()["s"].to_pylist() == [None, {"a": 1}]


def test_what_iceberg_cannot_hold_is_refused(sink: IcebergSink) -> None:
    rows = pa.RecordBatch.from_pylist([{}], schema=pa.schema([("for", pa.duration("ms"))]))
    with pytest.raises(InvalidJob, match=r"column 'for' is duration\[ms\], which Iceberg cannot hold"):
        sink.write(sink.begin_transaction(), rows)


def test_aborted_rows_are_an_error_when_they_are_committed(sink: IcebergSink) -> None:
    one = pre_committed(sink, 1, [1])
    sink.abort(one)
    with pytest.raises(Corrupt, match="does not have them"):
        sink.commit_globally(1, [one])


def test_secrets_and_a_catalog_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="property 'token' is a secret") as caught:
        IcebergSink(NAME, properties={"token": "canary"})
    assert "canary" not in str(caught.value)
    with pytest.raises(InvalidJob):
        IcebergSink(NAME, properties={"uri": "https://user:canary@catalog"})
    with pytest.raises(InvalidJob, match=r"write 'namespace\.table'"):
        IcebergSink("numbers")
    with pytest.raises(InvalidJob, match="catalog 'default' cannot be opened"):
        opened({"type": "no-such-type"})


def test_settings_make_an_equal_sink(properties: dict[str, str]) -> None:
    sink = IcebergSink(NAME, properties=properties)
    assert IcebergSink(**json.loads(json.dumps(sink.settings()))).settings() == sink.settings()


def test_a_local_job_fills_a_table(properties: dict[str, str]) -> None:
    flow = Dataflow("to-iceberg")
    flow.rate("numbers", 100_000, 2_000).select({"n": "value"}).sink("out", IcebergSink(NAME, properties=properties))
    flow.run_local(parallelism=2, checkpoint_interval=0.1)
    assert numbers(properties) == list(range(2_000))


def test_a_catalog_that_does_not_answer_is_waited_for() -> None:
    with pytest.raises(Unavailable, match="catalog 'default' does not answer"):
        opened({"type": "rest", "uri": "http://127.0.0.1:1"})


def test_each_subtask_writes_its_own_files_and_one_snapshot_has_them(properties: dict[str, str]) -> None:
    store = MemoryStore()
    subtasks = []
    for subtask in range(3):
        sink = IcebergSink(NAME, properties=properties)
        sink.open(SinkContext("job", "out", 1, subtask, 3, lambda url: store, store, "lineage"))
        subtasks.append(sink)
    committables = [pre_committed(sink, 1, [at]) for at, sink in enumerate(subtasks)]
    staged = sum(len(store.get(info.key)) for info in store.list(""))
    written = list(Path(properties["warehouse"].removeprefix("file://")).rglob("*.parquet"))
    assert len(written) == 3, "rows wait for one slot to write them"
    assert table(properties).current_snapshot() is None
    subtasks[0].commit_globally(1, committables)
    assert numbers(properties) == [0, 1, 2]
    assert len(table(properties).snapshots()) == 1
    assert staged < 100_000
    assert list(store.list("")) == []


def test_files_of_a_checkpoint_that_was_given_up_are_deleted(sink: IcebergSink, properties: dict[str, str]) -> None:
    sink.abort(pre_committed(sink, 1, [1]))
    assert list(Path(properties["warehouse"].removeprefix("file://")).rglob("*.parquet")) == []


def test_decided_files_that_are_gone_are_an_error_and_not_a_broken_table(
    sink: IcebergSink, properties: dict[str, str]
) -> None:
    one = pre_committed(sink, 1, [1])
    (file,) = Path(properties["warehouse"].removeprefix("file://")).rglob("*.parquet")
    file.unlink()
    with pytest.raises(Corrupt, match=r"1 decided data files of the table .* are gone"):
        sink.commit_globally(1, [one])
    assert table(properties).current_snapshot() is None


def test_rows_that_an_earlier_release_has_staged_are_appended(properties: dict[str, str]) -> None:
    """The earlier release staged the rows themselves."""
    store = MemoryStore()
    rows = pa.RecordBatch.from_pydict({"n": [1, 2]}, schema=SCHEMA)

    class Earlier(IcebergSink):
        def prepare(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
            return batches

    earlier = Earlier(NAME, properties=properties)
    earlier.open(SinkContext("job", "out", 1, 0, 1, lambda url: store, store, "lineage"))
    one = pre_committed(earlier, 1, rows)
    opened(properties, store, token=2).commit_globally(1, [one])
    assert numbers(properties) == [1, 2]


def test_partitions_of_every_kind_come_back_from_what_is_staged(properties: dict[str, str]) -> None:
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("db")
    columns = {"n": [1, 2], "d": [Decimal("1.5"), Decimal("2.5")], "on": [date(2024, 1, 1), None], "b": [b"x", b"y"]}
    rows = pa.RecordBatch.from_pydict(columns)
    made = catalog.create_table(NAME, rows.schema)
    with made.update_spec() as update:
        for column in ("d", "on", "b"):
            update.add_identity(column)
    sink = opened(properties)
    sink.commit_globally(1, [pre_committed(sink, 1, rows)])
    assert sorted(table(properties).scan().to_arrow().to_pylist(), key=lambda row: row["n"]) == rows.to_pylist()
    assert table(properties).scan("d = 2.5").to_arrow()["n"].to_pylist() == [2]


@pytest.mark.slow
def test_the_sink_is_certified(properties: dict[str, str]) -> None:
    def read() -> list[dict[str, Any]]:
        catalog = load_catalog("default", **properties)
        if not catalog.namespace_exists("db") or not catalog.table_exists(NAME):
            return []
        rows: list[dict[str, Any]] = catalog.load_table(NAME).scan().to_arrow().to_pylist()
        return rows

    def drop() -> None:
        catalog = load_catalog("default", **properties)
        if catalog.namespace_exists("db") and catalog.table_exists(NAME):
            catalog.drop_table(NAME)

    make = partial(IcebergSink, NAME, properties=properties)
    print(certify(make, read, reset=drop, scenarios=5, inside=2, seeds=range(1)))
