"""Mistakes of users, and faults around them: each gets an error that names the thing and the remedy, no row is lost,
and after the remedy the job continues to the right result.
"""

import asyncio
import json
import re
import tempfile
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import counting_flow, verdict, visible_files

from barrier_runtime import (
    CallableSink,
    CollectSink,
    CsvSink,
    Dataflow,
    Fenced,
    InvalidJob,
    JobFailed,
    JsonlSink,
    ValueState,
    count,
)
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.reader import LogReader
from barrier_runtime.spark.session import check_java
from barrier_runtime.state.store.memory import Fault
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from tests.far_apart_keys import scatter
from tests.newest_checkpoint import newest_manifest
from tests.waiting import until

BAD = (InvalidJob, JobFailed)


def says(error, *words):
    text = str(error.value)
    for word in words:
        assert word in text, text


def job(read, sink=None, step=None, name="bad-input"):
    flow = Dataflow(name)
    stream = read(flow)
    (step(stream) if step else stream).sink("out", sink or CollectSink())
    return flow


def ten_rows(flow):
    return flow.rate("numbers", 1_000_000, 10, keys=2)


@pytest.fixture
def folder(tmp_path):
    """Input with a good Parquet file."""
    path = tmp_path / "input"
    path.mkdir()
    pq.write_table(pa.table({"k": [1, 2, 3] * 1_000, "v": [1.0, 2.0, 3.0] * 1_000}), path / "a.parquet")
    return path


# ---------------------------------------------------------------- input files


def test_a_file_that_is_no_parquet_is_named_before_anything_runs(folder):
    (folder / "b.parquet").write_bytes(b"something else" * 100)
    with pytest.raises(InvalidJob) as error:
        job(lambda flow: flow.read_parquet("in", str(folder))).run_local()
    says(error, "source 'in'", str(folder / "b.parquet"), "not (or no longer) valid Parquet", "Replace or remove")


def test_pages_that_are_damaged_are_found_when_they_are_read(folder):
    file = folder / "a.parquet"
    data = bytearray(file.read_bytes())
    data[4:200] = bytes(byte ^ 0xFF for byte in data[4:200])
    file.write_bytes(data)
    with pytest.raises(JobFailed) as error:
        job(lambda flow: flow.read_parquet("in", str(folder))).run_local()
    says(error, "source 'in'", str(file), "after row 0", "Replace or remove")
    assert error.value.status.generations == 1


def test_invalid_json_line_is_located_and_the_corrected_file_gives_every_row_once(tmp_path):
    good = [json.dumps({"n": n}) for n in range(50_000)]
    bad = [*good[:-1], "{".ljust(len(good[-1]), "?")]
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "a.jsonl"
    out, options = tmp_path / "out", {"checkpoints": str(tmp_path / "checkpoints"), "checkpoint_interval": 0.01}
    file.write_text("\n".join(bad) + "\n")
    flow = job(lambda flow: flow.read_jsonl("in", str(file), schema={"n": int}, pace=200_000), JsonlSink(str(out)))
    with pytest.raises(BAD) as error:
        flow.run_local(**options)
    says(error, "source 'in'", str(file), "line 50000: it is not one JSON object", "correct the file")
    file.write_text("\n".join(good) + "\n")
    flow.run_local(**options)
    rows = [json.loads(line)["n"] for file in visible_files(out) for line in file.read_text().splitlines()]
    assert sorted(rows) == list(range(50_000))


@pytest.mark.parametrize(("line", "said"), [("5", "it has 1 value"), ("3,x", "'x' is not kept as int64")])
def test_a_csv_line_that_does_not_fit_is_shown(tmp_path, line, said):
    file = tmp_path / "a.csv"
    file.write_text(f"a,b\n1,2\n{line}\n")
    with pytest.raises(JobFailed) as error:
        job(lambda flow: flow.read_csv("in", str(file), schema={"a": int, "b": int})).run_local()
    says(error, "source 'in'", f"{file}, line 3", said, "correct the file")


