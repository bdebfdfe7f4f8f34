"""Values that functions return: each is unchanged in the column, or the job ends and names the value."""

import datetime
import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, JobFailed, ValueState
from barrier_runtime.connectors.files.source.small_table import small_table


def _mapped(values: list[Any], schema: Any = None) -> list[Any]:
    """The output of a whole job with a map() that returns these values, each in a row."""
    flow, out = Dataflow("field"), CollectSink()

    def numbers(split: int, splits: int) -> Iterator[dict[str, int]]:
        return ({"n": n} for n in range(len(values)))

    rows = flow.from_iterator("in", numbers, schema={"n": int}, splits=1)
    rows.map(lambda row: {"x": values[row["n"]]}, schema=schema).sink("out", out)
    flow.run_local(parallelism=1)
    return [row["x"] for row in out.rows()]


# Source: our own trial
def test_a_key_that_the_struct_lacks_is_refused() -> None:
    with pytest.raises(JobFailed, match="has no key 'b'"):
        _mapped([{"a": 1}, {"b": 2}], {"x": "struct<a: int64>"})


# Source: our own trial
def test_a_number_that_float32_makes_infinite_is_refused() -> None:
    with pytest.raises(JobFailed, match="would become infinite"):
        _mapped([1e300], {"x": "float32"})


# Source: our own trial
def test_a_decimal_of_very_many_digits_is_refused_rather_than_made_zero() -> None:
    with pytest.raises(JobFailed, match="2 digits behind the point"):
        _mapped([Decimal("1.23456789012345678901234567890123456789012")], {"x": "decimal(10, 2)"})


# Source: our own trial
def test_microseconds_are_not_cut_by_a_column_of_seconds() -> None:
    with pytest.raises(JobFailed, match=r"declare the column as timestamp\[us\]"):
        _mapped([datetime.datetime(2024, 1, 1, 0, 0, 0, 5)], {"x": "timestamp[s]"})


# Source: our own trial
def test_one_dict_changed_in_a_returned_list_is_refused() -> None:
    def counted(row: dict[str, Any]) -> list[dict[str, Any]]:
        kept, rows = {}, []
        for times in (1, 10):
            kept["n"] = row["n"] * times
            rows.append(kept)
        return rows

    flow, out = Dataflow("field"), CollectSink()
    rows = flow.from_iterator("in", lambda split, splits: iter([{"n": 1}]), schema={"n": int}, splits=1)
    rows.flat_map(counted, schema={"n": int}).sink("out", out)
    with pytest.raises(JobFailed, match="the same row 2 times"):
        flow.run_local(parallelism=1)


# Source: our own trial
def test_a_lookup_that_changes_one_dict_for_all_keys_is_refused() -> None:
    def fetch(keys: list[int]) -> list[dict[str, Any]]:
        kept, rows = {}, []
        for key in keys:
            kept["name"] = f"name {key}"
            rows.append(kept)
        return rows

    flow, out = Dataflow("field"), CollectSink()
    rows = flow.from_iterator("in", lambda split, splits: iter([{"n": 1}, {"n": 2}]), schema={"n": int}, splits=1)
    rows.lookup("names", fetch, key="n", schema={"name": str}).sink("out", out)
    with pytest.raises(JobFailed, match="the same row 2 times"):
        flow.run_local(parallelism=1)


# Source: our own trial
def test_a_lookup_may_give_a_kept_row_for_several_keys() -> None:
    unknown = {"name": "unknown"}
    flow, out = Dataflow("field"), CollectSink()
    rows = flow.from_iterator("in", lambda split, splits: iter([{"n": 1}, {"n": 2}]), schema={"n": int}, splits=1)
    rows.lookup("names", lambda keys: [unknown] * len(keys), key="n", schema={"name": str}).sink("out", out)
    flow.run_local(parallelism=1)
    assert [row["name"] for row in out.rows()] == ["unknown", "unknown"]


# Source: our own trial
def test_a_batch_with_two_columns_of_one_name_is_refused() -> None:
    flow, out = Dataflow("field"), CollectSink()
    rows = flow.from_iterator("in", lambda split, splits: iter([{"n": 1}]), schema={"n": int}, splits=1)
    twice = rows.map_batches(lambda batch: pa.RecordBatch.from_arrays([batch.column(0)] * 2, ["x", "x"]))
    twice.sink("out", out)
    with pytest.raises(JobFailed, match="returned two columns 'x': rename"):
        flow.run_local(parallelism=1)


# Source: our own trial
def test_nan_is_the_greatest_number() -> None:
    flow, out = Dataflow("field"), CollectSink()
    rows = flow.from_iterator("in", lambda split, splits: iter([{"x": math.nan}]), schema={"x": float}, splits=1)
    rows.select({"most": "greatest(x, 1.0)", "least": "least(x, 1.0)"}).sink("out", out)
    flow.run_local(parallelism=1)
    (row,) = out.rows()
    assert (math.isnan(row["most"]), row["least"]) == (True, 1.0)


# Source: our own trial
def test_a_small_table_keeps_columns_that_its_first_row_lacks() -> None:
    table = small_table([{"a": 1}, {"a": 2, "b": "x"}], "join")
    assert table.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


@dataclass
class Account:
    amount: float
    owner: str = ""


@dataclass
class NamedAccount:
    amount: float
    name: str


# Source: our own trial
@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (float, 2**60 + 1, "does not hold all digits"),
        (float, True, "convert it"),
        (int, np.datetime64(1, "ns"), "convert it"),
        (list[float], [2**60 + 1], "a restored job would read"),
        (Account, Account(2**60 + 1), "a restored job would read"),
        (Account, NamedAccount(1.0, "ann"), "a restored job would read"),
        (Account, {"amount": 1.0, "name": "ann"}, "a restored job would read"),
        (set[int], [1, 1], "a restored job would read"),
    ],
    ids=str,
)
def test_a_state_that_a_restore_would_change_is_refused(kind: Any, value: Any, said: str) -> None:
    with pytest.raises(JobFailed, match=said):
        _kept_in_state(kind, value)


# Source: our own trial
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (list[float], [math.nan, 1, -0.0]),
        (list[int], (1, 2)),
        (dict[str, Decimal], {"a": Decimal("NaN"), "b": Decimal("1E+3")}),
        (set[tuple[int, int]], {(1, 2)}),
        (list[datetime.datetime], [datetime.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))]),
        (Account, Account(math.nan, "ann")),
        (Account, {"amount": 1.0}),
        (uuid.UUID, str(uuid.UUID(int=1))),
    ],
    ids=str,
)
def test_a_state_that_a_restore_keeps_is_taken(kind: Any, value: Any) -> None:
    _kept_in_state(kind, value)


def _kept_in_state(kind: Any, value: Any) -> None:
    """A whole job that stores `value` in a state of `kind`, and a snapshot at the job's end."""

    class Kept:
        state = ValueState(kind)

        def process(self, key: int, row: dict[str, Any], ctx: Any) -> None:
            self.state.value = value

    flow, out = Dataflow("field"), CollectSink()
    rows = flow.from_iterator("in", lambda split, splits: iter([{"n": 1}]), schema={"n": int}, splits=1)
    rows.key_by("n").process("kept", Kept, schema={"n": int}).sink("out", out)
    flow.run_local(parallelism=1)
