"""Age of the rows of a table that a job fills from Kafka: JSON into Delta and Iceberg, a table per run.

    python -m benchmarks.freshness [--engine ours] [--table delta] [--compact 16MB] [--rate 10000] [--seconds 60]

The age of a row counts from the time when the row was due until the file of the commit exists in the table's folder.
Engines: this runtime (checkpoints every second and every 200 ms, `commit_every=0`; with `--compact` once more, with
compaction), Spark's micro-batches, which follow each other at once, and Flink (Iceberg alone) with checkpoints every
second. Spark is 4.1, the newest that both tables have a build for; Iceberg has builds for Flink up to 2.1.

Prints Markdown: rate held or not, mean and p99 age, commits, files of the newest version and their mean size, cores.
"""

import argparse
import contextlib
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.broker import LoadedKafka, broker
from benchmarks.engines import ENGINES
from benchmarks.machine import describe
from benchmarks.runner import Engine, EngineFailed, Feeder, go_on, prepared, wait_for_output
from benchmarks.slow_store.tables import delta_sizes, iceberg_sizes
from benchmarks.spec import RunSpec, Sink
from benchmarks.stamps import Stamps, held
from benchmarks.usage import Usage
from benchmarks.workloads import COPY
from examples.older_spark import older_spark
from examples.servers.base import ServerError

_FOLDER = Path("build/bench/freshness")
_LOOK_S = 0.02
_START_S = 240.0
_LATE_NS = 30 * 10**9  # in which rows of the measured interval may still become visible
_TAIL_NS, _STEP_NS = 2 * 10**9, 10**8
_NOW = (("ours", 1_000), ("ours", 200), ("spark-tuned", 0), ("flink", 1_000))  # engine, checkpoint interval in ms


@dataclass(frozen=True)
class Table(ABC):
    """A table as the files of its format tell; `folder` may have no table yet."""

    folder: Path

    @abstractmethod
    def commits(self) -> Mapping[str, int]:
        """Name of each commit that exists now -> time (ns) since when."""

    @abstractmethod
    def added(self, commit: str) -> Sequence[str]:
        """Files with rows that the commit added, without files that only join others."""

    @abstractmethod
    def live_bytes(self) -> Sequence[int]:
        """Size of each file of the newest version."""


class Delta(Table):
    def commits(self) -> Mapping[str, int]:
        return {file.name: file.stat().st_mtime_ns for file in self.folder.glob("_delta_log/*.json")}

    def added(self, commit: str) -> Sequence[str]:
        lines = map(json.loads, Path(self.folder, "_delta_log", commit).read_text().splitlines())
        adds = [line["add"] for line in lines if "add" in line]
        return [str(self.folder / add["path"]) for add in adds if add["dataChange"]]

    def live_bytes(self) -> Sequence[int]:
        return delta_sizes(str(self.folder))


@dataclass(frozen=True)
class Iceberg(Table):
    seen: dict[str, int] = field(default_factory=dict)  # snapshot -> time of its first metadata file
    _read: set[Path] = field(default_factory=set)

    def commits(self) -> Mapping[str, int]:
        """Snapshots, by all metadata files so far: this runtime keeps the newest twenty, which may add two each."""
        for file in sorted(set(self._metadata()) - self._read, key=_changed_ns):
            with contextlib.suppress(FileNotFoundError, ValueError):  # deleted meanwhile, or not written yet
                for snapshot in json.loads(file.read_text()).get("snapshots", []):
                    self.seen.setdefault(str(snapshot["snapshot-id"]), file.stat().st_mtime_ns)
                self._read.add(file)
        return self.seen

    def added(self, commit: str) -> Sequence[str]:
        table = self._newest()
        snapshot = table.metadata.snapshot_by_id(int(commit))
        if snapshot.summary.operation.value != "append":
            return []
        manifests = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot.snapshot_id]
        entries = [entry for each in manifests for entry in each.fetch_manifest_entry(table.io)]
        return [_local(entry.data_file.file_path) for entry in entries if entry.snapshot_id in (None, int(commit))]

    def live_bytes(self) -> Sequence[int]:
        return iceberg_sizes(self._newest())

    def _metadata(self) -> list[Path]:
        return list(self.folder.glob("**/metadata/*.metadata.json"))

    def _newest(self) -> Any:
        from pyiceberg.table import StaticTable

        newest = max(self._metadata(), key=lambda file: json.loads(file.read_text())["last-updated-ms"])
        return StaticTable.from_metadata(str(newest))


_TABLES: Mapping[Sink, type[Table]] = {"delta": Delta, "iceberg": Iceberg}


