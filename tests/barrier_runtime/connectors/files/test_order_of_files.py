"""Warnings about rows of a key in several files, which are read side by side."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import Dataflow, SqliteSink, arg_max
from barrier_runtime.api.stream import Stream


def told(tmp_path: Path, files: int, *, newest: bool = False, **options: Any) -> list[str]:
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(files):
        (folder / f"{n}.jsonl").write_text('{"id": 1, "version": 1, "amount": 5}\n')
    flow = Dataflow("f")
    schema = {"id": int, "version": int, "amount": int}
    rows: Stream = flow.read_jsonl("changes", str(folder), schema=schema, **options).filter("id > 0")
    if newest:
        rows = rows.key_by("id").aggregate("newest", newest=arg_max("amount", by="version"))
    rows.sink("table", SqliteSink(str(tmp_path / "db"), "t", mode="upsert", key=["id"]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        flow.explain()
    return [str(each.message) for each in caught if "in any order" in str(each.message)]


@pytest.mark.parametrize(("files", "options"), [(2, {}), (1, {"watch": 1.0})])
def test_files_before_an_upsert_sink_are_told(tmp_path: Path, files: int, options: Any) -> None:
    (said,) = told(tmp_path, files, **options)
    assert all(
        each in said for each in ("sink 'table'", "source 'changes'", 'file_order="name"', "arg_max", "one file")
    )


@pytest.mark.parametrize(("files", "options"), [(2, {}), (1, {"watch": 1.0})])
@pytest.mark.parametrize("order", ["name", "modified"])
def test_files_in_order_need_no_warning(tmp_path: Path, files: int, options: Any, order: str) -> None:
    assert told(tmp_path, files, file_order=order, **options) == []


@pytest.mark.parametrize(("files", "newest"), [(1, False), (2, True)])
def test_one_file_or_the_newest_row_by_version_needs_no_warning(tmp_path: Path, files: int, newest: bool) -> None:
    assert told(tmp_path, files, newest=newest) == []
