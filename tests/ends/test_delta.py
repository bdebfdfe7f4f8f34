"""Delta tables on a local folder and on S3: one commit per checkpoint, whichever process commits and however often."""

import datetime
import decimal
import io
import json
import multiprocessing
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, write_deltalake

from barrier_runtime.connectors.delta import data_files
from barrier_runtime.connectors.delta import table as delta_table
from barrier_runtime.connectors.delta.committable import decode_delta_committable
from barrier_runtime.connectors.delta.sink import DeltaSink
from barrier_runtime.connectors.delta.table import DeltaLog
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.s3.by_boto3 import S3Store
from barrier_runtime.testing import certify
from examples.servers import S3Server
from tests.waiting import until

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "a table")
    s3: S3Server = request.getfixturevalue("s3")
    return f"{s3.url}/tables/numbers"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "table")


STORES: dict[str, ObjectStore] = {}


def store_of(url: str) -> ObjectStore:
    """A store per URL: opening a client of S3 takes longer than the requests."""
    if url not in STORES:
        STORES[url] = open_store(url)
    return STORES[url]


@pytest.fixture(autouse=True)
def _own_stores() -> None:
    STORES.clear()


def opened(
    sink: DeltaSink,
    token: int = 1,
    subtask: int = 0,
    parallelism: int = 1,
    lineage: str = "lineage",
    job: str = "job",
    checkpoints: str = "memory",
) -> DeltaSink:
    """An open sink. `checkpoints`: name of the job's store; another name is another log."""
    sink.open(SinkContext(job, "out", token, subtask, parallelism, store_of, MemoryStore(checkpoints), lineage))
    return sink


def pre_committed(sink: DeltaSink, checkpoint: int, rows: Sequence[int] | pa.RecordBatch) -> bytes:
    transaction = sink.begin_transaction()
    if not isinstance(rows, pa.RecordBatch):
        rows = pa.RecordBatch.from_pydict({"n": list(rows)}, schema=SCHEMA)
    sink.write(transaction, rows)
    committable = sink.pre_commit(transaction, checkpoint)
    assert committable is not None
    return committable


def committed(sink: DeltaSink, checkpoint: int, rows: Sequence[int] | pa.RecordBatch) -> bytes:
    committable = pre_committed(sink, checkpoint, rows)
    sink.commit(committable)
    sink.commit_globally(checkpoint, [committable])
    return committable


def table(url: str) -> DeltaTable:
    return DeltaTable(store_of(url).url, storage_options={"AWS_ALLOW_HTTP": "true"})


def numbers(url: str) -> list[int]:
    return sorted(table(url).to_pyarrow_table().column("n").to_pylist()) if there(url) else []


def there(url: str) -> bool:
    return DeltaTable.is_deltatable(store_of(url).url, storage_options={"AWS_ALLOW_HTTP": "true"})


def outside_the_log(url: str) -> list[str]:
    """Data files and staged files that the table does not list."""
    known = {path.rsplit("/", 1)[-1] for path in table(url).file_uris()} if there(url) else set()
    return [
        info.key for info in store_of(url).list("") if not info.key.startswith("_delta_log/") and info.key not in known
    ]


# ---------------------------------------------------------------- certified


