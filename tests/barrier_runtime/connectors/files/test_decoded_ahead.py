"""Decoding of the next part of a file by a thread: equal rows, positions and errors, within the bound of bytes."""

import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from operator_harness import World
from source_harness import opened, rows_of, snapshot_of, spec_of

from barrier_runtime.connectors.files.source import lines as line_blocks
from barrier_runtime.connectors.files.source.csv import CsvFiles
from barrier_runtime.connectors.files.source.files import Files
from barrier_runtime.connectors.files.source.jsonl import JsonlFiles
from barrier_runtime.connectors.files.source.lines import TextFiles
from barrier_runtime.connectors.files.source.parquet import ParquetFiles
from barrier_runtime.connectors.files.source.reader import ROWS_PER_CHUNK, DecodedAhead, FileReader
from barrier_runtime.connectors.source_bases.ranges import MOST_BYTES, PartFetcher
from barrier_runtime.data.elements import Batch
from barrier_runtime.state.errors import InvalidJob

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
ROWS = 700


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_blocks, "BLOCK_BYTES", 900)


@pytest.fixture
def fetcher() -> Iterator[PartFetcher]:
    made = PartFetcher(lambda: None)
    yield made
    made.close()


def rows(count: int) -> pa.Table:
    return pa.table({"n": range(count), "s": [f"row {n}\nof two lines" if n > 300 else None for n in range(count)]})


def parquet(folder: Path) -> Files:
    pq.write_table(rows(ROWS), folder / "a.parquet", row_group_size=90)
    return ParquetFiles("src", str(folder), SCHEMA, None)


def csv(folder: Path) -> Files:
    pacsv.write_csv(rows(ROWS), folder / "a.csv")
    return CsvFiles("src", str(folder), SCHEMA, None)


def csv_gz(folder: Path) -> Files:
    with pa.CompressedOutputStream(str(folder / "a.csv.gz"), "gzip") as out:
        pacsv.write_csv(rows(ROWS), out)
    return CsvFiles("src", str(folder), SCHEMA, None)


def jsonl(folder: Path) -> Files:
    (folder / "a.jsonl").write_text("".join(f'{{"n": {n}, "s": "é{n}"}}\n' for n in range(ROWS)))
    return JsonlFiles("src", str(folder), SCHEMA, None)


def text(folder: Path) -> Files:
    (folder / "a.txt").write_text("".join(f"line {n}\n" for n in range(ROWS)))
    return TextFiles("src", str(folder), line_blocks.LINE, None)


def reader_of(files: Files, fetcher: PartFetcher | None) -> FileReader:
    reader = files.reader(files.splits(1)[0])
    assert isinstance(reader, FileReader)
    if fetcher is not None:
        reader.fetch_by(fetcher)
    return reader


