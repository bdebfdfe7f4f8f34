"""Rows of a table and the time of their commit, as `benchmarks.freshness` reads them from the table's files."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from benchmarks.freshness import Delta, Iceberg, Table, stamps

Append = Callable[[list[int]], None]


def _rows(emitted: list[int]) -> pa.Table:
    return pa.table({"key": [7] * len(emitted), "emitted": emitted})


def _delta(folder: Path) -> tuple[Table, Append]:
    return Delta(folder), lambda emitted: write_deltalake(str(folder), _rows(emitted), mode="append")


def _iceberg(folder: Path) -> tuple[Table, Append]:
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("db")
    table = catalog.create_table("db.rows", _rows([1]).schema)
    return Iceberg(folder), lambda emitted: table.append(_rows(emitted))


@pytest.mark.parametrize("new", [_delta, _iceberg])
def test_a_row_arrives_with_the_commit_that_adds_its_file(
    new: Callable[[Path], tuple[Table, Append]], tmp_path: Path
) -> None:
    table, append = new(tmp_path)
    assert not [commit for commit in table.commits() if table.added(commit)]
    append([100, 101])
    (first,) = (commit for commit in table.commits() if table.added(commit))
    append([102])
    (second,) = (commit for commit in table.commits() if table.added(commit) and commit != first)

    found = stamps(table, {second: 2_000, first: 1_000})

    assert list(zip(found.intended.tolist(), found.arrived.tolist(), strict=True)) == [
        (100, 1_000),
        (101, 1_000),
        (102, 2_000),
    ]
    assert len(table.live_bytes()) == 2


def test_a_commit_that_joins_files_adds_no_rows(tmp_path: Path) -> None:
    table, append = _delta(tmp_path)
    append([100])
    append([101])
    before = set(table.commits())
    DeltaTable(str(tmp_path)).optimize.compact()

    (joined,) = set(table.commits()) - before
    assert table.added(joined) == []
    assert len(table.live_bytes()) == 1
