"""Files that change between runs or during reading: errors, and the rows of files that grew."""

import gzip
import io
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from operator_harness import World
from source_harness import drained, opened, rows_of, snapshot_of, spec_of

from barrier_runtime import Dataflow, JsonlSink
from barrier_runtime.connectors.files.source import reader as reader_module
from barrier_runtime.connectors.files.source.csv import CsvFiles
from barrier_runtime.connectors.files.source.jsonl import JsonlFiles
from barrier_runtime.connectors.files.source.listing import FoundFile, fingerprint
from barrier_runtime.connectors.files.source.parquet import ParquetFiles
from barrier_runtime.connectors.files.source.source import WatchedFiles
from barrier_runtime.connectors.source import Source
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from tests.integration.harness import visible_files

SCHEMA = pa.schema([("n", pa.int64())])


def lines(first: int, count: int) -> str:
    return "".join(json.dumps({"n": n}) + "\n" for n in range(first, first + count))


def write(path: Path, numbers: range) -> None:
    if path.name.endswith(".parquet"):
        pq.write_table(pa.table({"n": list(numbers)}, SCHEMA), path, compression="none", use_dictionary=False)
    elif path.name.endswith(".csv"):
        path.write_text("n\n" + "".join(f"{n}\n" for n in numbers))
    elif path.name.endswith(".gz"):
        text = "".join(json.dumps({"n": n}) + "\n" for n in numbers).encode()
        path.write_bytes(gzip.compress(text, compresslevel=0, mtime=0))
    else:
        path.write_text("".join(json.dumps({"n": n}) + "\n" for n in numbers))


SOURCES: dict[str, Callable[[str], Source]] = {
    "jsonl": lambda path: JsonlFiles("src", path, SCHEMA, None),
    "jsonl.gz": lambda path: JsonlFiles("src", path, SCHEMA, None),
    "csv": lambda path: CsvFiles("src", path, SCHEMA, None),
    "parquet": lambda path: ParquetFiles("src", path, SCHEMA, None),
}


# ---------------------------------------------------------------- rewritten with the same size


@pytest.mark.parametrize("ending", SOURCES)
def test_file_rewritten_at_same_size_before_its_end_was_read_is_named(tmp_path: Path, ending: str) -> None:
    path, world = tmp_path / f"a.{ending}", World()
    write(path, range(100, 200))
    driver = opened(spec_of(SOURCES[ending](str(path))), world)
    driver.poll(0, 50)
    snapshot = snapshot_of(driver, world)
    driver.close()
    size = path.stat().st_size
    write(path, range(200, 300))
    assert path.stat().st_size == size
    os.utime(path, ns=(1, 1))
    with pytest.raises(InvalidJob, match=rf"a\.{ending}: what it holds was changed since the checkpoint"):
        opened(spec_of(SOURCES[ending](str(path))), world, (snapshot,))


@pytest.mark.parametrize("ending", SOURCES)
def test_a_file_that_was_copied_is_read_on_though_its_time_of_change_is_another(tmp_path: Path, ending: str) -> None:
    path, world = tmp_path / f"a.{ending}", World()
    write(path, range(100, 200))
    driver = opened(spec_of(SOURCES[ending](str(path))), world)
    driver.poll(0, 50)
    snapshot = snapshot_of(driver, world)
    driver.close()
    copied = tmp_path / "copied"
    copied.mkdir()
    (copied / path.name).write_bytes(path.read_bytes())
    os.utime(copied / path.name, ns=(1, 1))
    for _ in range(2):  # the second run finds the fingerprint of the first
        driver = opened(spec_of(SOURCES[ending](str(copied))), world, (snapshot,))
        snapshot = snapshot_of(driver, world)
        driver.close()
    driver = opened(spec_of(SOURCES[ending](str(copied))), world, (snapshot,))
    assert [row["n"] for row in rows_of(drained(driver))] == list(range(150, 200))


