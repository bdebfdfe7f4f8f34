"""Chunks too large for a turn of the loop are made on a thread; until then a barrier takes the position before them."""

import gzip
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from barrier_runtime.connectors.files.source import reader as reading
from barrier_runtime.connectors.files.source.binary import BinarySource
from barrier_runtime.connectors.files.source.csv import CsvSource
from barrier_runtime.connectors.files.source.jsonl import JsonlSource
from barrier_runtime.connectors.files.source.lines import TextSource
from barrier_runtime.connectors.files.source.parquet import ParquetSource
from barrier_runtime.connectors.source import Source
from barrier_runtime.connectors.source_bases.ranges import PartFetcher
from barrier_runtime.state.errors import InvalidJob

T = TypeVar("T")
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
LARGE = "x" * 3_000_000
ROWS = [{"n": 1, "text": "a"}, {"n": 2, "text": LARGE}, {"n": 3, "text": f'{LARGE}"\n'}, {"n": 4, "text": "d"}]


class Stepped(PartFetcher):
    """Fetcher whose pieces run when the test says so."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.waiting: list[Callable[[], None]] = []
        self.ran = 0

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        self.waiting.append(run)
        return future

    def run(self) -> None:
        (work,) = self.waiting
        self.waiting = []
        self.ran += 1
        work()


def jsonl() -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def csv() -> bytes:
    quoted = [(row["n"], str(row["text"]).replace('"', '""')) for row in ROWS]
    return ("n,text\n" + "".join(f'{n},"{text}"\n' for n, text in quoted)).encode()


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    rows = [{**row, "text": str(row["text"]) * 4} for row in ROWS]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), sink, use_dictionary=False)
    return bytes(sink.getvalue())


Make = Callable[[str], Source]
FORMATS: dict[str, tuple[Callable[[], bytes], Make, int]] = {
    "a.jsonl": (jsonl, lambda url: JsonlSource(url, schema=SCHEMA).named("src"), 2),
    "a.jsonl.gz": (lambda: gzip.compress(jsonl(), 1), lambda url: JsonlSource(url, schema=SCHEMA).named("src"), 2),
    "a.csv": (csv, lambda url: CsvSource(url, schema=SCHEMA).named("src"), 2),
    "a.txt": (lambda: f"a\n{LARGE}\nb\n".encode(), lambda url: TextSource(url).named("src"), 1),
    "a.parquet": (parquet, lambda url: ParquetSource(url).named("src"), 4),
    "a.bin": (lambda: b"x" * 5_000_000, lambda url: BinarySource(url).named("src"), 1),
}


def reader_of(source: Source, fetcher: PartFetcher | None = None, position: bytes | None = None) -> Any:
    (split,) = source.splits(1)
    reader: Any = source.reader(split)
    if fetcher is not None:
        reader.fetch_by(fetcher)
    if position is not None:
        reader.seek(position)
    return reader


def rows_at_once(reader: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while not reader.finished:
        polled = reader.poll(10, 0)
        rows += [] if polled is None else polled.rows.to_pylist()
    return rows


def rows_stepwise(reader: Any, fetcher: Stepped) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while not reader.finished:
        polled = reader.poll(10, 0)
        rows += [] if polled is None else polled.rows.to_pylist()
        if fetcher.waiting:
            fetcher.run()
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_large_chunks_are_pieces_and_positions_between_them_are_exact(tmp_path: Path, name: str) -> None:
    data, make, least = FORMATS[name]
    (tmp_path / name).write_bytes(data())
    source, fetcher = make(str(tmp_path)), Stepped()
    whole = rows_at_once(reader_of(source))
    reader, read = reader_of(source, fetcher), list[dict[str, Any]]()
    while not reader.finished:
        polled = reader.poll(10, 0)
        read += [] if polled is None else polled.rows.to_pylist()
        assert read + rows_at_once(reader_of(source, position=reader.position())) == whole
        if fetcher.waiting:
            assert polled is None
            assert reader.fetching, "the split is not idle"
            assert reader.poll(10, 0) is None
            fetcher.run()
    assert read == whole
    assert fetcher.ran >= least


@pytest.mark.parametrize("name", FORMATS)
def test_a_barrier_reads_nothing_of_a_file_that_a_thread_reads(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads of the loop would move the place of a compressed stream."""
    data, make, _ = FORMATS[name]
    (tmp_path / name).write_bytes(data())
    fetcher = Stepped()
    reader = reader_of(make(str(tmp_path)), fetcher)
    while not fetcher.waiting:
        reader.poll(10, 0)
    monkeypatch.setattr(reading, "fingerprint", None)
    assert reader.position()


@pytest.mark.parametrize(("size", "ran"), [(900_000, 0), (1_200_000, 1)])
def test_the_loop_reads_at_most_1_mib_for_a_record(tmp_path: Path, size: int, ran: int) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"n": 1, "text": "x" * size}) + "\n")
    fetcher = Stepped()
    reader = reader_of(JsonlSource(str(tmp_path), schema=SCHEMA).named("src"), fetcher)
    while (polled := reader.poll(10, 0)) is None:
        fetcher.run()
    assert polled.rows.num_rows == 1
    assert fetcher.ran == ran


@pytest.mark.slow
def test_an_error_in_a_large_record_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl() + b'{"n": "four", "text": "' + LARGE.encode() + b'"}\n')
    source = JsonlSource(str(tmp_path), schema=SCHEMA).named("src")
    with pytest.raises(InvalidJob, match="line 5"):
        rows_stepwise(reader_of(source, fetcher := Stepped()), fetcher)


def test_half_of_a_large_record_waits_for_the_rest_of_a_growing_file(tmp_path: Path) -> None:
    whole, path = jsonl(), tmp_path / "a.jsonl"
    path.write_bytes(whole[:4_000_000])  # within the third record

    def read(position: bytes | None) -> tuple[list[Any], bytes]:
        fetcher = Stepped()
        source = JsonlSource(str(tmp_path), schema=SCHEMA, on_change="append").named("src")
        reader = reader_of(source, fetcher, position)
        return [row["n"] for row in rows_stepwise(reader, fetcher)], reader.position()

    numbers, position = read(None)
    assert numbers == [1, 2]
    path.write_bytes(whole)
    assert read(position)[0] == [3, 4]


def test_a_file_is_closed_after_the_piece_that_reads_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl().partition(b"\n")[2])  # from the first large record on
    fetcher = Stepped()
    reader = reader_of(JsonlSource(str(tmp_path), schema=SCHEMA).named("src"), fetcher)
    assert reader.poll(10, 0) is None
    file = reader.raw()
    reader.close()
    assert not file.closed
    fetcher.run()
    assert file.closed
