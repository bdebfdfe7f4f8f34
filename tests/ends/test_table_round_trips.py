"""Rows written by a sink of tables are read back equal by the matching source, or the sink refuses the type when the
flow is built.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime import DeltaSink, DeltaSource, IcebergSink, IcebergSource
from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.connectors.source import Source
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.open import open_store
from tests.barrier_runtime.connectors.round_trips import KINDS, Kind, array_of, assert_same, column_of
from tests.drawn import examples

WHOLE_MICROSECONDS = {"ns": 1_000}  # nanosecond columns keep whole microseconds
NEITHER = {
    *("halffloat", "decimal128(5, -2)", "decimal256(76, 10)", "decimal32(9, 4)", "decimal64(18, 6)", "binary_view"),
    *("date64[ms]", "duration[s]", "duration[ms]", "duration[us]", "duration[ns]", "null", "month_day_nano_interval"),
    *("uint64", "fixed_size_list<item: int32>[2]", "list<item: list<item: duration[ns]>>"),
}
REFUSED = {
    "delta": NEITHER | {"uint8", "uint16", "uint32", "time32[s]", "time32[ms]", "time64[us]", "time64[ns]"},
    "iceberg": NEITHER,
}


@pytest.fixture(params=["delta", "iceberg"])
def system(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(system: str, tmp_path: Path) -> Callable[[], tuple[TwoPhaseCommitSink, Any]]:
    """Sink and source of a new table."""
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}
    numbers = iter(range(1_000_000))

    def made() -> tuple[TwoPhaseCommitSink, Any]:
        number = next(numbers)
        if system == "delta":
            return DeltaSink(f"{tmp_path}/{number}"), DeltaSource(f"{tmp_path}/{number}")
        name = f"db.t{number}"
        return IcebergSink(name, properties=properties), IcebergSource(name, properties=properties)

    return made


def write(sink: TwoPhaseCommitSink, rows: pa.RecordBatch) -> None:
    sink.check_columns(rows.schema, "sink 'out'")
    sink.open(SinkContext("job", "out", 1, 0, 1, open_store, MemoryStore(), "lineage"))
    transaction = sink.begin_transaction()
    sink.write(transaction, rows)
    committable = sink.pre_commit(transaction, 1)
    assert committable is not None
    sink.commit(committable)
    sink.commit_globally(1, [committable])


def read(source: Source) -> pa.Table:
    batches = []
    for split in source.splits(1):
        reader = source.reader(split)
        while not reader.finished:
            if (polled := reader.poll(10_000, time.time_ns())) is not None:
                batches.append(polled.rows)
        reader.close()
    return pa.Table.from_batches(batches, source.schema)


def kept(system: str) -> list[Kind]:
    return [kind for kind in KINDS if str(kind) not in REFUSED[system]]


def whole(column: pa.Array) -> pa.Array:
    """The column without digits below a microsecond."""
    if not pa.types.is_temporal(column.type) or getattr(column.type, "unit", "") != "ns":
        return column
    numbers = [None if each is None else each // 1_000 * 1_000 for each in column.view(pa.int64()).to_pylist()]
    least = -(1 << 63)
    return array_of([None if each is None or each < least else each for each in numbers], column.type)


def test_special_values_of_every_type_come_back(
    system: str, make: Callable[[], tuple[TwoPhaseCommitSink, Any]]
) -> None:
    columns = {str(kind): whole(kind.special()) for kind in kept(system)}
    rows = max(map(len, columns.values()))
    padded = {
        name: pa.concat_arrays([column, pa.nulls(rows - len(column), column.type)]) for name, column in columns.items()
    }
    padded["n"] = pa.array(range(rows))
    sink, source = make()
    write(sink, pa.RecordBatch.from_pydict(padded))
    found = read(source.named("in"))
    for name, column in padded.items():
        assert_same(found[name].cast(column.type), column)


def test_types_that_a_table_has_not_are_refused_when_the_flow_is_written(
    system: str, make: Callable[[], tuple[TwoPhaseCommitSink, Any]]
) -> None:
    refused: dict[str, str] = {}
    sink, _ = make()
    for kind in KINDS:
        try:
            sink.check_columns(pa.schema([("v", kind.type)]), "sink 'out'")
        except InvalidJob as error:
            refused[str(kind)] = str(error)
    assert refused.keys() == REFUSED[system]
    assert all("sink 'out': column 'v' is" in message for message in refused.values())


def test_a_time_with_nanoseconds_is_refused_with_its_row(make: Callable[[], tuple[TwoPhaseCommitSink, Any]]) -> None:
    for kind in (pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.list_(pa.timestamp("ns"))):
        values = [[0], [None], [1]] if pa.types.is_list(kind) else [0, None, 1]
        with pytest.raises(InvalidJob, match=r"column 'v' .* of row 2 of the checkpoint .* round it to microseconds"):
            write(make()[0], pa.record_batch({"v": pa.array(values, kind)}))


@pytest.mark.slow
@examples(20)
@given(data=st.data())
def test_drawn_values_of_every_type_come_back(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(tmp_path_factory.mktemp("delta") / "table")
    kind = data.draw(st.sampled_from(kept("delta")))
    column = whole(data.draw(column_of(kind)))
    write(DeltaSink(folder), pa.record_batch({"v": column, "n": list(range(len(column)))}))
    assert_same(read(DeltaSource(folder).named("in"))["v"].cast(column.type), column)


def test_null_lists_and_maps_of_structs_stay_null(make: Callable[[], tuple[TwoPhaseCommitSink, Any]]) -> None:
    one = pa.struct([("a", pa.int64()), ("l", pa.list_(pa.struct([("z", pa.string())])))])
    lists = pa.array([None, [], [None], [{"a": 1, "l": None}, {"a": None, "l": [{"z": "x"}, None]}]], pa.list_(one))
    maps = pa.array([None, [], [("k", None)], [("k", {"a": 1, "l": None})]], pa.map_(pa.string(), one))
    for part in (slice(0, 4), slice(1, 4), slice(0, 1)):
        rows = pa.record_batch({"lists": lists, "maps": maps, "n": [0, 1, 2, 3]})[part.start : part.stop]
        sink, source = make()
        write(sink, rows)
        assert read(source.named("in")).to_pylist() == rows.to_pylist()
