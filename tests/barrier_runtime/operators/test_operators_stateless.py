"""Row-wise and columnar steps: rows in, rows out, and errors that show the user's own code."""

import decimal
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from operator_harness import Driven

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.files.source import small_table
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.expressions import Compiled
from barrier_runtime.data.rows import rows_of
from barrier_runtime.operators.functions.batch_functions import MapBatchesOperator, SelectColumnsOperator, UnionOperator
from barrier_runtime.operators.functions.expressions import FilterExpressionOperator, SelectExpressionsOperator
from barrier_runtime.operators.functions.row_functions import FilterOperator, FlatMapOperator, MapOperator
from barrier_runtime.operators.joins.broadcast import EnrichOperator
from barrier_runtime.operators.watermark_generator import WatermarkOperator
from barrier_runtime.state.errors import InvalidJob, Unavailable, UserCodeError

ROWS = [{"n": 1, "s": "a"}, {"n": 2, "s": None}, {"n": 3, "s": "c"}]


def test_map_gives_one_row_per_row_and_keeps_the_emission_time() -> None:
    driven = Driven(MapOperator("m", lambda row: {"twice": row["n"] * 2}))
    driven.feed(ROWS, emit_ns=7)
    assert driven.rows == [{"twice": 2}, {"twice": 4}, {"twice": 6}]
    assert driven.batches[0].emit_ns == 7


def test_flat_map_gives_any_number_of_rows_per_row() -> None:
    driven = Driven(FlatMapOperator("f", lambda row: [{"n": row["n"]}] * (row["n"] - 1)))
    driven.feed(ROWS)
    assert [row["n"] for row in driven.rows] == [2, 3, 3]


def test_filter_function_keeps_rows_in_order_and_sends_nothing_if_no_row_is_left() -> None:
    driven = Driven(FilterOperator("f", lambda row: row["s"] is not None))
    driven.feed(ROWS)
    assert driven.take() == [ROWS[0], ROWS[2]]
    driven.feed(ROWS[1:2], pa.schema([("n", pa.int64()), ("s", pa.string())]))
    assert driven.batches == []


def test_a_batch_that_passes_a_filter_whole_is_passed_on_as_it_is() -> None:
    for operator in (
        FilterOperator("f", lambda row: True),
        FilterExpressionOperator("f", Compiled(pc.field("n") > 0, "n > 0")),
    ):
        driven, batch = Driven(operator), pa.RecordBatch.from_pylist(ROWS)
        driven.feed(batch)
        assert driven.batches[0].rows is batch


def test_filter_with_an_expression_drops_rows_where_it_is_null() -> None:
    driven = Driven(FilterExpressionOperator("f", Compiled(pc.field("s") != "c", "s <> 'c'")))
    driven.feed(ROWS)
    assert driven.rows == [ROWS[0]]


def test_select_renames_reorders_and_computes() -> None:
    driven = Driven(SelectExpressionsOperator("s", {"s": "s", "more": Compiled(pc.field("n") + 1, "n + 1"), "m": "n"}))
    driven.feed(ROWS[:1])
    assert driven.rows == [{"s": "a", "more": 2, "m": 1}]
    driven = Driven(SelectColumnsOperator("s", {"b": "s", "a": "n"}))
    driven.feed(ROWS[:1])
    assert driven.batches[0].rows.schema.names == ["b", "a"]


def test_an_expression_over_a_missing_column_names_the_columns_there_are() -> None:
    with pytest.raises(InvalidJob, match="there is no column 'x': use one of n, s"):
        Driven(FilterExpressionOperator("f", Compiled(pc.field("x") > 1, "x > 1"))).feed(ROWS)


def test_map_batches_passes_batches_and_tables_and_drops_none() -> None:
    results: list[Any] = [pa.RecordBatch.from_pylist(ROWS), pa.Table.from_pylist(ROWS), None]
    driven = Driven(MapBatchesOperator("m", lambda batch: results.pop(0)))
    for _ in range(3):
        driven.feed(ROWS)
    assert driven.rows == ROWS * 2