@pytest.mark.slow
def test_object_rewritten_at_same_size_is_named_and_copied_object_is_read_on(
    s3_url: Callable[[str], str], s3_endpoint: str
) -> None:
    import boto3

    client = boto3.client("s3", endpoint_url=s3_endpoint)
    url, world = s3_url("in"), World()
    bucket = url.split("/")[2]

    def put(first: int) -> None:
        client.put_object(Bucket=bucket, Key="in/a.jsonl", Body=lines(first, 100).encode())

    put(100)
    driver = opened(spec_of(SOURCES["jsonl"](url)), world)
    while driver.poll(0, 50) is None:
        pass
    snapshot = snapshot_of(driver, world)
    driver.close()
    before = client.head_object(Bucket=bucket, Key="in/a.jsonl")["LastModified"]
    deadline = time.monotonic() + 120
    while client.head_object(Bucket=bucket, Key="in/a.jsonl")["LastModified"] == before:  # whole seconds
        assert time.monotonic() < deadline
        put(100)
    driver = opened(spec_of(SOURCES["jsonl"](url)), world, (snapshot,))
    assert [row["n"] for row in rows_of(drained(driver))] == list(range(150, 200))
    put(200)
    with pytest.raises(InvalidJob, match="what it holds was changed since the checkpoint"):
        opened(spec_of(SOURCES["jsonl"](url)), world, (snapshot,))


# ---------------------------------------------------------------- rewritten after they were read to their end


def changed_at(path: Path, ns: int) -> None:
    """Sets the time of change to a small value; small times never share half of their mark."""
    os.utime(path, ns=(ns, ns))


def read_whole(
    path: Path, ending: str, world: World, *restored: OperatorSnapshot
) -> tuple[list[int], OperatorSnapshot]:
    """Reads the unread rows; returns them and a snapshot at the end."""
    driver = opened(spec_of(SOURCES[ending](str(path))), world, restored)
    try:
        found = [row["n"] for row in rows_of(drained(driver))]
        return found, snapshot_of(driver, world)
    finally:
        driver.close()


@pytest.mark.parametrize("ending", SOURCES)
def test_file_rewritten_at_same_size_after_its_end_was_read_is_named(tmp_path: Path, ending: str) -> None:
    path, world = tmp_path / f"a.{ending}", World()
    write(path, range(100, 200))
    changed_at(path, 1)
    found, snapshot = read_whole(path, ending, world)
    assert found == list(range(100, 200))
    size = path.stat().st_size
    write(path, range(200, 300))
    assert path.stat().st_size == size
    changed_at(path, 2)
    with pytest.raises(
        InvalidJob, match=rf"a\.{ending} was rewritten after it was read .* put new rows into a file of"
    ):
        read_whole(path, ending, world, snapshot)
    write(path, range(100, 200))
    assert read_whole(path, ending, world, snapshot)[0] == []


@pytest.mark.slow
def test_a_job_whose_finished_file_was_rewritten_stops_and_goes_on_with_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "1.jsonl"

    def run_all() -> None:
        flow = Dataflow("cron")
        flow.read_jsonl("src", str(tmp_path / "in"), schema={"n": int}).sink("out", JsonlSink(str(tmp_path / "out")))
        flow.run_local(checkpoints=str(tmp_path / "ck"), parallelism=2)

    path.write_text(lines(0, 3))
    changed_at(path, 1)
    run_all()
    path.write_text(lines(3, 3))
    changed_at(path, 2)
    with pytest.raises((InvalidJob, JobFailed), match=r"1\.jsonl was rewritten after it was read to its end"):
        run_all()
    path.write_text(lines(0, 3))
    (tmp_path / "in" / "2.jsonl").write_text(lines(3, 3))
    run_all()
    assert numbers(tmp_path) == list(range(6))


