"""Nexmark beside Flink: the sum of Flink's changes, the input, and the table with our losses first."""

import string
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import nexmark
from benchmarks.answers import at_most
from benchmarks.engines.flink import settings
from benchmarks.flink_answers import AnswerFailed, as_lists, newest, remaining
from benchmarks.inputs import with_input
from benchmarks.nexmark_flink import FLINK
from benchmarks.report.nexmark_table import nexmark_markdown
from benchmarks.report.table import markdown
from benchmarks.spec import Answer, BoundedRun, Results, RunResult, RunSpec, decoded, encoded
from benchmarks.throughput import core_us_per_row
from benchmarks.workloads import names, workload


def test_every_query_has_a_text_for_flink_over_columns_that_there_are() -> None:
    assert list(FLINK) == names("nexmark")
    known = set(nexmark.SCHEMA.names)
    for name in names("nexmark"):
        text = workload(name).flink
        assert text == FLINK[name]
        for view in text.split(";")[:-1]:
            if view.startswith("CREATE TEMPORARY VIEW") and "FROM events" in view:
                columns = view.partition("SELECT ")[2].partition(" FROM")[0].split(", ")
                plain = {column.strip("`") for column in columns if " " not in column}
                assert plain <= known | {"ts"}


def test_changes_of_one_row_add_up_in_any_order() -> None:
    changes = [[-1, "a", 1], [1, "a", 2], [1, "a", 1], [1, "b", 5], [1, "b", 5]]
    assert sorted(remaining(changes)) == [("a", 2), ("b", 5), ("b", 5)]


def test_a_row_that_is_taken_back_and_never_came_is_an_error() -> None:
    with pytest.raises(AnswerFailed, match="took back a row"):
        remaining([[1, "a"], [-1, "b"]])


def test_of_rows_that_replace_each_other_the_last_one_of_a_key_counts() -> None:
    changes = [[1, 7, "x"], [1, 8, "y"], [1, 7, "z"], [-1, 8, "y"]]
    assert list(newest(changes, [0])) == [(7, "z")]


def test_rows_with_a_place_are_a_list_of_their_group() -> None:
    rows = [{"auction": 1, "price": 3, "place": 2}, {"auction": 1, "price": 9, "place": 1}, {"auction": 2, "price": 4}]
    found = as_lists(rows, ("auction",), "top", "price")
    assert found == [{"auction": 1, "top": [9, 3]}, {"auction": 2, "top": [4]}]


def test_sums_that_lack_the_last_windows_are_at_most_the_answer() -> None:
    answer = [(1, 5), (2, 3)]
    assert at_most([(1, 4)], answer)
    assert at_most([(1, 5), (2, 3)], answer)
    assert not at_most([(1, 6)], answer)
    assert not at_most([(3, 1)], answer)
    assert not at_most([], answer)


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_flink_reads_all_rows_from_a_file_per_subtask_each_in_order_of_time(parallelism: int, tmp_path: Path) -> None:
    spec = RunSpec(
        engine="ours", workload="q0", measure="throughput", source="parquet", sink="discard",
        rows=1_000, parallelism=parallelism,
    )  # fmt: skip
    ours = Path(with_input(spec, tmp_path, 200).input)
    theirs = Path(with_input(msgspec.structs.replace(spec, engine="flink"), tmp_path, 200).input)
    tables = [pq.read_table(file) for file in sorted(theirs.glob("*.parquet"))]
    assert len(tables) == parallelism
    for table in tables:
        emitted = table["emitted"].to_pylist()
        assert emitted == sorted(emitted)
    every = [pq.read_table(file) for file in sorted(ours.glob("*.parquet"))]
    assert len(every) == 5
    assert pa.concat_tables(tables).sort_by("emitted") == pa.concat_tables(every).sort_by("emitted")


