"""Values that functions give: each is in its column as it was given, or the job ends and says which value it is."""

from collections.abc import Iterator
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, JobFailed


def _mapped(values: list[Any], schema: Any = None) -> list[Any]:
    """What a whole job makes of a map() that gives these values, one for each row."""
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
    from decimal import Decimal

    with pytest.raises(JobFailed, match="2 digits behind the point"):
        _mapped([Decimal("1.23456789012345678901234567890123456789012")], {"x": "decimal(10, 2)"})


# Source: our own trial
def test_microseconds_are_not_cut_by_a_column_of_seconds() -> None:
    import datetime

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