def test_map_batches_must_keep_its_first_schema() -> None:
    results = [pa.RecordBatch.from_pylist(ROWS), pa.RecordBatch.from_pylist([{"x": 1}])]
    driven = Driven(MapBatchesOperator("m", lambda batch: results.pop(0)))
    driven.feed(ROWS)
    with pytest.raises(InvalidJob, match="return one schema always"):
        driven.feed(ROWS)


def test_map_batches_that_returns_something_else_is_told_what_to_return() -> None:
    with pytest.raises(InvalidJob, match=r"returned list: return a pyarrow\.RecordBatch"):
        Driven(MapBatchesOperator("m", lambda batch: [1])).feed(ROWS)  # type: ignore[arg-type,return-value]


# ---------------------------------------------------------------- schemas of rows


@pytest.mark.parametrize(
    ("kind", "fits", "wrong"),
    [
        (pa.int64(), 2.0, 1.5),
        (pa.int32(), decimal.Decimal(2), decimal.Decimal("1.5")),
        (pa.uint8(), np.float32(2), np.float32(1.5)),
        (pa.int64(), None, float("nan")),
        (pa.int64(), 2, float("inf")),
        (pa.list_(pa.int64()), [1, None, 2.0], [1, 1.5]),
        (pa.struct([("x", pa.int64()), ("y", pa.float64())]), {"x": 1.0, "y": 1.5}, {"x": 1.5, "y": 1.0}),
        (pa.map_(pa.string(), pa.int64()), [("a", 2.0)], [("a", 1.5)]),
    ],
)
@pytest.mark.parametrize("rows", [3, 100])  # a small and a large batch
def test_a_fraction_is_not_cut_off_where_a_whole_number_is_declared(
    kind: pa.DataType, fits: Any, wrong: Any, rows: int
) -> None:
    """Arrow stores 1.5 as 1 without a word."""
    values = iter([fits] * rows + [wrong])
    driven = Driven(MapOperator("m", lambda row: {"v": next(values)}, pa.schema([("v", kind)])))
    driven.feed([{"n": 0}] * rows)
    with pytest.raises(InvalidJob, match=f"column 'v' is {re.escape(str(kind))}, but a row has "):
        driven.feed([{"n": 0}])


def test_a_key_that_the_first_dicts_did_not_have_asks_for_a_schema_at_every_level() -> None:
    values = iter([{"a": [{"b": 1}]}, {"a": [{"b": 2}, {"c": 3}]}])
    driven = Driven(MapOperator("m", lambda row: {"v": next(values)}))
    driven.feed([{"n": 0}])
    with pytest.raises(InvalidJob, match=r"has no key 'c'; declare 'c' in schema="):
        driven.feed([{"n": 0}])


def test_a_fraction_behind_whole_numbers_asks_for_a_schema() -> None:
    values = iter([1, 2, 1.5])
    driven = Driven(MapOperator("m", lambda row: {"v": next(values)}))
    driven.feed([{"n": 0}] * 2)
    with pytest.raises(InvalidJob, match=r"column 'v' is int64, but a row has 1.5 \(float\) there: .* pass schema="):
        driven.feed([{"n": 0}])


def test_the_first_rows_fix_the_schema_and_a_later_misfit_asks_for_schema() -> None:
    driven = Driven(MapOperator("m", lambda row: {"v": row["n"] if row["n"] < 3 else "three"}))
    driven.feed(ROWS[:2])
    with pytest.raises(InvalidJob, match=r"column 'v' is int64, but a row has 'three' .* pass schema="):
        driven.feed(ROWS[2:])


def test_a_row_that_lacks_a_column_of_the_first_rows_asks_for_schema() -> None:
    driven = Driven(MapOperator("m", lambda row: {"v": 1, "w": 2} if row["n"] < 3 else {"v": 1}))
    driven.feed(ROWS[:2])
    with pytest.raises(InvalidJob, match=r"lacks the column 'w'.* pass schema="):
        driven.feed(ROWS[2:])


