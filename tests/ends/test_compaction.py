"""`compact=` of Delta and Iceberg sinks: small files become large files and no row is lost, doubled or emitted again,
with every other writer, crash and zombie between any two steps of a compaction.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import StringType

from barrier_runtime import Dataflow, DeltaSource, IcebergSource
from barrier_runtime.connectors.delta.compaction import DeltaCompaction
from barrier_runtime.connectors.delta.log_records import log_key
from barrier_runtime.connectors.delta.sink import DeltaSink
from barrier_runtime.connectors.iceberg import compaction as iceberg_compaction
from barrier_runtime.connectors.iceberg.compaction import IcebergCompaction
from barrier_runtime.connectors.iceberg.sink import IcebergSink
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.lake.compaction import LEAST_FILES, compact_once
from barrier_runtime.connectors.source_bases.table_reader import TableRows
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome
from barrier_runtime.state.store.open import open_store
from barrier_runtime.testing import certify
from tests.ends.test_iceberg_source import SOON, reading, taken
from tests.waiting import until

TARGET = "1 MB"
SCHEMA = pa.schema([("n", pa.int64()), ("part", pa.string())])
MANY = LEAST_FILES


def rows_of(*numbers: int, part: str = "a") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(numbers), "part": [part] * len(numbers)}, schema=SCHEMA)


class World:
    """A table, and the table's sink in successive generations. `compaction`: the newest sink's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryStore("job")
        self.checkpoint = 0
        self.token = 0
        self.start()

    def start(self) -> None:
        """A new generation, as after a crash: the old generation's memory is lost."""
        self.token += 1
        self.sink = self.opened(self.token)
        self.compaction = self.sink._compactor._table

    def opened(self, token: int, job: str = "job", store: MemoryStore | None = None, **options: Any) -> Any:
        sink = self.made(TARGET, **options)
        sink.open(SinkContext(job, "out", token, 0, 1, open_store, store or self.store, "lineage"))
        return sink

    def staged(self, sink: Any, numbers: Sequence[int], part: str) -> bytes:
        """The next checkpoint, of these rows."""
        sink._compactor = None  # the sink does not compact by itself: the test takes the steps
        self.checkpoint += 1
        transaction = sink.begin_transaction()
        sink.write(transaction, rows_of(*numbers, part=part))
        committable: bytes = sink.pre_commit(transaction, self.checkpoint)
        sink.commit(committable)
        return committable

    def commit(self, *numbers: int, part: str = "a", sink: Any = None) -> bytes:
        """Commits a checkpoint of these rows, with a single call."""
        sink = sink or self.sink
        committable = self.staged(sink, numbers, part)
        sink.commit_globally(self.checkpoint, [committable])
        return committable

    def many(self, first: int = 0, count: int = MANY, part: str = "a", sink: Any = None) -> None:
        """Commits checkpoints of a row each together: a file each."""
        sink = sink or self.sink
        decided = [self.staged(sink, [number], part) for number in range(first, first + count)]
        sink.commit_globally(self.checkpoint, decided)

    def made(self, compact: str, **options: Any) -> Any:
        raise NotImplementedError

    def numbers(self) -> list[int]:
        raise NotImplementedError

    def files(self) -> set[str]:
        """Names of the newest version's files."""
        raise NotImplementedError

    def orphans(self) -> set[str]:
        """Names of data files that no version of the table has had."""
        raise NotImplementedError


class DeltaWorld(World):
    def made(self, compact: str, **options: Any) -> DeltaSink:
        return DeltaSink(str(self.folder), partition_by="part", compact=compact, **options)

    def table(self) -> DeltaTable:
        return DeltaTable(str(self.folder))

    def numbers(self) -> list[int]:
        return sorted(self.table().to_pyarrow_table()["n"].to_pylist())

    def files(self) -> set[str]:
        return {Path(uri).name for uri in self.table().file_uris()}

    def orphans(self) -> set[str]:
        written = {path.name for path in self.folder.glob("part=*/*.parquet")}
        told = "".join(path.read_text() for path in (self.folder / "_delta_log").glob("*.json"))
        return {name for name in written if name not in told}

    def append_by_another(self, *numbers: int) -> None:
        """A file each."""
        for number in numbers:
            rows = pa.Table.from_batches([rows_of(number)])
            write_deltalake(str(self.folder), rows, mode="append", partition_by=["part"])

    def delete_by_another(self, number: int) -> None:
        self.table().delete(f"n = {number}")

    def rewrite_by_another(self) -> None:
        self.table().optimize.compact()

    def add_column_by_another(self) -> None:
        more = pa.table(
            {"n": pa.array([], pa.int64()), "part": pa.array([], pa.string()), "more": pa.array([], pa.string())}
        )
        write_deltalake(str(self.folder), more, mode="append", schema_mode="merge")

    def source(self) -> TableRows:
        return DeltaSource(str(self.folder), every=SOON).named("numbers")


