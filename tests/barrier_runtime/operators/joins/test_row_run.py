"""Ranges of rows by key and time against a full scan, with any number of keys and of rows per key."""

import numpy as np
import pyarrow as pa
import pytest

from barrier_runtime.operators.joins.stored_runs import TIME_LIMIT, RowRun


def scanned(run: RowRun, key: int, lowest: int, highest: int) -> list[int]:
    of_key = (run.keys == key) & (run.times >= lowest) & (run.times <= highest)
    return np.flatnonzero(of_key).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("asked", [1, 40, 600])
@pytest.mark.parametrize(("keys", "rows"), [(5_000, 2_000), (300, 3_000), (3, 2_000), (1, 1)])
@pytest.mark.parametrize("span", [1, 500, TIME_LIMIT], ids=["one time", "near", "any time"])
def test_rows_of_a_key_within_bounds_are_found(asked: int, keys: int, rows: int, span: int) -> None:
    rng = np.random.default_rng(asked * keys + rows)
    # A third of the rows share a key, and some times are shared by many rows.
    of_row = np.where(rng.random(rows) < 0.3, keys // 2, rng.integers(0, keys, rows))
    times = np.where(rng.random(rows) < 0.2, span // 2, rng.integers(-span, span, rows))
    run = RowRun.of(pa.record_batch({"n": np.arange(rows)}), of_row, times)
    wanted = np.sort(np.where(rng.random(asked) < 0.05, keys // 2, rng.integers(0, keys + 3, asked)))
    lowest = rng.integers(-span, span, asked)
    highest = lowest + rng.integers(-2, span // 2 + 2, asked)  # also bounds between which there is no time
    starts, ends = run.ranges(wanted, lowest, highest)
    for key, low, high, start, end in zip(
        *map(np.ndarray.tolist, (wanted, lowest, highest, starts, ends)), strict=True
    ):
        assert list(range(start, end)) == scanned(run, key, low, high)