def test_a_missing_file_an_empty_folder_and_a_file_that_vanished_are_named(folder):
    with pytest.raises(InvalidJob) as error:
        Dataflow("x").read_parquet("in", str(folder / "nowhere"))
    says(error, "source 'in'", str(folder / "nowhere"), "check the path")
    with pytest.raises(InvalidJob) as error:
        Dataflow("x").read_csv("in", str(folder))
    says(error, "holds no file ending in .csv", "check the path")
    flow = job(lambda flow: flow.read_parquet("in", str(folder)))
    (folder / "a.parquet").unlink()
    with pytest.raises(InvalidJob) as error:
        flow.run_local()
    says(error, str(folder / "a.parquet"), "is not there any more", "bring it back")


@pytest.mark.parametrize(
    ("columns", "said"),
    [({"k": ["x"], "v": [1.0]}, "column 'k' is string, wanted is int64"), ({"k": [1]}, "it has no column 'v'")],
)
def test_a_file_of_another_schema_is_named_with_the_column(folder, columns, said):
    pq.write_table(pa.table(columns), folder / "b.parquet")
    with pytest.raises(InvalidJob) as error:
        job(lambda flow: flow.read_parquet("in", str(folder))).run_local()
    says(error, str(folder / "b.parquet"), said, "correct schema=")


# ---------------------------------------------------------------- user functions


def inverse(row):
    return {"x": 1 / (row["k"] - 3)}


class Impatient:
    seen = ValueState(int, default=0)

    def process(self, key, row, ctx):
        self.seen.value += 1
        if self.seen.value > 3:
            raise RuntimeError("too many")
        yield row


def no_such_column(batch):
    return batch.column("nothing")


def broken_writer(batch):
    raise ValueError("the printer is out of paper")


def read_folder(folder):
    return lambda flow: flow.read_parquet("in", str(folder))


@pytest.mark.parametrize(
    ("step", "sink", "words"),
    [
        (
            lambda s: s.map(inverse, name="inverse"),
            None,
            [
                "ZeroDivisionError",
                "operator 'inverse'",
                "record: {'k': 3, 'v': 3.0}",
                "split 'a.parquet', rows 0 to 127",
            ],
        ),
        (
            lambda s: s.key_by("k").process("impatient", Impatient),
            None,
            ["RuntimeError: too many", "operator 'impatient'", "key: ", "record: {'k': "],
        ),
        (
            lambda s: s.map_batches(no_such_column, name="lookup"),
            None,
            ["KeyError", "operator 'lookup'", "batch: 128 rows of k, v", "first record: {'k': 1", "rows 0 to 127"],
        ),
        (None, CallableSink(broken_writer), ["out of paper", "operator 'out'", "first record: {'k': 1"]),
    ],
)
def test_an_exception_in_a_users_function_is_shown_as_the_user_knows_it(folder, caplog, step, sink, words):
    with pytest.raises(JobFailed) as error:
        job(read_folder(folder), sink, step).run_local()
    text = error.value.told
    says(error, *words, "Fix the function")
    assert text.startswith('Traceback (most recent call last):\n  File "' + __file__)
    assert "barrier_runtime/" not in text.replace("tests/barrier_runtime", "")  # not a frame of ours
    assert text.endswith("then start the job again.")
    assert error.value.status.generations == 1
    assert [each for each in caplog.records if each.name.startswith(("barrier_runtime", "coordinator"))] == []


def test_an_exception_in_an_iterator_names_the_row():
    def rows(index, of):
        yield {"a": 1}
        raise OSError("the device is gone")

    with pytest.raises(JobFailed) as error:
        job(lambda flow: flow.from_iterator("device", rows, schema={"a": int})).run_local(parallelism=1)
    says(error, "OSError: the device is gone", "row 1 of split 0", "operator 'device'")


def test_a_column_that_only_the_rows_can_show_to_be_missing_is_named():
    flow = job(ten_rows, step=lambda s: s.map(lambda row: {"a": 1}).key_by("shop").aggregate("n", n=count()))
    with pytest.raises(JobFailed) as error:
        flow.run_local()
    says(error, "key_by('shop')", "no column 'shop'", "use one of a")


