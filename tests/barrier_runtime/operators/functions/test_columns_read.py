"""Columns that a function reads: rows with only these, or whole rows if the function uses the row in another way."""

import copy
import functools
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from operator_harness import Driven

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.operators.base import Operator
from barrier_runtime.operators.functions.columns_read import columns_read, each_row_read
from barrier_runtime.operators.functions.connected import ConnectedInput, ConnectedOperator
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.operators.functions.row_functions import (
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    ProcessRowsOperator,
)
from barrier_runtime.operators.outputs.split import SplitOperator
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob

Row = dict[str, Any]
ROWS = [{"a": n, "b": n * 0.5, "c": f"text {n}"} for n in range(3)]
IN_ARROW = pa.RecordBatch.from_pylist(ROWS)
AS_LISTS = FewRows.of(IN_ARROW)
kept: list[Any] = []


def values(given: Any) -> list[Any]:
    return list(given.values())


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*given: Any) -> Any:
        return function(*given)

    return called


def reads_in_many_places(row: Row) -> Iterator[Row]:
    x = 2
    try:
        total = x * row["a"] + row.get("b", 0)
        if total > row.get("none", -1.5):
            yield {"total": total, "both": f"{row['a']} {row['c']!r}"}
    except KeyError:
        yield {"total": row["d"]["e"]}


@pytest.mark.parametrize(
    ("function", "columns"),
    [
        (lambda row: row["a"] * row["b"], frozenset({"a", "b"})),
        (lambda row: {"x": row["a"] if row["b"] is None else row["c"]["d"]}, frozenset({"a", "b", "c"})),
        (lambda row: row.get("a", 0) + row.get("b", "none"), frozenset({"a", "b"})),
        (lambda row: kept if kept else row["a"], frozenset({"a"})),
        (lambda row: 1, frozenset[str]()),
        (reads_in_many_places, frozenset({"a", "b", "c", "d", "none"})),
    ],
)
def test_constant_reads_of_a_row_are_found(function: Any, columns: frozenset[str]) -> None:
    assert columns_read(function, 0) == columns


class OfRows:
    def method(self, row: Row) -> Any:
        return row["a"]

    @staticmethod
    def static(row: Row) -> Any:
        return row["a"]

    def __call__(self, row: Row) -> Any:
        return row["a"]


def test_methods_and_later_arguments_are_understood() -> None:
    assert columns_read(OfRows().method, 0) == frozenset({"a"})
    assert columns_read(OfRows.static, 0) == frozenset({"a"})
    assert columns_read(lambda key, row, ctx: row["a"], 1) == frozenset({"a"})
    assert columns_read(lambda key, row, ctx: row["a"], 0) == frozenset[str]()


def changes(row: Row) -> Any:
    row["a"] = 7
    return dict(row)


def changes_in_place(row: Row) -> Any:
    row["a"] += 1
    return list(row.values())


def deletes(row: Row) -> Any:
    del row["a"]
    return list(row)


def named_again(row: Row) -> Any:
    other = row
    return len(other)


def passed_by_an_inner_function(row: Row) -> Any:
    return (lambda: len(row))()


def in_a_match(row: Row) -> Any:
    match row:
        case {"a": 1, **rest}:
            return rest
        case _:
            return row["b"]


def keeps(row: Row) -> Any:
    kept.append(row)
    return len(kept[-1])


def iterates(row: Row) -> Any:
    for name in row:
        return name
    return None


def with_update(row: Row) -> Any:
    row.update(a=1)
    return sorted(row.items(), key=str)


ESCAPES: list[Callable[[Row], Any]] = [
    lambda row: row,
    lambda row: [row],
    lambda row: (yield row),
    lambda row: {**row},
    lambda row: row | {},
    lambda row: {} | row,
    lambda row: dict(row),
    lambda row: dict(**row),
    lambda row: list(row),
    lambda row: [*row],
    lambda row: len(row),
    lambda row: "c" in row,
    lambda row: row == ROWS[1],
    lambda row: type(row) is dict,
    lambda row: isinstance(row, dict),
    lambda row: str(row),
    lambda row: f"{row}",
    lambda row: "{a} {c}".format(**row),
    lambda row: "{a} {c}".format_map(row),
    lambda row: list(row.keys()),
    lambda row: list(row.values()),
    lambda row: list(row.items()),
    lambda row: row.pop("c"),
    lambda row: row.popitem(),
    lambda row: row.setdefault("c", 1),
    lambda row: row.setdefault("d", 1),
    lambda row: row.copy(),
    lambda row: row.get(row["c"]),
    lambda row: row["a" if row["b"] else "c"],
    lambda row: values(row),
    lambda row: list(map(row.get, "ac")),
    lambda row: functools.reduce(row.get, "a", "c"),
    lambda row: json.dumps(row),
    lambda row: msgspec.json.encode(row),
    lambda row: pickle.loads(pickle.dumps(row)),
    lambda row: copy.copy(row),
    lambda row: copy.deepcopy(row),
    lambda row: pa.array([row]).to_pylist(),
    lambda row: len(locals()["row"]),
    lambda row: eval("len(row)"),
    lambda row: len(sys._getframe().f_locals["row"]),
    changes,
    changes_in_place,
    deletes,
    named_again,
    passed_by_an_inner_function,
    in_a_match,
    keeps,
    iterates,
    with_update,
]


