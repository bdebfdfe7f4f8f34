"""Public reports about windows, sessions, joins and keys, as small programs with the right answer."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import CallableSink, CollectSink, Dataflow, Session, Sliding, Tumbling, count, sum_
from barrier_runtime.launch.local_handle import LocalJobHandle
from tests.field.jobs import Rows, ran, stream_of, utc
from tests.waiting import until

SECOND = timedelta(seconds=1)
EVENTS = {"k": str, "at": int, "n": int}


def windowed(rows: list[tuple[str, int, int]], window: Any, **options: Any) -> list[tuple[Any, ...]]:
    """Key, start in seconds, end in seconds and number of rows of each window, in the order of output."""
    given = [dict(zip(EVENTS, row, strict=True)) for row in rows]

    def step(stream: Any) -> Any:
        return stream.key_by("k").window("w", window, event_time="at").aggregate(rows=count())

    return [
        (row["k"], row["window_start"].timestamp(), row["window_end"].timestamp(), row["rows"])
        for row in ran(given, EVENTS, step, event_time="at", **options)
    ]


# Source: apache/flink#18982
@pytest.mark.slow
def test_a_row_long_before_1970_is_in_the_window_around_it() -> None:
    assert windowed([("a", -18_000, 1)], Tumbling(7 * SECOND)) == [("a", -21, -14, 1)]
    assert windowed([("a", -1, 1)], Tumbling(7 * SECOND)) == [("a", -7, 0, 1)]


# Source: apache/spark#36737
@pytest.mark.slow
def test_windows_with_an_offset_hold_rows_before_1970() -> None:
    rows = [("a", -58_000, 1), ("a", -48_000, 2)]
    assert windowed(rows, Tumbling(10 * SECOND, 5 * SECOND)) == [("a", -65, -55, 1), ("a", -55, -45, 1)]
    sliding = windowed([("a", -58_000, 1)], Sliding(10 * SECOND, 5 * SECOND))
    assert sliding == [("a", -65, -55, 1), ("a", -60, -50, 1)]


# Source: apache/flink#5376
def test_a_negative_offset_gives_days_of_a_zone_east_of_greenwich() -> None:
    day = timedelta(days=1)
    midnight_in_shanghai = utc(2026, 3, 1, 16)
    rows = [
        ("a", int(midnight_in_shanghai.timestamp() * 1000) - 1, 1),
        ("a", int(midnight_in_shanghai.timestamp() * 1000), 2),
    ]
    starts = [start for _, start, _, _ in windowed(rows, Tumbling(day, -timedelta(hours=8)))]
    assert starts == [(midnight_in_shanghai - day).timestamp(), midnight_in_shanghai.timestamp()]


# Source: hazelcast/hazelcast-jet#747
def test_a_late_row_does_not_open_or_lengthen_the_next_session() -> None:
    rows = [("a", 0, 1), ("b", 60_000, 2), ("a", 1_000, 3), ("a", 62_000, 4)]
    assert windowed(rows, Session(5 * SECOND)) == [("a", 0, 5, 1), ("b", 60, 65, 1), ("a", 62, 67, 1)]


# Source: apache/beam#18677
@pytest.mark.slow
def test_a_row_whose_own_session_is_still_open_is_not_dropped() -> None:
    """Flink's rule: the row at 3 s arrives at watermark 6 s, and a session of this row alone ends at 8 s."""
    rows = [("a", 0, 1), ("b", 6_000, 2), ("a", 3_000, 3), ("b", 30_000, 4)]
    assert [each for each in windowed(rows, Session(5 * SECOND)) if each[0] == "a"] == [("a", 0, 5, 1), ("a", 3, 8, 1)]
    in_time = windowed(rows, Session(5 * SECOND), max_out_of_orderness=3 * SECOND)
    assert [each for each in in_time if each[0] == "a"] == [("a", 0, 8, 2)]


