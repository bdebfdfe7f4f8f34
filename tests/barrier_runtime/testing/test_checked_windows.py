"""`check` of windows and joins that other checked flows lack: each row once, for any death at any crash point."""

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, Every, Global, Session, Tumbling, count, max_, sum_
from barrier_runtime.testing import check

SECOND = timedelta(seconds=1)
ROWS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])
NAMES = pa.schema([("k", pa.string()), ("name", pa.string()), ("at", pa.timestamp("ms", "UTC"))])
FEW = [{"k": f"k{n}", "few": n} for n in range(4)]
INPUTS: dict[str, Any] = {
    "rows": [{"k": f"k{n % 5}", "v": n, "at": 1_000 * n} for n in range(24)],
    "names": [{"k": f"k{n % 6}", "name": f"name {n}", "at": 2_500 * n} for n in range(10)],
}


def build() -> Dataflow:
    flow = Dataflow("windows-and-joins")
    rows = flow.from_iterator("rows", lambda part, parts: [], schema=ROWS, event_time="at")
    names = flow.from_iterator("names", lambda part, parts: [], schema=NAMES, event_time="at")
    keyed = rows.key_by("k")
    found = {
        "table": keyed.table_join("table", names.key_by("k"), event_time="at", how="left"),
        "small": rows.broadcast_join("small", FEW, on="k", how="left"),
        "global": keyed.window("global", Global()).aggregate(n=count(), most=max_("v")),
        "global early": keyed.window("global-early", Global(), early=Every(rows=3)).aggregate(n=count(), v=sum_("v")),
        "early": keyed.window("early", Tumbling(20 * SECOND), event_time="at", early=Every(rows=2)).aggregate(
            n=count()
        ),
        "early by time": keyed.window(
            "early-by-time", Tumbling(20 * SECOND), event_time="at", early=Every(interval=4 * SECOND)
        ).aggregate(n=count(), v=sum_("v")),
    }
    # The content of processing-time windows differs between runs, but the content of all of them together does not.
    for name, window in {"clock": Tumbling(SECOND / 10), "clock session": Session(SECOND / 20)}.items():
        by_clock = keyed.window(name.replace(" ", "-"), window, clock="processing").aggregate(n=count(), v=sum_("v"))
        all_of_key = by_clock.key_by("k").window(f"all-{name.replace(' ', '-')}", Global())
        found[name] = all_of_key.aggregate(rows=sum_("n"), total=sum_("v"))
    for name, stream in found.items():
        stream.sink(f"of-{name.replace(' ', '-')}", CollectSink())
    return flow


@pytest.mark.slow
def test_rows_of_windows_and_joins_are_the_same_with_one_two_and_three_slots() -> None:
    checked = check(build, INPUTS, crashes="none")
    assert len(checked.rows) == 8
    assert all(checked.rows.values())


@pytest.mark.slow
@pytest.mark.parametrize("only", ["0/2/decision/2/process", "0/2/ack/3/program"])
def test_rows_of_windows_and_joins_are_the_same_after_a_crash(only: str) -> None:
    """At every phase they take half a minute of processor time: `check(build, INPUTS)` is that."""
    assert check(build, INPUTS, parallelism=(2, 1), only=only).crashes == 1