class IcebergWorld(World):
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/warehouse"}
        catalog = load_catalog("default", **self.properties)
        catalog.create_namespace("db")
        with catalog.create_table("db.t", SCHEMA).update_spec() as spec:
            spec.add_identity("part")
        super().__init__(folder)

    def made(self, compact: str, **options: Any) -> IcebergSink:
        return IcebergSink("db.t", properties=self.properties, commit_every=0, compact=compact, **options)

    def table(self) -> Table:
        return load_catalog("default", **self.properties).load_table("db.t")

    def numbers(self) -> list[int]:
        return sorted(self.table().scan().to_arrow()["n"].to_pylist())

    def files(self) -> set[str]:
        return {Path(task.file.file_path).name for task in self.table().scan().plan_files()}

    def orphans(self) -> set[str]:
        written = {path.name for path in (self.folder / "warehouse").rglob("*.parquet")}
        table = self.table()
        known = {
            Path(entry.data_file.file_path).name
            for snapshot in table.snapshots()
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        }
        return written - known

    def append_by_another(self, *numbers: int) -> None:
        """A file each."""
        for number in numbers:
            self.table().append(pa.Table.from_batches([rows_of(number)]))

    def delete_by_another(self, number: int) -> None:
        self.table().delete(EqualTo("n", number))

    def rewrite_by_another(self) -> None:
        self.table().overwrite(self.table().scan().to_arrow())

    def add_column_by_another(self) -> None:
        with self.table().update_schema() as change:
            change.add_column("more", StringType())

    def source(self) -> TableRows:
        return IcebergSource("db.t", properties=self.properties, every=SOON).named("numbers")