# Source: apache/flink#15495
def test_a_row_late_for_one_sliding_window_counts_in_the_others() -> None:
    rows = [("a", 1_000, 1), ("a", 5_000, 2), ("a", 3_500, 3), ("a", 9_000, 4)]
    counted = {end: number for _, _, end, number in windowed(rows, Sliding(3 * SECOND, SECOND))}
    assert counted == {2: 1, 3: 1, 4: 1, 6: 2, 7: 1, 8: 1, 10: 1, 11: 1, 12: 1}


# Source: bytewax/bytewax#413
def test_windows_far_from_1970_lose_no_row() -> None:
    far = int(utc(2262, 1, 1).timestamp() * 1000)
    rows = [("a", far + number * 10, number) for number in range(1_000)]
    found = windowed(rows, Tumbling(3 * SECOND))
    assert sum(number for *_, number in found) == 1_000
    assert found[0][1] <= far / 1000 < found[0][2]


def joined(how: str, left: Rows, right: Rows, within: tuple[int, int] = (0, 5)) -> list[tuple[Any, Any]]:
    """`n` of the left and of the right row of each pair of an interval join by `k`."""
    flow, out = Dataflow("field"), CollectSink()
    sides = [
        stream_of(flow, name, rows, EVENTS, event_time="at", max_out_of_orderness=60 * SECOND).key_by("k")
        for name, rows in (("left", left), ("right", right))
    ]
    between = (within[0] * SECOND, within[1] * SECOND)
    sides[0].join("j", sides[1], between=between, how=how, event_time="at").sink("out", out)
    flow.run_local(parallelism=1)
    return sorted(((row["n"], row["n_right"]) for row in out.rows()), key=str)


# Source: apache/spark#23634
@pytest.mark.slow
def test_a_row_whose_partner_is_evicted_before_it_gets_no_null() -> None:
    left = [{"k": "a", "at": 10_000, "n": 1}, {"k": "z", "at": 200_000, "n": 2}]
    right = [{"k": "a", "at": 10_000, "n": 10}, {"k": "y", "at": 200_000, "n": 20}]
    assert joined("left", left, right) == [(1, 10), (2, None)]
    assert joined("full", left, right) == [(1, 10), (2, None), (None, 20)]


# Source: confluentinc/ksql#1558
def test_an_outer_join_gives_no_null_beside_a_match() -> None:
    left = [{"k": str(number), "at": 17_000, "n": number} for number in (1, 2)]
    right = [{"k": "1", "at": 19_000, "n": number} for number in (10, 11, 12)] + [{"k": "2", "at": 19_000, "n": 13}]
    assert joined("left", left, right, (-3, 3)) == [(1, 10), (1, 11), (1, 12), (2, 13)]


# Source: confluentinc/ksql#5929
def test_a_left_join_keeps_rows_whose_key_is_null() -> None:
    left = [{"k": None, "at": 1_000, "n": 1}, {"k": "a", "at": 1_000, "n": 2}]
    right = [{"k": None, "at": 1_000, "n": 10}, {"k": "a", "at": 1_000, "n": 20}]
    assert joined("left", left, right) == [(1, None), (2, 20)]
    given = [{"k": None, "n": 1}, {"k": "a", "n": 2}, {"k": "b", "n": 3}]
    table = [{"k": "a", "city": "Rome"}]
    rows = ran(given, {"k": str, "n": int}, lambda s: s.broadcast_join("t", table, on="k", how="left"))
    assert [(row["n"], row["city"]) for row in rows] == [(1, None), (2, "Rome"), (3, None)]


# Source: risingwavelabs/risingwave#8084
def test_a_full_join_gives_each_row_with_a_null_key_once_for_each_side() -> None:
    rows = [{"k": None, "at": 1_000, "n": 1}]
    assert joined("full", rows, [{"k": None, "at": 1_000, "n": 10}]) == [(1, None), (None, 10)]


