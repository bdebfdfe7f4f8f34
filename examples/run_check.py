"""Verdict on a run: compares the result with Spark SQL's batch answer, row for row.

A batch query has no order for running totals, so their claims are checked: every window of a carrier occurs once,
numbered without gaps, each total is the previous total plus the window, and the last total equals the batch answer.
"""

import datetime
import io
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store

Key = tuple[Any, ...]

BATCH = """
SELECT f.origin, f.carrier, a.name, CAST(unix_timestamp(date_trunc('DAY', f.scheduled)) AS BIGINT) * 1000 AS day_ms,
       count(*) AS flights, avg(f.dep_delay) AS mean_delay, max(f.dep_delay) AS max_delay
FROM flights f JOIN airlines a ON f.carrier = a.carrier
WHERE f.dep_time IS NOT NULL
GROUP BY 1, 2, 3, 4
"""


@dataclass
class Verdict:
    """Verdict on a run.

    `lost`, `duplicated`, `mismatched` count rows of both results; `windows` and `flights` are of the batch answer."""

    windows: int
    flights: int
    lost: int = 0
    duplicated: int = 0
    mismatched: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.lost == self.duplicated == self.mismatched == 0

    def note(self, kind: str, what: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.examples) < 10:
            self.examples.append(f"{kind}: {what}")


def check(flights: Path, output: str) -> Verdict:
    """Compares the rows below the URL `output` with the batch answer. Starts and stops a Spark session."""
    truth = batch_answer(flights)
    verdict = Verdict(len(truth), sum(row[0] for row in truth.values()))
    compare_windows(verdict, truth, read_windows(open_store(f"{output}/windows")))
    compare_totals(verdict, truth, read_totals(open_store(f"{output}/totals")))
    return verdict


def batch_answer(flights: Path) -> dict[Key, Key]:
    """(origin, carrier, name, day) → (flights, mean, max)."""
    from pyspark.sql import SparkSession

    from examples.flights_data import load_airlines

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("batch answer")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    try:
        spark.read.parquet(str(flights)).createOrReplaceTempView("flights")
        airlines = [(row["carrier"], row["name"]) for row in load_airlines().to_pylist()]
        spark.createDataFrame(airlines, "carrier string, name string").createOrReplaceTempView("airlines")
        rows = spark.sql(BATCH).collect()
    finally:
        spark.stop()
    return {tuple(row[:4]): tuple(row[4:]) for row in rows}


# ---------------------------------------------------------------- rows of the job


def visible(store: ObjectStore) -> Iterable[bytes]:
    """Every file that a reader sees, in the order of names."""
    for info in sorted(store.list(""), key=lambda info: info.key):
        if not info.key.startswith(("_", ".")):
            yield store.get(info.key)


def read_windows(store: ObjectStore) -> list[tuple[Key, Key]]:
    found: list[tuple[Key, Key]] = []
    for data in visible(store):
        for row in pq.read_table(io.BytesIO(data)).to_pylist():
            day_ms = round(row["window_start"].timestamp() * 1000)
            key = (row["origin"], row["carrier"], row["name"], day_ms)
            found.append((key, (row["flights"], row["mean_delay"], row["max_delay"])))
    return found


def read_totals(store: ObjectStore) -> list[dict[str, Any]]:
    return [json.loads(line) for data in visible(store) for line in data.splitlines()]


# ---------------------------------------------------------------- comparing


def compare_windows(verdict: Verdict, truth: Mapping[Key, Key], found: list[tuple[Key, Key]]) -> None:
    times = Counter(key for key, _ in found)
    for key in truth.keys() - times.keys():
        verdict.note("lost", f"window {key} = {truth[key]}")
    for key, value in found:
        if times[key] > 1:
            times[key] -= 1
            verdict.note("duplicated", f"window {key} = {value}")
        if key not in truth or not _same(truth[key], value):
            verdict.note("mismatched", f"window {key} = {value}, batch has {truth.get(key)}")


def compare_totals(verdict: Verdict, truth: Mapping[Key, Key], found: list[dict[str, Any]]) -> None:
    windows_of: dict[str, Counter[Key]] = defaultdict(Counter)
    for (origin, carrier, _, day_ms), (flights, *_) in truth.items():
        windows_of[carrier][origin, day_ms, flights] += 1
    lines_of: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in found:
        lines_of[line["carrier"]].append(line)
    for carrier in windows_of.keys() | lines_of.keys():
        lines = sorted(lines_of[carrier], key=lambda line: line["windows"])
        seen = Counter((line["origin"], _ms(line["day"]), line["flights"]) for line in lines)
        for missing in (windows_of[carrier] - seen).elements():
            verdict.note("lost", f"running total of {carrier} for {missing}")
        for extra in (seen - windows_of[carrier]).elements():
            verdict.note("duplicated", f"running total of {carrier} for {extra}")
        total = 0
        for number, line in enumerate(lines, start=1):
            total += line["flights"]
            if (line["windows"], line["total_flights"]) != (number, total):
                verdict.note(
                    "mismatched", f"running total of {carrier}: {line}, expected window {number}, total {total}"
                )
        truth_total = sum(flights * times for (_, _, flights), times in windows_of[carrier].items())
        if total != truth_total:
            verdict.note("mismatched", f"last running total of {carrier} is {total}, the batch has {truth_total}")


def _same(expected: Key, found: Key) -> bool:
    """Compares counts and maxima exactly, means within the error of summing floats in another order."""
    return all(
        math.isclose(e, f, rel_tol=1e-12, abs_tol=1e-12) if isinstance(e, float) and f is not None else e == f
        for e, f in zip(expected, found, strict=True)
    )


def _ms(iso: str) -> int:
    return round(datetime.datetime.fromisoformat(iso.replace("Z", "+00:00")).timestamp() * 1000)