def test_after_the_function_is_fixed_the_job_goes_on_from_its_checkpoint(tmp_path):
    """C5: the failure committed nothing that a restart would not commit again."""
    out, options = tmp_path / "out", {"checkpoints": str(tmp_path / "checkpoints"), "checkpoint_interval": 0.05}

    def flow(function, rows_per_second):
        flow = Dataflow("fixed")
        numbers = flow.rate("numbers", rows_per_second, 20_000, keys=50)
        counted = numbers.key_by("key").aggregate("count", n=count())
        counted.filter(function, name="check").sink("out", JsonlSink(str(out)))
        return flow

    def fails_once_something_is_visible(row):
        return row["value"] % 100 != 0 or not visible_files(out) or 1 / 0

    with pytest.raises(JobFailed, match="operator 'check'"):
        flow(fails_once_something_is_visible, 2_000).run_local(**options)
    assert not verdict(out, 20_000).right
    flow(lambda row: True, 100_000).run_local(**options)
    assert verdict(out, 20_000).right, verdict(out, 20_000)


# ---------------------------------------------------------------- names and options


def test_names_are_checked_and_unique():
    for name in ("Bad Name", ""):
        with pytest.raises(InvalidJob, match=r"job name .* is not allowed: use 1 to 64"):
            Dataflow(name)
    with pytest.raises(InvalidJob, match="name=None: give a text: the only argument without a name is the job's name"):
        Dataflow(None)
    with pytest.raises(InvalidJob, match="the name 'numbers' is used twice, by a source and a running aggregate"):
        ten_rows(Dataflow("x")).key_by("key").aggregate("numbers", n=count())
    with pytest.raises(InvalidJob, match="no column 'shop': use one of value, intended_at, key"):
        ten_rows(Dataflow("x")).key_by("shop")


def test_paths_may_be_path_objects(tmp_path):
    job(ten_rows).run_local(checkpoints=tmp_path / "checkpoints")
    assert (tmp_path / "checkpoints" / "bad-input" / "log").is_dir()


# ---------------------------------------------------------------- storage


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("/proc/nowhere", "make the folder readable and writable"),
        ("{file}", "use another location"),
        ("{file}/below", "use another location"),
        ("ftp://host/path", "unknown scheme 'ftp': use file:///folder, a plain folder path, s3://"),
        ("file://host/path", "a folder is file:///absolute/path, three slashes"),
        ("s3://", "names no bucket"),
        ("", "the storage URL is empty"),
    ],
)
def test_a_checkpoint_location_that_cannot_be_is_refused_before_anything_runs(tmp_path, url, said):
    (tmp_path / "file").write_text("not a folder")
    sink = CollectSink()
    with pytest.raises(InvalidJob, match=said):
        job(ten_rows, sink).run_local(checkpoints=url.format(file=tmp_path / "file"))
    assert sink.rows() == []


def test_a_bucket_that_does_not_exist_is_named(s3_endpoint):
    with pytest.raises(InvalidJob, match="bucket 'nobody-made-this' does not exist: create it, or correct the URL"):
        job(ten_rows).run_local(checkpoints=f"s3://nobody-made-this/x?endpoint={s3_endpoint}")


def test_a_store_that_ignores_conditional_puts_is_refused():
    """O9: start refused, with the reason and stores that work."""
    open_store("memory://overwrites").inject(Fault.IGNORE_CONDITIONS, times=None)
    with pytest.raises(InvalidJob, match=r"memory://overwrites cannot hold checkpoints: .* use AWS S3, a recent MinIO"):
        job(ten_rows).run_local(checkpoints="memory://overwrites")


@pytest.mark.parametrize("url", ["/proc/nowhere", "{file}", "hdfs://host/path"])
def test_a_sink_that_cannot_be_written_to_fails_the_job_once_and_names_it(tmp_path, url):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(JobFailed) as error:
        job(ten_rows, JsonlSink(url.format(file=tmp_path / "file"))).run_local()
    says(error, "sink 'out'", url.format(file=tmp_path / "file"), "Give JsonlSink a folder or bucket")
    assert error.value.status.generations == 1


class TakenAway(JsonlSink):
    """A sink whose target is writable when the job starts, and no more when the first checkpoint begins."""

    def pre_commit(self, transaction, checkpoint):
        raise InvalidJob("the bucket 'lake' is gone: bring it back, then start again")


