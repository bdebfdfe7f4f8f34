"""Commit log of file sinks: each file is named once, whichever process writes, repeats, stalls or resumes."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.connectors.files.sink.commit_log import CommitLog, committed_files, jobs_and_sinks, read_commit_log
from barrier_runtime.connectors.files.sink.commit_reader import Summary
from barrier_runtime.connectors.files.sink.commit_record import (
    CommitRecord,
    CommittedFile,
    encode_commit_record,
    log_of,
)
from barrier_runtime.connectors.sink_bases.file_committable import log_tag, origin_of_name
from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.store.object_store import ObjectInfo
from barrier_runtime.state.store.open import open_store


def file(name: str) -> CommittedFile:
    """`name` is "<token>-<anything>"."""
    return CommittedFile(name, "00", 1)


def append(log: CommitLog, checkpoint: int, token: int, *names: str, closed_by: int = 0) -> None:
    """`closed_by`: the oldest checkpoint that any of the files belongs to."""
    log.append(
        checkpoint, token, [file(name) for name in names], lambda each: (int(each.name.split("-")[0]), closed_by)
    )


def logged(store: MemoryStore) -> list[list[str]]:
    return [[each.name for each in record.files] for record in read_commit_log(store, "job", "out")]


def log_on(store: MemoryStore) -> CommitLog:
    return CommitLog(store, "job", "out")


def test_each_commit_is_one_record_and_repeating_it_adds_nothing(store: MemoryStore) -> None:
    """T6: a repeated commit succeeds."""
    log = log_on(store)
    for _ in range(2):
        append(log, 1, 1, "1-a", "1-b")
    for _ in range(2):
        append(log, 2, 1, "1-b", "1-c")
    append(log_on(store), 2, 2, "1-b", "1-c")  # repeated by another process
    append(log_on(store), 3, 2)
    assert logged(store) == [["1-a", "1-b"], ["1-c"]]


def test_a_zombie_and_its_successor_name_every_file_once_whoever_is_faster(store: MemoryStore) -> None:
    zombie, successor = log_on(store), log_on(store)
    append(zombie, 1, 1, "1-a")
    append(successor, 2, 5, "1-a", "1-b")  # restored checkpoint 2
    append(zombie, 2, 1, "1-a", "1-b")  # wakes up and finishes the decided commit
    append(successor, 3, 5, "5-c")
    append(zombie, 2, 1, "1-b")
    assert logged(store) == [["1-a"], ["1-b"], ["5-c"]]


def test_a_zombie_that_is_far_behind_does_not_forget_what_its_successor_named(store: MemoryStore) -> None:
    """Found by the simulation: the zombie's put lost to a record that also names files of the
    zombie's later commits.
    """
    zombie, successor = log_on(store), log_on(store)
    append(successor, 4, 1, "1-a", "1-b", "1-c", "1-d")  # restored checkpoint 4
    append(zombie, 1, 1, "1-a")
    append(zombie, 2, 1, "1-b")
    append(zombie, 4, 1, "1-c", "1-d")
    assert logged(store) == [["1-a", "1-b", "1-c", "1-d"]]


def test_a_record_that_comes_behind_a_head_read_ahead_names_its_files_alone(store: MemoryStore) -> None:
    """A zombie commits after the successor has read the log and before the successor's first append."""
    zombie, successor = log_on(store), log_on(store)
    append(zombie, 1, 1, "1-a")
    successor.look_ahead()
    append(zombie, 2, 1, "1-a", "1-b")
    append(successor, 2, 5, "1-a", "1-b", "1-c")
    assert logged(store) == [["1-a"], ["1-b"], ["1-c"]]


def test_a_log_read_ahead_is_read_once(store: MemoryStore) -> None:
    for checkpoint in range(1, 4):
        append(log_on(store), checkpoint, 1, f"1-{checkpoint}")
    log = log_on(store)
    log.look_ahead()
    store.calls.clear()
    append(log, 3, 2, "1-2", "1-3", closed_by=2)
    assert store.calls == {"put_if_absent": 1}


def test_trouble_of_a_look_ahead_is_left_to_the_append(store: MemoryStore) -> None:
    append(log_on(store), 1, 1, "1-a")
    log = log_on(store)
    store.inject(Fault.FAIL_BEFORE, "get", times=None)
    log.look_ahead()
    with pytest.raises(Unavailable):
        append(log, 2, 1, "1-b")
    store.heal()
    append(log, 2, 1, "1-a", "1-b")
    assert logged(store) == [["1-a"], ["1-b"]]


