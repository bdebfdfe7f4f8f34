"""Rows in time stay in time: in any chain of three steps no result is late for the next step."""

import datetime
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, Every, Session, Sliding, Tumbling, count, max_

MS = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
BOUND = 12
SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])
TIMED = {"event_time": "at", "late": True}


class Chain:
    """Streams with the columns k and at; `late` collects the late rows of all steps."""

    def __init__(self, flow: Dataflow, source: Any) -> None:
        self.flow, self.source = flow, source
        self.names = iter(f"step-{number}" for number in range(10_000))
        self.late: list[Any] = []

    def timed(self, results: Any, at: str = "at") -> Any:
        return results.select({"k": "k", "at": at})

    def windowed(self, stream: Any, window: Any, **more: Any) -> Any:
        windows = stream.key_by("k").window(next(self.names), window, event_time="at", **more)
        results, late = windows.aggregate(n=count(), late=True)
        self.late.append(self.timed(late))
        return self.timed(results, "window_end")

    def joined(self, streams: Any, at: str = "at") -> Any:
        results, *late = streams
        self.late += [self.timed(each) for each in late]
        return self.timed(results.filter(f"{at} IS NOT NULL"), at)


class Later:
    """A row at the time of a timer that each row sets."""

    def process(self, key: Any, row: Any, ctx: Any) -> Iterator[Any]:
        ctx.timers.register(ctx.timestamp + 5)
        return iter(())

    def on_timer(self, key: Any, timestamp_ms: int, ctx: Any) -> Iterator[Any]:
        yield {"k": key, "at": EPOCH + timestamp_ms * MS}


STEPS: dict[str, Callable[[Chain, Any], Any]] = {
    "tumbling": lambda c, s: c.windowed(s, Tumbling(10 * MS)),
    "sliding": lambda c, s: c.windowed(s, Sliding(20 * MS, 5 * MS)),
    "session": lambda c, s: c.windowed(s, Session(4 * MS)),
    "early": lambda c, s: c.windowed(s, Tumbling(10 * MS), early=Every(3 * MS)),
    "early session": lambda c, s: c.windowed(s, Session(4 * MS), early=Every(rows=2)),
    "interval": lambda c, s: c.joined(
        s.key_by("k").join(next(c.names), c.source.key_by("k"), between=(-3 * MS, 7 * MS), how="full", **TIMED)
    ),
    "interval, right": lambda c, s: c.joined(
        s.key_by("k").join(next(c.names), c.source.key_by("k"), between=(-9 * MS, 2 * MS), how="full", **TIMED),
        "at_right",
    ),
    "window": lambda c, s: c.joined(
        s.key_by("k").window_join(next(c.names), c.source.key_by("k"), Tumbling(10 * MS), how="full", **TIMED)
    ),
    "as-of": lambda c, s: c.joined(s.key_by("k").asof_join(next(c.names), c.source.key_by("k"), **TIMED)),
    "table": lambda c, s: c.joined(s.key_by("k").table_join(next(c.names), c.source.key_by("k"), **TIMED)),
    "running": lambda c, s: c.timed(s.key_by("k").aggregate(next(c.names), n=count(), newest=max_("at"))),
    "timers": lambda c, s: s.key_by("k").process(next(c.names), Later(), schema=SCHEMA, event_time="at"),
}


def rows(part: int) -> list[dict[str, Any]]:
    rng, at, made = random.Random(part), 0, []
    for _ in range(30):
        at += rng.choice([0, 1, 1, 3, 9])
        made.append({"k": rng.randrange(2), "at": EPOCH + (at - rng.randint(0, BOUND)) * MS})
    return made


QUICK = ("timers",)


@pytest.mark.parametrize(
    "first", [step if step in QUICK else pytest.param(step, marks=pytest.mark.slow) for step in STEPS]
)
def test_nothing_is_late_behind_a_step(first: str) -> None:
    """Each second step follows `first`, and a third step, which depends on `first`, follows each second step."""
    steps = list(STEPS)
    run(first, lambda second: [steps[(steps.index(first) + 5 * steps.index(second)) % len(steps)]])


def run(first: str, thirds: Callable[[str], Iterable[str]]) -> None:
    flow, late, last = Dataflow("chain"), CollectSink(), CollectSink()
    source = flow.from_iterator(
        "rows", lambda part, of: rows(part), schema=SCHEMA, splits=2, event_time="at", max_out_of_orderness=BOUND * MS
    )
    chain, ends = Chain(flow, source), []
    behind = STEPS[first](chain, source)
    for second in STEPS:
        then = STEPS[second](chain, behind)
        ends += [STEPS[third](chain, then) for third in thirds(second)]
    _together(chain.late).sink("late", late)
    _together(ends).sink("last", last)
    flow.run_local(parallelism=1)
    assert late.rows() == []
    assert len(last.rows()) > 100


def _together(streams: list[Any]) -> Any:
    first, *others = streams
    return first.union(*others)