def test_flink_is_tuned_for_nexmark_and_for_nothing_else() -> None:
    spec = RunSpec(engine="flink", workload="q15", measure="throughput", source="parquet", sink="discard")
    assert settings(spec)["table.exec.mini-batch.enabled"] == "true"
    other = settings(msgspec.structs.replace(spec, workload="tumbling"))
    assert not [name for name in other if name.startswith("table.exec")]


def test_core_seconds_per_row_leave_out_what_both_inputs_cost() -> None:
    small, large = BoundedRun(1_000_000, 4.0, 7.0), BoundedRun(3_000_000, 9.0, 11.0)
    assert core_us_per_row(small, large) == 2.0
    assert core_us_per_row(small, BoundedRun(3_000_000, 9.0)) is None
    assert core_us_per_row(small, BoundedRun(3_000_000, 9.0, 6.0)) is None


def run(name: str, engine: str, rate: float | None, core_us: float | None, number: int = 0) -> RunResult:
    return RunResult(
        engine=engine, version="1", workload=name, measure="throughput", source="parquet", sink="discard",
        round=number, rate=0.0, rows=1_000_000, keys=10_000, parallelism=2, interval_ms=1_000, seconds=0.0,
        started="2026-11-24 02:00:00", rows_per_s_steady=rate, core_us_per_row=core_us, rows_per_s=1.0,
        error="broke" if rate is None else None,
    )  # fmt: skip


def answer(name: str, engine: str, same: bool) -> Answer:
    return Answer(workload=name, engine=engine, events=1_000_000, rows=5, same=same, columns=["id"])


def test_the_table_names_what_we_lose_and_has_it_first() -> None:
    runs = [
        run("q0", "ours", 4e6, 0.4), run("q0", "flink", 1e6, 1.0),
        run("q4", "ours", 2e5, 3.0), run("q4", "flink", 1e5, 4.0),
        run("q19", "ours", 5e4, 9.0), run("q19", "flink", 1e5, 3.0),
        run("q20", "ours", 5e4, 9.0), run("q20", "flink", None, None),
        run("q21", "ours", 5e4, 9.0),
    ]  # fmt: skip
    results = Results(runs=runs, answers=[answer("q4", "ours", True), answer("q4", "flink", False)])
    told, _, *table = nexmark_markdown(results).splitlines()
    assert told == (
        "Slower than Flink SQL: q19. More core-seconds per event: q19. Faster, but not 3 times: q4. Fewer "
        "core-seconds, but not half: q4. Without one of the ratios: q20."
    )
    rows = [line.strip("| ").split(" | ") for line in table[2:]]
    assert [row[0] for row in rows] == ["q20", "q19", "q4", "q0"]
    assert rows[0][1:4] == ["50k", "failed", "-"]
    assert rows[1][1:7] == ["50k", "100k", "0.50", "9.00", "3.00", "3.00"]
    assert rows[2][7:] == ["same, 1M", "DIFFERS, 1M"]
    assert rows[3][7:] == ["-", "-"]
    assert nexmark_markdown(results) in markdown(results)
    assert nexmark_markdown(Results()) == ""


def test_results_of_before_have_neither_answers_nor_core_seconds_per_row() -> None:
    stored = msgspec.json.decode(
        encoded(Results(runs=[run("q0", "ours", 1.0, 1.0)], answers=[answer("q0", "ours", True)]))
    )
    stored["runs"][0] |= {"bounded": [[1_000, 2.0]]}
    del stored["answers"], stored["runs"][0]["core_us_per_row"]
    old = decoded(msgspec.json.encode(stored))
    assert old.answers == []
    assert old.runs[0].bounded == [BoundedRun(1_000, 2.0)]
    assert old.runs[0].core_us_per_row is None


def test_texts_for_flink_have_one_query_each_and_no_holes() -> None:
    for text in FLINK.values():
        assert not [field for _, field, _, _ in string.Formatter().parse(text) if field is not None]
        *views, query = text.split(";")
        assert query.startswith("SELECT ")
        assert all(view.startswith("CREATE TEMPORARY ") for view in views)