def test_a_target_that_is_taken_away_while_the_job_runs_fails_it_once(tmp_path):
    with pytest.raises(JobFailed, match="the bucket 'lake' is gone: bring it back") as failed:
        counting_flow("taken-away", tmp_path, 1_000, 1e6, sink=TakenAway(str(tmp_path / "out"))).run_local()
    assert failed.value.status.generations == 1


def test_columns_that_a_sinks_format_does_not_have_fail_the_job_once(tmp_path):
    flow = job(ten_rows, CsvSink(str(tmp_path / "out")), lambda s: s.map(lambda row: {"list": [1, 2]}))
    with pytest.raises(BAD) as error:
        flow.run_local()
    says(
        error, "sink 'out'", "column 'list' is list<item: int64>, which CSV cannot hold", "use ParquetSink or JsonlSink"
    )
    assert error.value.status.generations == 1


# ---------------------------------------------------------------- restoring


def counted(tmp_path, rows=3_000, keys=50, aggregate="count", rate=30_000, **options):
    flow = Dataflow("restored")
    numbers = flow.rate("numbers", rate, rows, keys=keys).map_batches(scatter)
    numbers.key_by("key").aggregate(aggregate, n=count()).sink("out", JsonlSink(str(tmp_path / "out")))
    return flow.run_local(checkpoints=str(tmp_path / "checkpoints"), checkpoint_interval=0.03, **options)


def test_flipped_byte_in_a_snapshot_is_named_with_both_hashes_and_blocks_writing(tmp_path):
    """O8, J2: restore refuses; with the byte restored the job continues to the right result."""
    counted(tmp_path, rows=12_000, keys=10_000)
    before = sorted(visible_files(tmp_path / "out"))
    manifest = newest_manifest(open_store(str(tmp_path / "checkpoints")), "restored")
    stored = [ref for snapshot in manifest.operators for ref in snapshot.files if ref.key is not None]
    ref = max(stored, key=lambda ref: ref.size)
    victim = tmp_path / "checkpoints" / ref.key
    good = victim.read_bytes()
    victim.write_bytes(good[: ref.offset] + bytes([good[ref.offset] ^ 1]) + good[ref.offset + 1 :])
    with pytest.raises(
        JobFailed,
        match=rf"{victim.name} is not what was written: expected \d+ bytes with sha256 "
        r"[0-9a-f]{64}, found \d+ bytes with sha256 [0-9a-f]{64}; restore the object",
    ) as error:
        counted(tmp_path, rows=12_000, keys=10_000)
    assert error.value.status.generations == 2, "that of the first run, and one of this"
    assert error.value.status.restored_checkpoint == manifest.checkpoint
    assert sorted(visible_files(tmp_path / "out")) == before
    victim.write_bytes(good)
    counted(tmp_path, rows=12_000, keys=10_000)
    assert verdict(tmp_path / "out", 12_000).right


def test_renamed_operators_are_listed_and_their_state_is_dropped_only_on_demand(tmp_path):
    counted(tmp_path)
    with pytest.raises(JobFailed) as error:
        counted(tmp_path, aggregate="renamed")
    says(error, "matched: numbers, out; missing: count; new: renamed", "Give the operators their old names")
    counted(tmp_path)  # the checkpoint itself is intact
    result = counted(tmp_path, aggregate="renamed", allow_non_restored=True)
    assert result.status.restored_checkpoint > 0
    assert verdict(tmp_path / "out", 3_000).lost == verdict(tmp_path / "out", 3_000).duplicated == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"restore": "none"}, "starting without state would write its rows again: use restore='latest'"),
        ({"restore": 1}, r"(is older than the last completed one|has no completed checkpoint 1 |is not kept any more)"),
        ({"restore": "99999"}, r"has no completed checkpoint 99999 \(newest: .*choose one of them"),
        ({"max_parallelism": 64}, "was taken with max_parallelism 128, the job now has 64: set 128"),
    ],
)
def test_a_restore_that_would_lose_or_repeat_something_is_refused(tmp_path, options, said):
    counted(tmp_path)
    before = sorted(visible_files(tmp_path / "out"))
    with pytest.raises(JobFailed, match=said):
        counted(tmp_path, **options)
    assert sorted(visible_files(tmp_path / "out")) == before