def outcome(function: Callable[[Row], Any], row: Row) -> Any:
    """The result of `function`; rows of a generator as a list."""
    try:
        result = function(row)
        return list(result) if isinstance(result, Iterator) else result
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize("as_lists", [False, True])
@pytest.mark.parametrize("number", range(len(ESCAPES)))
def test_any_other_use_of_a_row_gets_all_columns(number: int, as_lists: bool) -> None:
    function = ESCAPES[number]
    assert columns_read(function, 0) is None
    batch = Batch(AS_LISTS if as_lists and AS_LISTS is not None else IN_ARROW, 0)
    rows = each_row_read(batch, columns_read(function, 0))
    assert [outcome(function, row) for row in rows] == [outcome(function, dict(row)) for row in ROWS]


@pytest.mark.parametrize(
    "function",
    [
        dict,
        len,
        OfRows(),
        functools.partial(values),
        decorated(lambda row: row["a"]),
        lambda *row: row,
        lambda **row: 1,
    ],
)
def test_functions_that_are_not_plain_python_get_all_columns(function: Any) -> None:
    assert columns_read(function, 0) is None


@pytest.mark.parametrize("rows", [IN_ARROW, AS_LISTS])
def test_rows_have_the_columns_read_and_absent_ones_are_missing(rows: Any) -> None:
    batch = Batch(rows, 0)
    assert list(each_row_read(batch, frozenset({"c", "a", "absent"}))) == [{"a": r["a"], "c": r["c"]} for r in ROWS]
    assert list(each_row_read(batch, frozenset())) == [{}, {}, {}]
    assert list(each_row_read(batch, None)) == ROWS


def test_a_debugger_sees_whole_rows() -> None:
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        rows = list(each_row_read(Batch(IN_ARROW, 0), frozenset({"a"})))
    finally:
        sys.settrace(before)
    assert rows == ROWS


# ------------------------------------------------------------ steps: the column "never" has no value of Python

BEYOND = pa.array([2**62] * 3, pa.timestamp("us"))
UNREADABLE = IN_ARROW.append_column("never", BEYOND).append_column("k", pa.array(["x", "y", "x"]))


class Adds:
    def on_rows(self, key: str, row: Row, ctx: Any) -> Row:
        return {"k": key, "a": row["a"]}

    def on_rules(self, row: Row, ctx: Any) -> Row:
        return {"k": "", "a": row["a"]}


class AddsAll:
    def on_rows(self, key: str, row: Row, ctx: Any) -> Row:
        return {"k": key, "a": len(row)}

    def on_rules(self, row: Row, ctx: Any) -> Row:
        return {"k": "", "a": len(row)}


def connected(function: Any) -> Operator:
    return ConnectedOperator("c", [ConnectedInput("rows", ("k",), None), ConnectedInput("rules", (), None)], function)


STEPS: list[tuple[Callable[[], Operator], Callable[[], Operator], int]] = [
    (lambda: MapOperator("s", lambda row: {"a": row["a"]}), lambda: MapOperator("s", lambda row: {"a": len(row)}), 0),
    (lambda: FilterOperator("s", lambda row: row["a"] >= 0), lambda: FilterOperator("s", lambda row: len(row) > 0), 0),
    (
        lambda: FlatMapOperator("s", lambda row: [{"a": row["a"]}]),
        lambda: FlatMapOperator("s", lambda row: [{"a": len(row)}]),
        0,
    ),
    (
        lambda: ProcessRowsOperator("s", lambda row, ctx: {"a": row["a"]}),
        lambda: ProcessRowsOperator("s", lambda row, ctx: {"a": len(row)}),
        0,
    ),
    (
        lambda: ProcessOperator("s", ["k"], lambda key, row, ctx: {"a": row["a"]}),
        lambda: ProcessOperator("s", ["k"], lambda key, row, ctx: {"a": len(row)}),
        0,
    ),
    (lambda: connected(Adds), lambda: connected(AddsAll), 0),
    (lambda: connected(Adds), lambda: connected(AddsAll), 1),
]


@pytest.mark.parametrize(("reading", "measuring", "port"), STEPS)
def test_steps_convert_only_the_columns_that_their_function_reads(
    reading: Callable[[], Operator], measuring: Callable[[], Operator], port: int
) -> None:
    driven = Driven(reading())
    driven.feed(UNREADABLE, port=port)
    assert [value for batch in driven.batches for value in batch.column("a").to_pylist()] == [0, 1, 2]
    with pytest.raises(InvalidJob, match="years 1 to 9999"):
        Driven(measuring()).feed(UNREADABLE, port=port)


@pytest.mark.parametrize("on_error", ["skip", "fail"])
def test_a_split_converts_only_the_columns_that_its_function_reads(on_error: Any) -> None:
    driven = Driven(SplitOperator("s", lambda row: row["c"], ["text 0", "text 1", "text 2"], on_error), tags=["text 1"])
    driven.feed(UNREADABLE)
    [batch] = driven.side["text 1"]
    assert batch.column("a").to_pylist() == [1]


def test_an_error_shows_the_whole_record() -> None:
    with pytest.raises(BarrierRuntimeError, match="'c': 'text 0'"):
        Driven(MapOperator("s", lambda row: {"a": row["a"] / 0})).feed(IN_ARROW)