def test_with_a_declared_schema_absent_columns_are_null_and_unknown_ones_an_error() -> None:
    schema = pa.schema([("v", pa.int64()), ("w", pa.float64())])
    driven = Driven(MapOperator("m", lambda row: {"v": row["n"]} if row["n"] < 3 else {"v": 1, "z": 1}, schema))
    driven.feed(ROWS[:2])
    assert driven.rows == [{"v": 1, "w": None}, {"v": 2, "w": None}]
    with pytest.raises(InvalidJob, match="has the column 'z', which is not in its schema"):
        driven.feed(ROWS[2:])


@pytest.mark.parametrize("result", [5, None, "row", [("a", 1)]])
def test_a_function_that_returns_no_row_is_told_so(result: Any) -> None:
    with pytest.raises(InvalidJob, match="where a row is expected: return a dict"):
        Driven(MapOperator("m", lambda row: result)).feed(ROWS)


def test_rows_survive_the_way_through_python_whatever_their_types() -> None:
    import datetime
    import decimal

    utc = datetime.timezone.utc
    row = {
        "i": 2**62,
        "f": 0.1,
        "b": True,
        "t": "é",
        "raw": b"\x00",
        "at": datetime.datetime(2013, 1, 1, 5, 15, 0, 123456, tzinfo=utc),
        "local": datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
        "day": datetime.date(1969, 12, 31),
        "money": decimal.Decimal("1.50"),
        "tags": ["a", None],
        "pair": {"x": 1},
        "none": None,
    }
    batch = pa.RecordBatch.from_pylist([row, dict.fromkeys(row)])
    assert rows_of(batch) == [row, dict.fromkeys(row)]
    driven = Driven(MapOperator("m", dict))
    driven.feed(batch)
    assert rows_of(driven.batches[0].rows) == [row, dict.fromkeys(row)]


# ---------------------------------------------------------------- errors of user code


def broken(row: dict[str, Any]) -> Any:
    return helper(row["n"])