def test_an_older_checkpoint_is_restored_only_when_repeats_are_allowed(tmp_path):
    counted(tmp_path, rate=1_000, retained=5)  # time for several checkpoints
    view = LogReader(open_store(str(tmp_path / "checkpoints")), Paths("restored")).read(kept=True)
    older = min(complete_of(entry).checkpoint for entry in (*view.completes, *view.other_kept))
    with pytest.raises(JobFailed, match=f"checkpoint {older} of job restored is older than the last completed one"):
        counted(tmp_path, restore=older, retained=5)
    result = counted(tmp_path, restore=older, retained=5, allow_replay=True)
    assert result.status.restored_checkpoint == older
    assert verdict(tmp_path / "out", 3_000).lost == 0


def test_a_damaged_log_record_stops_the_start(tmp_path):
    """Bug 8: the job neither falls back to an older checkpoint nor starts empty."""
    counted(tmp_path)
    before = sorted(visible_files(tmp_path / "out"))
    head = max((tmp_path / "checkpoints/restored/log").iterdir())
    head.write_bytes(head.read_bytes()[:-10])
    with pytest.raises(JobFailed, match=head.name):
        counted(tmp_path)
    assert sorted(visible_files(tmp_path / "out")) == before


def test_a_second_local_run_of_the_same_job_fences_the_first(tmp_path):
    """Z3, bug 12."""
    out, checkpoints = tmp_path / "out", str(tmp_path / "checkpoints")
    fenced = []

    def first():
        try:
            counting_flow("twice-local", out, 10**9, 5_000).run_local(checkpoints=checkpoints, checkpoint_interval=0.05)
        except Fenced as error:
            fenced.append(str(error))

    thread = threading.Thread(target=first)
    thread.start()
    until(lambda: visible_files(out), "the first run committed something")
    counting_flow("twice-local", out, 10_000, 100_000).run_local(checkpoints=checkpoints, checkpoint_interval=0.05)
    thread.join()
    assert len(fenced) == 1
    assert "taken over by generation" in fenced[0]
    assert "stop the other run" in fenced[0]
    assert verdict(out, 10_000).duplicated == verdict(out, 10_000).out_of_order == 0


# ---------------------------------------------------------------- no leftovers


def test_a_local_run_leaves_no_thread_and_no_folder_whether_it_ends_well_or_not(folder, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    threads = set(threading.enumerate())
    job(read_folder(folder), step=lambda s: s.key_by("k").aggregate("n", n=count())).run_local()
    with pytest.raises(JobFailed):
        job(read_folder(folder), step=lambda s: s.map(inverse)).run_local()
    with pytest.raises(JobFailed):
        job(read_folder(folder), JsonlSink("/proc/nowhere")).run_local()
    assert list(temporary.iterdir()) == []
    until(lambda: set(threading.enumerate()) <= threads, "all threads ended")


def test_a_local_run_works_where_a_loop_is_running_already():
    """As in a notebook."""
    sink = CollectSink()

    async def cell():
        return job(ten_rows, sink).run_local()

    assert asyncio.run(cell()).records == 10
    assert len(sink.rows()) == 10


# ---------------------------------------------------------------- Java and Spark


def test_without_java_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidJob, match=r"no java on the PATH. Spark needs Java 17 or newer: install it"):
        job(ten_rows, JsonlSink(str(tmp_path / "out"))).run(
            master="local[2]", checkpoints=str(tmp_path / "checkpoints")
        )
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidJob, match=rf"JAVA_HOME={tmp_path} has no bin/java"):
        check_java()


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is version 11. Spark needs Java 17"),
        ('java version "1.8.0_292"', "is version 8. Spark needs Java 17"),
        ("command not understood", "does not tell its version"),
    ],
)
def test_a_java_that_is_too_old_is_named_with_its_version(tmp_path, monkeypatch, printed, said):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{printed}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidJob, match=said):
        check_java()


