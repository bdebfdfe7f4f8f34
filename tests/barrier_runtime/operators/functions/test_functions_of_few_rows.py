"""Users' functions of small batches in lists: inputs, outputs and refusals equal those of batches in Arrow."""

import datetime
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven

from barrier_runtime import ValueState
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.data.rows import RowWriter, each_row_of
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.operators.functions.row_functions import FilterOperator, FlatMapOperator, MapOperator
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob
from tests.drawn import examples

UTC = datetime.timezone.utc
SCHEMA = pa.schema(
    [
        ("k", pa.int32()),
        ("s", pa.string()),
        ("x", pa.float32()),
        ("b", pa.binary()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("ns")),
        ("second", pa.timestamp("s", "UTC")),
        ("day", pa.date32()),
        ("ok", pa.bool_()),
    ]
)
TIMES = st.datetimes(datetime.datetime(1960, 1, 1), datetime.datetime(2060, 1, 1))
ROW = st.tuples(
    st.none() | st.integers(0, 3),
    st.none() | st.sampled_from(["a", "é", ""]),
    st.none() | st.floats(width=32, allow_nan=False),
    st.none() | st.binary(max_size=2),
    st.none() | TIMES.map(lambda time: time.replace(tzinfo=UTC)),
    st.none() | TIMES,
    st.none() | TIMES.map(lambda time: time.replace(microsecond=0, tzinfo=UTC)),
    st.none() | st.dates(),
    st.none() | st.booleans(),
)


def arrow(rows: list[Any]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class Counts:
    seen = ValueState(int, default=0)

    def process(self, key: Any, row: dict[str, Any], ctx: Any) -> Any:
        self.seen.value += 1
        return {**row, "key": repr(key), "n": self.seen.value, "at_ms": ctx.timestamp, "types": str(type(row["at"]))}


def raises(row: dict[str, Any]) -> dict[str, Any]:
    return {"v": 1 // (row["k"] or 0)}


STEPS: dict[str, Callable[[], Operator]] = {
    "map": lambda: MapOperator("m", lambda row: {**row, "two": [row["k"], row["s"]]}),
    "plain map": lambda: MapOperator("m", lambda row: {"k": row["k"], "day": row["day"]}),
    "failing map": lambda: MapOperator("m", raises),
    "filter": lambda: FilterOperator("f", lambda row: row["k"] != 1),
    "flat map": lambda: FlatMapOperator("f", lambda row: [row] * (row["k"] or 0)),
    "process by int": lambda: ProcessOperator("p", ["k"], Counts, event_time="at", schema=SCHEMA),
    "process by text and int": lambda: ProcessOperator("p", ["s", "k"], Counts, event_time="at", schema=SCHEMA),
    "process by date": lambda: ProcessOperator("p", ["day"], Counts, schema=SCHEMA),
}


def outcome(driven: Driven, batch: Batch) -> Any:
    try:
        driven.operator.process(batch, Emit(driven.batches.append))
    except BarrierRuntimeError as error:
        return str(error)
    given = [(each.rows.schema, each.rows.to_pylist(), each.emit_ns) for each in driven.batches]
    driven.batches.clear()
    return given


@pytest.mark.slow
@examples(100)
@given(st.lists(st.lists(ROW, min_size=1, max_size=6), min_size=1, max_size=4), st.sampled_from(sorted(STEPS)))
def test_functions_see_and_give_the_same(fed: list[list[Any]], step: str) -> None:
    in_arrow, in_lists = Driven(STEPS[step]()), Driven(STEPS[step]())
    for rows in fed:
        batch = arrow(rows)
        few = FewRows.of(batch)
        assert few is not None
        expected = outcome(in_arrow, Batch(batch, 7))
        assert outcome(in_lists, Batch(few, 7)) == expected
        if isinstance(expected, str):
            return


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("values", [[-1, 1_999], [-1_500], [1_500, 0], [None, 1], [2**62]])
def test_times_are_those_that_arrow_shows(unit: str, values: list[int | None]) -> None:
    """Also before 1970, with digits below a microsecond, and in years that `datetime` does not know."""
    rows = pa.record_batch({"at": pa.array(values, pa.timestamp(unit))})
    few = FewRows.of(rows)
    assert few is not None

    def shown(batch: Batch) -> Any:
        try:
            return list(each_row_of(batch))
        except InvalidJob as error:
            return str(error)

    assert shown(Batch(few, 0)) == shown(Batch(rows, 0))


@pytest.mark.parametrize("count", [1, 3_000])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_functions_see_the_microsecond_that_a_time_before_1970_began_in(zone: str | None, count: int) -> None:
    rows = pa.record_batch({"at": pa.array([-1, -999, -1_001] * count, pa.timestamp("ns", zone))})
    found = [row["at"].replace(tzinfo=None) for row in each_row_of(Batch(rows, 0))]
    if zone == "Europe/Berlin":  # an hour ahead of UTC
        found = [each - datetime.timedelta(hours=1) for each in found]
    before = datetime.datetime(1970, 1, 1)
    assert [(each - before) // datetime.timedelta(microseconds=1) for each in found] == [-1, -1, -2] * count
    few = FewRows.of(rows[:3])
    assert few is not None
    assert list(each_row_of(Batch(few, 0))) == list(each_row_of(Batch(rows[:3], 0)))


# ---------------------------------------------------------------- results of functions

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-200, 200),
    st.sampled_from([2**31, 2**63 - 1, 2**63, -(2**63) - 1]),
    st.floats(allow_nan=False),
    st.text(max_size=2),
    st.just("\ud800"),  # no text that can be written
    st.binary(max_size=2),
    st.just(datetime.date(2020, 1, 2)),
    st.sampled_from([datetime.datetime(2020, 1, 2), datetime.datetime(9999, 1, 2), datetime.datetime(1969, 1, 2, 3)]),
    st.just(datetime.datetime(2020, 1, 2, tzinfo=UTC)),
)
INSTANTS = [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("ms")]
TYPES = [pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary()]


@pytest.mark.slow
@examples(300)
@given(
    st.sampled_from([*TYPES, pa.large_string(), pa.date32(), *INSTANTS]),
    st.booleans(),
    st.lists(st.one_of(VALUES, st.integers(0, 5)), min_size=1, max_size=4),
    st.booleans(),
)
def test_rows_become_lists_as_they_become_arrow(
    kind: pa.DataType, nullable: bool, values: list[Any], absent: bool
) -> None:
    schema = pa.schema([pa.field("v", kind, nullable), pa.field("w", pa.int64())])
    rows = [{"v": value, "w": 1} for value in values]
    if absent:
        del rows[-1]["w"]

    def made(writer: RowWriter, how: str) -> Any:
        try:
            return getattr(writer, how)(rows)
        except InvalidJob as error:
            return str(error)

    expected, few = made(RowWriter("f", schema), "batch"), made(RowWriter("f", schema), "made")
    if isinstance(expected, str):
        assert few == expected
    else:
        again = Batch(few, 0).rows
        assert again.schema == expected.schema
        assert again.equals(expected)


def test_the_first_rows_decide_the_schema_of_lists_too() -> None:
    writer = RowWriter("f", None)
    assert writer.made([{"v": 1}], None) == pa.record_batch({"v": [1]})
    later = writer.made([{"v": 2}], None)
    assert isinstance(later, FewRows)
    with pytest.raises(InvalidJob, match=r"column 'v' is int64, but a row has 'x' \(str\) there"):
        writer.made([{"v": "x"}], None)
