"""Parquet files of a bounded run: made once, used by all engines and rounds."""

from pathlib import Path

import msgspec

from benchmarks import events, nexmark
from benchmarks.spec import RunSpec
from benchmarks.workloads import workload


def with_input(spec: RunSpec, parent: Path) -> RunSpec:
    """`spec` with its Parquet files, which are made if they are not there yet."""
    if spec.source != "parquet":
        return spec
    if workload(spec.workload).input == "nexmark":
        folder = parent / f"nexmark-{spec.rows}"
        events.write_parquet(folder, nexmark.bounded(spec.rows))
    else:
        folder = parent / f"events-{spec.rows}-{spec.keys}"
        events.write_parquet(folder, events.bounded(spec.rows, spec.keys))
    return msgspec.structs.replace(spec, input=str(folder.resolve()))