def test_copied_files_read_to_their_end_are_checked_once_and_a_few_per_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    look = reader_module.content_mark

    def counted(file: FoundFile, where: str) -> int | None:
        looked.append(file.id)
        return look(file, where)

    monkeypatch.setattr(reader_module, "content_mark", counted)
    monkeypatch.setattr(reader_module, "COMPARED_AT_START", 3)
    world, ids = World(), [f"{n}.jsonl" for n in range(5)]
    for n, id in enumerate(ids):
        write(tmp_path / id, range(n, n + 1))
        changed_at(tmp_path / id, 1)
    _, snapshot = read_whole(tmp_path, "jsonl", world)
    assert read_whole(tmp_path, "jsonl", world, snapshot)[0] == looked == []
    for id in ids:
        changed_at(tmp_path / id, 2)
    for expected in (ids[:3], ids, ids):
        found, snapshot = read_whole(tmp_path, "jsonl", world, snapshot)
        assert found == []
        assert sorted(looked) == expected
    write(tmp_path / ids[1], range(9, 10))
    changed_at(tmp_path / ids[1], 3)
    with pytest.raises(InvalidJob, match=r"1\.jsonl was rewritten"):
        read_whole(tmp_path, "jsonl", world, snapshot)


@pytest.mark.slow
def test_object_rewritten_after_its_end_was_read_is_named_and_a_copy_is_skipped(
    s3_url: Callable[[str], str], s3_endpoint: str
) -> None:
    import boto3

    client = boto3.client("s3", endpoint_url=s3_endpoint)
    url, world = s3_url("in"), World()
    bucket = url.split("/")[2]

    def put_later(first: int) -> None:
        before, deadline = changed(), time.monotonic() + 120
        while changed() == before:  # whole seconds
            assert time.monotonic() < deadline
            put(first)

    def put(first: int) -> None:
        client.put_object(Bucket=bucket, Key="in/a.jsonl", Body=lines(first, 100).encode())

    def changed() -> Any:
        return client.head_object(Bucket=bucket, Key="in/a.jsonl")["LastModified"]

    def read(*restored: OperatorSnapshot) -> tuple[int, OperatorSnapshot]:
        driver = opened(spec_of(SOURCES["jsonl"](url)), world, restored)
        return len(rows_of(drained(driver))), snapshot_of(driver, world)

    put(100)
    rows, snapshot = read()
    assert rows == 100
    put_later(100)
    rows, snapshot = read(snapshot)
    assert rows == 0
    put_later(200)
    with pytest.raises(InvalidJob, match=r"in/a\.jsonl\S* was rewritten after it was read to its end"):
        read(snapshot)


@pytest.mark.parametrize("when", ["while it is watched", "between two runs"])
def test_a_watched_file_that_was_rewritten_after_it_was_read_is_named(tmp_path: Path, when: str) -> None:
    path, world = tmp_path / "a.jsonl", World()
    write(path, range(100, 200))
    changed_at(path, 1)

    def watching(*restored: OperatorSnapshot) -> SourceDriver:
        inner = JsonlFiles("src", str(tmp_path), SCHEMA, None, watched=True)
        return opened(spec_of(WatchedFiles(inner, 0.001)), world, restored)

    def until(driver: SourceDriver, count: int) -> list[int]:
        found: list[int] = []
        deadline = time.monotonic() + 60
        while len(found) < count:
            assert time.monotonic() < deadline, found
            batch = driver.poll(0)
            found += [row["n"] for row in rows_of([batch])] if batch is not None else []
        return found

    driver = watching()
    assert until(driver, 100) == list(range(100, 200))
    changed_at(path, 2)  # same bytes: no change
    write(tmp_path / "_b.jsonl", range(300, 301))
    os.replace(tmp_path / "_b.jsonl", tmp_path / "b.jsonl")
    assert until(driver, 1) == [300]
    snapshot = snapshot_of(driver, world)
    write(tmp_path / "_new.jsonl", range(200, 300))
    changed_at(tmp_path / "_new.jsonl", 3)
    if when == "between two runs":
        driver.close()
    os.replace(tmp_path / "_new.jsonl", path)
    if when == "between two runs":
        driver = watching(snapshot)
    with pytest.raises(InvalidJob, match=r"a\.jsonl was rewritten after it was read to its end"):
        until(driver, 1)
    driver.close()