def keyed_counts(values: list[float]) -> list[tuple[str, int]]:
    def step(stream: Any) -> Any:
        return stream.key_by("x").aggregate("n", n=count())

    counts: dict[str, int] = {}
    for row in ran([{"x": value} for value in values], {"x": float}, step):
        counts[str(abs(row["x"]))] = max(counts.get(str(abs(row["x"])), 0), row["n"])
    return sorted(counts.items())


# Source: apache/doris#5226, ClickHouse/ClickHouse#115970
def test_both_zeros_are_one_key() -> None:
    assert keyed_counts([0.0, -0.0, 1.0, -0.0]) == [("0.0", 3), ("1.0", 1)]


# Source: apache/gluten#6300
def test_every_nan_is_one_key_or_the_job_ends_with_a_remedy() -> None:
    """NaN is refused as a key: the remedy is NULL or a text that states the meaning."""
    other_bits = float("inf") - float("inf")
    with pytest.raises(Exception, match=r"NaN"):
        keyed_counts([float("nan"), other_bits, 1.0])


# Source: ClickHouse/ClickHouse#106540
def test_nan_never_joins_with_nan() -> None:
    schema = {"x": float, "at": int, "n": int}
    flow, out = Dataflow("field"), CollectSink()
    rows = [{"x": float("nan"), "at": 0, "n": 1}]
    sides = [stream_of(flow, name, rows, schema, event_time="at").key_by("x") for name in ("left", "right")]
    sides[0].join("j", sides[1], between=(0 * SECOND, SECOND), event_time="at").sink("out", out)
    with pytest.raises(Exception, match="NaN"):
        flow.run_local(parallelism=1)
    assert list(out.rows()) == []


# Source: bytewax/bytewax#138, volga-project/volga#169
@pytest.mark.slow
def test_a_window_open_at_a_restart_closes_without_a_further_row_of_its_key(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    found: list[tuple[str, int]] = []

    def start() -> LocalJobHandle:
        flow = Dataflow("field")
        read = flow.read_jsonl("in", f"{folder}/", schema=EVENTS, event_time="at", watch=timedelta(milliseconds=10))
        seen = CallableSink(lambda rows: found.extend((row["k"], row["total"]) for row in rows.to_pylist()))
        windows = read.key_by("k").window("w", Tumbling(10 * SECOND), event_time="at")
        windows.aggregate(total=sum_("n")).sink("out", seen)
        return flow.start_local(parallelism=1, checkpoint_interval=0.05, checkpoints=str(tmp_path / "store"))

    def write(name: str, rows: list[tuple[str, int, int]]) -> None:
        lines = [json.dumps(dict(zip(EVENTS, row, strict=True))) for row in rows]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        (tmp_path / name).rename(folder / name)

    write("1.jsonl", [("first", 0, 1), ("a", 11_000, 1), ("b", 11_000, 2)])
    job = start()
    until(lambda: ("first", 1) in found, "the first window is out")
    job.stop()
    job.wait(60)
    assert found == [("first", 1)]
    write("2.jsonl", [("b", 12_000, 3), ("b", 60_000, 4)])
    job = start()
    until(lambda: len(found) >= 3, "windows of both keys are out")
    job.stop()
    job.wait(60)
    assert sorted(found[1:]) == [("a", 1), ("b", 5)]


# Source: apache/flink#4967, apache/beam#40176
def test_subtasks_without_a_split_hold_no_window_back() -> None:
    flow, out = Dataflow("field"), CollectSink()
    rows = [{"k": "a", "at": at, "n": at} for at in (0, 20_000, 40_000)]
    read = stream_of(flow, "in", rows, EVENTS, event_time="at")
    read.key_by("k").window("w", Tumbling(10 * SECOND), event_time="at").aggregate(n=count()).sink("out", out)
    flow.run_local(parallelism=3)
    assert [row["n"] for row in out.rows()] == [1, 1, 1]