def test_a_zombie_that_was_faster_costs_the_successor_nothing(store: MemoryStore) -> None:
    zombie, successor = log_on(store), log_on(store)
    append(zombie, 1, 1, "1-a")
    append(successor, 1, 5, "1-a")
    append(zombie, 2, 1, "1-b")
    append(successor, 2, 5, "1-b", "5-c")
    assert logged(store) == [["1-a"], ["1-b"], ["5-c"]]


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.APPLY_THEN_FAIL, Fault.LAND_LATE, Fault.CONFLICT])
def test_a_put_of_unknown_outcome_is_repeated_until_it_is_known(fault: Fault, store: MemoryStore) -> None:
    """O2, O3: whatever the outcome, the log has one record."""
    log = log_on(store)
    store.inject(fault, "put_if_absent")
    with pytest.raises(Unavailable):
        append(log, 1, 1, "1-a")
    append(log, 2, 1, "1-a", "1-b")  # by now there is more to commit
    store.land_late()
    append(log, 3, 1, "1-c")
    assert [name for names in logged(store) for name in names] == ["1-a", "1-b", "1-c"]


def test_a_put_that_lands_late_takes_its_place_and_the_retry_goes_behind_it(store: MemoryStore) -> None:
    log = log_on(store)
    store.inject(Fault.LAND_LATE, "put_if_absent")
    with pytest.raises(Unavailable):
        append(log, 1, 1, "1-a")
    store.land_late()
    append(log, 2, 1, "1-a", "1-b")
    assert logged(store) == [["1-a"], ["1-b"]]


def test_a_new_life_of_the_job_is_neither_skipped_nor_mixed_up(store: MemoryStore) -> None:
    """T14: the target has seen checkpoint 100 of token 50; checkpoints and tokens begin again at 1."""
    append(log_on(store), 100, 50, "50-a")
    append(log_on(store), 1, 1, "1-b")
    again = log_on(store)
    append(again, 1, 2, "1-b")
    append(again, 2, 2, "2-c")
    assert logged(store) == [["50-a"], ["1-b"], ["2-c"]]


def test_a_restarted_committer_reads_back_no_further_than_it_must(store: MemoryStore) -> None:
    log = log_on(store)
    for number in range(1, 200):
        append(log, number, number, f"{number}-x")
    store.calls.clear()
    append(log_on(store), 200, 200, "199-x", "200-x")
    assert store.calls["get"] < 30
    assert logged(store)[-1] == ["200-x"]


def test_nor_when_all_records_are_of_the_generation_that_died(store: MemoryStore) -> None:
    log = log_on(store)
    for number in range(1, 200):
        append(log, number, 7, f"7-{number}", closed_by=number)
    store.calls.clear()
    append(log_on(store), 200, 8, "7-199", "7-200", closed_by=199)
    assert store.calls["get"] < 30
    append(log_on(store), 200, 9)
    assert store.calls["get"] < 30, "and nothing at all when nothing is pending"
    assert logged(store)[-1] == ["7-200"]


def test_a_zombies_late_record_hides_nothing_that_stands_before_it(store: MemoryStore) -> None:
    """A new run replays while the old run still names a file: token and checkpoint decrease."""
    append(log_on(store), 8, 20, "20-a", closed_by=8)
    append(log_on(store), 7, 10, "10-z", closed_by=7)
    append(log_on(store), 8, 21, "20-a", closed_by=8)
    assert logged(store) == [["20-a"], ["10-z"]]


def test_a_reader_that_keeps_count_reads_each_record_once(store: MemoryStore) -> None:
    log = log_on(store)
    append(log, 1, 1, "1-a")
    first = read_commit_log(store, "job", "out")
    append(log, 2, 1, "1-b")
    assert [record.checkpoint for record in read_commit_log(store, "job", "out", after=len(first))] == [2]


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04pickle",
        b"{}",
        b'{"version":9,"job":"job","sink":"out","checkpoint":1,"token":1,"highest_checkpoint":1,"highest_token":1,"files":[]}',
    ],
)
def test_what_is_no_record_of_this_log_is_an_error_with_a_remedy(data: bytes, store: MemoryStore) -> None:
    """B4, B6: never skipped, never guessed."""
    store.put("_commits/job/out/00000000000000000001.json", data)
    with pytest.raises(Corrupt, match=r"_commits/job/out/00000000000000000001\.json.*(restore it|use that release)"):
        read_commit_log(store, "job", "out")
    with pytest.raises(Corrupt):
        append(log_on(store), 1, 1, "1-a")