def test_a_job_on_spark_needs_a_place_that_all_its_processes_share():
    flow = job(ten_rows, JsonlSink("/tmp/never-written"))
    with pytest.raises(InvalidJob, match="checkpoints= is required on Spark"):
        flow.run()
    with pytest.raises(InvalidJob, match="is the memory of one process"):
        flow.run(checkpoints="memory://mine")


def test_what_cannot_travel_to_a_worker_is_named_before_spark_starts(tmp_path):
    lock = threading.Lock()
    flow = job(ten_rows, JsonlSink(str(tmp_path / "out")), lambda s: s.map(lambda row: (lock, row)[1], name="locked"))
    with pytest.raises(InvalidJob, match=r"operator 'locked' cannot be sent to Spark's workers .* make that inside"):
        flow.run(checkpoints=str(tmp_path / "checkpoints"))
    with pytest.raises(InvalidJob, match="operator 'out': CollectSink keeps rows in the memory of one process"):
        job(ten_rows).run(checkpoints=str(tmp_path / "checkpoints"))


@pytest.mark.spark
def test_exception_on_spark_has_no_stack_of_ours_or_the_jvm_and_fails_the_job_once(spark, tmp_path):
    flow = Dataflow("fails-once")
    numbers = flow.rate("numbers", 10_000, 5_000, keys=10)
    numbers.map(lambda row: {"x": 1 / (row["value"] - 700)}, name="divide").sink(
        "out", JsonlSink(str(tmp_path / "out"))
    )
    with pytest.raises(JobFailed) as error:
        flow.run(spark=spark, parallelism=2, checkpoints=str(tmp_path / "checkpoints"))
    text = str(error.value)
    assert text.startswith('Traceback (most recent call last):\n  File "' + __file__)
    says(error, "ZeroDivisionError", "operator 'divide', subtask 0", "record: {'value': 700", "source 'numbers', split")
    for foreign in ("py4j", "org.apache.spark", "barrier_runtime/runtime", "cores"):
        assert foreign not in text, text
    assert text.endswith("then start the job again.")
    assert error.value.status.generations == 1


@pytest.mark.spark
def test_more_slots_than_cores_are_refused_at_once(spark, tmp_path):
    with pytest.raises(InvalidJob, match=r"parallelism 5 needs 5 cores at once, .*local\[4\] has 4: use a smaller"):
        job(ten_rows, JsonlSink(str(tmp_path / "out"))).run(
            spark=spark, parallelism=5, checkpoints=str(tmp_path / "checkpoints")
        )


@pytest.mark.spark
def test_a_second_session_in_one_process_is_refused_with_the_remedy(spark, tmp_path):
    with pytest.raises(InvalidJob, match="already running in this process: pass it as spark=your_session"):
        job(ten_rows, JsonlSink(str(tmp_path / "out"))).run(checkpoints=str(tmp_path / "checkpoints"))


def wait_for_file(path):
    import os

    while not os.path.exists(path):
        time.sleep(0.05)  # in a Spark worker, which holds a core until the test releases it


@pytest.mark.spark
def test_too_few_free_cores_end_in_an_error_that_counts_them(spark, tmp_path):
    """B5: three of the four cores are held by somebody else."""
    release, held = tmp_path / "release", tmp_path / "held"

    def hold(index):
        (held / str(index)).touch()
        wait_for_file(release)

    held.mkdir()
    other = threading.Thread(
        target=lambda: spark.sparkContext.parallelize(range(3), 3).foreach(hold), name="somebody else"
    )
    other.start()
    try:
        until(lambda: len(list(held.iterdir())) == 3, "three cores are held")
        with pytest.raises(JobFailed) as error:
            job(ten_rows, JsonlSink(str(tmp_path / "out")), name="crowded").run(
                spark=spark, parallelism=2, checkpoints=str(tmp_path / "checkpoints"), resource_wait_timeout=20.0
            )
    finally:
        release.touch()
        other.join(30)
    says(error, "job crowded needs 2 slots;", "free cores", "Spark has 4 cores for 2 slots")
    assert re.search("[01] of 2 registered within 20 s", str(error.value))  # Spark needs time to start a process
