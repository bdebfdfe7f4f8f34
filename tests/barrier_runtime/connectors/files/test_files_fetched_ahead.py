"""Prefetching of a store's files: number of requests, and concurrent requests; rows and positions are unchanged."""

import gzip
import io
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from operator_harness import World
from source_harness import drained, opened, rows_of, snapshot_of, spec_of

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.connectors.files.source import remote
from barrier_runtime.connectors.files.source.binary import BinaryFiles, BinarySource
from barrier_runtime.connectors.files.source.csv import CsvFiles
from barrier_runtime.connectors.files.source.jsonl import JsonlFiles
from barrier_runtime.connectors.files.source.lines import LINE, TextFiles
from barrier_runtime.connectors.files.source.parquet import ParquetFiles
from barrier_runtime.connectors.files.source.small_table import small_table
from barrier_runtime.connectors.files.source.source import WatchedFiles
from barrier_runtime.connectors.source_bases import ranges
from barrier_runtime.connectors.source_bases.ranges import FIRST_BYTES
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.store.object_store import ObjectInfo
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from tests.drawn import seeds
from tests.waiting import until

URL = "s3://data/in"
SECOND_NS = 1_000_000_000
ROWS = pa.schema([("n", pa.int64()), ("text", pa.string())])


class Counting(MemoryStore):
    """Store that counts requests. Requests are answered while `answers` is set; requests for the beginning and end of
    a file are always answered, unless `holds_all` is set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()
        self.asked: list[tuple[str, int, int]] = []
        self.holds_all = False
        self.listed = 0
        self.under_way = self.most = 0
        self._count = threading.Condition()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self.listed += 1
        return super().list(prefix)

    def get_version(self, key: str, etag: str, offset: int, size: int) -> bytes:
        with self._count:
            self.asked.append((key, offset, size))
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self._count.notify_all()
        try:
            assert (size <= FIRST_BYTES and not self.holds_all) or self.answers.wait(60)
            return super().get_version(key, etag, offset, size)
        finally:
            with self._count:
                self.under_way -= 1

    def wait_for_requests(self, count: int) -> None:
        with self._count:
            assert self._count.wait_for(lambda: self.under_way >= count, 60)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Counting:
    made = Counting()
    monkeypatch.setattr(remote, "_store", lambda bucket: made)
    return made


def rows(count: int, width: int = 20) -> list[dict[str, Any]]:
    return [{"n": n, "text": f"{n:0{width}}"} for n in range(count)]


def jsonl(count: int, width: int = 20) -> bytes:
    return b"".join(b'{"n": %d, "text": "%s"}\n' % (row["n"], row["text"].encode()) for row in rows(count, width))


def csv(count: int, width: int = 20) -> bytes:
    return b"n,text\n" + b"".join(b'%d,"%s"\n' % (row["n"], row["text"].encode()) for row in rows(count, width))


def parquet(count: int, width: int = 20, per_group: int = 5_000) -> bytes:
    buffer = io.BytesIO()
    table = pa.Table.from_pylist(rows(count, width), schema=ROWS)
    pq.write_table(table, buffer, row_group_size=per_group, use_dictionary=False, compression="none")
    return buffer.getvalue()


FORMATS = {
    "jsonl": (jsonl, lambda: JsonlFiles("src", URL, ROWS, None)),
    "csv": (csv, lambda: CsvFiles("src", URL, ROWS, None)),
    "jsonl.gz": (lambda *of: gzip.compress(jsonl(*of), 0), lambda: JsonlFiles("src", URL, ROWS, None)),
    "csv.gz": (lambda *of: gzip.compress(csv(*of), 0), lambda: CsvFiles("src", URL, ROWS, None)),
    "parquet": (parquet, lambda: ParquetFiles("src", URL, ROWS, None)),
}


def until_held_up(driver: SourceDriver, now_ns: int = SECOND_NS) -> list[dict[str, Any]]:
    found = []
    while (batch := driver.poll(now_ns)) is not None:
        found += rows_of([batch])
    return found


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize("ending", FORMATS)
def test_planning_asks_for_a_listing_and_each_small_file_is_one_request(store: Counting, ending: str) -> None:
    make, source = FORMATS[ending]
    for n in range(20):
        store.put(f"in/{n:02}.{ending}", make(3))
    spec = spec_of(source())
    assert (store.listed, store.asked) == (1, [])
    driver = opened(spec, World())
    assert len(rows_of(drained(driver))) == 60
    driver.close()
    assert store.listed == 1
    assert sorted(key for key, _, _ in store.asked) == [f"in/{n:02}.{ending}" for n in range(20)]


@pytest.mark.parametrize(
    "ending", ["jsonl", *(pytest.param(each, marks=pytest.mark.slow) for each in ("csv.gz", "parquet"))]
)
def test_the_loop_waits_for_no_range_of_a_large_file(store: Counting, ending: str) -> None:
    make, source = FORMATS[ending]
    store.put(f"in/a.{ending}", make(50_000, 400))
    world, woken = World(), threading.Event()
    context = world.context("src")
    object.__setattr__(context, "wake_from_thread", woken.set)
    driver = SourceDriver()
    store.answers.clear()
    driver.open(context, spec_of(source(), idle_timeout_ms=1))
    found: list[dict[str, Any]] = []
    held_up = 0
    while not driver.finished:
        while not driver.finished and not store.under_way:
            found += until_held_up(driver)
        woken.clear()  # the range may arrive during the next polls
        for later_ns in range(0, 4_000_000, 900_000):
            found += until_held_up(driver, SECOND_NS + later_ns)
        if driver.finished:
            break
        held_up += 1
        assert not driver.idle  # the source has rows that have not arrived yet
        assert snapshot_of(driver, world)
        store.answers.set()
        assert woken.wait(60)
        store.answers.clear()
    assert held_up
    driver.close()
    assert [row["n"] for row in found] == list(range(50_000))


@pytest.mark.slow
def test_no_request_for_parquet_begins_inside_a_column_chunk(store: Counting) -> None:
    data = parquet(60_000, 100)
    store.put("in/a.parquet", data)
    driver = opened(spec_of(ParquetFiles("src", URL, ROWS, None)), World())
    assert len(rows_of(drained(driver))) == 60_000
    driver.close()
    about = pq.ParquetFile(io.BytesIO(data)).metadata
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    begins = {chunk.data_page_offset for chunk in chunks}
    ends = {chunk.data_page_offset + chunk.total_compressed_size for chunk in chunks}
    asked = [(offset, offset + size) for _, offset, size in store.asked if offset > FIRST_BYTES]
    inside = [(begin, end) for begin, end in asked if end < len(data) and (begin not in begins or end not in ends)]
    assert len(asked) >= len(groups) - 2
    assert not inside


@pytest.mark.slow
def test_the_next_ranges_and_files_are_requested_together(store: Counting) -> None:
    for n in range(3):
        store.put(f"in/{n}.jsonl", jsonl(100_000, 100))
    store.answers.clear()
    driver = opened(spec_of(JsonlFiles("src", URL, ROWS, None)), World())
    while len({row["n"] for row in until_held_up(driver)}) < 1:
        pass
    store.wait_for_requests(24)
    assert store.most <= ranges.THREADS
    store.answers.set()
    drained(driver)
    driver.close()
    assert driver.records == 300_000
    covered = {
        (key, at)
        for key, start, size in store.asked
        for at in range(start // (1 << 20), (start + size - 1) // (1 << 20) + 1)
    }
    assert len(store.asked) <= len(covered) + 3 * 3  # no block twice, but of the beginning and the end of each file


@pytest.mark.slow
def test_files_that_appear_are_requested_together(store: Counting) -> None:
    store.put("in/first.jsonl", jsonl(1))
    source = WatchedFiles(JsonlFiles("src", URL, ROWS, None, watched=True), 0.01)
    driver = opened(spec_of(source), World())
    until(lambda: driver.poll(0) is not None)
    store.holds_all = True
    store.answers.clear()
    for n in range(40):
        store.put(f"in/{n:02}.jsonl", jsonl(1))
    until(lambda: driver.poll(0) is None and store.under_way == ranges.THREADS)
    store.answers.set()
    until(lambda: driver.poll(0) is None and driver.records == 41)
    driver.close()
    assert sorted(key for key, _, _ in store.asked) == sorted(store.keys())


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_bytes_ahead_stay_below_the_bound_whatever_the_number_of_files(
    store: Counting, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "MOST_BYTES", 4 << 20)
    make, source = FORMATS[ending]
    content = make(12_000, 100)
    for n in range(40):
        store.put(f"in/{n:02}.{ending}", content)
    driver = opened(spec_of(source()), World())
    fetcher, most = driver._fetcher, 0
    while not driver.finished:
        driver.poll(0)
        most = max(most, fetcher.held_bytes)
    assert driver.records == 40 * 12_000
    assert fetcher.held_bytes == 0
    assert most <= (4 << 20) + 32 * (320 << 10) + (2 << 20)  # bytes read by threads while preparing, and one range
    driver.close()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl.gz"])
def test_a_small_table_of_a_store_is_read_by_several_requests_at_a_time(store: Counting, ending: str) -> None:
    make, _ = FORMATS[ending]
    store.put(f"in/a.{ending}", make(20_000, 300))
    assert small_table(f"{URL}/a.{ending}", "a join").column("n").to_pylist() == list(range(20_000))
    if ending == "parquet":
        store.put(f"in/b.{ending}", make(3))
        assert small_table(URL, "a join").column("n").to_pylist() == [*range(20_000), 0, 1, 2]


# ---------------------------------------------------------------- rows and positions


@pytest.mark.slow
@pytest.mark.draws
@pytest.mark.parametrize("seed", seeds(10))
@pytest.mark.parametrize("ending", FORMATS)
def test_rows_and_restores_are_those_of_a_folder(
    store: Counting, ending: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(ranges, "MOST_BYTES", dice.choice([1 << 10, 1 << 20, 64 << 20]))
    make, source = FORMATS[ending]
    counts = [dice.choice([0, 1, 3, 2_000, 9_000]) for _ in range(dice.randint(1, 5))]
    for n, count in enumerate(counts):
        store.put(f"in/{n}.{ending}", make(count, dice.choice([5, 300])))
    world = World()
    driver = opened(spec_of(source()), world)
    found: list[int] = []
    while not driver.finished:
        batch = driver.poll(0, dice.choice([1, 700, 5_000, 65_536]))
        found += [row["n"] for row in rows_of([batch])] if batch is not None else []
        if batch is not None and dice.random() < 0.2:
            snapshot = snapshot_of(driver, world)
            driver.close()
            driver = opened(spec_of(source()), world, (snapshot,))
    driver.close()
    assert sorted(found) == sorted(n for count in counts for n in range(count))


@pytest.mark.slow
def test_a_row_of_eight_megabytes_is_read(store: Counting) -> None:
    line = b'{"n": 1, "text": "%s"}\n' % (b"x" * (8 << 20))
    store.put("in/a.jsonl", jsonl(5) + line + jsonl(5))
    driver = opened(spec_of(JsonlFiles("src", URL, ROWS, None)), World())
    assert [row["n"] for row in rows_of(drained(driver))] == [0, 1, 2, 3, 4, 1, 0, 1, 2, 3, 4]
    driver.close()


def test_a_remote_file_without_a_column_that_is_not_read_is_named_at_its_turn(
    store: Counting,
) -> None:
    store.put("in/a.parquet", parquet(3))
    schema = pa.schema([*ROWS, ("more", pa.int64())])
    spec = spec_of(ParquetFiles("src", URL, schema, None).reading({"n"}))
    driver = opened(spec, World())
    with pytest.raises(InvalidJob, match=r"in/a\.parquet\S* it has no column 'more' .*: correct schema="):
        drained(driver)
    driver.close()


def test_whole_files_are_fetched_in_ranges(store: Counting) -> None:
    content = random.Random(1).randbytes(3 << 20)
    store.put("in/a.bin", content)
    source = BinaryFiles(BinarySource(URL), "src", None, watched=False)
    driver = opened(spec_of(source), World())
    (row,) = rows_of(drained(driver))
    assert row["content"] == content
    driver.close()


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize(
    "ending", ["jsonl", *(pytest.param(each, marks=pytest.mark.slow) for each in FORMATS if each != "jsonl")]
)
def test_an_object_that_is_replaced_between_two_ranges_is_named(store: Counting, ending: str) -> None:
    make, source = FORMATS[ending]
    content = make(60_000, 400)
    store.put(f"in/a.{ending}", content)
    store.answers.clear()
    driver = opened(spec_of(source()), World())
    while not store.under_way:
        until_held_up(driver)
    store.put(f"in/a.{ending}", content)
    store.answers.set()
    with pytest.raises(InvalidJob, match=rf"in/a\.{ending}\S* was replaced after it was listed.* rename it into place"):
        drained(driver)
    driver.close()


@pytest.mark.slow
def test_a_range_that_cannot_be_had_ends_the_generation_with_the_name_of_the_file(store: Counting) -> None:
    store.put("in/a.jsonl", jsonl(60_000, 400))
    driver = opened(spec_of(JsonlFiles("src", URL, ROWS, None)), World())
    while not driver.records:
        driver.poll(0)
    store.inject(Fault.FAIL_BEFORE, "get", times=None)
    with pytest.raises(Unavailable, match=r"in/a\.jsonl\S* cannot be read now: get of .*: try again"):
        drained(driver)
    driver.close()


def test_a_file_that_is_shorter_than_listed_where_there_are_no_versions_is_named(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example on HDFS, which has no ETags."""
    plain = MemoryStore.list
    monkeypatch.setattr(
        Counting,
        "list",
        lambda self, prefix: iter([ObjectInfo(i.key, i.size, i.modified_ms) for i in plain(self, prefix)]),
    )
    store.put("in/a.txt", b"one\ntwo\n")
    for content in (b"one\n", b"one\ntwo\nthree\n"):
        source = TextFiles("src", URL, LINE, None)
        spec = spec_of(source)
        store.put("in/a.txt", content)
        driver = opened(spec, World())
        with pytest.raises(InvalidJob, match=rf"had \d+ bytes when the job started and has {len(content)} now"):
            drained(driver)
        driver.close()
        store.put("in/a.txt", b"one\ntwo\n")
    driver = opened(spec_of(TextFiles("src", URL, LINE, None)), World())
    assert [row["line"] for row in rows_of(drained(driver))] == ["one", "two"]
    driver.close()