def polled(reader: FileReader, most: int) -> list[tuple[list[dict[str, object]], bytes]]:
    """Rows and the position after each poll."""
    found = []
    while not reader.finished:
        polled = reader.poll(most, 0)
        found.append(([] if polled is None else Batch(polled.rows, 0).rows.to_pylist(), reader.position()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("make", [parquet, csv, csv_gz, jsonl])
@pytest.mark.parametrize("most", [7, 10_000])
def test_rows_and_positions_are_those_of_decoding_on_the_loop(
    tmp_path: Path, make: Callable[[Path], Files], most: int, fetcher: PartFetcher
) -> None:
    files = make(tmp_path)
    alone, ahead = polled(reader_of(files, None), most), polled(reader_of(files, fetcher), most)
    rows_read = [row for part, _ in alone for row in part]
    assert len(rows_read) == ROWS
    assert [row for part, _ in ahead for row in part] == rows_read
    assert fetcher.held_bytes == 0
    for parts, threads in ((alone, fetcher), (ahead, None), (ahead, fetcher)):
        for number in range(0, len(parts), 5):
            reader = reader_of(files, threads)
            reader.seek(parts[number][1])
            left = [row for part, _ in polled(reader, most) for row in part]
            assert left == [row for part, _ in parts[number + 1 :] for row in part]


@pytest.mark.parametrize(("make", "name"), [(csv, "a.csv"), (jsonl, "a.jsonl"), (text, "a.txt")])
def test_a_thread_decodes_four_blocks_at_once_and_the_loop_one(
    tmp_path: Path, make: Callable[[Path], Files], name: str, fetcher: PartFetcher
) -> None:
    files = make(tmp_path)
    size = (tmp_path / name).stat().st_size
    alone, ahead = polled(reader_of(files, None), 10_000), polled(reader_of(files, fetcher), 10_000)
    assert len([part for part, _ in alone if part]) >= size // 900
    assert len([part for part, _ in ahead if part]) <= 3 + size // (4 * 900 - 100)


@pytest.mark.parametrize(("make", "name"), [(csv, "a.csv"), (jsonl, "a.jsonl")])
def test_an_error_in_a_later_part_follows_the_rows_before_and_names_its_line(
    tmp_path: Path, make: Callable[[Path], Files], name: str, fetcher: PartFetcher
) -> None:
    files = make(tmp_path)
    bad = tmp_path / name
    bad.write_text(bad.read_text().replace("290", "x90", 1))
    before = []
    for threads in (None, fetcher):
        files = type(files)("src", str(tmp_path), SCHEMA, None)
        reader = reader_of(files, threads)
        with pytest.raises(InvalidJob, match=r"line 29[12]") as refused:
            polled(reader, 10_000)
        before.append(str(refused.value))
        assert 0 < reader.row <= 290
        reader.close()
    assert before[0] == before[1]
    assert fetcher.held_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("int96", [False, True])
@pytest.mark.parametrize("read_by_thread", [False, True])
@pytest.mark.parametrize("kept", [0.0, 0.6])
def test_a_parquet_file_cut_between_row_groups_while_it_is_read_does_not_end(
    tmp_path: Path, fetcher: PartFetcher, read_by_thread: bool, int96: bool, kept: float
) -> None:
    count, group = 4 * ROWS_PER_CHUNK, ROWS_PER_CHUNK // 2
    cut = pa.table({"n": range(count), "s": ["x"] * count, "at": pa.array([0] * count, pa.timestamp("us"))})
    path = tmp_path / "a.parquet"
    pq.write_table(cut, path, row_group_size=group, use_deprecated_int96_timestamps=int96)
    reader = reader_of(ParquetFiles("src", str(tmp_path), cut.schema, None), fetcher if read_by_thread else None)
    assert reader.poll(count, 0) is not None
    groups = pq.ParquetFile(path).metadata
    first = groups.row_group(int(kept * groups.num_row_groups)).column(0)
    os.truncate(path, first.dictionary_page_offset if kept else 0)
    half_read = "it is not (or no longer) valid Parquet" if read_by_thread else "never"  # the cut meets the thread
    with pytest.raises(
        InvalidJob, match=rf"{re.escape(half_read)}|it had {count:,} rows and ends after row \d+ now: files must not"
    ):
        polled(reader, count)
    reader.close()


def test_a_restored_job_reads_on_while_parts_are_decoded(tmp_path: Path) -> None:
    files, world = csv_gz(tmp_path), World()
    driver = opened(spec_of(files), world)
    first = [driver.poll(0) for _ in range(3)]
    snapshot = snapshot_of(driver, world)
    driver.close()
    again = opened(spec_of(files), World(), (snapshot,))
    rest = []
    while not again.finished:
        rest.append(again.poll(0))
    assert rows_of([batch for batch in (*first, *rest) if batch is not None]) == rows(ROWS).to_pylist()


def test_a_thread_decodes_the_next_part_within_the_bound(fetcher: PartFetcher) -> None:
    threads: list[int] = []

    def decode() -> int:
        threads.append(threading.get_ident())
        return len(threads)

    ahead = DecodedAhead(decode)
    assert ahead.take() == 1
    ahead.begin(fetcher, MOST_BYTES)
    assert ahead.begun
    other = DecodedAhead(decode)
    other.begin(fetcher, 1)  # beyond the bound
    assert not other.begun
    assert ahead.take() == 2
    assert threads[0] == threading.get_ident() != threads[1]
    assert fetcher.held_bytes == 0


def test_closing_waits_for_the_thread_and_gives_the_bytes_back(fetcher: PartFetcher) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def decode() -> None:
        begun.set()
        may_end.wait()
        ended.set()

    ahead = DecodedAhead(decode)
    ahead.begin(fetcher, 10)
    begun.wait()
    threading.Timer(0.01, may_end.set).start()
    fetcher.close()
    ahead.close()
    assert ended.is_set()
    assert fetcher.held_bytes == 0
    ahead.begin(fetcher, 10)
    assert not ahead.begun  # the loop decodes
