"""ParquetSink output is read back equal, or the sink refuses the type at build time."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import World
from source_harness import drained, opened, spec_of

from barrier_runtime import Dataflow, ParquetSink
from barrier_runtime.connectors.files.source.parquet import ParquetFiles
from barrier_runtime.state.errors import InvalidJob
from tests.barrier_runtime.connectors.round_trips import KINDS, Kind, assert_same, column_of
from tests.drawn import examples

REFUSED = {"decimal128(5, -2)", "month_day_nano_interval"}
KEPT = tuple(kind for kind in KINDS if str(kind) not in REFUSED)


def there_and_back(rows: pa.Table, declared: bool) -> pa.Table:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.parquet").write_bytes(ParquetSink(folder).encode(rows.to_batches()))
        source = ParquetFiles("in", folder, rows.schema if declared else None, None)
        return pa.Table.from_batches([each.rows for each in drained(opened(spec_of(source), World()))], source.schema)


@pytest.mark.slow
@pytest.mark.parametrize("declared", [True, False])
def test_special_values_of_every_type_come_back(declared: bool) -> None:
    """Without a schema, the type read holds the same values."""
    for kind in KEPT:
        column = kind.special()
        read = there_and_back(pa.table({"v": column}), declared)["v"]
        assert_same(read if declared and read.type == column.type else read.cast(column.type), column)


@examples(25)
@given(kind=st.sampled_from(KEPT), data=st.data())
def test_drawn_values_of_every_type_come_back(kind: Kind, data: st.DataObject) -> None:
    column = data.draw(column_of(kind))
    assert_same(there_and_back(pa.table({"v": column}), True)["v"].cast(column.type), column)


def test_types_that_parquet_has_not_are_refused_when_the_flow_is_written() -> None:
    refused: dict[str, str] = {}
    for kind in KINDS:
        stream = Dataflow("types").from_iterator("in", lambda index, count: iter(()), schema={"v": kind.type}, splits=1)
        try:
            stream.sink("out", ParquetSink("out"))
        except InvalidJob as error:
            refused[str(kind)] = str(error)
    assert refused.keys() == REFUSED
    assert all("sink 'out': column 'v' is" in message for message in refused.values())
