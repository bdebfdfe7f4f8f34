"""The table of backlogs: runs and rows, answers of our flows, and small runs of the engines. No load."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from barrier_runtime.connectors.memory.collect import CollectSink
from benchmarks import session
from benchmarks.backlog import ENGINES_OF_BACKLOGS, STREAMS, TABLES, BacklogSizes, runs, smaller
from benchmarks.backlog_rows import SCHEMA, WIDE_SCHEMA, folder_of, records, table, wide_records
from benchmarks.backlog_workloads import WORKLOADS
from benchmarks.engines import BACKLOGS, ENGINES
from benchmarks.engines.ours import read
from benchmarks.report.backlog_table import backlog_markdown
from benchmarks.session import Store
from benchmarks.spec import BoundedRun, Results, RunResult, RunSpec
from benchmarks.workloads import workload

ROWS = 300
FILES = ("jsonl", "csv", "parquet")


def spec_of(source: str, work: str, **more: Any) -> RunSpec:
    return RunSpec(engine="ours", workload=work, measure="throughput", source=source, sink="discard", rows=ROWS, **more)  # type: ignore[arg-type]


def rows_of(spec: RunSpec) -> list[dict[str, Any]]:
    sink = CollectSink()
    flow, result = workload(spec.workload).flow(lambda flow: read(spec, flow))
    result.sink("out", sink)
    flow.run_local(parallelism=2)
    return sink.rows()


def test_each_engine_reads_kafka_or_files_and_does_every_work() -> None:
    specs = list(runs(BacklogSizes(), ENGINES_OF_BACKLOGS))
    assert {spec.engine for spec in specs if spec.source == "kafka"} == set(STREAMS)
    assert {spec.engine for spec in specs if spec.source != "kafka"} == set(TABLES)
    assert tuple(known.name for known in WORKLOADS) == BACKLOGS
    for spec in specs:
        assert spec.workload in (ENGINES[spec.engine].workloads or BACKLOGS)
        assert smaller(spec).rows < spec.rows
    assert set(Counter(specs).values()) == {1}


def test_one_work_is_measured_alone() -> None:
    specs = list(runs(BacklogSizes(workloads=["backlog-wide"]), ENGINES_OF_BACKLOGS))
    assert {(spec.source, spec.workload) for spec in specs} == {("kafka", "backlog-wide")}


def test_a_record_has_110_bytes_and_the_values_of_its_row() -> None:
    made = records(5, 8)
    assert {len(record) for record in made} == {110}
    assert [msgspec.json.decode(record) for record in made] == table(5, 8).to_pylist()
    assert table(5, 8).schema == SCHEMA


def test_a_wide_record_has_200_columns() -> None:
    (record,) = wide_records(7, 8)
    assert list(msgspec.json.decode(record)) == WIDE_SCHEMA.names
    assert len(WIDE_SCHEMA) == 200


@pytest.mark.parametrize("kind", FILES)
def test_our_flows_over_files_read_every_row(kind: str, tmp_path: Path) -> None:
    folder = str(folder_of(kind, ROWS, tmp_path))
    found = sorted(rows_of(spec_of(kind, "backlog-columns", input=folder)), key=lambda row: row["id"])
    assert found == table(0, ROWS).to_pylist()


@pytest.mark.slow
def test_a_small_run_of_engines_over_files_fills_the_table(tmp_path: Path) -> None:
    engines = ("ours-in-process", "duckdb", "polars")
    sizes = BacklogSizes(rows=ROWS, sources=("jsonl",))
    store = Store(tmp_path, fresh=True)
    specs = [spec for spec in runs(sizes, engines) if spec.workload == "backlog-sums"]
    session.backlog(store, specs, tmp_path / "run", tmp_path / "input")
    assert [(run.engine, run.error) for run in store.results.backlogs] == [(engine, None) for engine in engines]
    assert all(ENGINES[engine].title in backlog_markdown(store.results) for engine in engines)


def test_the_table_has_a_row_per_work_and_names_what_failed() -> None:
    def result(engine: str, error: str | None = None) -> RunResult:
        return RunResult(
            engine=engine, version="1", workload="backlog-sums", measure="throughput", source="kafka", sink="discard",
            round=0, rate=0.0, rows=3_000_000, keys=1, parallelism=2, interval_ms=1_000, seconds=0.0, started="",
            error=error, bounded=[BoundedRun(1, 1.0)], rows_per_s_steady=150_000.4, core_us_per_row=7.25,
        )  # fmt: skip

    text = backlog_markdown(Results(backlogs=[result("ours"), result("flink", "no jar\nmore")]))
    assert (
        "| Kafka, 3,000,000 rows, JSON of 110 bytes: running count and sum by a text | 150,000 / 7.25 | failed |"
        in text
    )
    assert "- Flink, backlog-sums: no jar\n" in text + "\n"
    assert backlog_markdown(Results()) == ""
