"""CSV rows with line breaks in quoted values: each row is read once, for any block borders and from any position."""

import bz2
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barrier_runtime import InvalidJob
from barrier_runtime.connectors.files.csv_quoting import count_of_lines, end_of_rows, quoted, row_begins
from barrier_runtime.connectors.files.source import lines as line_blocks
from barrier_runtime.connectors.files.source.csv import CsvFiles
from barrier_runtime.connectors.sink_bases import encoders
from tests.drawn import examples

TEXTS = pa.schema([("a", pa.string()), ("b", pa.string())])
values = st.none() | st.text('ab",\n\r', max_size=6)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(bz2.compress(data) if path.suffix == ".bz2" else data)
    return path


def reader_of(path: Path, schema: pa.Schema = TEXTS, **options: Any) -> Any:
    files = CsvFiles("in", str(path), schema, None, **options)
    (split,) = files.splits(1)
    return files.reader(split)


def rows_of(reader: Any, positions: list[tuple[int, bytes]] | None = None) -> list[dict[str, Any]]:
    """Returns all rows. `positions`: collects (number of rows so far, position) after each poll."""
    rows: list[dict[str, Any]] = []
    while not reader.finished:
        polled = reader.poll(2, 0)
        rows += [] if polled is None else polled.rows.to_pylist()
        if positions is not None:
            positions.append((len(rows), reader.position()))
    reader.close()
    return rows


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda size: monkeypatch.setattr(line_blocks, "BLOCK_BYTES", size)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.csv", "a.csv.bz2"])
@given(rows=st.lists(st.tuples(values, values), min_size=1, max_size=12), block=st.integers(1, 60))
@example(rows=[("x\ny", "1"), ("\n", None), (None, '"\n"')], block=5)
@examples(30)
def test_each_row_comes_once_from_every_position(
    tmp_path_factory: pytest.TempPathFactory, name: str, rows: list[tuple[str | None, str | None]], block: int
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    written = pa.RecordBatch.from_pylist([{"a": a, "b": b} for a, b in rows], schema=TEXTS)
    write(path, encoders.csv([written]))
    positions: list[tuple[int, bytes]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_blocks, "BLOCK_BYTES", block)
        assert rows_of(reader_of(path), positions) == written.to_pylist()
        for count, position in positions:
            reader = reader_of(path)
            reader.seek(position)
            assert rows_of(reader) == written.to_pylist()[count:]


@given(rows=st.lists(values, min_size=1, max_size=12), block=st.integers(1, 40))
@examples(30)
def test_each_value_of_a_single_column_comes_once(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str | None], block: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "single.csv"
    written = pa.RecordBatch.from_pylist([{"a": a} for a in rows], schema=pa.schema([("a", pa.string())]))
    write(path, encoders.csv([written]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_blocks, "BLOCK_BYTES", block)
        assert rows_of(reader_of(path, written.schema)) == written.to_pylist()


def by_letter(data: bytes) -> tuple[list[bool], bool]:
    """Returns per byte whether the byte is quoted, and whether the last quote is open, by Arrow's
    rules byte by byte.
    """
    inside, begins, within = [], True, False
    at = 0
    while at < len(data):
        letter = data[at : at + 1]
        if within and letter == b'"' and data[at + 1 : at + 2] == b'"':
            inside += [True, True]
            at += 2
            continue
        if within and letter == b'"':
            within = False
        elif begins and letter == b'"':
            within = True
        begins = not within and letter in (b",", b"\n", b"\r")
        inside.append(within)
        at += 1
    return inside, within


@given(data=st.text('a",\n\r', max_size=30).map(str.encode))
@example(data=b'a"b,"\n",x\n')
@example(data=b'"a"b"c"\n"\n')
@examples(200)
def test_quoted_parts_are_those_found_byte_by_byte(data: bytes) -> None:
    inside, is_open = by_letter(data)
    parts = quoted(data, ",")
    line_ends = [at for at, byte in enumerate(data) if byte == 10]
    assert [parts.covers(at) is not None for at in line_ends] == [inside[at] for at in line_ends]
    assert (parts.open_at is not None) == is_open
    ends = [at + 1 for at in line_ends if not inside[at]]
    assert end_of_rows(data, ",") == (ends[-1] if ends else 0)


def test_lines_are_counted_with_every_line_end() -> None:
    assert [count_of_lines(data) for data in (b"", b"a", b"a\n", b"a\r\nb", b"a\rb\n", b"\n\n")] == [0, 1, 1, 2, 2, 2]
    assert row_begins(b'a\n\n"b\n"\r\nc', ",", blank_rows=False) == [0, 3, 9]
    assert row_begins(b'a\n\n"b\n"\r\nc', ",", blank_rows=True) == [0, 2, 3, 9]


def test_a_file_that_grows_within_a_quoted_value_is_read_on_at_its_row(
    tmp_path: Path, blocks: Callable[[int], None]
) -> None:
    blocks(20)
    path = write(tmp_path / "a.csv", b'a,b\n1,"x\ny"\n2,"half\n')
    reader = reader_of(path, on_change="append")
    positions: list[tuple[int, bytes]] = []
    assert rows_of(reader, positions) == [{"a": "1", "b": "x\ny"}]
    write(path, b'a,b\n1,"x\ny"\n2,"half\nwhole"\n3,z\n')
    again = reader_of(path, on_change="append")
    again.seek(positions[-1][1])
    assert rows_of(again) == [{"a": "2", "b": "half\nwhole"}, {"a": "3", "b": "z"}]


@pytest.mark.parametrize("text", ['a,b\n1,x\n2,"y\n3,z\n', 'a,b\n1,x\n2,"y', 'a,b\n1,x\n2,"y""\n'])
def test_a_quote_that_nothing_ends_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "a.csv", text.encode())
    with pytest.raises(InvalidJob, match=r"line 3: a value begins with a quote here, and no quote ends it: correct"):
        rows_of(reader_of(path))


def test_a_header_may_contain_line_breaks(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b'"first\nline",b\n1,2\n')
    schema = pa.schema([("first\nline", pa.int64()), ("b", pa.int64())])
    assert rows_of(reader_of(path, schema)) == [{"first\nline": 1, "b": 2}]


def test_a_position_of_an_earlier_version_does_not_count_empty_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"a\n1\n\n2\n\n3\n")
    schema = pa.schema([("a", pa.int64())])
    reader = reader_of(path, schema)
    reader.poll(2, 0)
    stored = msgspec.json.decode(reader.position())
    reader.close()
    del stored["blank_rows"]  # the reader had returned 1 and 2 by then, and no null
    again = reader_of(path, schema)
    again.seek(msgspec.json.encode(stored))
    assert rows_of(again) == [{"a": None}, {"a": 3}]