class Watched:
    """The commits of a table, noted while the block runs."""

    def __init__(self, table: Table) -> None:
        self.seen: dict[str, int] = {}
        self._table = table
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="commits", daemon=True)

    def __enter__(self) -> "Watched":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            for commit, at_ns in self._table.commits().items():
                self.seen.setdefault(commit, at_ns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", choices=dict(_NOW), help="again for each; all, unless told")
    parser.add_argument("--table", action="append", choices=_TABLES, help="again for each; both, unless told")
    parser.add_argument("--compact", help="size of files to which this runtime joins smaller ones, in further runs")
    parser.add_argument("--rate", type=float, default=10_000, help="rows per second")
    parser.add_argument("--seconds", type=float, default=60, help="measured, after the warm-up")
    parser.add_argument("--warm-up", type=float, default=20, help="seconds")
    chosen = parser.parse_args()
    print(f"{describe()}\n\n| table | engine | held | age: mean, p99, s | commits | files, mean kB | cores |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with broker() as kafka:
        for spec in _runs(chosen):
            print(f"| {spec.sink} | {_named(spec)} | {_measured(spec, kafka)} |", flush=True)


def _runs(chosen: argparse.Namespace) -> Iterator[RunSpec]:
    for table in chosen.table or _TABLES:
        for engine, interval_ms in _NOW:
            if engine not in (chosen.engine or dict(_NOW)) or (engine == "flink" and table == "delta"):
                continue
            for compact in (None, chosen.compact) if engine == "ours" and chosen.compact else (None,):
                yield RunSpec(
                    engine=engine,
                    workload=COPY.name,
                    measure="visible",
                    source="kafka",
                    sink=table,
                    compact=compact,
                    rate=chosen.rate,
                    interval_ms=interval_ms,
                    warm_up_s=chosen.warm_up,
                    seconds=chosen.seconds,
                    folder=str(_FOLDER / "run"),
                    target=str((_FOLDER / "run" / "table").resolve()),
                )


def _named(spec: RunSpec) -> str:
    pace = f", checkpoints every {spec.interval_ms / 1000:g} s" if spec.interval_ms else ""
    return f"{ENGINES[spec.engine].title}{pace}{f', compacted to {spec.compact}' if spec.compact else ''}"


def _measured(spec: RunSpec, kafka: LoadedKafka) -> str:
    """Returns the cells of a row."""
    try:
        environment = {"PYTHONPATH": str(older_spark())} if spec.engine == "spark-tuned" else {}
        return _run(prepared(spec, kafka), environment)
    except (EngineFailed, ServerError) as error:
        return f"failed: {str(error).splitlines()[0]} | | | |"


def _run(spec: RunSpec, environment: Mapping[str, str]) -> str:
    table = _TABLES[spec.sink](Path(spec.target))
    table.folder.mkdir()
    engine = Engine(spec, environment)
    try:
        with Usage(engine.process.pid) as usage, Watched(table) as watched:
            engine.wait_for("running", _START_S)
            with Feeder(spec):
                wait_for_output(engine, lambda: bool(watched.seen))
                first_ns = time.time_ns() + int(spec.warm_up_s * 1e9)
                last_ns = first_ns + int(spec.seconds * 1e9)
                go_on(engine, last_ns)
                sizes = table.live_bytes()
                until_ns = last_ns + _LATE_NS  # then rows are missing, and the rate was not held
                while max(watched.seen.values()) <= last_ns + _TAIL_NS and time.time_ns() < until_ns:
                    go_on(engine, time.time_ns() + _STEP_NS)
            engine.stop()
    finally:
        engine.kill()
    seen = stamps(table, watched.seen).due_in(first_ns, last_ns)
    if not len(seen.arrived):
        raise EngineFailed("no row that was due in the measured interval became visible")
    age_s = seen.latency_ns / 1e9
    complete = len(age_s) >= spec.rate * spec.seconds * 0.999
    commits = sum(first_ns <= at_ns < last_ns for at_ns in watched.seen.values())
    return " | ".join(
        [
            "yes" if complete and held(seen, first_ns, last_ns) else "no",
            f"{np.mean(age_s):.2f}, {np.percentile(age_s, 99):.2f}",
            str(commits),
            f"{len(sizes)}, {np.mean(sizes) / 1000:,.0f}",
            f"{usage.cpu_between(first_ns, last_ns) / spec.seconds:.2f}",
        ]
    )


def stamps(table: Table, commits: Mapping[str, int]) -> Stamps:
    intended, arrived = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for commit, at_ns in commits.items():
        for file in table.added(commit):
            emitted = pq.read_table(file, columns=["emitted"])["emitted"].to_numpy()
            intended.append(emitted)
            arrived.append(np.full(len(emitted), at_ns))
    when = np.concatenate(arrived)
    order = np.argsort(when, kind="stable")
    return Stamps(np.concatenate(intended)[order], when[order])


def _changed_ns(file: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return file.stat().st_mtime_ns
    return 0


def _local(path: str) -> str:
    return path.removeprefix("file://").removeprefix("file:")


if __name__ == "__main__":
    main()
