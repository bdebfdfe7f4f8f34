"""Rows survive the round trip through bytes, for all types and cell borders."""

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.data.row_bytes import RowBytes
from tests.drawn import examples

COLUMNS: dict[pa.DataType, list[Any]] = {
    pa.int8(): [1, -128, 127],
    pa.int64(): [0, -(2**63), 2**63 - 1],
    pa.float16(): [0.5, 1.0, -2.0],
    pa.float64(): [0.0, 1.5, -1e300],
    pa.bool_(): [True, False, True],
    pa.string(): ["", "ä€😀", "x" * 300],
    pa.large_string(): ["", "b", "c"],
    pa.binary(): [b"", b"\x00\xff", b"z"],
    pa.large_binary(): [b"", b"\x00\xff", b"z"],
    pa.binary(3): [b"abc", b"\x00\x00\x00", b"xyz"],
    pa.date32(): [datetime.date(1, 1, 1), datetime.date(2026, 11, 26), datetime.date(9999, 12, 31)],
    pa.timestamp("us", "Europe/Berlin"): [datetime.datetime(2026, 1, day, tzinfo=datetime.UTC) for day in (1, 2, 3)],
    pa.time64("ns"): [datetime.time(1), datetime.time(2, 3, 4, 5), datetime.time(0)],
    pa.duration("ms"): [datetime.timedelta(seconds=number) for number in range(3)],
    pa.decimal128(20, 3): [decimal.Decimal("1.234"), decimal.Decimal("-7"), decimal.Decimal(0)],
    pa.decimal256(50, 10): [decimal.Decimal("1.234"), decimal.Decimal("-7"), decimal.Decimal(0)],
    pa.list_(pa.string()): [[], ["a", None], ["b"] * 5],
    pa.struct([("a", pa.int32()), ("b", pa.list_(pa.float32()))]): [{"a": 1, "b": [0.5]}, {"a": None, "b": None}, None],
    pa.map_(pa.string(), pa.int64()): [[("a", 1)], [], [("b", None)]],
    pa.null(): [None],
}
KINDS = st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=10)


@given(kinds=KINDS, seed=st.integers(0, 1_000), rows=st.integers(0, 12), offset=st.integers(0, 3))
@examples(150)
def test_rows_of_all_types_are_the_same_again(kinds: list[pa.DataType], seed: int, rows: int, offset: int) -> None:
    random = np.random.default_rng(seed)
    schema = pa.schema([(f"c{at}", kind) for at, kind in enumerate(kinds)])
    columns = []
    for at, kind in enumerate(kinds):
        values = [None, *COLUMNS[kind]] if (seed >> at) % 2 else COLUMNS[kind]
        columns.append(pa.array([values[random.integers(len(values))] for _ in range(rows + offset)], kind))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema).slice(offset)
    codec = RowBytes(schema)
    starts, data = codec.encode(batch)
    assert starts[0] == 0
    assert starts[-1] == len(data)
    assert not rows or np.diff(starts).min() >= codec.least_bytes
    cuts = np.sort(random.integers(0, rows + 1, 4)).tolist()  # cells may be empty
    cells = [data[starts[first] : starts[end]] for first, end in zip([0, *cuts], [*cuts, rows], strict=True)]
    again, counts = codec.decode(cells)
    again.validate(full=True)
    assert again.equals(batch)
    assert counts.tolist() == np.diff([0, *cuts, rows]).tolist()


@pytest.mark.parametrize("kinds", [(pa.int64(), pa.int32()), (pa.int64(), pa.string(), pa.binary())])
def test_bytes_that_are_no_rows_are_refused(kinds: tuple[pa.DataType, ...]) -> None:
    schema = pa.schema([(f"c{at}", kind) for at, kind in enumerate(kinds)])
    codec = RowBytes(schema)
    arrays = [pa.array(COLUMNS[pa.int64()][:1] if kind == pa.int64() else [None], kind) for kind in kinds]
    _, data = codec.encode(pa.RecordBatch.from_arrays(arrays, schema=schema))
    wide = 5  # offset of the length of the first wide column
    damaged = [data[:-1], data[:3], data + b"\x00", bytes(len(data)), b"\xff" * len(data)]
    if len(kinds) == 3:
        damaged.append(data[:wide] + b"\x01" + data[wide + 1 :])
    for each in damaged:
        with pytest.raises(ValueError, match=r"a row that ends elsewhere|columns that do not fill"):
            codec.decode([data, each, data])