@pytest.fixture(params=[DeltaWorld, IcebergWorld], ids=["delta", "iceberg"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made = request.param(tmp_path / "table")
    yield made
    made.sink.close()


def test_small_files_become_one_and_rows_stay(world: Any) -> None:
    world.many()
    before = world.files()
    assert compact_once(world.compaction) == len(before) == MANY
    assert world.numbers() == list(range(MANY))
    assert len(world.files()) == 1
    assert world.orphans() == set()
    assert world.compaction.look() is None, "there is nothing left to compact"
    world.commit(100)
    assert world.numbers() == [*range(MANY), 100]


def test_partitions_are_compacted_each_by_itself(world: Any) -> None:
    world.many(0, part="a b/ü")
    world.many(100, part="c")
    world.many(200, count=3, part="")
    assert compact_once(world.compaction) == 2 * MANY
    assert len(world.files()) == 2 + 3
    assert world.numbers() == [*range(MANY), *range(100, 100 + MANY), 200, 201, 202]


def test_only_files_of_this_sink_are_compacted(world: Any) -> None:
    world.append_by_another(*range(1_000, 1_000 + MANY))
    other = world.opened(1, job="other-job", store=MemoryStore("other job"))
    world.many(2_000, sink=other)
    kept = world.files()
    assert world.compaction.look() is None
    world.many()
    assert compact_once(world.compaction) == MANY
    assert kept < world.files()
    assert len(world.files()) == 2 * MANY + 1


def test_a_successor_compacts_what_its_predecessor_has_written(world: Any) -> None:
    world.many(0, count=10)
    world.start()
    world.many(10, count=10)
    assert compact_once(world.compaction) == 20
    assert world.numbers() == list(range(20))


def test_files_that_were_compacted_are_compacted_again(world: Any) -> None:
    world.many()
    assert compact_once(world.compaction) == MANY
    world.many(MANY)
    assert compact_once(world.compaction) == MANY + 1
    assert len(world.files()) == 1
    assert world.numbers() == list(range(2 * MANY))


# ---------------------------------------------------------------- others between the moves

STEPS = ["look", "write"]  # the step after which another party acts


def compacted_with(world: Any, behind: str, move: Any) -> int:
    """A turn of the compaction, with another party's move after some step."""
    compaction = world.compaction
    plan = compaction.look()
    assert plan is not None
    if behind == "look":
        move()
    written = compaction.write(plan, lambda: False)
    if written is None:
        return 0
    if behind == "write":
        move()
    return int(compaction.commit(plan, written))


@pytest.mark.parametrize("behind", STEPS)
def test_commits_that_come_meanwhile_stay(world: Any, behind: str) -> None:
    world.many()

    def move() -> None:
        world.commit(50, 51)
        world.append_by_another(52)
        world.commit(53)

    assert compacted_with(world, behind, move) == MANY
    assert world.numbers() == [*range(MANY), 50, 51, 52, 53]
    assert len(world.files()) == 4


@pytest.mark.parametrize("behind", STEPS)
@pytest.mark.parametrize("change", ["delete_by_another", "rewrite_by_another", "add_column_by_another"])
def test_a_conflict_gives_the_turn_up_and_leaves_nothing(world: Any, behind: str, change: str) -> None:
    world.many()
    arguments = [3] if change == "delete_by_another" else []
    assert compacted_with(world, behind, lambda: getattr(world, change)(*arguments)) == 0
    assert world.numbers() == [number for number in range(MANY) if [number] != arguments]
    assert world.orphans() == set()
    world.many(100)
    assert compact_once(world.compaction) >= MANY, "a later turn compacts"
    assert world.numbers() == [*(number for number in range(MANY) if [number] != arguments), *range(100, 100 + MANY)]


@pytest.mark.parametrize("behind", STEPS)
def test_of_two_generations_one_compacts(world: Any, behind: str) -> None:
    world.many()
    zombie = world.compaction

    def successor() -> None:
        world.start()
        assert compact_once(world.compaction) == MANY

    world.compaction = zombie
    assert compacted_with(world, behind, successor) == 0
    assert world.numbers() == list(range(MANY))
    assert world.orphans() == set()
    assert len(world.files()) == 1


@pytest.mark.parametrize("dies_behind", ["look", "write", "commit"])
def test_a_crash_leaves_the_table_right_and_a_successor_compacts(world: Any, dies_behind: str) -> None:
    world.many()
    plan = world.compaction.look()
    if dies_behind != "look":
        written = world.compaction.write(plan, lambda: False)
    if dies_behind == "commit":
        world.compaction.commit(plan, written)
    world.start()
    assert world.numbers() == list(range(MANY))
    assert len(world.orphans()) == (1 if dies_behind == "write" else 0)
    last = world.commit(100)
    assert compact_once(world.compaction) == (0 if dies_behind == "commit" else MANY + 1)
    world.sink.commit_globally(world.checkpoint, [last])
    assert world.numbers() == [*range(MANY), 100], "a repeated commit is none"


def test_a_sink_that_closes_stops_the_turn(world: Any) -> None:
    world.many(0, part="a")
    world.many(100, part="b")
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 1

    plan = world.compaction.look()
    assert world.compaction.write(plan, stop) is None
    assert world.orphans() == set()
    assert world.numbers() == [*range(MANY), *range(100, 100 + MANY)]


# ---------------------------------------------------------------- readers


def test_readers_by_version_are_told_no_row_again(world: Any) -> None:
    world.many()
    with reading(world.source()) as reader:
        assert sorted(taken(reader, MANY)) == list(range(MANY))
        world.commit(50)
        assert compact_once(world.compaction) == MANY + 1
        world.commit(51)
        assert taken(reader, 2) == [50, 51]
        assert reader.poll(100, 0) is None


def test_a_reader_by_key_is_told_no_row_again(world: Any) -> None:
    world.many()
    kind = DeltaSource(str(world.folder), every=SOON, key=["n"]) if isinstance(world, DeltaWorld) else None
    source = kind or IcebergSource("db.t", properties=world.properties, every=SOON, key=["n"])
    with reading(source.named("numbers")) as reader:
        assert sorted(taken(reader, MANY)) == list(range(MANY))
        compact_once(world.compaction)
        world.commit(51)
        assert taken(reader, 1) == [51]


def test_a_reader_of_an_older_version_still_finds_its_files(world: Any) -> None:
    world.many()
    before = world.table()
    compact_once(world.compaction)
    rows = before.to_pyarrow_table() if isinstance(world, DeltaWorld) else before.scan().to_arrow()
    assert sorted(rows["n"].to_pylist()) == list(range(MANY))


# ---------------------------------------------------------------- the sink


def test_a_job_compacts_behind_its_commits(world: Any) -> None:
    flow = Dataflow("job")
    numbers = (
        flow.rate("numbers", rows_per_second=5_000)
        .select(["value"])
        .map(lambda row: {"n": row["value"], "part": "a"}, schema={"n": int, "part": str})
    )
    numbers.sink("out", world.made(TARGET))
    with flow.start_local(checkpoints=str(world.folder.parent / "ck"), checkpoint_interval=0.05, parallelism=1) as job:
        until(lambda: has_compacted(world), "a compaction had landed", 120)
        job.stop()
    found = world.numbers()
    assert found == list(range(len(found)))
    assert len(found) > MANY


def has_compacted(world: Any) -> bool:
    if isinstance(world, DeltaWorld):
        log = world.folder / "_delta_log"
        return log.exists() and any('"OPTIMIZE"' in each.read_text() for each in sorted(log.glob("*.json")))
    return any(each.summary.operation == Operation.REPLACE for each in world.table().snapshots())


@pytest.mark.slow
def test_a_sink_that_compacts_is_certified(tmp_path: Path) -> None:
    folder = str(tmp_path / "table")

    def read() -> list[dict[str, Any]]:
        return DeltaTable(folder).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(folder) else []

    def reset() -> None:
        store = open_store(folder)
        store.delete([info.key for info in store.list("")])

    certify(lambda: DeltaSink(folder, compact=TARGET), read, make_store=open_store, reset=reset, scenarios=5)


def test_settings_make_an_equal_sink_and_the_plan_names_the_size(world: Any) -> None:
    sink = world.made("128 MB")
    assert type(sink)(**sink.settings()).settings() == sink.settings()
    assert "compacted to 128 MB" in repr(sink)


def test_a_wrong_size_is_refused(world: Any) -> None:
    with pytest.raises(InvalidJob, match="compact='big': give the size that files are to have"):
        world.made("big")


# ---------------------------------------------------------------- Delta


class LosesAnswers:
    """A store without an answer to the next put of a log record, which the store does or does not write."""

    def __init__(self, store: ObjectStore, writes: bool) -> None:
        self._store = store
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        if self._writes:
            self._store.put_if_absent(key, data)
        return PutOutcome.UNKNOWN


@pytest.mark.parametrize("written", [True, False])
def test_an_answer_that_is_lost_deletes_no_file_of_the_table(tmp_path: Path, written: bool) -> None:
    world = DeltaWorld(tmp_path / "table")
    world.many()
    compaction: DeltaCompaction = world.compaction
    compaction._store = LosesAnswers(compaction._store, written)  # type: ignore[assignment]
    if written:
        assert compact_once(compaction) == MANY
    else:
        with pytest.raises(Unavailable, match="nobody knows whether version"):
            compact_once(compaction)
    assert world.numbers() == list(range(MANY))
    assert len(world.orphans()) == (0 if written else 1), "a put may still arrive, so its files stay"
    world.commit(100)
    assert world.numbers() == [*range(MANY), 100]


def test_the_own_commit_behind_a_compaction_is_one_request(tmp_path: Path) -> None:
    world = DeltaWorld(tmp_path / "table")
    world.many()
    loaded = world.sink._log._table
    version = loaded.version()
    compact_once(world.compaction)
    world.commit(100)
    assert world.sink._log._table is loaded
    assert loaded.version() == version, "the table was not looked at"
    assert world.numbers() == [*range(MANY), 100]


def test_a_compaction_says_that_it_changes_no_data(tmp_path: Path) -> None:
    world = DeltaWorld(tmp_path / "table")
    world.many()
    compact_once(world.compaction)
    history = world.table().history(1)[0]
    assert history["operation"] == "OPTIMIZE"
    record = (world.folder / log_key(world.table().version())).read_text()
    assert record.count('"dataChange":false') == MANY + 1
    assert '"dataChange":true' not in record
    assert "txn" not in record
    table = world.table()
    assert table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert world.numbers() == list(range(MANY))
    world.commit(7)
    assert world.numbers() == sorted([*range(MANY), 7])


def test_a_table_with_deletion_vectors_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "table")
    write_deltalake(folder, pa.table({"n": [1]}))
    DeltaTable(folder).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(InvalidJob, match=r"has deletion vectors.*leave compact= out"):
        DeltaSink(folder, compact=TARGET).open(
            SinkContext("job", "out", 1, 0, 1, open_store, MemoryStore("job"), "lineage")
        )


# ---------------------------------------------------------------- Iceberg


def test_replaced_files_go_with_the_snapshots_that_need_them(tmp_path: Path) -> None:
    world = IcebergWorld(tmp_path / "table")
    world.many()
    replaced = world.files()
    assert compact_once(world.compaction) == MANY
    data = world.folder / "warehouse"
    sink = world.opened(9, keep_snapshots=2)
    for number in range(100, 140):
        world.commit(number, sink=sink)
    sink._table._threads.shutdown(wait=True)
    assert not {path.name for path in data.rglob("*.parquet")} & replaced
    assert world.numbers() == [*range(MANY), *range(100, 140)]


def test_replaced_files_stay_for_a_tag_that_needs_them(tmp_path: Path) -> None:
    world = IcebergWorld(tmp_path / "table")
    world.many()
    tagged = world.table().current_snapshot()
    world.table().manage_snapshots().create_tag(tagged.snapshot_id, "audit").commit()
    assert compact_once(world.compaction) == MANY
    sink = world.opened(9, keep_snapshots=2)
    for number in range(100, 140):
        world.commit(number, sink=sink)
    sink._table._threads.shutdown(wait=True)
    assert world.table().scan(snapshot_id=tagged.snapshot_id).to_arrow().num_rows == MANY


def test_a_commit_that_meets_a_compaction_is_tried_again_at_once(tmp_path: Path) -> None:
    """The compaction is committed between the sink's look at the table and the sink's commit."""
    world = IcebergWorld(tmp_path / "table")
    world.many()
    plan = world.compaction.look()
    written = world.compaction.write(plan, lambda: False)
    table = world.sink._table
    append = table.append

    def met(*arguments: Any, **named: Any) -> int:
        table.append = append
        assert world.compaction.commit(plan, written) == MANY
        return int(append(*arguments, **named))

    table.append = met
    world.commit(100)
    assert world.numbers() == [*range(MANY), 100]
    assert len(world.files()) == 2


def test_a_compaction_that_loses_twenty_races_to_another_writer_is_still_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = IcebergWorld(tmp_path / "table")
    world.many()
    replace, races = iceberg_compaction._Replacing.commit, iter(range(20))

    def beaten(producer: Any) -> None:
        if (number := next(races, None)) is not None:
            world.append_by_another(1_000 + number)
        replace(producer)

    monkeypatch.setattr(iceberg_compaction._Replacing, "commit", beaten)
    assert compact_once(world.compaction) == MANY
    assert world.numbers() == [*range(MANY), *range(1_000, 1_020)]
    assert world.orphans() == set()


def test_a_compaction_that_a_catalog_always_refuses_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = IcebergWorld(tmp_path / "table")
    world.many()

    def refused(producer: Any) -> None:
        raise CommitFailedException("the branch has changed")

    monkeypatch.setattr(iceberg_compaction._Replacing, "commit", refused)
    assert compact_once(world.compaction) == 0
    assert len(world.files()) == MANY
    assert world.orphans() == set()


def test_files_are_replaced_beside_deletes_of_other_files(tmp_path: Path) -> None:
    world = IcebergWorld(tmp_path / "table")
    world.many()
    compaction: IcebergCompaction = world.compaction
    world.append_by_another(500)
    world.delete_by_another(500)
    assert compact_once(compaction) == MANY
    assert world.numbers() == list(range(MANY))
    summary = world.table().current_snapshot().summary
    assert summary.operation == Operation.REPLACE
    assert summary["total-data-files"] == "1"
    assert summary["total-records"] == str(MANY)
