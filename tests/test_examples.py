"""The main job in one process against an independent batch answer, and the job's checker against wrong results."""

import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from barrier_runtime.state.store.open import open_store
from examples.flight_delays import build
from examples.flights_data import MAX_OUT_OF_ORDERNESS, load_airlines, load_flights, max_out_of_orderness, prepare
from examples.run_check import Key, Verdict, compare_totals, compare_windows, read_totals, read_windows

pytestmark = pytest.mark.slow  # the rows of a year


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return load_flights()


@pytest.fixture(scope="module")
def truth(flights: pa.Table) -> dict[Key, Key]:
    """The batch answer by Arrow's kernels; `make run` takes Spark's."""
    departed = flights.filter(pc.field("dep_time").is_valid())
    departed = departed.append_column("day", pc.floor_temporal(departed["scheduled"], unit="day"))
    grouped = departed.group_by(["origin", "carrier", "day"]).aggregate(
        [([], "count_all"), ("dep_delay", "mean"), ("dep_delay", "max")]
    )
    names = {row["carrier"]: row["name"] for row in load_airlines().to_pylist()}
    return {
        (row["origin"], row["carrier"], names[row["carrier"]], round(row["day"].timestamp() * 1000)): (
            row["count_all"],
            row["dep_delay_mean"],
            row["dep_delay_max"],
        )
        for row in grouped.to_pylist()
    }


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The job's output, from a run in one process."""
    folder = tmp_path_factory.mktemp("flights")
    build(prepare(folder), f"{folder}/output").run_local(
        parallelism=2, checkpoints=f"{folder}/checkpoints", checkpoint_interval=0.2
    )
    return f"{folder}/output"


def windows_of(output: str) -> list[tuple[Key, Key]]:
    return read_windows(open_store(f"{output}/windows"))


def totals_of(output: str) -> list[dict[str, Any]]:
    return read_totals(open_store(f"{output}/totals"))


def verdict_on(truth: dict[Key, Key], windows: list[tuple[Key, Key]], totals: list[dict[str, Any]]) -> Verdict:
    verdict = Verdict(len(truth), 0)
    compare_windows(verdict, truth, windows)
    compare_totals(verdict, truth, totals)
    return verdict


def test_the_stream_is_all_flights_and_nothing_in_it_is_late(flights: pa.Table) -> None:
    assert flights.num_rows == 336_776
    assert max_out_of_orderness(flights) <= MAX_OUT_OF_ORDERNESS
    assert flights["scheduled"].null_count == 0


def test_every_file_of_the_stream_covers_the_whole_year(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    files = [pq.read_table(file) for file in sorted(prepare(tmp_path, files=3).glob("*.parquet"))]
    assert [file.num_rows for file in files] == [112_259, 112_259, 112_258]
    for file in files:
        assert pc.max(file["scheduled"]).as_py().month == 12
        assert pc.min(file["scheduled"]).as_py().month == 1


def test_the_main_job_gives_the_batch_answer(truth: dict[Key, Key], output: str) -> None:
    verdict = verdict_on(truth, windows_of(output), totals_of(output))
    assert verdict.good, verdict.examples


def test_the_check_sees_a_lost_a_doubled_and_a_changed_window(truth: dict[Key, Key], output: str) -> None:
    windows, totals = windows_of(output), totals_of(output)
    key, (flights, mean, greatest) = windows[0]
    assert verdict_on(truth, windows[1:], totals).lost == 1
    assert verdict_on(truth, [*windows, windows[0]], totals).duplicated == 1
    assert verdict_on(truth, [(key, (flights, mean + 1e-6, greatest)), *windows[1:]], totals).mismatched == 1
    assert verdict_on(truth, [*windows, (("XXX", *key[1:]), (1, 1.0, 1))], totals).mismatched == 1


def test_the_check_sees_a_lost_a_doubled_and_a_changed_running_total(truth: dict[Key, Key], output: str) -> None:
    windows, totals = windows_of(output), totals_of(output)
    assert verdict_on(truth, windows, totals[1:]).lost == 1
    assert verdict_on(truth, windows, [*totals, totals[0]]).duplicated == 1
    changed = copy.deepcopy(totals)
    changed[-1]["total_flights"] += 1
    assert verdict_on(truth, windows, changed).mismatched == 1