def helper(n: int) -> Any:
    return {"inverse": 1 // (n - 2)}


@pytest.mark.parametrize("operator", [MapOperator, FlatMapOperator, FilterOperator])
def test_an_exception_in_user_code_shows_own_frames_operator_subtask_and_record(operator: Callable[..., Any]) -> None:
    function = (lambda row: [broken(row)]) if operator is FlatMapOperator else broken
    with pytest.raises(UserCodeError) as caught:
        Driven(operator("inverter", function)).feed(ROWS)
    text = str(caught.value)
    assert text.index("Traceback") < text.index("of operator 'inverter', subtask 0, raised ZeroDivisionError")
    assert "return helper(row" in text
    assert "1 // (n - 2)" in text
    assert "record: {'n': 2, 's': None}" in text
    assert "barrier_runtime/operators" not in text.replace("tests/barrier_runtime", "")


def test_a_long_record_is_cut_in_the_error() -> None:
    with pytest.raises(UserCodeError) as caught:
        Driven(MapOperator("m", lambda row: row["nothing"])).feed([{"n": "x" * 10_000}])
    assert len(str(caught.value)) < 2_000


def test_trouble_that_is_not_the_functions_fault_is_not_called_a_user_error() -> None:
    def unlucky(row: dict[str, Any]) -> dict[str, Any]:
        raise Unavailable("the store is away")

    with pytest.raises(Unavailable, match="the store is away"):
        Driven(MapOperator("m", unlucky)).feed(ROWS)


def test_an_error_in_map_batches_shows_the_batch() -> None:
    with pytest.raises(UserCodeError, match="batch: 3 rows of n, s"):
        Driven(MapBatchesOperator("m", lambda batch: batch.column("nothing"))).feed(ROWS)


# ---------------------------------------------------------------- enrichment, union, watermarks

NAMES = pa.table({"n": [1, 3, None], "name": ["one", "three", "null"], "size": [10, 30, 0]})


@pytest.mark.parametrize("copies", [1, 50])
def test_enrichment_adds_columns_where_the_key_matches_and_nulls_match_nothing(copies: int) -> None:
    """`copies` selects the way of lookup: fewer or more rows than the table has."""
    rows = [{"n": n} for n in (3, 2, None, 1)] * copies
    table = pa.concat_tables([NAMES, pa.table({"n": range(100, 130), "name": ["x"] * 30, "size": [0] * 30})])
    driven = Driven(EnrichOperator("e", table, ["n"], "left"))
    driven.feed(rows)
    assert (
        driven.rows
        == [
            {"n": 3, "name": "three", "size": 30},
            {"n": 2, "name": None, "size": None},
            {"n": None, "name": None, "size": None},
            {"n": 1, "name": "one", "size": 10},
        ]
        * copies
    )


@pytest.mark.parametrize("copies", [1, 50])
def test_an_inner_enrichment_drops_rows_without_a_match(copies: int) -> None:
    table = pa.table({"a": [1, 1, 2] + [9] * 30, "b": ["x", "y", "x"] + [f"z{i}" for i in range(30)], "c": range(33)})
    driven = Driven(EnrichOperator("e", table, ["a", "b"], "inner"))
    driven.feed([{"a": 1, "b": "y"}, {"a": 2, "b": "y"}, {"a": 2, "b": "x"}] * copies)
    assert driven.rows == [{"a": 1, "b": "y", "c": 1}, {"a": 2, "b": "x", "c": 2}] * copies


def test_a_key_of_many_columns_matches_only_itself() -> None:
    """5 columns of 2**13 values have more than 2**64 combinations."""
    count, columns = 1 << 13, ["a", "b", "c", "d", "e"]
    values = np.arange(count)
    table = pa.table({**dict.fromkeys(columns, values), "found": values})
    driven = Driven(EnrichOperator("e", table, columns, "inner"))
    driven.feed(pa.RecordBatch.from_pydict({**dict.fromkeys(columns, values), "a": (values + count // 2) % count}))
    driven.feed(pa.RecordBatch.from_pydict(dict.fromkeys(columns, values)))
    assert [row["found"] for row in driven.rows] == values.tolist()


def test_enrichment_converts_its_keys_to_the_rows_type_or_says_it_cannot() -> None:
    driven = Driven(EnrichOperator("e", NAMES, ["n"], "inner"))
    driven.feed(pa.RecordBatch.from_pydict({"n": pa.array([1], pa.int16())}))
    assert driven.rows == [{"n": 1, "name": "one", "size": 10}]
    with pytest.raises(InvalidJob, match="key column 'n' is list"):
        Driven(EnrichOperator("e", NAMES, ["n"], "left")).feed([{"n": [1]}])


def _enriched(table: pa.Array, rows: pa.Array, copies: int) -> list[int | None]:
    """Returns the matching row number of the table for each row. `copies` repeats the rows so that both ways of lookup
    run.
    """
    more = pa.nulls(1, table.type)
    small = pa.table({"k": pa.concat_arrays([table, more]), "row": range(len(table) + 1)})
    driven = Driven(EnrichOperator("e", small, ["k"], "left"))
    driven.feed(pa.RecordBatch.from_pydict({"k": pa.concat_arrays([rows] * copies)}))
    found = [row["row"] for row in driven.rows]
    assert found == found[: len(rows)] * copies
    return found[: len(rows)]


@pytest.mark.parametrize("copies", [1, 100])
def test_what_an_enrichment_finds_does_not_depend_on_the_size_of_a_batch(copies: int) -> None:
    floats = pa.array([0.0, 1.5, *range(10, 40)])
    assert _enriched(floats, pa.array([-0.0, 1.5, 0.0, None]), copies) == [0, 1, 0, None]
    assert _enriched(pa.array([-0.0, *range(10, 40)]), pa.array([0.0]), copies) == [0]
    assert _enriched(floats.cast(pa.float32()), pa.array([1.5, -0.0]), copies) == [1, 0]
    paris = pa.timestamp("us", "Europe/Paris")  # in this zone 02:30 occurs twice in autumn
    twice = pa.array([1_761_438_600_000_000, 1_761_442_200_000_000, *range(30)], paris)
    assert _enriched(twice, twice.slice(0, 2), copies) == [0, 1]
    texts = pa.array([f"key {number}" for number in range(30)])
    assert _enriched(texts, pa.array(["key 3", "none", "key 3"]).dictionary_encode(), copies) == [3, None, 3]


@pytest.mark.parametrize("rows", [1, 100])
def test_an_enrichment_refuses_nan(rows: int) -> None:
    table = pa.table({"k": [float(number) for number in range(30)], "v": range(30)})
    with pytest.raises(InvalidJob, match=r"key column 'k' holds NaN, which equals nothing.*before broadcast_join"):
        Driven(EnrichOperator("e", table, ["k"], "left")).feed([{"k": float("nan")}] * rows)
    flow = Dataflow("job")
    with pytest.raises(InvalidJob, match="key column 'key' of the table holds NaN"):
        flow.rate("ticks", 10, 10, keys=3).broadcast_join("e", [{"key": float("nan"), "v": 1}], on="key")


def test_keys_of_a_small_table_that_become_one_by_the_rows_type_are_refused() -> None:
    table = [{"key": "1", "v": 1}, {"key": "2", "v": 2}, {"key": "01", "v": 3}]
    flow = Dataflow("job")
    told = "the keys '1' and '01' of the small table are one key as int64, which the rows have: make key unique as"
    with pytest.raises(InvalidJob, match=told):
        flow.rate("ticks", 10, 10, keys=3).broadcast_join("e", table, on="key")
    with pytest.raises(InvalidJob, match=told):
        Driven(EnrichOperator("e", pa.Table.from_pylist(table), ["key"], "left")).feed([{"key": 1}])
    with pytest.raises(InvalidJob, match=r"the key -?0\.0 is in the small table more than once"):
        flow.rate("more", 10, 10, keys=3).broadcast_join("e", [{"key": 0.0, "v": 1}, {"key": -0.0, "v": 2}], on="key")


def test_a_union_passes_every_port_and_refuses_a_second_schema() -> None:
    driven = Driven(UnionOperator("u"))
    driven.feed([{"n": 1}])
    driven.operator.process(Batch(pa.RecordBatch.from_pylist([{"n": 2}]), 0), driven.batches.append, 1)
    assert [row["n"] for row in driven.rows] == [1, 2]
    with pytest.raises(InvalidJob, match="input 1 has the columns n: string, earlier ones had n: int64"):
        driven.operator.process(Batch(pa.RecordBatch.from_pylist([{"n": "3"}]), 0), driven.batches.append, 1)


def test_a_watermark_step_follows_the_greatest_time_and_never_goes_back() -> None:
    driven = Driven(WatermarkOperator("w", "t", 10))
    assert driven.operator.own_watermark() is None
    driven.feed([{"t": None}], pa.schema([("t", pa.int64())]))
    assert driven.operator.own_watermark() is None
    driven.feed([{"t": 100}, {"t": 50}])
    assert driven.operator.own_watermark() == 89
    driven.feed([{"t": 20}])
    assert driven.operator.own_watermark() == 89
    assert not driven.operator.forwards_watermarks


def test_a_small_table_can_be_read_from_a_file(tmp_path: Any) -> None:
    (tmp_path / "names.csv").write_text("key,name\n1,one\n2,two\n")
    flow = Dataflow("job")
    stream = flow.rate("ticks", 10, 10, keys=3).broadcast_join("names", str(tmp_path / "names.csv"), on="key")
    assert stream.schema is not None
    assert stream.schema.names == ["value", "intended_at", "key", "name"]


def test_a_folder_that_is_no_small_table_is_not_read_to_its_end(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_table, "_MAX_BYTES", 1 << 20)
    for number in range(230):  # files that are not opened when the flow is written
        rows = pa.table({"key": np.arange(number * 5_000, (number + 1) * 5_000)})
        pq.write_table(rows, tmp_path / f"{number:03}.parquet")
    (tmp_path / "999.parquet").write_bytes(b"not Parquet")
    ticks = Dataflow("job").rate("ticks", 10, 10, keys=3)
    with pytest.raises(InvalidJob, match="the small table has more than 1 MiB and would be sent to every slot"):
        ticks.broadcast_join("names", str(tmp_path), on="key")
