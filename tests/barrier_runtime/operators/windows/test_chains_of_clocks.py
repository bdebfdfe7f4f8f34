"""Windows and joins after windows, in event time and by the wall clock, with early results: in any chain of three
steps each row is counted once, and no result is late for the next step.
"""

import datetime
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, Every, Session, Tumbling, sum_

MS = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])
BOUND = 12
WALL: dict[str, Any] = {"clock": "processing"}
TIMED: dict[str, Any] = {"event_time": "at"}

# step -> (window, options); each early result contains only the rows since the previous result
STEPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tumbling": (Tumbling(10 * MS), TIMED),
    "session": (Session(4 * MS), TIMED),
    "early by time": (Tumbling(10 * MS), {**TIMED, "early": Every(3 * MS, accumulate=False)}),
    "early by rows": (Tumbling(10 * MS), {**TIMED, "early": Every(rows=2, accumulate=False)}),
    "wall": (Tumbling(20 * MS), WALL),
    "wall session": (Session(5 * MS), WALL),
    "wall, early by rows": (Tumbling(20 * MS), {**WALL, "early": Every(rows=2, accumulate=False)}),
    "wall, early by time": (
        Tumbling(50 * MS),
        {**WALL, "early": Every(7 * MS, clock="processing", accumulate=False)},
    ),
}


def rows(part: int) -> list[dict[str, Any]]:
    rng, at, made = random.Random(part), 0, []
    for _ in range(50):
        at += rng.choice([0, 1, 1, 3, 9])
        made.append({"k": rng.randrange(3), "n": 1, "at": EPOCH + (at - rng.randint(0, BOUND)) * MS})
    return made


def windowed(stream: Any, name: str, step: str, late: list[Any]) -> Any:
    window, how = STEPS[step]
    windows = stream.key_by("k").window(name, window, **how)
    if how.get("clock") is None:
        results, too_late = windows.aggregate(n=sum_("n"), late=True)
        late.append(too_late)
    else:
        results = windows.aggregate(n=sum_("n"))
    return results.filter("n IS NOT NULL").select({"k": "k", "n": "n", "at": "window_end"})


def check_each_row_once(ends: dict[str, CollectSink]) -> None:
    wanted = Counter(row["k"] for part in range(2) for row in rows(part))
    for chain, out in ends.items():
        found = Counter[int]()
        for row in out.rows():
            found[row["k"]] += row["n"]
        assert found == wanted, chain


@pytest.mark.slow
@pytest.mark.parametrize("first", STEPS)
def test_each_row_is_counted_once_in_any_chain_of_windows(first: str) -> None:
    """Runs alternate between parallelism 1 and 2."""
    flow, late, steps = Dataflow("chain"), list[Any](), list(STEPS)
    parallelism = 1 + steps.index(first) % 2
    source = flow.from_iterator(
        "rows", lambda part, of: rows(part), schema=SCHEMA, splits=2, event_time="at", max_out_of_orderness=BOUND * MS
    )
    behind, ends, too_late = windowed(source, "first", first, late), dict[str, CollectSink](), CollectSink()
    for number, second in enumerate(steps):
        third = steps[(steps.index(first) + 3 * number) % len(steps)]
        chain = f"{first} > {second} > {third}"
        then = windowed(windowed(behind, f"second-{number}", second, late), f"third-{number}", third, late)
        then.sink(f"out-{number}", ends.setdefault(chain, CollectSink()))
    for number, stream in enumerate(late):
        stream.select({"k": "k", "n": "n"}).sink(f"late-{number}", too_late)
    flow.run_local(parallelism=parallelism, checkpoint_interval=0.05)
    assert too_late.rows() == []
    check_each_row_once(ends)


ONE_OF_EACH = pa.schema([("kk", pa.int64()), ("tt", pa.timestamp("ms", "UTC"))])
EVER = datetime.timedelta(days=36_500)
JOINS: dict[str, Any] = {  # inputs are rows (k, n, at), joined with a row per key, so each row is emitted once
    "interval": lambda left, name, right: left.join(name, right, between=(-EVER, EVER), event_time=("at", "tt")),
    "window": lambda left, name, right: left.window_join(
        name, right, Tumbling(10 * MS), event_time=("at", "tt"), how="left"
    ),
    "as of": lambda left, name, right: left.asof_join(name, right, event_time=("at", "tt")),
    "table": lambda left, name, right: left.table_join(name, right, event_time=("at", "tt")),
}


@pytest.mark.parametrize(
    "clock",
    [step if step == "wall" else pytest.param(step, marks=pytest.mark.slow) for step in STEPS if "wall" in step],
)
def test_each_row_comes_out_once_of_any_joins_behind_windows_of_the_wall_clock(clock: str) -> None:
    flow, ends, names = Dataflow("chain"), dict[str, CollectSink](), list(JOINS)
    source = flow.from_iterator(
        "rows", lambda part, of: rows(part), schema=SCHEMA, splits=2, event_time="at", max_out_of_orderness=BOUND * MS
    )
    keys = flow.from_iterator(
        "keys",
        lambda part, of: [{"kk": key, "tt": EPOCH - 1_000 * MS} for key in range(3)],
        schema=ONE_OF_EACH,
        splits=1,
        event_time="tt",
    ).key_by("kk")
    behind = windowed(source, "first", clock, [])
    for number, first in enumerate(names):
        second = names[(number + list(STEPS).index(clock)) % len(names)]
        joined = JOINS[first](behind.key_by("k"), f"join-{number}", keys).select(["k", "n", "at"])
        again = windowed(joined, f"window-{number}", clock, [])
        last = JOINS[second](again.key_by("k"), f"last-{number}", keys).select(["k", "n"])
        last.sink(f"out-{number}", ends.setdefault(f"{clock} > {first} > {clock} > {second}", CollectSink()))
    flow.run_local(parallelism=2, checkpoint_interval=0.05)
    check_each_row_once(ends)
