"""Output of CsvSink and JsonlSink is read back equal, for every column type and special value."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from connectors.round_trips import KINDS, Kind, assert_same, column_of
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime import CsvSink, CsvSource, Dataflow, InvalidJob, JsonlSink, JsonlSource
from barrier_runtime.connectors.sink_bases import encoders
from tests.drawn import examples

FORMATS: dict[str, tuple[Any, Any, Any]] = {
    "csv": (CsvSink, CsvSource, encoders.csv),
    "jsonl": (JsonlSink, JsonlSource, encoders.jsonl),
}
NOT_IN_CSV = ("binary", "list", "struct", "map", "interval")
NOT_IN_JSON = ("interval",)


def is_held(kind: Kind, format: str) -> bool:
    return not any(word in str(kind) for word in (NOT_IN_CSV if format == "csv" else NOT_IN_JSON))


def read(path: Path, source: Any, schema: pa.Schema | None) -> pa.Table:
    reader_of = source(str(path), schema=schema).named("in")
    (split,) = reader_of.splits(1)
    reader, batches = reader_of.reader(split), []
    while not reader.finished:
        polled = reader.poll(1_000, 0)
        if polled is not None:
            batches.append(polled.rows)
    reader.close()
    return pa.Table.from_batches(batches, reader_of.schema)


def back(column: pa.Array, folder: Path, format: str) -> pa.ChunkedArray:
    """Returns the column as read back from a file, after checks alone and together with a second column."""
    _, source, encode = FORMATS[format]
    path = folder / f"a.{format}"
    alone = pa.record_batch({"x": column})
    path.write_bytes(encode([alone]))
    read_alone = read(path, source, alone.schema)["x"]
    beside = pa.record_batch({"x": column, "y": pa.array(range(len(column)))})
    path.write_bytes(encode([beside]))
    table = read(path, source, beside.schema)
    assert table["y"].to_pylist() == list(range(len(column)))
    assert_same(table["x"], read_alone)
    return read_alone


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("texts")


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_special_values_are_read_back_or_their_type_is_refused(kind: Kind, format: str, folder: Path) -> None:
    if is_held(kind, format):
        column = kind.special()
        assert_same(back(column, folder, format), column)
        return
    rows = pa.table({"x": kind.special()})
    flow = Dataflow("refused").from_iterator("in", lambda index, count: iter(()), schema=rows.schema, splits=1)
    with pytest.raises(InvalidJob, match=r"column 'x' is .*, which (CSV|JSON) cannot hold: select\(\)"):
        flow.sink("out", FORMATS[format][0](str(folder / "out")))


@pytest.mark.slow
@given(drawn=st.data())
@examples(200)
@pytest.mark.parametrize("format", FORMATS)
def test_drawn_values_are_read_back(format: str, drawn: st.DataObject, folder: Path) -> None:
    kind = drawn.draw(st.sampled_from([kind for kind in KINDS if is_held(kind, format)]))
    column = drawn.draw(column_of(kind))
    assert_same(back(column, folder, format), column)