# ---------------------------------------------------------------- files that grow


def grow(path: Path, numbers: range) -> None:
    with path.open("a") as file:
        file.write("".join(f"{n}\n" if path.name.endswith(".csv") else json.dumps({"n": n}) + "\n" for n in numbers))


def flow_of(folder: Path, ending: str = "jsonl", **options: Any) -> Dataflow:
    flow = Dataflow("logs")
    read = {"csv": flow.read_csv, "jsonl": flow.read_jsonl, "parquet": flow.read_parquet}[ending]
    stream = read("src", str(folder / "in"), schema={"n": int}, on_change="append", **options)
    stream.sink("out", JsonlSink(str(folder / "out")))
    return flow


def run(folder: Path, ending: str = "jsonl", parallelism: int = 1) -> None:
    flow_of(folder, ending).run_local(checkpoints=str(folder / "ck"), parallelism=parallelism)


def numbers(folder: Path) -> list[int]:
    out = folder / "out"
    files = [out / name for name in visible_files(out)] if out.exists() else []
    return sorted(json.loads(line)["n"] for file in files for line in file.read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_a_file_that_grew_is_read_on_by_the_next_run_at_any_parallelism(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / f"1.{ending}", range(3))
    run(tmp_path, ending)
    assert numbers(tmp_path) == list(range(3))
    grow(folder / f"1.{ending}", range(3, 5))
    write(folder / f"2.{ending}", range(5, 7))
    run(tmp_path, ending, parallelism=3)
    assert numbers(tmp_path) == list(range(7))
    run(tmp_path, ending, parallelism=2)
    assert numbers(tmp_path) == list(range(7))
    grow(folder / f"2.{ending}", range(7, 8))
    (folder / f"1.{ending}").unlink()  # read to the end, so the file is not needed any more
    run(tmp_path, ending, parallelism=2)
    assert numbers(tmp_path) == list(range(8))


@pytest.mark.slow
def test_a_line_without_its_end_is_read_when_it_has_one(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    path = folder / "1.jsonl"
    path.write_text(lines(0, 2) + '{"n": 2')
    for _ in range(2):
        run(tmp_path)
        assert numbers(tmp_path) == [0, 1]
    path.write_text(lines(0, 2) + '{"n": 2}\n{"n"')
    run(tmp_path)
    assert numbers(tmp_path) == [0, 1, 2]


def test_a_file_that_was_not_read_to_its_end_is_read_on_when_it_grew(tmp_path: Path) -> None:
    path, world = tmp_path / "a.jsonl", World()
    write(path, range(10))

    def reopened(*restored: OperatorSnapshot) -> SourceDriver:
        return opened(spec_of(JsonlFiles("src", str(path), SCHEMA, None, on_change="append")), world, restored)

    driver = reopened()
    driver.poll(0, 5)
    snapshot = snapshot_of(driver, world)
    driver.close()
    grow(path, range(10, 12))
    driver = reopened(snapshot)
    assert [row["n"] for row in rows_of(drained(driver))] == list(range(5, 12))
    assert driver.records == 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [(lines(5, 4), "what it holds was changed since the checkpoint"), (lines(0, 2), "had 27 bytes .* and has 18 now")],
)
def test_a_file_that_did_not_only_grow_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "1.jsonl"
    path.write_text(lines(0, 3))
    run(tmp_path)
    path.write_text(text)
    with pytest.raises((InvalidJob, JobFailed), match=message):
        run(tmp_path)
    path.write_text(lines(0, 4))
    run(tmp_path)
    assert numbers(tmp_path) == [0, 1, 2, 3]


def test_formats_that_cannot_be_read_on_are_refused_when_the_flow_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.parquet", range(3))
    with pytest.raises(InvalidJob, match="on_change='append' needs text files: a Parquet file"):
        flow_of(tmp_path, "parquet")
    write(folder / "a.jsonl.gz", range(3))
    with pytest.raises(InvalidJob, match=r"text that is not compressed, and a\.jsonl\.gz is"):
        flow_of(tmp_path)
    with pytest.raises(InvalidJob, match="on_change='grow': use 'fail' or 'append'"):
        Dataflow("logs").read_csv("src", str(folder), schema={"n": int}, on_change="grow")  # type: ignore[arg-type]
    (folder / "a.jsonl.gz").unlink()
    write(folder / "a.jsonl", range(3))
    with pytest.raises(InvalidJob, match="pace= counts on files that do not grow"):
        flow_of(tmp_path, pace=5.0)


class Job:
    """A watched job in a thread; `close` makes the job fail while it reads, without a last checkpoint."""

    def __init__(self, folder: Path, parallelism: int) -> None:
        self.folder = folder
        self.failed: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(parallelism,))
        self._thread.start()

    def _run(self, parallelism: int) -> None:
        def ends(index: int, of: int) -> Iterator[dict[str, Any]]:
            self._stop.wait(600)
            yield {"n": 1 // 0}

        flow = flow_of(self.folder, watch=timedelta(milliseconds=10))
        flow.from_iterator("stopper", ends, schema={"n": int}, splits=1).sink(
            "none", JsonlSink(str(self.folder / "no"))
        )
        try:
            flow.run_local(
                checkpoints=str(self.folder / "ck"), parallelism=parallelism, checkpoint_interval=0.03, restart="none"
            )
        except JobFailed as error:
            self.failed.append(error)

    def until(self, expected: list[int]) -> None:
        deadline = time.monotonic() + 120
        while numbers(self.folder) != expected:
            assert time.monotonic() < deadline, (numbers(self.folder), self.failed)
            time.sleep(0.01)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        assert "ZeroDivisionError" in str(self.failed)


@pytest.mark.slow
def test_files_that_grow_while_a_folder_is_watched_are_read_on_over_runs(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.jsonl", range(3))
    known = 3
    for parallelism in (1, 3, 2):
        job = Job(tmp_path, parallelism)
        try:
            for name in ("a", "b", "a"):
                job.until(list(range(known)))
                grow(folder / f"{name}.jsonl", range(known, known + 2))
                known += 2
            job.until(list(range(known)))
        finally:
            job.close()
        grow(folder / "b.jsonl", range(known, known + 1))  # between two runs
        known += 1
    job = Job(tmp_path, 1)
    job.until(list(range(known)))
    job.close()


@pytest.mark.slow
def test_a_file_that_grows_while_it_is_read_is_read_on_when_that_is_done(tmp_path: Path) -> None:
    path, world = tmp_path / "a.jsonl", World()
    write(path, range(500))
    inner = JsonlFiles("src", str(tmp_path), SCHEMA, None, watched=True, on_change="append")
    spec = spec_of(WatchedFiles(inner, 0.001))
    driver = opened(spec, world)
    rows = rows_of([batch for batch in [driver.poll(0, 5)] if batch is not None])
    grow(path, range(500, 502))
    deadline = time.monotonic() + 60
    while len(rows) < 502:
        assert time.monotonic() < deadline, len(rows)
        batch = driver.poll(0, 1)
        rows += rows_of([batch] if batch is not None else [])
        time.sleep(0.001)  # the folder is listed again before the first 500 rows are read
    assert [row["n"] for row in rows] == list(range(502))
    assert driver.records == 502
    driver.close()


def test_the_fingerprint_of_a_compressed_file_of_a_store_does_not_move_it() -> None:
    """A checkpoint in the middle of the file takes the fingerprint; a compressed file of a store is a Python object
    with a single position.
    """
    text = b"".join(b"%d\n" % n for n in range(100_000))
    packed = gzip.compress(text)
    raw = pa.PythonFile(io.BufferedReader(io.BytesIO(packed)), mode="r")
    stream = pa.CompressedInputStream(raw, "gzip")
    begin = bytes(stream.read(1_000))
    fingerprint(raw, len(packed), "src")
    assert begin + bytes(stream.read(len(text))) == text