def test_a_bit_that_is_read_wrongly_never_names_a_file_again(store: MemoryStore) -> None:
    """Found by the simulation: a wrong name looks like a record that does not name the file."""
    append(log_on(store), 1, 1, "1-a")
    key = "_commits/job/out/00000000000000000001.json"
    intact = store.get(key)
    for at in range(len(intact)):
        store.damage(key, intact[:at] + bytes([intact[at] ^ 1]) + intact[at + 1 :])
        with pytest.raises(Corrupt):
            append(log_on(store), 2, 1, "1-a")
    assert store.keys() == (key,)


def written_otherwise(data: bytes) -> bytes:
    """Returns a record with the same content in other bytes, as a release with other fields writes records."""
    fields = dict(sorted(json.loads(data).items(), reverse=True), check="")
    stamp = hashlib.sha256(json.dumps(fields).replace('"check": ""', '"check":""').encode()).hexdigest()
    return json.dumps({**fields, "check": stamp}).replace(f'"check": "{stamp}"', f'"check":"{stamp}"').encode()


def test_records_and_summaries_are_checked_as_they_are_stored() -> None:
    """B4: bytes are checked as stored, not as this release would write them; otherwise an added field would invalidate
    all earlier records.
    """
    store = summarised(250)
    records = read_commit_log(store, "job", "out")
    for key in (key_of(1), *summaries(store)):
        data = written_otherwise(store.get(key))
        assert data != store.get(key)
        store.damage(key, data)
    assert gets(store, lambda: read_commit_log(store, "job", "out")) < 50, "the summary is intact"
    assert read_commit_log(store, "job", "out") == records
    record = log_on(store).record(1)
    assert record is not None
    assert record.files == records[0].files


def test_a_gap_is_noticed(store: MemoryStore) -> None:
    log = log_on(store)
    for number in (1, 2, 3):
        append(log, number, 7, f"7-{number}")
    record = store.get("_commits/job/out/00000000000000000003.json")
    assert msgspec.json.decode(record)["files"][0]["name"] == "7-3"
    store.delete(["_commits/job/out/00000000000000000002.json"])
    assert logged(store) == [["7-1"]], "a reader sees what is whole"


@pytest.mark.parametrize("name", ["plain", "my dir", "100%", "a%20b", "straße", "a#b", "a+b&c", "it's"])
def test_arrow_and_our_source_read_committed_files_under_any_folder_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    store = LocalStore(folder)
    pq.write_table(pa.table({"n": [7]}), folder / "part-1.parquet")
    CommitLog(store, "job", "out").append(1, 1, [file("part-1.parquet")], lambda each: (1, 1))
    [found] = committed_files(str(folder))
    assert found.startswith("file://") == (name == "plain")
    assert pq.read_table(found).column("n").to_pylist() == [7]
    flow, sink = Dataflow("reader"), CollectSink()
    flow.read_parquet("files", [found]).sink("out", sink)
    flow.run_local()
    assert sink.rows() == [{"n": 7}]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_committed_files_on_s3_have_the_scheme_they_were_asked_for_with(
    s3_url: Callable[[str], str], scheme: str
) -> None:
    """Spark's own Hadoop knows s3a:// only, Arrow and DuckDB s3:// only."""
    url = s3_url("schemes").replace("s3://", f"{scheme}://")
    CommitLog(open_store(url), "job", "out").append(1, 1, [file("part-1.parquet")], lambda each: (1, 1))
    [found] = committed_files(url)
    assert found == url.partition("?")[0] + "/part-1.parquet"


def test_a_folder_that_is_not_there_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="there is no folder"):
        committed_files(str(tmp_path / "typo"))
    assert not (tmp_path / "typo").exists()


@pytest.mark.slow
def test_a_long_log_is_read_by_many_requests_at_a_time_and_few_too_many() -> None:
    """A week with a checkpoint per second is 604,800 records; sequential reads take hours on S3. This log is of a
    release that wrote no summaries.
    """

    class Counting(MemoryStore):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.together = threading.Barrier(16)
            self.reading = False
            self.asked = 0

        def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
            self.asked += 1
            position = key.rpartition("/")[2].removesuffix(".json")
            if self.reading and position.isdigit() and 2_000 < int(position) <= 2_016:
                self.together.wait(timeout=60)  # passes when sixteen requests run at once
            return super().get(key, offset, size)

    store = Counting()
    old_log(store, 3_000)
    store.reading, store.asked = True, 0
    assert len(read_commit_log(store, "job", "out")) == 3_000
    assert store.asked < 3_000 + 300
    assert len(read_commit_log(store, "job", "out", after=3_000)) == 0


# ---------------------------------------------------------------- summaries