# ---------------------------------------------------------------- a job


@pytest.mark.slow
def test_checkpoints_are_decided_while_a_range_does_not_come(store: Counting, tmp_path: Path) -> None:
    store.put("in/a.jsonl", jsonl(20_000, 100))
    store.answers.clear()
    decided: list[int] = []

    def open_the_gate() -> None:
        checkpoints = open_store(str(tmp_path / "checkpoints"))
        until(lambda: any(each.position > 10 for each in read_log(checkpoints, Paths("slow-get")).completes))
        decided.append(1)
        store.answers.set()

    gate = threading.Thread(target=open_the_gate)
    gate.start()
    flow, out = Dataflow("slow-get"), CollectSink()

    def ticks(index: int, count: int) -> Iterator[dict[str, int]]:
        while not store.answers.wait(0.01):
            yield {"n": -1}

    other = CollectSink()
    flow.from_iterator("ticks", ticks, schema={"n": int}, splits=1).sink("other", other)
    flow.read_jsonl("in", URL, schema=ROWS).sink("out", out)
    flow.run_local(parallelism=2, checkpoints=str(tmp_path / "checkpoints"), checkpoint_interval=0.05)
    gate.join()
    assert decided
    assert sorted(row["n"] for row in out.rows()) == list(range(20_000))
