"""The real-time table: which runs there are, the records, and the counts of lost and doubled rows. No load."""

import numpy as np

from benchmarks.engines import ENGINES
from benchmarks.real_time import COLUMNS, RealTimeSizes, runs
from benchmarks.real_time_kills import gaps_after, lost_and_doubled
from benchmarks.records import VALUE_BYTES, as_records
from benchmarks.stamps import Stamps
from benchmarks.workloads import workload


def test_each_engine_runs_its_workloads_under_each_of_its_guarantees() -> None:
    specs = list(runs(RealTimeSizes(), COLUMNS))
    found = {(spec.engine, spec.guarantee) for spec in specs}
    assert found == {(engine, guarantee) for engine in COLUMNS for guarantee in ENGINES[engine].guarantees}
    assert {spec.workload for spec in specs if spec.engine == "spark-continuous"} == {"rtm-a"}
    assert {(spec.workload, spec.rate) for spec in specs if spec.rate == 1_000} == {("rtm-b", 1_000)}
    assert all(workload(spec.workload).input == "records" for spec in specs)


def test_a_record_has_its_due_time_as_key_and_1200_bytes() -> None:
    (first, second) = as_records(np.array([0, 1]), np.array([7, 8]), keys=10)
    assert (first["key"], second["key"]) == (b"7", b"8")
    assert {len(first["value"]), len(second["value"])} == {VALUE_BYTES}


def test_lost_and_doubled_rows_are_counted_by_key() -> None:
    assert lost_and_doubled([b"1", b"2", b"3"], [b"1", b"3", b"3", b"3"]) == (1, 2)


def test_a_gap_ends_with_the_first_visible_row_that_was_due_after_the_kill() -> None:
    stamps = Stamps(np.array([1, 9, 12]) * 10**6, np.array([2, 30, 45]) * 10**6)
    assert gaps_after(stamps, [10 * 10**6]) == [35.0]
