"""Rows as JSON for people: secrets masked, long values and wide rows cut."""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.elements import Batch
from barrier_runtime.state.masked_text import MASK, masked_text, names_a_secret

MOST_OF_A_ROW = 16_000  # characters; further columns are left out
_MOST_CHARACTERS = 300  # of a text
_MOST_MASKED = 1_000  # characters of a text that are masked before the cut
_MOST_BYTES = 4_096  # of a value that is converted as a whole
_MOST_ELEMENTS = 500  # of a list
_NAMES, _VALUES = ("name", "key"), ("value", "val")  # fields of pairs, as of headers or settings


def rows_as_text(batches: Sequence[Batch], count: int) -> Iterator[str]:
    for batch in batches:
        rows = batch.rows.slice(0, count)
        count -= rows.num_rows
        for at in range(rows.num_rows):
            yield json.dumps(_row(rows.slice(at, 1)), ensure_ascii=False)


def _row(rows: pa.RecordBatch) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    left = MOST_OF_A_ROW
    for at, name in enumerate(rows.schema.names):
        value = _field(name, _value(rows.column(at)))
        left -= len(json.dumps({name: value}, ensure_ascii=False))
        if left < 0:
            return {**_pair(shown), "…": f"the row is cut: {rows.num_columns - at:,} more columns"}
        shown[name] = value
    return _pair(shown)


def _value(value: pa.Array) -> Any:
    try:
        if value.nbytes > _MOST_BYTES:
            if not (pa.types.is_string(value.type) or pa.types.is_large_string(value.type)):
                return f"({value.nbytes:,} bytes)"
            value = pc.utf8_slice_codeunits(value, 0, _MOST_MASKED)
        return value[0].as_py()
    except (ValueError, OverflowError, LookupError):  # beyond Python's range, invalid UTF-8, an unknown time zone
        return " ".join(value.to_string().split())[2:-2]


def _field(name: str, value: Any) -> Any:
    return MASK if value is not None and names_a_secret(name) else _masked(value)


def _masked(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return _pair({name: _field(name, each) for name, each in value.items()})
    if isinstance(value, (list, tuple)):
        return _elements(value)
    text = str(value)
    shown = masked_text(text[:_MOST_MASKED])
    return f"{shown[:_MOST_CHARACTERS]}…" if len(shown) > _MOST_CHARACTERS or len(text) > _MOST_MASKED else shown


def _elements(values: Sequence[Any]) -> list[Any]:
    if len(values) == 2 and isinstance(values[0], str) and names_a_secret(values[0]):  # an entry of a map
        return [values[0], None if values[1] is None else MASK]
    more = [f"({len(values) - _MOST_ELEMENTS:,} more elements)"] if len(values) > _MOST_ELEMENTS else []
    return [_masked(each) for each in values[:_MOST_ELEMENTS]] + more


def _pair(fields: dict[str, Any]) -> dict[str, Any]:
    """Masks the value of a pair such as `{"name": "api_key", "value": …}`."""
    if not any(
        name.lower() in _NAMES and isinstance(each, str) and names_a_secret(each) for name, each in fields.items()
    ):
        return fields
    return {name: MASK if name.lower() in _VALUES and each is not None else each for name, each in fields.items()}
