"""Joins whose rows do not fit in memory equal their oracles, for any order, watermarks, restarts and parallelism. Rows
on disk take no memory, and no file is left.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from barrier_runtime import Tumbling
from barrier_runtime.operators.joins.as_of import AsOfKind
from barrier_runtime.operators.joins.interval import JOIN_KINDS, JoinKind
from barrier_runtime.operators.joins.stored_runs import RowRun, RunsOnDisk
from barrier_runtime.state.errors import Unavailable
from tests.barrier_runtime.operators.joins import (
    test_asof_join,
    test_interval_join,
    test_table_join,
    test_window_join,
)
from tests.barrier_runtime.operators.joins.joined import MS

BOUNDS = ((-5, 5), (0, 30), (-40, -10), (10, 40))


@contextlib.contextmanager
def share(most_bytes: int) -> Iterator[None]:
    """So many bytes of all runs of an operator are in memory; runs are merged however large they are."""
    with patch.object(RunsOnDisk, "most_bytes", most_bytes), patch.object(RunsOnDisk, "most_merged_bytes", 1 << 20):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("most_bytes", [0, 600])
@pytest.mark.parametrize("how", JOIN_KINDS)
def test_interval_and_window_joins_equal_brute_force(how: JoinKind, most_bytes: int) -> None:
    with share(most_bytes):
        for seed in range(4):
            test_interval_join.check(seed, how, *BOUNDS[seed], 3, 10, 2)
            test_window_join.check(seed, how, Tumbling(20 * MS), 3, 10, 2)


@pytest.mark.slow
@pytest.mark.parametrize("most_bytes", [0, 600])
def test_as_of_and_table_joins_equal_their_oracles(most_bytes: int) -> None:
    with share(most_bytes):
        for seed in range(4):
            how: AsOfKind = "left" if seed % 5 else "inner"
            test_asof_join.check(seed, (None, 5, 50)[seed % 3], seed % 2 == 0, how, 3, 10, 2)
            test_table_join.check_versioned(seed)
            test_table_join.check_newest(seed)


def rows(first: int, count: int, other: str) -> pa.RecordBatch:
    numbers = pa.array(np.arange(first, first + count))
    return pa.RecordBatch.from_arrays([numbers, numbers, pa.array(["x" * 100] * count)], names=["k", "t", other])


def test_what_is_on_disk_takes_no_memory_is_read_again_and_leaves_no_file(tmp_path: Path) -> None:
    disk = RunsOnDisk(tmp_path / "rows", lambda: 50_000, "join 'j'")
    firsts = (0, 100, 200, 300)
    runs = [RowRun.of(rows(at, 100, "a"), np.arange(100) % 7, np.arange(at, at + 100)) for at in firsts]
    wanted = np.array([3]), np.array([0]), np.array([400])  # key, from time, to time
    before = [run.take(run.ranges(*wanted)[0]) for run in runs]
    disk.relieve([runs[:2], runs[2:]])
    assert [run.on_disk for run in runs] == [True, False, False, False], "the oldest goes, and no more than must"
    assert sum(run.held_bytes for run in runs) <= 50_000
    RunsOnDisk(tmp_path / "rows", lambda: 0, "join 'j'").relieve([runs[:2], runs[2:]])
    assert all(run.on_disk for run in runs)
    assert not list((tmp_path / "rows").iterdir())
    for run, taken in zip(runs, before, strict=True):
        assert run.take(run.ranges(*wanted)[0]).equals(taken)
    merged = RowRun.merged(runs)
    assert not merged.on_disk
    assert sorted(merged.rows.column("t").to_pylist()) == list(range(400))


def test_a_disk_that_takes_nothing_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    run = RowRun.of(rows(0, 10, "a"), np.zeros(10, np.int64), np.arange(10))
    with pytest.raises(Unavailable, match="free some space there, or give the job more state_memory_mb"):
        RunsOnDisk(tmp_path, lambda: 0, "join 'j'").relieve([[run]])
    assert not run.on_disk
