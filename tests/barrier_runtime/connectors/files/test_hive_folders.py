"""Sources over folders that define columns, such as `day=2026-01-01/`."""

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barrier_runtime import CollectSink, CsvSource, Dataflow, JsonlSource, ParquetSource
from barrier_runtime.connectors.files.hive import by_folder, folders_of, values_of
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples


def rows_of(source: Any) -> list[dict[str, Any]]:
    flow, out = Dataflow("read"), CollectSink()
    flow.source("in", source).sink("out", out)
    flow.run_local(parallelism=1)
    return sorted(out.rows(), key=lambda row: row["n"])


def written(folder: Path, *files: str) -> str:
    """File number n has the row n; `files` are their folders."""
    for number, name in enumerate(files):
        (folder / name).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"n": [number]}), folder / name / f"{number}.parquet")
    return str(folder)


def test_types_are_guessed_from_all_folders(tmp_path: Path) -> None:
    null = "__HIVE_DEFAULT_PARTITION__"
    folder = written(
        tmp_path, "year=2026/month=01/day=2026-01-02/zip=01234", f"year=2026/month=12/day=2026-12-02/zip={null}"
    )
    assert rows_of(ParquetSource(folder)) == [
        {"n": 0, "year": 2026, "month": 1, "day": date(2026, 1, 2), "zip": "01234"},
        {"n": 1, "year": 2026, "month": 12, "day": date(2026, 12, 2), "zip": None},
    ]


@pytest.mark.slow
def test_schema_says_which_columns_and_their_types(tmp_path: Path) -> None:
    folder = written(tmp_path, "month=01/shop=a%2Fb", "month=02/shop=c")
    schema = {"shop": str, "n": int, "month": str}
    assert rows_of(ParquetSource(folder, schema=schema)) == [
        {"shop": "a/b", "n": 0, "month": "01"},
        {"shop": "c", "n": 1, "month": "02"},
    ]
    assert rows_of(ParquetSource(folder, schema={"n": int})) == [{"n": 0}, {"n": 1}]
    with pytest.raises(Exception, match=r"its folder says shop=a/b, which is no int64"):
        rows_of(ParquetSource(folder, schema={"n": int, "shop": int}))
    with pytest.raises(InvalidJob, match="names columns of the folders alone"):
        rows_of(ParquetSource(folder, schema={"shop": str}))


@pytest.mark.slow
def test_what_is_above_the_folder_that_is_read_gives_no_column(tmp_path: Path) -> None:
    folder = written(tmp_path / "env=test", "day=1")
    assert rows_of(ParquetSource(folder)) == [{"n": 0, "day": 1}]
    assert rows_of(ParquetSource(f"{folder}/day=1")) == [{"n": 0}]


@pytest.mark.slow
def test_globs_and_listed_files_have_the_columns_of_the_folders_above_them(tmp_path: Path) -> None:
    folder = written(tmp_path, "day=1", "day=2")
    expected = [{"n": 0, "day": 1}, {"n": 1, "day": 2}]
    assert rows_of(ParquetSource(f"{folder}/day=*/*.parquet")) == expected
    assert rows_of(ParquetSource([f"{folder}/day=1/0.parquet", f"{folder}/day=2/1.parquet"])) == expected


def test_files_in_folders_of_other_columns_are_refused(tmp_path: Path) -> None:
    folder = written(tmp_path, "day=1", "hour=1")
    with pytest.raises(InvalidJob, match="some of its files are in folders as day=1, others as hour=1"):
        rows_of(ParquetSource(folder))


@pytest.mark.slow
def test_csv_and_json_lines_have_them_too_and_watched_folders(tmp_path: Path) -> None:
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}/{day}.csv").write_text(f"n\n{day}\n")
        (tmp_path / f"day={day}/{day}.jsonl").write_text(json.dumps({"n": day}) + "\n")
    expected = [{"n": 1, "day": 1}, {"n": 2, "day": 2}]
    assert rows_of(CsvSource(str(tmp_path))) == expected
    assert rows_of(JsonlSource(str(tmp_path))) == expected
    flow = Dataflow("watched")
    watched = flow.source("in", JsonlSource(str(tmp_path), watch=timedelta(seconds=1)))
    assert watched.take(2).to_pylist() in (expected, expected[::-1])


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64()])
def test_every_date_of_python_names_a_folder(kind: pa.DataType) -> None:
    days = [date.min, date(1969, 12, 31), date.max, None]
    folders = by_folder(pa.table({"n": [0, 1, 2, 3], "day": pa.array(days, kind)}), ["day"])
    read = [values_of(folders_of(f"{folder}x.parquet"))["day"] for folder in folders]
    assert set(read) == {"0001-01-01", "1969-12-31", "9999-12-31", None}


@pytest.mark.parametrize("day", [-719_163, 2_932_897])
def test_a_date_beyond_those_of_python_is_refused_as_a_folder(day: int) -> None:
    column = pa.array([0, day], pa.int32()).view(pa.date32())
    with pytest.raises(InvalidJob, match=r"column 'day' has a date .* beyond the years 1 to 9999"):
        by_folder(pa.table({"n": [0, 1], "day": column}), ["day"])


NULL = "__HIVE_DEFAULT_PARTITION__"
VALUES = st.one_of(
    st.none(),
    st.sampled_from([NULL, f"%5F{NULL[1:]}"]),
    st.text(max_size=5).filter(lambda text: not any(0xD800 <= ord(c) < 0xE000 for c in text)),
)


@pytest.mark.slow
@examples(200)
@example(rows=[(NULL, 1), (None, 1), (f"%5F{NULL[1:]}", 1)])
@given(rows=st.lists(st.tuples(VALUES, st.one_of(st.none(), st.integers(-5, 5))), min_size=1, max_size=20))
def test_a_folder_says_what_its_rows_had(rows: list[tuple[str | None, int | None]]) -> None:
    """Text with any characters survives; empty text becomes null, as in Spark. Rows keep their order."""
    table = pa.table(
        {
            "n": list(range(len(rows))),
            "a=b": pa.array([text for text, _ in rows], pa.string()),
            "c": pa.array([number for _, number in rows], pa.int64()),
        }
    )
    found = by_folder(table, ["a=b", "c"])
    seen = {}
    for folder, part in found.items():
        assert part.column_names == ["n"]
        numbers = part["n"].to_pylist()
        assert numbers == sorted(numbers)
        values = values_of(folders_of(f"{folder}x.parquet"))
        for number in numbers:
            seen[number] = (values["a=b"], values["c"])
    assert seen == {
        index: (text or None, None if number is None else str(number)) for index, (text, number) in enumerate(rows)
    }