class Reader:
    """Reads each new version of the table, and each file once."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._table: DeltaTable | None = None
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def look(self) -> list[dict[str, Any]]:
        if self._table is None:
            if not there(self._url):
                return []
            self._table = table(self._url)
        else:
            self._table.update_incremental()
        actions = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        for add in actions:
            if add["path"] not in self._rows:
                parts = {key.partition(".")[2]: value for key, value in add.items() if key.startswith("partition.")}
                rows = pq.read_table(io.BytesIO(store_of(self._url).get(add["path"]))).to_pylist()
                self._rows[add["path"]] = [{**row, **parts} for row in rows]
        return [row for add in actions for row in self._rows[add["path"]]]

    def empty(self) -> None:
        store = store_of(self._url)
        store.delete([info.key for info in store.list("")])
        self._table, self._rows = None, {}


def certified(url: str, partition_by: str | None, commit_every: float = 0, **drawn: Any) -> None:
    reader = Reader(url)
    print(
        certify(
            lambda: DeltaSink(url, partition_by=partition_by, commit_every=commit_every),
            reader.look,
            make_store=store_of,
            reset=reader.empty,
            leftovers=lambda: [info.key for info in store_of(url).list("_staging/")],
            **drawn,
        )
    )


@pytest.mark.parametrize("partition_by", [None, "key"])
def test_the_sink_is_certified_on_a_folder(folder: str, partition_by: str | None) -> None:
    """T1, T2, T3, T6, T7, T8, T9, T10, T12, T14, T15, Z11"""
    certified(folder, partition_by, scenarios=30 if partition_by is None else 5, seeds=range(3))


@pytest.mark.slow
def test_the_sink_is_certified_with_commits_that_are_held_back(folder: str) -> None:
    certified(folder, "key", commit_every=0.05, scenarios=10, seeds=range(2))


def held(url: str, **place: Any) -> DeltaSink:
    return opened(DeltaSink(url, commit_every=60), **place)


def test_small_files_of_many_checkpoints_become_one(url: str) -> None:
    sinks = [held(url, subtask=subtask, parallelism=2) for subtask in range(2)]
    decided = []
    for checkpoint in range(1, 6):
        for subtask, sink in enumerate(sinks):
            decided.append(pre_committed(sink, checkpoint, [10 * checkpoint + subtask]))
            sink.commit(decided[-1])
    assert not there(url)
    sinks[0].commit_globally(2, decided[:4])
    sinks[0].commit_globally(5, decided)
    assert numbers(url) == [10, 11, 20, 21, 30, 31, 40, 41, 50, 51]
    assert len(table(url).file_uris()) == 2, "one file for each commit"
    assert table(url).version() == 2
    assert outside_the_log(url) == []
    sinks[0].commit_globally(5, decided)
    assert table(url).version() == 2


def test_a_successor_keeps_what_is_decided_and_joins_it_after_a_crash(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after the larger file is written and before the table lists the file."""
    first = held(url)
    decided = [pre_committed(first, checkpoint, [checkpoint]) for checkpoint in (1, 2, 3)]
    pre_committed(first, 4, [4])  # never decided

    def refusing(*_: object) -> None:
        raise Unavailable("the process dies")

    with monkeypatch.context() as dies:
        dies.setattr(DeltaLog, "_append", refusing)
        with pytest.raises(Unavailable):
            first.commit_globally(3, decided)
    successors = [held(url, token=2, subtask=subtask, parallelism=3) for subtask in range(3)]
    for subtask, sink in enumerate(successors):
        sink.recover(decided if subtask == 0 else [])
    successors[0].commit_globally(3, decided)
    assert numbers(url) == [1, 2, 3]
    assert [key for key in outside_the_log(url) if key.startswith("_staging/")] == []
    first.commit_globally(3, decided)
    assert numbers(url) == [1, 2, 3], "a zombie shows nothing twice"


def test_a_job_that_holds_commits_back_from_now_on_shows_what_was_shown_halfway(folder: str) -> None:
    before = opened(DeltaSink(folder))
    decided = [pre_committed(before, checkpoint, [checkpoint]) for checkpoint in (1, 2)]
    before.commit(decided[0])
    now = held(folder, token=2)
    now.recover(decided)
    now.commit_globally(2, decided)
    assert numbers(folder) == [1, 2]


def test_the_sink_is_certified_on_s3(s3: S3Server) -> None:
    """T3, T10. On a folder all scenarios run; here those after which another party lists and commits."""
    for only in ("straight plain", "fresh start", "many pending", "rescale 2 1 3", "walk 0"):
        certified(f"{s3.url}/certified", None, only=only)


# ---------------------------------------------------------------- one commit per checkpoint


def test_the_rows_of_all_subtasks_become_visible_in_one_version(url: str) -> None:
    three = [opened(DeltaSink(url), subtask=s, parallelism=3) for s in range(3)]
    versions = []
    for checkpoint in (1, 2):
        committables = [pre_committed(sink, checkpoint, [checkpoint * 10 + s]) for s, sink in enumerate(three)]
        for sink, committable in zip(three, committables, strict=True):
            sink.commit(committable)
        assert numbers(url) == sorted(10 * c + s for c in range(1, checkpoint) for s in range(3)), "not visible yet"
        three[0].commit_globally(checkpoint, committables)
        versions.append(table(url).version())
    assert numbers(url) == [10, 11, 12, 20, 21, 22]
    assert versions == [1, 2], "version 0 is the empty table"
    assert table(url).transaction_version("job/out/lineage") == 2
    until(lambda: outside_the_log(url) == [], "staged files are deleted behind the commits")


def test_a_commit_that_is_repeated_shows_nothing_twice(url: str) -> None:
    """T6, T11: also by a successor, also together with new checkpoints, also after a compaction."""
    first = opened(DeltaSink(url))
    one = committed(first, 1, [1])
    first.commit_globally(1, [one])
    two = pre_committed(first, 2, [2])
    successor = opened(DeltaSink(url), token=2)
    successor.recover([one, two])
    successor.commit_globally(2, [one, two])
    table(url).optimize.compact()
    for sink in (first, successor):
        sink.commit(two)
        sink.commit_globally(2, [one, two])
    assert numbers(url) == [1, 2]


