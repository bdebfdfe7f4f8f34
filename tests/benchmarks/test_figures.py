"""Evaluation of stamps: percentiles, gaps, held or not; the search for the highest rate; the order of runs."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.checkpoint_cost import changed_bytes
from benchmarks.engines import ENGINES
from benchmarks.plan import Wanted, estimated_s, runs
from benchmarks.rates import highest_held, next_rate
from benchmarks.recovery import caught_up
from benchmarks.spec import BoundedRun, Checkpoint
from benchmarks.stamps import (
    Stamps,
    checkpoint_figures,
    distribution,
    gaps_ms,
    held,
    histogram,
    percentiles,
    read_stamps,
    timeline,
)
from benchmarks.throughput import largest, steady

MS = 1_000_000
S = 1_000 * MS


def paced(seconds: float, rate: int, latency_ms: "np.ndarray | float") -> Stamps:
    """`rate` rows per second, due from 0 on."""
    due = (np.arange(int(seconds * rate)) * (S // rate)).astype(np.int64)
    return Stamps(due, due + (np.broadcast_to(latency_ms, due.shape) * MS).astype(np.int64))


def test_percentiles_agree_with_numpy_to_three_digits() -> None:
    latency_ns = (np.random.default_rng(1).lognormal(1, 1, 50_000) * MS).astype(np.int64)
    found = percentiles(latency_ns)
    assert found is not None
    exact = np.percentile(latency_ns / MS, [50, 90, 99, 99.9])
    assert [found.p50, found.p90, found.p99, found.p999] == pytest.approx(exact.tolist(), rel=0.005)
    assert found.count == 50_000
    assert found.max == pytest.approx(latency_ns.max() / MS, rel=0.002)


def test_no_rows_have_no_percentiles() -> None:
    assert percentiles(np.empty(0, np.int64)) is None


def test_a_clock_that_went_back_counts_as_a_microsecond() -> None:
    assert histogram(np.array([-5 * MS])).get_max_value() == 1


@pytest.mark.slow
def test_histograms_of_several_runs_are_drawn_as_one() -> None:
    fast, slow = percentiles(np.full(900, MS)), percentiles(np.full(100, 100 * MS))
    assert fast is not None
    assert slow is not None
    values, shares = distribution([fast.histogram, slow.histogram])
    assert shares.tolist() == [0.9, 1.0]
    assert values.tolist() == pytest.approx([1.0, 100.0], rel=0.002)


def test_stamps_of_both_kinds_of_files_are_read_and_put_in_order(tmp_path: Path) -> None:
    np.save(tmp_path / "rows-1-0-1-x.npy", np.array([[10, 20], [15, 40]]))
    np.array([[30, 31], [1, 2]], "<i8").tofile(tmp_path / "rows-y.bin")
    with (tmp_path / "rows-y.bin").open("ab") as file:
        file.write(b"\x07" * 8)  # the writer was killed between two numbers
    stamps = read_stamps(tmp_path)
    assert stamps.arrived.tolist() == [2, 15, 31, 40]
    assert stamps.intended.tolist() == [1, 10, 30, 20]


def test_rows_are_chosen_by_when_they_were_due_and_not_by_when_they_came() -> None:
    stamps = Stamps(np.array([0, 5, 10]), np.array([100, 200, 300]))
    assert stamps.due_in(5, 10).arrived.tolist() == [200]


def test_the_timeline_has_median_and_worst_of_each_tenth() -> None:
    stamps = Stamps(np.array([0, 1, 2, 150]) * MS, np.array([1, 3, 12, 155]) * MS)
    assert [(m.at_s, m.p50, m.max) for m in timeline(stamps, 0)] == [(0.0, 2.0, 10.0), (0.1, 5.0, 5.0)]


def test_a_steady_latency_is_held_however_high() -> None:
    assert held(paced(20, 100, 900.0), 0, 20 * S)


def test_a_growing_backlog_is_not_held() -> None:
    assert not held(paced(20, 100, np.linspace(1, 3_000, 2_000)), 0, 20 * S)


def test_rows_that_never_come_out_are_not_held() -> None:
    all_rows = paced(20, 100, 1.0)
    assert not held(all_rows.due_in(0, 10 * S), 0, 20 * S)


def test_the_longest_gap_and_the_one_around_a_checkpoint_are_told_apart() -> None:
    arrived = np.array([*range(1000), *range(1080, 5000), *range(5200, 10_000)]) * MS
    checkpoints = [Checkpoint(at_ns=1000 * MS, duration_ms=50), Checkpoint(at_ns=8000 * MS, duration_ms=50)]
    longest, around = gaps_ms(Stamps(arrived, arrived), 0, 10_000 * MS, checkpoints)
    assert (longest, around) == (201.0, 81.0)


def test_silence_at_the_beginning_and_at_the_end_is_a_gap() -> None:
    arrived = np.array([500]) * MS
    assert gaps_ms(Stamps(arrived, arrived), 0, 800 * MS, []) == (500.0, None)


def test_checkpoint_figures_are_medians_and_none_without_checkpoints() -> None:
    some = [
        Checkpoint(at_ns=0, duration_ms=d, phases={"commit": d / 2}, bytes=b)
        for d, b in ((10.0, 5), (20.0, 7), (90.0, 100))
    ]
    found = checkpoint_figures(some, requests=4.5)
    assert found is not None
    assert (found.count, found.p50_ms, found.max_ms, found.bytes, found.requests) == (3, 20.0, 90.0, 7, 4.5)
    assert found.phases == {"commit": 10.0}
    assert found.full_bytes is None
    assert checkpoint_figures([]) is None


@pytest.mark.parametrize("limit", [700.0, 5_000.0, 123_456.0, 4_000_000.0])
def test_the_search_comes_close_to_what_an_engine_can_hold(limit: float) -> None:
    tried: list[tuple[float, bool]] = []
    while (rate := next_rate(tried, 50_000, 1_000, 10_000_000)) is not None:
        tried.append((rate, rate <= limit))
        assert len(tried) < 20
    found = highest_held(tried)
    assert (found == 0) if limit < 1_000 else (limit / 1.2 <= found <= limit)


def test_the_search_ends_at_the_highest_rate_that_is_tried() -> None:
    tried: list[tuple[float, bool]] = []
    while (rate := next_rate(tried, 50_000, 1_000, 150_000)) is not None:
        tried.append((rate, True))
    assert highest_held(tried) == 150_000


def test_a_rate_that_was_held_by_luck_above_one_that_was_not_does_not_count() -> None:
    assert highest_held([(10.0, True), (20.0, False), (40.0, True)]) == 10.0


def test_latency_is_back_when_no_later_tenth_is_slow() -> None:
    latency = np.full(1200, 1.0)
    latency[300:340] = np.linspace(400, 10, 40)  # rows that were due during an outage of 0.4 s
    stamps = paced(12, 100, latency)
    assert caught_up(stamps, 3 * S, 12 * S) == stamps.arrived[300:340].max()
    assert caught_up(stamps, 3 * S, 3 * S + 300 * MS) is None


def test_the_steady_rate_leaves_out_what_both_inputs_cost() -> None:
    assert steady(BoundedRun(2_000_000, 3.0 + 1.0), BoundedRun(16_000_000, 3.0 + 8.0)) == 2_000_000
    assert steady(BoundedRun(2_000_000, 4.0), BoundedRun(16_000_000, 4.1)) is None


@pytest.mark.parametrize(("small_s", "rows"), [(1.0, 16_000_000), (6.0, 8_000_000), (17.0, 4_000_000)])
def test_a_slow_engine_gets_fewer_rows(small_s: float, rows: int) -> None:
    assert largest(16_000_000, BoundedRun(2_000_000, small_s)) == rows


def test_bytes_changed_between_checkpoints_count_each_key_once() -> None:
    assert changed_bytes(1_000_000, 10_000) == pytest.approx(10_000 * 100, rel=0.01)
    assert changed_bytes(1_000_000, 1e9) == pytest.approx(1_000_000 * 100)


def test_engines_take_turns_and_each_round_begins_with_another() -> None:
    wanted = Wanted(engines=("ours", "spark-tuned", "flink"), measures=("latency",), rates=(1, 2), rounds=2)
    order = [(spec.round, spec.rate, spec.engine) for spec in runs(wanted)]
    assert [engine for *_, engine in order[:3]] == ["ours", "spark-tuned", "flink"]
    assert [engine for *_, engine in order[6:9]] == ["spark-tuned", "flink", "ours"]
    assert [rate for _, rate, _ in order[:6]] == [1, 1, 1, 2, 2, 2]


def test_engines_get_only_what_they_have() -> None:
    wanted = Wanted(
        engines=list(ENGINES), workloads=("keyed-count", "tumbling", "python-count", "q3"), nexmark=("q3",), rounds=1
    )
    found = {(spec.engine, spec.workload, spec.measure) for spec in runs(wanted)}
    assert {engine for engine, workload, _ in found if workload == "python-count"} == {"ours", "pyflink"}
    assert not [one for one in found if one[0] == "pyflink" and one[1] in ("tumbling", "q3")]
    assert {measure for _, workload, measure in found if workload == "q3"} == {"throughput"}
    assert estimated_s(list(runs(wanted))) > 0
