"""DuckDB ("duckdb") and Polars ("polars"): the files of a backlog in a single query, with `parallelism` threads.

Rows of the answer are made in memory, as Arrow or as a DataFrame. Nothing is stored for a restart.
"""

import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from benchmarks.backlog_rows import SCHEMA, duckdb_columns
from benchmarks.engines.child import leave_facts, spec_of_this_run
from benchmarks.engines.words import say
from benchmarks.spec import Facts, RunSpec
from benchmarks.workloads import workload


def missing() -> str | None:
    """Reason why DuckDB or Polars cannot run here, or None."""
    absent = [name for name in ("duckdb", "polars") if find_spec(name) is None]
    return f"{', '.join(absent)}: not installed; pip install -e '.[dev]'" if absent else None


def main() -> int:
    spec = spec_of_this_run()
    os.environ["POLARS_MAX_THREADS"] = str(spec.parallelism)  # read when the library is imported
    query = {"duckdb": _duckdb, "polars": _polars}[spec.engine](spec)
    say("began")
    say("running")
    query()
    say("finished")
    leave_facts(spec, Facts(version=version(spec.engine), settings={"threads": str(spec.parallelism)}))
    return 0


def _duckdb(spec: RunSpec) -> Callable[[], Any]:
    import duckdb

    connection = duckdb.connect(config={"threads": spec.parallelism, "preserve_insertion_order": False})
    files, columns = f"'{spec.input}/*.{spec.source}'", duckdb_columns()
    read = {
        "jsonl": f"read_json({files}, format = 'newline_delimited', columns = {columns})",
        "csv": f"read_csv({files}, header = true, columns = {columns})",
        "parquet": f"read_parquet({files})",
    }[spec.source]
    connection.execute(f"CREATE VIEW events AS SELECT * FROM {read}")
    return lambda: connection.sql(workload(spec.workload).sql).to_arrow_table()


def _polars(spec: RunSpec) -> Callable[[], Any]:
    import polars as pl

    files, types = f"{spec.input}/*.{spec.source}", {"int64": pl.Int64, "string": pl.String, "double": pl.Float64}
    schema = {field.name: types[str(field.type)] for field in SCHEMA}
    rows = {
        "jsonl": lambda: pl.scan_ndjson(files, schema=schema),
        "csv": lambda: pl.scan_csv(files, schema=schema),
        "parquet": lambda: pl.scan_parquet(files),
    }[spec.source]()
    if workload(spec.workload).group:
        rows = rows.group_by("customer").agg(n=pl.len(), total=pl.col("amount").sum())
    return lambda: rows.collect(engine="streaming")


if __name__ == "__main__":
    sys.exit(main())
