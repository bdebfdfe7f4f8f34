"""File sinks with a crash at every write: readers see every row of every decided checkpoint exactly once."""

import base64
import datetime
import hashlib
import io
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest
from sink_harness import (
    SCHEMA,
    Crash,
    CrashingStore,
    Job,
    Subtask,
    crashed_everywhere,
    numbers_in,
    numbers_in_commit_log,
    staged_in,
    visible_in,
)

from barrier_runtime.connectors.files.sink.sink import CsvSink, FileSink, JsonlSink, ParquetSink
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases import encoders
from barrier_runtime.connectors.sink_bases.file_committable import (
    StagedFile,
    Sweep,
    decode_committable,
    encode_committable,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store
from tests.first_record import begin_log
from tests.waiting import until

MakeStore = Callable[[], ObjectStore]


def jsonl() -> JsonlSink:
    return JsonlSink("memory://target")


@pytest.fixture(params=["memory", "folder", "s3"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """Returns a function that makes a new empty store per call."""
    made = iter(range(1_000_000))
    if request.param == "memory":
        return lambda: MemoryStore()
    if request.param == "folder":
        return lambda: LocalStore(tmp_path / str(next(made)))
    s3_url = request.getfixturevalue("s3_url")
    return lambda: open_store(s3_url(f"target-{next(made)}"))


def opened(
    sink: FileSink,
    store: ObjectStore,
    token: int = 1,
    job_store: ObjectStore | None = None,
    lineage: str = "lineage",
) -> FileSink:
    sink.open(SinkContext("job", "out", token, 0, 1, lambda url: store, job_store or store, lineage))
    return sink


def pre_committed(sink: FileSink, checkpoint: int, numbers: list[int]) -> bytes:
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.RecordBatch.from_pydict({"n": numbers}, schema=SCHEMA))
    committable = sink.pre_commit(transaction, checkpoint)
    assert committable is not None
    return committable


def job_store(log: str, place: str = "memory") -> MemoryStore:
    store = MemoryStore(place)
    begin_log(store, "job", log)
    return store


# ---------------------------------------------------------------- crashes


@pytest.mark.slow
def test_a_crash_before_or_after_any_write_loses_and_doubles_nothing(make_store: MakeStore) -> None:
    """T3, T10: the run dies before and after every put, publish and delete."""
    assert crashed_everywhere(make_store, jsonl, CrashingStore, staged_in, late_commits=True) >= 10


@pytest.mark.slow
def test_so_it_is_where_each_commit_comes_at_once() -> None:
    assert crashed_everywhere(MemoryStore, jsonl, CrashingStore, staged_in, late_commits=False) >= 10


@pytest.mark.parametrize("apart", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_crashes_inside_the_recovery_of_a_crash_change_nothing(apart: int) -> None:
    """T10: a crash, a crash in the recovery, and a crash in the recovery from that."""
    for first in range(0, 40, apart):
        for second in range(12):
            store, job = MemoryStore(), Job(jsonl, late_commits=True)
            for crash_at in (first, second, second // 2, None):
                try:
                    job.run(CrashingStore(store, crash_at))
                except Crash:
                    continue
            assert numbers_in(store) == list(range(6)), (first, second)
            assert numbers_in_commit_log(store) == list(range(6)), (first, second)
            assert staged_in(store) == [], (first, second)


@pytest.mark.parametrize("operation", ["put", "publish", "delete"])
@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.APPLY_THEN_FAIL, Fault.LAND_LATE])
def test_a_store_that_fails_or_answers_late_only_delays(operation: str, fault: Fault, store: MemoryStore) -> None:
    """T4, T10: operations of unknown outcome are repeated; late writes land at the worst time."""
    subtask = Subtask(jsonl, store)
    store.inject(fault, operation, times=3)
    subtask.write([1])
    snapshot = subtask.barrier(1)
    for _ in range(3):
        try:
            snapshot()
            break
        except Unavailable:
            continue
    subtask.write([2])
    subtask.barrier(2)()
    subtask.complete(2)
    for _ in range(4):
        subtask.pass_time()
    store.land_late()
    assert numbers_in(store) == [1, 2]
    assert subtask.reports.committed_checkpoints[-1] == 2
    if operation == "publish":
        assert [attempts for _, attempts, _ in subtask.reports.failing] == [1, 2, 3]
    store.heal()
    Subtask(jsonl, store, token=2)
    assert staged_in(store) == []


def test_a_store_that_cannot_list_in_recovery_delays_commits_and_not_rows(store: MemoryStore) -> None:
    """T4: the clean-up of leftovers is part of the recovery and is repeated with the recovery."""
    pre_committed(opened(jsonl(), store), 1, [5])
    store.inject(Fault.FAIL_BEFORE, "list", times=2)
    subtask = Subtask(jsonl, store, token=2)
    subtask.write([1])
    subtask.barrier(1)()
    subtask.complete(1)
    assert "part-" not in "".join(store.keys())
    for _ in range(2):
        subtask.pass_time()
    assert numbers_in(store) == [1]
    assert staged_in(store) == []


def test_a_failed_pre_commit_keeps_its_rows_for_the_next_checkpoint(store: MemoryStore) -> None:
    subtask = Subtask(jsonl, store)
    subtask.write([1])
    store.inject(Fault.FAIL_BEFORE, "put")
    with pytest.raises(Unavailable):
        subtask.barrier(1)()
    subtask.operator.on_abort(1)
    subtask.write([2])
    second = subtask.barrier(2)()
    subtask.complete(2)
    assert numbers_in(store) == [1, 2]
    assert len(json.loads(second.values["pending"])["entries"]) == 2


def test_a_commit_that_fails_in_recovery_is_tried_until_it_succeeds(store: MemoryStore) -> None:
    """T4"""
    first = Subtask(jsonl, store)
    first.write([1, 2])
    decided = first.barrier(1)()
    store.inject(Fault.FAIL_BEFORE, "publish", times=3)
    second = Subtask(jsonl, store, token=2, restored=(decided,))
    assert numbers_in(store) == []
    second.write([3])
    assert second.reports.failing[0][:2] == (1, 1)
    undecided = second.barrier(2)()
    assert len(json.loads(undecided.values["pending"])["entries"]) == 2, "the old one is still listed"
    for _ in range(3):
        second.pass_time()
    assert numbers_in(store) == [1, 2]
    assert second.reports.committed_checkpoints == [1]
    second.complete(2)
    assert numbers_in(store) == [1, 2, 3]


# ---------------------------------------------------------------- clean-up rights


@pytest.mark.slow
def test_what_an_expired_checkpoint_staged_is_visible_once_with_the_next(make_store: MakeStore) -> None:
    """T15, first half"""
    store = make_store()
    subtask = Subtask(jsonl, store)
    subtask.write([1])
    subtask.barrier(1)()
    subtask.operator.on_abort(1)
    subtask.write([2])
    subtask.barrier(2)()
    subtask.complete(2)
    assert numbers_in(store) == [1, 2]


def test_a_sink_that_restores_its_own_rows_does_not_try_whether_it_may_write(store: MemoryStore) -> None:
    """The snapshot proves that a sink with these settings has staged rows there. Another sink writes a probe."""
    subtask = Subtask(jsonl, store)
    subtask.write([1])
    restored = (subtask.barrier(1)(),)
    written: list[str] = []
    put = store.put
    store.put = lambda key, data: (written.append(key), put(key, data))[1]  # type: ignore[method-assign]
    Subtask(jsonl, store, token=2, restored=restored)
    assert [key for key in written if key.endswith(".probe")] == []
    Subtask(lambda: JsonlSink("memory://elsewhere"), store, token=3, restored=restored)
    assert len([key for key in written if key.endswith(".probe")]) == 1
    assert numbers_in(store) == [1]


def test_a_sink_whose_checkpoint_has_no_rows_tries_whether_it_may_write(store: MemoryStore) -> None:
    restored = (Subtask(jsonl, store).barrier(1)(),)
    store.inject(Fault.FAIL_BEFORE, "put", "probe")
    with pytest.raises(Unavailable):
        Subtask(jsonl, store, token=2, restored=restored)


def test_what_an_expired_checkpoint_staged_is_swept_after_a_restart(make_store: MakeStore) -> None:
    """T15, second half"""
    store = make_store()
    subtask = Subtask(jsonl, store)
    subtask.write([1])
    subtask.barrier(1)()
    subtask.operator.on_abort(1)
    assert len(staged_in(store)) == 1
    successor = Subtask(jsonl, store, token=2)
    until(lambda: staged_in(store) == [])
    successor.write([1, 2])
    successor.barrier(2)()
    successor.complete(2)
    assert numbers_in(store) == [1, 2]


def test_leftovers_of_five_subtasks_are_swept_by_one_and_decided_ones_are_committed(store: MemoryStore) -> None:
    """T8, T9: restarted at 5 → 1 → 3 while commits of the first generation are still outstanding."""
    five = [Subtask(jsonl, store, 1, subtask=s, parallelism=5) for s in range(5)]
    for s, subtask in enumerate(five):
        subtask.write([s])
    decided = tuple(subtask.barrier(1)() for subtask in five)
    for s, subtask in enumerate(five):
        subtask.write([100 + s])
        subtask.barrier(2)()  # never decided
    store.inject(Fault.FAIL_BEFORE, "publish", times=None)
    one = Subtask(jsonl, store, 2, restored=decided)
    one.write([50])
    decided = (one.barrier(3)(),)  # lists the first generation's decided files, none of which could be committed yet
    assert len(staged_in(store)) == 5 + 5 + 1
    store.heal()
    for s in range(3):
        Subtask(jsonl, store, 3, restored=decided, subtask=s, parallelism=3)
        left = [key for key in staged_in(store) if int(key.split("/")[-1].split("-")[0]) % 3 == s]
        assert left == [], "committed or swept by its one owner"
    assert sorted(numbers_in(store)) == [0, 1, 2, 3, 4, 50]
    assert staged_in(store) == []


OWN, OTHER = "a" * 16, "b" * 16  # tags of two decision logs


@pytest.mark.parametrize(
    ("key", "taken"),
    [
        (f"_staging/job/out/7/3-{OWN}00aa11bb-12.parquet", True),
        (f"_staging/job/out/8/3-{OWN}00aa11bb-12.parquet", False),  # our own generation
        (f"_staging/job/out/9/3-{OWN}00aa11bb-12.parquet", False),  # a newer generation: we are the zombie
        (f"_staging/job/out/7/2-{OWN}00aa11bb-12.parquet", False),  # another subtask's share
        (f"_staging/job/out/7/3-{OTHER}00aa11bb-12.parquet", False),  # another log, which may have decided the file
        ("_staging/job/out/7/3-00aa11bb-12.parquet", False),  # of a release without tags: the owner is unknown
        (
            "_staging/job/out/7/3-0123abcd-12.parquet",
            True,
        ),  # the same, but a committable of this sink has the incarnation
        ("_staging/job/out/8/3-0123abcd-12.parquet", False),
        (f"_staging/job/out/7/3-{OWN}-12.parquet", False),
        ("_staging/job/out/7/notes.txt", False),
    ],
)
def test_only_staged_files_of_own_log_older_tokens_and_own_subtasks_are_leftovers(key: str, taken: bool) -> None:
    """T9"""
    sweep = Sweep(8, 1, 2, OWN, frozenset({"0123abcd"}))
    assert sweep.takes_staged(key) is taken


@pytest.mark.slow
def test_same_named_job_with_other_checkpoints_keeps_commits_of_the_first_job(
    make_store: MakeStore,
) -> None:
    """T9, T14: staging and production share an output folder; their tokens are positions in two logs."""
    store = make_store()
    production, staging = job_store("production"), job_store("staging")
    first = opened(jsonl(), store, token=3, job_store=production)
    decided = pre_committed(first, 7, [1, 2])
    undecided = pre_committed(first, 8, [3])
    second = opened(jsonl(), store, token=9, job_store=staging)
    second.recover([])
    second.commit(pre_committed(second, 1, [100]))
    first.commit(decided)
    assert sorted(numbers_in(store)) == [1, 2, 100]
    opened(jsonl(), store, token=4, job_store=production).recover([decided])
    until(lambda: staged_in(store) == [])  # the successor in the same log drops undecided files
    with pytest.raises(Corrupt, match="is gone"):
        first.commit(undecided)


def test_a_new_lineage_of_the_same_log_sweeps_what_the_one_before_left(make_store: MakeStore) -> None:
    """T9: `restore="none"` begins a lineage; fencing tokens keep rising."""
    store, checkpoints = make_store(), job_store("production")
    pre_committed(opened(jsonl(), store, token=3, job_store=checkpoints, lineage="first"), 7, [1])
    opened(jsonl(), store, token=4, job_store=checkpoints, lineage="second").recover([])
    until(lambda: staged_in(store) == [])


def test_a_copy_of_a_log_elsewhere_is_another_log(make_store: MakeStore) -> None:
    """T9: checkpoints were copied, and the job of the old place still runs."""
    store = make_store()
    decided = pre_committed(opened(jsonl(), store, token=3, job_store=job_store("one", "old")), 7, [1])
    opened(jsonl(), store, token=9, job_store=job_store("one", "new")).recover([])
    opened(jsonl(), store, token=3, job_store=job_store("one", "old")).commit(decided)
    assert numbers_in(store) == [1]


def test_untagged_files_of_old_releases_are_committed_or_swept_only_if_proven_own(
    make_store: MakeStore,
) -> None:
    """T9, O3: an upgrade after a crash; the manifest contains the last incarnation's committable."""
    store, data = make_store(), b'{"n":5}\n'
    decided, left, strangers = (f"_staging/job/out/2/0-{name}.jsonl" for name in ("00aa11bb-1", "00aa11bb-2", "ccdd-1"))
    for key in (decided, left, strangers):
        store.put(key, data)
    file = StagedFile(decided, "part-00000004-0-2-00aa11bb-0.jsonl", hashlib.sha256(data).hexdigest(), 1)
    opened(jsonl(), store, token=3, job_store=job_store("log")).recover([encode_committable((file,))])
    assert numbers_in(store) == [5]
    until(lambda: staged_in(store) == [strangers])


@pytest.mark.slow
def test_two_logs_in_a_folder_share_its_commit_log_and_name_each_file_once(
    make_store: MakeStore,
) -> None:
    """T12, T14: checkpoint ids and tokens of two logs are not comparable, and both repeat their commits."""
    store, owed = make_store(), []
    for token, log, checkpoints in ((3, "production", (7, 8)), (9, "staging", (1, 2))):
        sink = opened(jsonl(), store, token=token, job_store=job_store(log))
        owed += [(token, log, n, pre_committed(sink, n, [token * 10 + n])) for n in checkpoints]
    sinks = {log: opened(jsonl(), store, token=token, job_store=job_store(log)) for token, log, _, _ in owed}
    for _, log, checkpoint, committable in sorted(owed, key=lambda each: each[2] % 3):
        sinks[log].commit(committable)
        sinks[log].commit_globally(checkpoint, [committable])
    for token, log in ((4, "production"), (10, "staging")):
        again = opened(jsonl(), store, token=token, job_store=job_store(log))
        again.commit_globally(9, [committable for _, of, _, committable in owed if of == log])
    assert sorted(numbers_in_commit_log(store)) == [37, 38, 91, 92]


def test_a_zombie_that_commits_late_and_stages_on_changes_nothing_visible(store: MemoryStore) -> None:
    """Z11, T12"""
    zombie = Subtask(jsonl, store)
    zombie.write([1])
    decided = zombie.barrier(1)()
    successor = Subtask(jsonl, store, token=2, restored=(decided,))
    assert numbers_in(store) == [1]
    zombie.write([2])
    zombie.barrier(2)()
    zombie.complete(1)  # the zombie received the decision before it stalled
    assert numbers_in(store) == [1]
    successor.write([2])
    successor.barrier(2)()
    successor.complete(2)
    assert numbers_in(store) == [1, 2]


@pytest.mark.slow
def test_fresh_checkpoint_ids_on_a_used_target_skip_nothing_and_meet_nothing(make_store: MakeStore) -> None:
    """T14: same job, token, ids and even rows."""
    store = make_store()
    for _ in range(2):
        Job(jsonl, rows=2).run(store)
    assert sorted(numbers_in(store)) == [0, 0, 1, 1], "two runs were asked for, two are there"


def test_commit_and_abort_may_be_repeated_and_commit_after_abort_is_an_error(make_store: MakeStore) -> None:
    """T6"""
    store = make_store()
    sink = opened(jsonl(), store)
    for committed in (True, False):
        transaction = sink.begin_transaction()
        sink.write(transaction, pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA))
        committable = sink.pre_commit(transaction, 1 if committed else 2)
        assert committable is not None
        finish = sink.commit if committed else sink.abort
        finish(committable)
        finish(committable)
    assert numbers_in(store) == [1]
    file = decode_committable(committable, "here").files[0]
    with pytest.raises(Corrupt) as caught:
        sink.commit(committable)
    for named in (file.staged, file.final, file.sha256, "1 row", "job 'job', sink 'out', subtask 0"):
        assert named in str(caught.value)


def test_a_decided_file_that_is_gone_stops_the_restart(make_store: MakeStore) -> None:
    store = make_store()
    subtask = Subtask(jsonl, store)
    subtask.write([1])
    decided = subtask.barrier(1)()
    store.delete(staged_in(store))
    with pytest.raises(Corrupt, match=r"_staging/job/out/1/0-.*part-00000001-0-1-"):
        Subtask(jsonl, store, token=2, restored=(decided,))


def test_a_final_file_with_other_content_is_never_overwritten(make_store: MakeStore) -> None:
    store = make_store()
    subtask = Subtask(jsonl, store)
    subtask.write([1])
    decided = subtask.barrier(1)()
    entry = json.loads(decided.values["pending"])["entries"][0][2]
    file = decode_committable(base64.b64decode(entry), "here").files[0]
    store.put(file.final, b'{"n":99}\n')
    with pytest.raises(Corrupt, match="other content"):
        Subtask(jsonl, store, token=2, restored=(decided,))
    assert numbers_in(store) == [99]


# ---------------------------------------------------------------- one transaction


def test_rows_keep_their_order_and_a_large_transaction_is_staged_in_parts(store: MemoryStore) -> None:
    subtask = Subtask(lambda: JsonlSink("memory://target", max_bytes_in_memory=50_000), store)
    for start in range(0, 1_000, 10):
        subtask.write(range(start, start + 10))
    subtask.snapshot_executor.run()
    assert len(staged_in(store)) == 4, "before any barrier"
    assert numbers_in(store) == []
    subtask.barrier(1)()
    subtask.complete(1)
    assert numbers_in(store) == list(range(1_000))
    assert len(visible_in(store)) == 5
    assert all(key.startswith("part-00000001-0-1-") for key in visible_in(store))


def test_early_staging_that_failed_or_never_ran_is_made_up_for_at_the_barrier(store: MemoryStore) -> None:
    subtask = Subtask(lambda: JsonlSink("memory://target", max_bytes_in_memory=1), store)
    store.inject(Fault.FAIL_BEFORE, "put")
    subtask.write([1])
    subtask.snapshot_executor.run()
    assert subtask.metrics.counts["early_staging_failed"] == 1
    subtask.write([2])  # early staging of this row has not run yet
    subtask.barrier(1)()
    subtask.complete(1)
    assert numbers_in(store) == [1, 2]


def test_early_staging_and_the_barrier_do_not_stage_the_same_rows_twice(store: MemoryStore) -> None:
    sink = opened(JsonlSink("memory://target", max_bytes_in_memory=1), store)
    for round_ in range(50):
        transaction = sink.begin_transaction()
        sink.write(transaction, pa.RecordBatch.from_pydict({"n": [round_]}, schema=SCHEMA))
        early = sink.stage_early(transaction)
        assert early is not None
        beside = threading.Thread(target=early)
        beside.start()
        committable = sink.pre_commit(transaction, round_ + 1)
        beside.join()
        assert committable is not None
        sink.commit(committable)
    assert numbers_in(store) == list(range(50))
    assert staged_in(store) == []


def test_an_empty_transaction_leaves_no_file(store: MemoryStore) -> None:
    """T7"""
    subtask = Subtask(jsonl, store)
    subtask.barrier(1)()
    subtask.complete(1)
    assert store.keys() == ()
    assert subtask.reports.committed_checkpoints == [1]


@pytest.mark.slow
@pytest.mark.parametrize("sink", [ParquetSink, JsonlSink, CsvSink])
def test_each_format_keeps_every_row(sink: type[FileSink], make_store: MakeStore) -> None:
    store = make_store()
    Job(lambda: sink("x"), rows=7, rows_per_checkpoint=3).run(store)
    assert numbers_in(store) == list(range(7))


def test_readers_of_a_folder_never_see_what_is_staged(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    subtask = Subtask(lambda: ParquetSink(str(tmp_path)), store)
    subtask.write([1])
    subtask.barrier(1)()
    subtask.complete(1)
    subtask.write([2])
    subtask.barrier(2)()
    assert len(staged_in(store)) == 1
    assert pyarrow.dataset.dataset(tmp_path, format="parquet").to_table().column("n").to_pylist() == [1]


def test_json_lines_hold_times_binary_and_missing_numbers() -> None:
    rows = pa.RecordBatch.from_pylist(
        [
            {"at": datetime.datetime(2013, 1, 1, 5, 15), "raw": b"\x00\xff", "delay": float("nan"), "name": "Zürich"},
            {"at": None, "raw": None, "delay": 1.5, "name": None},
        ]
    )
    first, second = (json.loads(line) for line in encoders.jsonl([rows]).splitlines())
    assert first == {"at": "2013-01-01T05:15:00", "raw": "AP8=", "delay": "NaN", "name": "Zürich"}
    assert second == {"at": None, "raw": None, "delay": 1.5, "name": None}


def test_json_lines_hold_nanoseconds_whole() -> None:
    at = pa.array([1_356_998_400_123_456_789, None], pa.timestamp("ns", "UTC"))
    lines = encoders.jsonl([pa.RecordBatch.from_arrays([at], ["at"])]).splitlines()
    assert [json.loads(line)["at"] for line in lines] == ["2013-01-01T00:00:00.123456789Z", None]


def test_parquet_keeps_the_schema_of_the_stream() -> None:
    import pyarrow.parquet as pq

    schema = pa.schema([("at", pa.timestamp("ms")), ("k", pa.string()), ("v", pa.float64())])
    batches = [pa.RecordBatch.from_pylist([{"at": 1, "k": "a", "v": None}], schema=schema) for _ in range(3)]
    assert pq.read_table(io.BytesIO(encoders.parquet(batches))).schema.equals(schema)


# ---------------------------------------------------------------- bad input


def test_an_unwritable_target_is_refused_before_the_job_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    sink = ParquetSink(str(tmp_path / "file" / "out"))
    with pytest.raises(InvalidJob, match=r"sink 'out', subtask 0: cannot write to .*file/out.*Give ParquetSink"):
        sink.open(SinkContext("job", "out", 1, 0, 1, open_store, MemoryStore(), "lineage"))


def test_a_bucket_that_is_not_there_is_refused_before_the_job_starts(s3_endpoint: str) -> None:
    sink = JsonlSink(f"s3://no-such-bucket/out?endpoint={s3_endpoint}")
    with pytest.raises(InvalidJob, match="cannot write to s3://no-such-bucket/out"):
        sink.open(SinkContext("job", "out", 1, 0, 1, open_store, MemoryStore(), "lineage"))


@pytest.mark.parametrize(
    ("wrong", "kind"), [(b"\x80\x04K\x01.", Corrupt), (b"{}", Corrupt), (b'{"version":9}', InvalidJob)]
)
def test_bytes_that_are_no_committable_are_refused(wrong: bytes, kind: type[Exception]) -> None:
    """B4, B6"""
    sink = opened(jsonl(), MemoryStore())
    with pytest.raises(kind, match="job 'job', sink 'out', subtask 0"):
        sink.commit(wrong)