def test_the_log_is_asked_for_our_transactions_only_when_somebody_else_wrote(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs reads the whole log for an answer; commits of many parts, or on a long log, would take ever longer."""
    asked = []
    answer = DeltaTable.transaction_version

    def asking(self: DeltaTable, application: str) -> int | None:
        asked.append(application)
        return answer(self, application)

    monkeypatch.setattr(DeltaTable, "transaction_version", asking)
    sink = opened(DeltaSink(folder))
    for checkpoint in range(1, 21, 2):
        two = [pre_committed(sink, checkpoint + n, [checkpoint + n]) for n in range(2)]
        for each in two:
            sink.commit(each)
        sink.commit_globally(checkpoint + 1, two)
    assert len(asked) == 1
    other = opened(DeltaSink(folder), lineage="other")
    committed(other, 1, [0])
    committed(sink, 21, [21])
    assert numbers(folder) == list(range(22))
    assert 2 <= len(asked) <= 4


@pytest.mark.parametrize("others", [0, 1, 5])
def test_a_table_that_is_made_anew_while_the_sink_runs_gets_all_later_rows(url: str, others: int) -> None:
    """Also with fewer, or more, versions than the old table."""
    sink = opened(DeltaSink(url))
    for checkpoint in (1, 2):
        committed(sink, checkpoint, [checkpoint])
    until(lambda: outside_the_log(url) == [], "the sink deletes nothing more")
    store_of(url).delete([info.key for info in store_of(url).list("")])
    other = opened(DeltaSink(url), job="other")
    for checkpoint in range(1, others + 1):
        committed(other, checkpoint, [100 + checkpoint])
    for checkpoint in (3, 4):
        committed(sink, checkpoint, [checkpoint])
    assert numbers(url) == [3, 4, *range(101, 101 + others)]
    assert table(url).version() == 2 + others


def test_checkpoint_ids_of_another_start_begin_again_and_nothing_is_skipped(url: str) -> None:
    """T14"""
    committed(opened(DeltaSink(url), lineage="first"), 100, [1])
    committed(opened(DeltaSink(url), lineage="second"), 1, [2])
    assert numbers(url) == [1, 2]


def test_an_empty_transaction_is_no_commit(folder: str) -> None:
    """T7"""
    sink = opened(DeltaSink(folder))
    assert sink.pre_commit(sink.begin_transaction(), 1) is None
    sink.commit_globally(1, [])
    assert not there(folder)


def test_what_was_never_decided_is_swept_and_the_table_is_left_alone(url: str) -> None:
    """T8, T9, T15"""
    sink = opened(DeltaSink(url))
    committed(sink, 1, [1])
    decided = pre_committed(sink, 2, [2])
    pre_committed(sink, 3, [3])
    stranger = pre_committed(opened(DeltaSink(url), job="stranger"), 1, [50])
    successor = opened(DeltaSink(url), token=2)
    successor.recover([decided])
    successor.commit_globally(2, [decided])
    assert numbers(url) == [1, 2]
    [left] = until(lambda: len(left := outside_the_log(url)) == 1 and left, "the others are deleted")
    assert left.startswith("_staging/stranger/")
    opened(DeltaSink(url), job="stranger").commit(stranger)


def test_vacuum_after_a_compaction_takes_files_a_restored_checkpoint_still_lists(folder: str) -> None:
    """T4: these files were visible, so the table knows them; a missing file outside the table is noticed."""
    sink = opened(DeltaSink(folder))
    seen = committed(sink, 1, [1])
    decided = pre_committed(sink, 2, [2])
    for info in list(store_of(folder).list("part-")):
        store_of(folder).delete([info.key])
    successor = opened(DeltaSink(folder), token=2)
    successor.recover([seen, decided])
    store_of(folder).delete([info.key for info in store_of(folder).list("part-")])
    with pytest.raises(Corrupt, match="a decided file of 1 row is gone"):
        opened(DeltaSink(folder), token=3).recover([seen, decided])


def test_same_named_job_with_other_checkpoints_keeps_commits_of_the_first_job(folder: str) -> None:
    """T9, T14"""
    sink = opened(DeltaSink(folder), token=3, lineage="production", checkpoints="production")
    decided = pre_committed(sink, 7, [1])
    other = opened(DeltaSink(folder), token=9, lineage="staging", checkpoints="staging")
    other.recover([])
    committed(other, 1, [100])
    sink.commit(decided)
    sink.commit_globally(7, [decided])
    assert sorted(numbers(folder)) == [1, 100]


def test_commit_after_abort_is_an_error_and_abort_after_commit_changes_nothing(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T6"""
    sink = opened(DeltaSink(folder))
    visible = committed(sink, 1, [1])
    sink.abort(visible)
    assert numbers(folder) == [1]
    dropped = pre_committed(sink, 2, [2])
    sink.abort(dropped)
    sink.abort(dropped)
    with pytest.raises(Corrupt, match="a decided file of 1 row is gone"):
        sink.commit(dropped)
    monkeypatch.setattr(delta_table, "_AGE_TO_CHECK_MS", -(10**9))  # as if they had been written long ago
    with pytest.raises(Corrupt, match=r"decided files are gone from the table .*part-00000002-.*vacuum"):
        sink.commit_globally(2, [dropped])
    assert numbers(folder) == [1]


# ---------------------------------------------------------------- two committers


def test_a_zombie_that_read_the_table_before_its_successor_committed_loses(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T12, Z11: both sinks have read that checkpoint 1 is not committed; then both commit the checkpoint."""
    zombie = opened(DeltaSink(url))
    zombie.commit_globally(1, [committed(zombie, 1, [0])])
    one = pre_committed(zombie, 2, [1])
    successor = opened(DeltaSink(url), token=2)
    successor.recover([one])
    two = pre_committed(successor, 3, [2])
    successor.commit(two)
    append = DeltaLog._append
    outcomes: list[str] = []

    def overtaken(log: DeltaLog, *what: Any) -> None:
        monkeypatch.setattr(DeltaLog, "_append", append)
        successor.commit_globally(3, [one, two])
        try:
            append(log, *what)
        except Exception as error:
            outcomes.append(str(error))
            raise
        outcomes.append("committed")

    monkeypatch.setattr(DeltaLog, "_append", overtaken)
    zombie.commit_globally(2, [one])
    assert numbers(url) == [0, 1, 2]
    assert outcomes == ["somebody else has written version 2"]


def test_a_successor_that_loses_against_the_zombie_commits_only_what_is_left(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T12"""
    zombie = opened(DeltaSink(url))
    one = pre_committed(zombie, 1, [1])
    successor = opened(DeltaSink(url), token=2)
    successor.recover([one])
    two = pre_committed(successor, 2, [2])
    successor.commit(two)
    append = DeltaLog._append

    def overtaken(log: DeltaLog, *what: Any) -> None:
        monkeypatch.setattr(DeltaLog, "_append", append)
        zombie.commit_globally(1, [one])
        append(log, *what)

    monkeypatch.setattr(DeltaLog, "_append", overtaken)
    successor.commit_globally(2, [one, two])
    assert numbers(url) == [1, 2]
    assert table(url).version() == 2, "one commit each"


def test_an_answer_that_was_lost_is_looked_up_in_the_table(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T10: the commit succeeded, and the sink got no answer."""
    sink = opened(DeltaSink(url))
    append = DeltaLog._append
    calls = 0

    def unanswered(log: DeltaLog, *what: Any) -> None:
        nonlocal calls
        calls += 1
        append(log, *what)
        raise OSError("timed out")

    monkeypatch.setattr(DeltaLog, "_append", unanswered)
    committed(sink, 1, [1])
    assert calls == 1
    assert numbers(url) == [1]


def test_a_table_that_never_takes_the_commit_is_unavailable_and_says_why(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4"""
    sink = opened(DeltaSink(folder))
    one = pre_committed(sink, 1, [1])
    sink.commit(one)
    append = DeltaLog._append

    def refuse(*_: Any) -> None:
        raise OSError("\x1b[31mthe disk\x1b[0m is full")

    monkeypatch.setattr(DeltaLog, "_append", refuse)
    with pytest.raises(Unavailable, match=r"7 attempts .the disk is full .OSError"):
        sink.commit_globally(1, [one])
    monkeypatch.setattr(DeltaLog, "_append", append)
    sink.commit_globally(1, [one])
    assert numbers(folder) == [1]


def _commit_in_a_process(places: Sequence[tuple[str, bytes]], start: Any, done: Any) -> None:
    for url, one in places:
        sink = opened(DeltaSink(url), token=2)
        start.wait()
        sink.commit_globally(1, [one])
    done.put(True)


def test_four_processes_that_commit_at_once_make_one_table_and_one_commit(folder: str, s3: S3Server) -> None:
    """T12: no process finds a table; delta-rs's own creation would admit two of them. The start of the processes takes
    longest, so each process commits into four tables in a folder and four on S3.
    """
    spawn = multiprocessing.get_context("spawn")
    places = []
    for url in (f"{where}/{number}" for where in (folder, s3.url) for number in range(4)):
        first = opened(DeltaSink(url))
        one = pre_committed(first, 1, [1, 2])
        first.commit(one)
        places.append((url, one))
    start, done = spawn.Barrier(4), spawn.Queue()
    processes = [spawn.Process(target=_commit_in_a_process, args=(places, start, done)) for _ in range(4)]
    for process in processes:
        process.start()
    assert [done.get(timeout=300) for _ in processes] == [True] * 4
    for process in processes:
        process.join()
    for place, _ in places:
        assert numbers(place) == [1, 2]
        assert table(place).version() == 1


def test_other_writers_and_compactions_beside_us_cost_no_row(url: str) -> None:
    """T12: appends without our marker, and OPTIMIZE, while twenty checkpoints commit."""
    sink = opened(DeltaSink(url))
    committed(sink, 1, [0])
    going = threading.Event()
    appended: list[int] = []

    def others() -> None:
        for number in range(1_000, 1_008):
            write_deltalake(
                table(url), pa.table({"n": [number]}, schema=SCHEMA), mode="append",
                commit_properties=CommitProperties(max_commit_retries=200),
            )  # fmt: skip
            appended.append(number)
            going.set()

    beside = threading.Thread(target=others)
    beside.start()
    going.wait(30)
    for checkpoint in range(2, 22):
        committed(sink, checkpoint, [checkpoint])
        if checkpoint % 10 == 0:
            table(url).optimize.compact(commit_properties=CommitProperties(max_commit_retries=200))
    beside.join()
    assert len(appended) == 8
    assert numbers(url) == sorted([0, *range(2, 22), *appended])


def test_a_commit_that_loses_twenty_races_to_another_writer_is_still_made(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(DeltaSink(folder))
    committed(sink, 1, [0])
    append, races = DeltaLog._append, iter(range(20))

    def beaten(log: DeltaLog, *what: Any) -> None:
        if (number := next(races, None)) is not None:
            write_deltalake(table(folder), pa.table({"n": [1_000 + number]}, schema=SCHEMA), mode="append")
        append(log, *what)

    monkeypatch.setattr(DeltaLog, "_append", beaten)
    committed(sink, 2, [1])
    assert numbers(folder) == [0, 1, *range(1_000, 1_020)]


def test_commits_stay_conditional_where_the_environment_allows_unsafe_ones(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    url = f"{s3.url}/unsafe"
    zombie = opened(DeltaSink(url))
    one = pre_committed(zombie, 1, [1])
    zombie.commit(one)
    append = DeltaLog._append
    successor = opened(DeltaSink(url), token=2)

    def overtaken(log: DeltaLog, *what: Any) -> None:
        monkeypatch.setattr(DeltaLog, "_append", append)
        successor.commit_globally(1, [one])
        append(log, *what)

    monkeypatch.setattr(DeltaLog, "_append", overtaken)
    zombie.commit_globally(1, [one])
    assert numbers(url) == [1]


def test_the_marker_outlives_a_retention_of_nothing_and_the_logs_own_checkpoints(folder: str) -> None:
    """A marker that expired would let a repeated commit in."""
    sink = opened(DeltaSink(folder))
    one = committed(sink, 1, [1])
    table(folder).alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 0 seconds", "delta.checkpointInterval": "2"},
        raise_if_not_exists=False,
    )
    for checkpoint in range(2, 8):
        committed(sink, checkpoint, [checkpoint])
    table(folder).create_checkpoint()
    late = opened(DeltaSink(folder), token=2)
    late.commit_globally(7, [one])
    assert numbers(folder) == list(range(1, 8))
    assert any(key.endswith(".checkpoint.parquet") for key in (i.key for i in store_of(folder).list("_delta_log/")))


# ---------------------------------------------------------------- rows, types, partitions

WIDE = pa.schema(
    [
        ("i8", pa.int8()), ("i32", pa.int32()), ("f", pa.float64()), ("b", pa.bool_()), ("s", pa.string()),
        ("raw", pa.binary()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("ms")),
        ("price", pa.decimal128(10, 2)), ("tags", pa.list_(pa.string())),
        ("code", pa.dictionary(pa.int32(), pa.string())),
        ("both", pa.struct([("x", pa.int64()), ("y", pa.float32())])), ("map", pa.map_(pa.string(), pa.int64())),
    ]
)  # fmt: skip


def wide_rows() -> pa.RecordBatch:
    at = datetime.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=datetime.timezone.utc)
    full = {
        "i8": -5, "i32": 7, "f": float("nan"), "b": True, "s": "Zürich", "raw": b"\x00\xff",
        "day": datetime.date(2024, 2, 29), "at": at, "local": datetime.datetime(2024, 2, 29, 1, 2, 3, 4000),
        "price": decimal.Decimal("12.34"), "tags": ["a", None], "code": "c", "both": {"x": 1, "y": 0.5},
        "map": [("k", 1)],
    }  # fmt: skip
    return pa.RecordBatch.from_pylist([full, dict.fromkeys(full)], schema=WIDE)


def test_every_type_comes_back_as_it_was(url: str) -> None:
    rows = wide_rows()
    sink = opened(DeltaSink(url))
    committed(sink, 1, rows)
    committed(opened(DeltaSink(url), token=2), 2, rows)
    back = table(url).to_pyarrow_table().to_pylist()
    assert len(back) == 4
    expected = rows.to_pylist()[0]
    for row in (row for row in back if row["i8"] is not None):
        assert row.pop("f") != row.get("f", 0), "NaN"
        assert row == {name: value for name, value in expected.items() if name != "f"}


def test_nanoseconds_are_kept_as_microseconds_or_refused_with_their_row(folder: str) -> None:
    at = [1_700_000_000_123_456_000, None, -1_000]
    rows = pa.record_batch(
        {
            "at": pa.array(at, pa.timestamp("ns", "Europe/Berlin")),
            "all": pa.array([at] * 3, pa.list_(pa.timestamp("ns"))),
        }
    )
    committed(opened(DeltaSink(folder)), 1, rows)
    back = table(folder).to_pyarrow_table()
    assert back.column("at").cast(pa.int64()).to_pylist() == [1_700_000_000_123_456, None, -1]
    inner = back.column("all").combine_chunks().values.cast(pa.int64())
    assert inner.to_pylist()[:3] == [1_700_000_000_123_456, None, -1]
    for name, wrong in (
        ("at", pa.array([0, 1, 2], pa.timestamp("ns"))),
        ("all", pa.array([[0], [1], []], rows["all"].type)),
    ):
        with pytest.raises(
            InvalidJob, match=rf"column '{name}' .* of row 1 of the checkpoint .* round it to microseconds"
        ):
            pre_committed(opened(DeltaSink(f"{folder}-{name}")), 1, pa.record_batch({name: wrong}))


def test_partitions_are_cut_by_value_and_keep_the_order_of_their_rows(url: str) -> None:
    schema = pa.schema([("n", pa.int64()), ("city", pa.string()), ("day", pa.date32()), ("ok", pa.bool_())])
    days = [datetime.date(2024, 1, 1), None]
    rows = [
        {"n": n, "city": ["A b/c=d%20", "Zürich", None, ""][n % 4], "day": days[n % 2], "ok": n % 3 == 0}
        for n in range(48)
    ]
    sink = opened(DeltaSink(url, partition_by=["city", "day", "ok"]))
    committed(sink, 1, pa.RecordBatch.from_pylist(rows, schema=schema))
    back = table(url).to_pyarrow_table(columns=["n", "city", "day", "ok"]).to_pylist()
    for row in rows:
        row["city"] = row["city"] or None  # the format has no empty text in partitions
    assert sorted(back, key=lambda row: row["n"]) == rows
    for part in table(url).to_pyarrow_dataset().get_fragments():
        values = part.to_table(columns=["n"]).column("n").to_pylist()
        assert values == sorted(values)
    assert table(url).metadata().partition_columns == ["city", "day", "ok"]
    of_one = table(url).to_pyarrow_table(filters=[("city", "=", "Zürich")], columns=["n"])
    assert of_one.num_rows == 12


def test_readers_may_skip_files_by_what_the_log_says_of_them(folder: str) -> None:
    sink = opened(DeltaSink(folder))
    committed(sink, 1, [1, 2, 3])
    committed(sink, 2, [10, 11])
    actions = pa.table(table(folder).get_add_actions(flatten=True)).to_pylist()
    assert sorted((a["num_records"], a["min.n"], a["max.n"], a["null_count.n"]) for a in actions) == [
        (2, 10, 11, 0),
        (3, 1, 3, 0),
    ]


def test_statistics_leave_out_what_would_mislead() -> None:
    long = "x" * 40
    rows = pa.table(
        {
            "nan": [1.0, float("nan")], "inf": [1.0, float("inf")], "long": ["a", long],
            "none": pa.array([None, None], pa.int64()),
            "at": pa.array([1, None], pa.timestamp("us")), "s": ["b", "a"],
        }
    )  # fmt: skip
    said = json.loads(data_files.statistics(rows))
    assert said["minValues"] == {"at": "1970-01-01T00:00:00.000001", "s": "a"}
    assert said["maxValues"] == {"at": "1970-01-01T00:00:00.000001", "s": "b"}
    assert said["nullCount"] == {"nan": 0, "inf": 0, "long": 0, "none": 2, "at": 1, "s": 0}
    assert said["numRecords"] == 2


def test_a_large_transaction_is_staged_early_in_several_files(folder: str) -> None:
    sink = opened(DeltaSink(folder, max_bytes_in_memory=20_000))
    transaction = sink.begin_transaction()
    for start in range(0, 1_000, 10):
        sink.write(transaction, pa.RecordBatch.from_pydict({"n": list(range(start, start + 10))}, schema=SCHEMA))
        early = sink.stage_early(transaction)
        if early is not None:
            early()
    assert len(outside_the_log(folder)) >= 5, "before any barrier"
    committable = sink.pre_commit(transaction, 1)
    assert committable is not None
    sink.commit(committable)
    sink.commit_globally(1, [committable])
    assert numbers(folder) == list(range(1_000))


# ---------------------------------------------------------------- existing tables


def existing(url: str, schema: pa.Schema, **settings: Any) -> None:
    DeltaTable.create(url, Schema.from_arrow(schema), **settings)


def test_an_existing_table_is_appended_to_and_columns_it_has_more_are_null(folder: str) -> None:
    existing(folder, pa.schema([("more", pa.string()), ("n", pa.int64())]), partition_by=["more"])
    existing(folder + "2", pa.schema([("more", pa.string()), ("n", pa.int64())]))
    with pytest.raises(InvalidJob, match="partition_by names 'more', but the rows have the columns n"):
        committed(opened(DeltaSink(folder)), 1, [1])
    committed(opened(DeltaSink(folder + "2")), 1, [1])
    assert table(folder + "2").to_pyarrow_table().to_pylist() == [{"more": None, "n": 1}]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (pa.schema([("m", pa.int64())]), r"has no column 'n' \(it has m\): add it to the table"),
        (pa.schema([("n", pa.int32())]), "column 'n' is long, in the table .* it is integer: cast it"),
        (pa.schema([("n", pa.string())]), "column 'n' is long, in the table .* it is string: cast it"),
        (
            pa.schema([pa.field("n", pa.int64()), pa.field("must", pa.int64(), nullable=False)]),
            r"demands a value in \['must'\]",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_the_first_row(folder: str, schema: pa.Schema, says: str) -> None:
    existing(folder, schema)
    sink = opened(DeltaSink(folder))
    with pytest.raises(InvalidJob, match=says):
        pre_committed(sink, 1, [1])
    assert outside_the_log(folder) == []


def test_a_table_that_does_not_fit_any_more_is_refused_at_the_commit(folder: str) -> None:
    sink = opened(DeltaSink(folder))
    one = pre_committed(sink, 1, [1])
    sink.commit(one)
    existing(folder, pa.schema([("n", pa.string())]))
    with pytest.raises(InvalidJob, match=r"column 'n' is long, in the table .* it is string"):
        sink.commit_globally(1, [one])


def test_other_partitions_than_the_tables_are_refused(folder: str) -> None:
    schema = pa.schema([("n", pa.int64()), ("p", pa.string())])
    existing(folder, schema, partition_by=["p"])
    rows = pa.RecordBatch.from_pylist([{"n": 1, "p": "x"}], schema=schema)
    with pytest.raises(InvalidJob, match=r"partition_by is \['n'\], the table .* is partitioned by \['p'\]"):
        pre_committed(opened(DeltaSink(folder, partition_by="n")), 1, rows)
    committed(opened(DeltaSink(folder)), 1, rows)
    assert table(folder).partitions() == [{"p": "x"}]


def test_a_table_with_rules_that_an_append_could_break_is_refused_at_the_start(folder: str) -> None:
    existing(folder, SCHEMA)
    table(folder).alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(InvalidJob, match=r"has delta\.constraints\.positive, which this sink cannot keep"):
        opened(DeltaSink(folder))


def test_nulls_that_the_table_forbids_are_refused_before_they_are_staged(folder: str) -> None:
    existing(folder, pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    rows = pa.RecordBatch.from_pydict({"n": [1, None]}, schema=SCHEMA)
    with pytest.raises(InvalidJob, match="column 'n' has nulls, which the table does not allow"):
        pre_committed(opened(DeltaSink(folder)), 1, rows)


NESTED = [
    ("list", pa.list_(pa.field("element", pa.string(), False)), [["a"], None, [], ["b", None]], r"c\[\] of row 3"),
    ("struct", pa.struct([pa.field("a", pa.int64(), False)]), [None, {"a": 1}, {"a": None}], r"c\.a of row 2"),
    (
        "map",
        pa.map_(pa.string(), pa.field("value", pa.int64(), False)),
        [None, [("k", 1)], [], [("k", 1), ("l", None)]],
        r"c\[\]\.value of row 3",
    ),
    (
        "list of structs of lists",
        pa.list_(pa.struct([("n", pa.int64()), pa.field("l", pa.list_(pa.field("element", pa.int64(), False)))])),
        [[{"n": None, "l": None}, None], None, [{"n": 1, "l": [1]}, {"n": 1, "l": [2, None]}]],
        r"c\[\]\.l\[\] of row 2",
    ),
]


@pytest.mark.parametrize(("kind", "values", "place"), [each[1:] for each in NESTED], ids=[each[0] for each in NESTED])
def test_nested_nulls_that_the_table_forbids_are_refused_and_others_kept(
    folder: str, kind: pa.DataType, values: list[Any], place: str
) -> None:
    existing(folder, pa.schema([("n", pa.int64()), ("c", kind)]))
    plain = pa.schema([("n", pa.int64()), ("c", without_demands(kind))])
    rows = pa.record_batch([pa.array(range(len(values))), pa.array(values, plain.field("c").type)], schema=plain)
    committed(opened(DeltaSink(folder)), 1, rows[:-1])
    read = QueryBuilder().register("t", table(folder)).execute("select n from t where c is null or c is not null")
    assert len(pa.table(read.read_all())) == len(values) - 1  # PyArrow's own reader refuses a null struct
    with pytest.raises(InvalidJob, match=rf"column 'c' has nulls, .* fill or filter them.* The first is {place}: "):
        pre_committed(opened(DeltaSink(folder), token=2), 2, rows)


def without_demands(kind: pa.DataType) -> pa.DataType:
    """The same type as rows have it, whose nested fields are all nullable."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, without_demands(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, without_demands(kind.item_type))
    return pa.list_(without_demands(kind.value_type)) if pa.types.is_list(kind) else kind


def test_empty_text_where_partitions_allow_no_null_is_refused(folder: str) -> None:
    schema = pa.schema([("n", pa.int64()), pa.field("p", pa.string(), nullable=False)])
    existing(folder, schema, partition_by=["p"])
    rows = pa.RecordBatch.from_pydict({"n": [1, 2], "p": ["x", ""]})
    with pytest.raises(InvalidJob, match="partition column 'p' has empty text, which Delta Lake stores as null"):
        pre_committed(opened(DeltaSink(folder)), 1, rows)
    committed(opened(DeltaSink(folder)), 1, rows[:1])
    assert table(folder).partitions() == [{"p": "x"}]


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (pa.schema([("n", pa.uint32())]), "column 'n' is uint32, which Delta Lake cannot hold: cast it or leave it"),
        (pa.schema([("for", pa.duration("ms"))]), r"column 'for' is duration\[ms\]"),
        (pa.schema([("t", pa.list_(pa.time64("us")))]), "column 't' is time64"),
        (pa.schema([("a", pa.int64()), ("A", pa.int64())]), "there twice for Delta, which ignores case"),
    ],
)
def test_columns_that_delta_cannot_hold_are_refused_with_the_first_row(
    folder: str, schema: pa.Schema, says: str
) -> None:
    sink = opened(DeltaSink(folder))
    with pytest.raises(InvalidJob, match=says):
        sink.write(sink.begin_transaction(), pa.RecordBatch.from_pylist([{}], schema=schema))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["x"], "partition_by names 'x', but the rows have the columns n, f"),
        (["f"], "cannot partition by 'f' of type double"),
        (["n", "f"], "cannot partition by 'f'"),
    ],
)
def test_partition_columns_that_cannot_be_are_refused(folder: str, columns: list[str], says: str) -> None:
    sink = opened(DeltaSink(folder, partition_by=columns))
    rows = pa.RecordBatch.from_pydict({"n": [1], "f": [0.5]})
    with pytest.raises(InvalidJob, match=says):
        sink.write(sink.begin_transaction(), rows)


def test_a_bucket_that_is_not_there_and_a_folder_in_the_way_are_named(s3: S3Server, tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"cannot write to s3://no-such-bucket/t: .*does not exist: create it"):
        opened(DeltaSink("s3://no-such-bucket/t"))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InvalidJob, match=r"cannot write to .*file/out"):
        opened(DeltaSink(str(tmp_path / "file" / "out")))


def test_a_store_that_ignores_the_condition_of_a_put_is_refused(s3: S3Server) -> None:
    """O9: two writers of the table could both commit the same version."""
    url = f"{s3.url}/careless?client=boto3"
    store = store_of(url)
    assert isinstance(store, S3Store)

    def forget(params: dict[str, Any], **_: Any) -> None:
        params["headers"].pop("If-None-Match", None)

    store._client.meta.events.register("before-call.s3.PutObject", forget)
    with pytest.raises(InvalidJob, match="ignores If-None-Match"):
        opened(DeltaSink(url))
    assert list(store.list("")) == []


def test_a_url_with_a_password_or_of_another_scheme_is_refused() -> None:
    with pytest.raises(InvalidJob) as caught:
        DeltaSink("s3://key:canary-secret@bucket/t")
    assert "canary" not in str(caught.value)
    with pytest.raises(InvalidJob, match="cannot write to memory://x: use a folder"):
        DeltaSink("memory://x")


def test_settings_make_an_equal_sink(folder: str) -> None:
    sink = DeltaSink(folder, partition_by="p")
    assert DeltaSink(**json.loads(json.dumps(sink.settings()))).settings() == sink.settings()
    assert sink.kind == "delta"


@pytest.mark.parametrize(
    ("wrong", "kind"), [(b"\x80\x04K\x01.", Corrupt), (b"{}", Corrupt), (b'{"version":9}', InvalidJob)]
)
def test_bytes_that_are_no_committable_are_refused(folder: str, wrong: bytes, kind: type[Exception]) -> None:
    """B4, B6"""
    sink = opened(DeltaSink(folder))
    for decide in (sink.commit, sink.abort, lambda data: sink.commit_globally(1, [data])):
        with pytest.raises(kind, match="job 'job', sink 'out', subtask 0"):
            decide(wrong)


def test_a_strangers_committable_is_refused(folder: str) -> None:
    """B1"""
    other = pre_committed(opened(DeltaSink(folder), job="stranger"), 1, [1])
    sink = opened(DeltaSink(folder))
    for decide in (sink.commit, sink.abort, lambda data: sink.commit_globally(1, [data])):
        with pytest.raises(Corrupt, match="none of this sink"):
            decide(other)
    assert len(outside_the_log(folder)) == 1


def test_a_server_that_is_away_delays_the_commit_and_nothing_is_lost(s3: S3Server) -> None:
    """T4, T10"""
    url = f"{s3.url}/away"
    sink = opened(DeltaSink(url))
    committed(sink, 1, [1])
    two = pre_committed(sink, 2, [2])
    sink.commit(two)
    s3.kill()
    with pytest.raises(Unavailable):
        sink.commit_globally(2, [two])
    s3.start()
    sink.commit_globally(2, [two])
    assert numbers(url) == [1, 2]


def test_a_committable_says_what_the_log_will_say(folder: str) -> None:
    sink = opened(DeltaSink(folder))
    decoded = decode_delta_committable(pre_committed(sink, 5, [1, 2]), "job", "out", "here")
    assert (decoded.application, decoded.checkpoint, decoded.fields) == ("job/out/lineage", 5, {"n": "long"})
    [each] = decoded.files
    assert each.file.final.startswith("part-00000005-0-1-")
    assert each.file.rows == 2
    assert each.file.size > 0