def name(log: str, token: int, checkpoint: int) -> str:
    """Returns a file name as sinks form it; `log`: one letter per decision log."""
    return f"part-{checkpoint:08d}-0-{token}-{log_tag(log, 'store')}00000000-0.jsonl"


def commit(log: CommitLog, *names: str) -> None:
    found = [origin_of_name(each) for each in names]
    origins = {each: origin[1] for each, origin in zip(names, found, strict=True) if origin is not None}
    checkpoint, token = max(each[1] for each in origins.values()), max(each[0] for each in origins.values())
    log.append(checkpoint, token, [file(each) for each in names], lambda each: origins[each.name])


def old_log(store: MemoryStore, records: int, log: str = "a") -> None:
    """Writes a log of a release without summaries: one record per checkpoint."""
    for number in range(1, records + 1):
        record = CommitRecord(1, "job", "out", number, 1, number, 1, (file(name(log, 1, number)),))
        store.put(key_of(number), encode_commit_record(record))


def key_of(record: int) -> str:
    return f"_commits/job/out/{record:020d}.json"


def summaries(store: MemoryStore) -> list[str]:
    return [info.key for info in store.list("_commits/job/out/summaries/")]


def summarised(records: int) -> MemoryStore:
    """Returns a log of a release with summaries."""
    store = MemoryStore()
    old_log(store, records)
    for number in range(1, records // 250 + 1):
        found = [log_on(store).record(at) for at in range(250 * number - 249, 250 * number + 1)]
        held = tuple(record for record in found if record is not None)
        origins = {log_of(name("a", 1, 1)): (1, 250 * number)}
        plain = msgspec.json.encode(Summary(1, "job", "out", number, held, origins))
        check = hashlib.sha256(plain).hexdigest()
        stamped = plain.replace(b'"check":""}', f'"check":"{check}"}}'.encode())
        store.put(f"_commits/job/out/summaries/{number:020d}.json", stamped)
    return store


def gets(store: MemoryStore, work: Callable[[], object]) -> int:
    store.calls.clear()
    work()
    return store.calls.get("get", 0)


@pytest.mark.slow
def test_a_summarised_log_is_read_with_few_requests_and_names_what_its_records_name() -> None:
    """1,123 records: two requests per summary (4), one for each of the last 123 records, and few
    for missing objects.
    """
    store = summarised(1_123)
    assert gets(store, lambda: read_commit_log(store, "job", "out")) < 2 * 4 + 123 + 140
    records = read_commit_log(store, "job", "out")
    for after in (1, 249, 250, 251, 1_122):
        assert read_commit_log(store, "job", "out", after) == records[after:]
    store.delete(summaries(store))
    assert records == read_commit_log(store, "job", "out"), "with and without summaries"


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["a byte", "empty", "another version", "other records", "gone"])
def test_a_summary_is_never_the_truth(damage: str) -> None:
    """B4: the records decide; a damaged or foreign summary is ignored."""
    store = summarised(760)
    records = read_commit_log(store, "job", "out")
    key = summaries(store)[1]
    intact = store.get(key)
    if damage == "a byte":
        store.damage(key, intact.replace(b"part-00000300", b"part-00009300"))
    elif damage == "empty":
        store.damage(key, b"")
    elif damage == "another version":
        store.damage(key, intact.replace(b'{"version":1', b'{"version":2', 1))
    elif damage == "gone":
        store.delete([key])
    else:
        old_log(store, 760, "z")  # the log was deleted by hand except its summaries, and written anew
        records = tuple(record for n in range(1, 761) if (record := log_on(store).record(n)) is not None)
    assert read_commit_log(store, "job", "out") == records


# ---------------------------------------------------------------- blocks; more: test_commit_blocks.py


def blocks(store: MemoryStore) -> list[str]:
    return [info.key for info in store.list("_commits/job/out/blocks/")]


def written(records: int) -> MemoryStore:
    """Returns a log written record by record by one process."""
    store = MemoryStore()
    log = log_on(store)
    for number in range(1, records + 1):
        commit(log, name("a", 1, number))
    return store


@pytest.mark.slow
def test_a_job_begun_anew_in_the_folder_does_not_read_what_was_there_before() -> None:
    """The checkpoints were deleted: tokens and checkpoint ids restart, so only the decision log distinguishes the
    jobs.
    """
    store = written(1_040)
    assert gets(store, lambda: commit(log_on(store), name("b", 1, 1))) < 60
    assert logged(store)[-2:] == [[name("a", 1, 1_040)], [name("b", 1, 1)]]


@pytest.mark.slow
@pytest.mark.parametrize("old", [1, 400, 700, 767])
def test_what_any_block_names_is_not_named_again(old: int) -> None:
    """A zombie, or a job restored from an old checkpoint: its files are below the newest block."""
    store = written(770)
    commit(log_on(store), name("a", 1, old), name("b", 1, 1))
    assert logged(store)[-1] == [name("b", 1, 1)]
    commit(log_on(store), name("b", 1, 1))
    assert len(logged(store)) == 771


def test_nor_is_what_only_the_oldest_block_names(store: MemoryStore) -> None:
    """A job whose checkpoints were moved away and back: another decision log has written all newer records."""
    first, second = log_on(store), log_on(store)
    commit(first, name("c", 1, 1))
    for number in range(1, 520):
        commit(second, name("a", 1, number))
    commit(log_on(store), name("c", 1, 1))
    assert len(logged(store)) == 520


@pytest.mark.slow
def test_a_file_that_a_block_names_was_visible() -> None:
    store = written(1_000)
    assert log_on(store).names(name("a", 1, 3), 1, 3)
    assert not log_on(store).names(name("a", 2, 3), 2, 3)
    assert not log_on(store).names(name("b", 1, 3), 1, 3)


@pytest.mark.slow
def test_an_old_log_gets_its_blocks_one_per_commit(store: MemoryStore) -> None:
    old_log(store, 1_200)
    records = store.keys()
    log = log_on(store)
    for number in range(1, 5):
        commit(log, name("a", 1, 1_200 + number))
        assert len(blocks(store)) == number
    assert gets(store, lambda: commit(log, name("a", 1, 1_205))) < 5
    again = log_on(store)
    assert gets(store, lambda: commit(again, name("a", 1, 1_206))) < 40, "and a successor finds them"
    assert set(records) <= set(store.keys()), "records of earlier releases stay"


def test_a_zombie_and_its_successor_write_the_same_block(store: MemoryStore) -> None:
    zombie = log_on(store)
    for number in range(1, 256):
        commit(zombie, name("a", 1, number))
    commit(log_on(store), name("a", 1, 256))
    [key] = blocks(store)
    written = store.get(key)
    store.delete([key])
    commit(zombie, name("a", 1, 257))
    assert store.get(key) == written


def test_records_that_are_gone_or_damaged_enter_no_block_and_stop_no_commit(store: MemoryStore) -> None:
    old_log(store, 255)
    store.damage(key_of(100), b"?")
    log = log_on(store)
    for number in range(256, 259):
        commit(log, name("a", 1, number))
    assert blocks(store) == []
    with pytest.raises(Corrupt, match="restore"):
        read_commit_log(store, "job", "out")


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.APPLY_THEN_FAIL])
def test_a_block_that_cannot_be_written_is_written_by_the_repetition(fault: Fault) -> None:
    """O2: also by a successor's repetition. The record exists once."""
    for successor in (False, True):
        store = written(255)
        log = log_on(store)
        store.inject(fault, "put_if_absent", "/blocks/")
        with pytest.raises(Unavailable):
            commit(log, name("a", 1, 256))
        commit(log_on(store) if successor else log, name("a", 1, 256))
        assert len(blocks(store)) == 1
        assert logged(store)[-1] == [name("a", 1, 256)]
        assert len(logged(store)) == 256


def test_writers_are_found_without_listing_their_records(tmp_path: Path) -> None:
    class NotListed(LocalStore):
        def list(self, prefix: str) -> Iterator[ObjectInfo]:
            raise AssertionError(f"{prefix} was listed")

    for job, sink in (("one", "out"), ("one", "bad"), ("two", "out")):
        CommitLog(LocalStore(tmp_path), job, sink).append(1, 1, [file("part-1.parquet")], lambda each: (1, 1))
    assert jobs_and_sinks(NotListed(tmp_path)) == (("one", "bad"), ("one", "out"), ("two", "out"))


def test_an_append_behind_a_known_head_is_one_request(store: MemoryStore) -> None:
    log = log_on(store)
    append(log, 1, 1, "1-a")
    store.inject(Fault.FAIL_BEFORE, "get", times=None)
    for checkpoint in (2, 3, 4):
        append(log, checkpoint, 1, f"1-{checkpoint}")
    store.heal()
    assert logged(store) == [["1-a"], ["1-2"], ["1-3"], ["1-4"]]


def test_an_append_whose_place_is_taken_adds_only_what_no_record_names(store: MemoryStore) -> None:
    log, successor = log_on(store), log_on(store)
    append(log, 1, 1, "1-a")
    append(successor, 3, 2, "1-b", "2-c")
    append(log, 3, 1, "1-b", "1-d")
    assert logged(store) == [["1-a"], ["1-b", "2-c"], ["1-d"]]
