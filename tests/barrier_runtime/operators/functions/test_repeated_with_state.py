"""`on_error=Retry(…)` of functions with state: a failed call leaves no change in any state.

The model is the same program without failures: states, timers and rows must be equal, in memory and after restores.
"""

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime import (
    TTL,
    AggregatingState,
    BroadcastState,
    CollectSink,
    Dataflow,
    InvalidJob,
    ListState,
    MapState,
    ReducingState,
    Retry,
    Tumbling,
    Unavailable,
    ValueState,
)
from barrier_runtime.testing import KeyedHarness, check
from barrier_runtime.testing.connected_harness import ConnectedHarness
from tests.drawn import examples

AT_ONCE = timedelta(0)
KEYS = 3
OPERATIONS = ("total", "forget", "box", "default", "pages", "page", "unpage", "leave", "items", "again", "empty")
MORE = ("peak", "names", "fresh", "recent", "timer", "untimer", "wall", "after", "unwall", "emit", "yield")


class Names:
    """Aggregate function that changes the accumulator in place."""

    def zero(self) -> list[int]:
        return []

    def add(self, accumulator: list[int], value: int) -> list[int]:
        accumulator.append(value)
        return accumulator

    def result(self, accumulator: list[int]) -> str:
        return repr(accumulator)


class Program:
    """Executes the steps named by the rows. A failing call changes much state before the failure; the retry undoes all
    of it.
    """

    total = ValueState(int, default=0)
    box = ValueState(list[int])
    made = ValueState(dict[str, int], default_factory=dict)
    pages = MapState(int, list[int])
    counts = MapState(str, int)
    items = ListState(int)
    peak = ReducingState(int, max)
    names = AggregatingState(Names(), list[int])
    fresh = ValueState(int, default=0, ttl=TTL(timedelta(milliseconds=40), refresh="on_read"))
    recent = ListState(list[int], ttl=TTL(timedelta(milliseconds=40)))

    def __init__(self, fails: "Failing") -> None:
        self._fails = fails

    def open(self, ctx: Any) -> None:
        self._ctx = ctx

    def _step(self) -> None:
        if not self._fails.now():
            return
        ctx = self._ctx
        (self.box.value or []).append(99)
        for state in (self.total, self.fresh):
            state.value += 99
        for entries in (self.pages, self.counts):
            entries.clear()
        self.pages[77] = [77]
        self.items.append(99)
        self.peak.add(99)
        self.names.add(99)
        self.recent.update([[99]])
        ctx.emit("side", {"n": 99})
        for timers in (ctx.timers, ctx.wall_timers):
            for at in range(100):
                timers.delete(at)
            timers.register(2)
            timers.register(101)
        raise ConnectionError("away")

    def process(self, key: int, row: dict[str, Any], ctx: Any) -> Any:
        ctx.timers.register(ctx.timestamp + 40)
        ctx.wall_timers.register(55)
        for name, n in zip(row["do"], row["with"], strict=True):
            self._step()
            yield from getattr(self, f"_{name}")(n, ctx)
        self._step()
        row["with"].append(1)  # the retry gets the original row
        self._step()

    def on_timer(self, key: int, at_ms: int, ctx: Any) -> Any:
        self._step()
        self.total.value += 1
        ctx.timers.delete(at_ms + 10)
        self._step()
        ctx.timers.register(at_ms + 15)
        ctx.timers.register(at_ms)
        ctx.timers.delete(at_ms)
        self._step()
        yield {"key": key, "what": "timer", "n": at_ms}
        self._step()

    def on_wall_timer(self, key: int, due_ms: int, ctx: Any) -> Any:
        self._step()
        self.counts["wall"] = self.counts.get("wall", 0) + 1
        self._step()
        if due_ms < 60:
            ctx.wall_timers.after(timedelta(milliseconds=20))
        self._step()
        return {"key": key, "what": "wall", "n": due_ms}

    def _total(self, n: int, ctx: Any) -> Any:
        self.total.value += n
        return ()

    def _forget(self, n: int, ctx: Any) -> Any:
        self.total.clear()
        return ()

    def _box(self, n: int, ctx: Any) -> Any:
        box = self.box.value or []
        box.append(n)
        self._step()
        self.box.update(box)
        return ()

    def _default(self, n: int, ctx: Any) -> Any:
        made = self.made.value
        made[f"n{n}"] = n
        self._step()
        self.made.update(made)
        return ()

    def _pages(self, n: int, ctx: Any) -> Any:
        page = self.pages.get(n % 3) or []
        page.append(n)
        self._step()
        self.pages[n % 3] = page
        return [{"key": n, "what": repr(dict(self.pages.items())), "n": len(self.pages)}]

    def _page(self, n: int, ctx: Any) -> Any:
        self.counts[f"p{n}"] = n
        return ()

    def _unpage(self, n: int, ctx: Any) -> Any:
        self.counts.pop(f"p{n}", 0)
        self._step()
        self.pages.pop(n % 3, None)
        return ()

    def _leave(self, n: int, ctx: Any) -> Any:
        self.pages.clear()
        self._step()
        self.counts.clear()
        return ()

    def _items(self, n: int, ctx: Any) -> Any:
        self.items.extend([n, n + 1])
        return [{"key": n, "what": repr(list(self.items)), "n": len(self.items)}]

    def _again(self, n: int, ctx: Any) -> Any:
        self.items.update([n])
        return ()

    def _empty(self, n: int, ctx: Any) -> Any:
        self.items.clear()
        return ()

    def _peak(self, n: int, ctx: Any) -> Any:
        return [{"key": n, "what": "peak", "n": self.peak.add(n)}]

    def _names(self, n: int, ctx: Any) -> Any:
        self.names.add(n)
        return [{"key": n, "what": self.names.value, "n": n}]

    def _fresh(self, n: int, ctx: Any) -> Any:
        seen = self.fresh.value
        self._step()
        self.fresh.value = seen + n
        return [{"key": n, "what": "fresh", "n": seen}]

    def _recent(self, n: int, ctx: Any) -> Any:
        self.recent.append([n])
        return [{"key": n, "what": repr(list(self.recent)), "n": n}]

    def _timer(self, n: int, ctx: Any) -> Any:
        ctx.timers.register((ctx.timestamp or 0) + 7 * n)
        return ()

    def _untimer(self, n: int, ctx: Any) -> Any:
        for at in range(0, 200, 7):
            ctx.timers.delete(at)
        return ()

    def _wall(self, n: int, ctx: Any) -> Any:
        ctx.wall_timers.register(10 * n)
        return ()

    def _after(self, n: int, ctx: Any) -> Any:
        ctx.wall_timers.after(timedelta(milliseconds=10 * n))
        return ()

    def _unwall(self, n: int, ctx: Any) -> Any:
        for at in range(0, 100, 10):
            ctx.wall_timers.delete(at)
        return ()

    def _emit(self, n: int, ctx: Any) -> Any:
        ctx.emit("side", {"n": n})
        return ()

    def _yield(self, n: int, ctx: Any) -> Any:
        row = {"key": n, "what": "yield", "n": self.total.value}
        yield row
        row["n"] = -1  # emitted rows do not change afterwards


class Failing:
    """Raises before steps: `at` gives the number of successful steps between two failures; then no step fails."""

    def __init__(self, at: list[int]) -> None:
        self._left = list(at)
        self._well = 0

    def __deepcopy__(self, memo: object) -> "Failing":
        return self

    def now(self) -> bool:
        if not self._left or self._well < self._left[0]:
            self._well += 1
            return False
        self._left.pop(0)
        self._well = 0
        return True


calls = st.lists(st.tuples(st.sampled_from(OPERATIONS + MORE), st.integers(0, 4)), max_size=5)
moves = st.one_of(
    st.tuples(st.just("push"), st.integers(0, KEYS - 1), calls),
    st.tuples(st.just("watermark"), st.integers(0, 30)),
    st.tuples(st.just("wall"), st.integers(0, 30)),
    st.tuples(st.just("snapshot"), st.integers(1, 2)),
)


def trace_of(program: list[Any], fails: Failing) -> list[Any]:
    arguments: dict[str, Any] = {
        "key": "key",
        "event_time": "at",
        "schema": {"key": int, "what": str, "n": int},
        "side": {"side": {"n": int}},
        "on_error": Retry(200, AT_ONCE, on=(ConnectionError,)),
    }
    rows = pa.schema(
        [("key", pa.int64()), ("at", pa.int64()), ("do", pa.list_(pa.string())), ("with", pa.list_(pa.int64()))]
    )
    harness = KeyedHarness(Program(fails), rows=rows, parallelism=1, **arguments)
    trace: list[Any] = []
    at_ms = wall_ms = 0

    def look() -> None:
        trace.append(harness.side("side"))
        for key in range(KEYS):
            trace.append((harness.timers(key), harness.wall_timers(key), repr(harness.state(key))))

    for move in program:
        if move[0] == "push":
            at_ms += 3
            does = {"do": [name for name, _ in move[2]], "with": [n for _, n in move[2]]}
            trace.append(harness.push({"key": move[1], "at": at_ms, **does}))
        elif move[0] == "watermark":
            at_ms += move[1]
            trace.append(harness.watermark(at_ms))
        elif move[0] == "wall":
            wall_ms += move[1]
            trace.append(harness.wall(wall_ms))
        else:
            snapshot = harness.snapshot()
            harness.close()
            harness = KeyedHarness(Program(fails), restore=snapshot, parallelism=move[1], **arguments)
        look()
    trace.append(harness.snapshot().checkpoint)  # nothing was changed in place without being stored
    trace.append(harness.end())
    look()
    harness.close()
    return trace


@pytest.mark.slow
@examples(30)
@given(program=st.lists(moves, max_size=8), fails=st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_a_call_that_fails_anywhere_has_left_nothing(program: list[Any], fails: list[int]) -> None:
    assert trace_of(program, Failing(fails)) == trace_of(program, Failing([]))


class Limited:
    """Connected function: a retry also undoes the writes of a broadcast handler."""

    limits = BroadcastState(str, int)
    seen = ValueState(int, default=0)

    def __init__(self, fails: Failing) -> None:
        self._fails = fails

    def on_orders(self, key: str, row: dict[str, Any], ctx: Any) -> Any:
        self.seen.value += 1
        if self._fails.now():
            raise ConnectionError("away")
        return {"key": key, "seen": self.seen.value, "limit": self.limits.get(key, 0)}

    def on_rules(self, row: dict[str, Any], ctx: Any) -> Any:
        self.limits[row["key"]] = len(self.limits) + 1
        self.limits.pop("b", None)
        if self._fails.now():
            self.limits.clear()
            raise ConnectionError("away")
        return {"key": row["key"], "seen": -1, "limit": self.limits[row["key"]]}


@pytest.mark.parametrize("fails", [[], [0], [1], [2, 0, 0], [3], [4, 1]])
def test_broadcast_state_is_put_back_and_what_a_snapshot_reads_is_left_alone(fails: list[int]) -> None:
    arguments: dict[str, Any] = {
        "keys": {"orders": "key"},
        "broadcast": ["rules"],
        "rows": {"orders": {"key": str}, "rules": {"key": str}},
        "on_error": Retry(3, AT_ONCE),
    }
    harness = ConnectedHarness(Limited(Failing(fails)), **arguments)
    given = harness.push("rules", {"key": "a"}) + harness.push("orders", {"key": "a"})
    snapshot = harness.snapshot()
    given += harness.push("rules", {"key": "c"}) + harness.push("orders", {"key": "c"}, {"key": "a"})
    assert given == [
        {"key": "a", "seen": -1, "limit": 1},
        {"key": "a", "seen": 1, "limit": 1},
        {"key": "c", "seen": -1, "limit": 2},
        {"key": "c", "seen": 1, "limit": 2},
        {"key": "a", "seen": 2, "limit": 1},
    ]
    harness.close()
    restored = ConnectedHarness(Limited(Failing([])), restore=snapshot, **arguments)
    assert restored.push("orders", {"key": "a"}) == [{"key": "a", "seen": 2, "limit": 1}]
    restored.close()


@pytest.mark.slow
def test_functions_of_groups_windows_and_rows_without_key_are_repeated(tmp_path: Any) -> None:
    failing = {"groups", "window", "rows"}

    def once(what: str) -> None:
        if what in failing:
            failing.remove(what)
            raise ConnectionError("away")

    def groups(keys: Any, batch: pa.RecordBatch, state: Any) -> Any:
        state["seen"] += 1
        keys.forget([0])
        once("groups")
        return {"k": keys.rows.column(0), "seen": state["seen"]}

    def whole(key: Any, window: Any, batches: Any) -> Any:
        rows = sum(map(len, batches))
        once("window")
        return {"rows": rows}

    def alone(row: dict[str, Any], ctx: Any) -> Any:
        ctx.emit("side", {"k": row["k"]})
        row["k"] += 10
        yield row
        once("rows")

    flow, sinks = Dataflow("repeated"), {name: CollectSink() for name in ("groups", "window", "rows", "side")}
    numbers = flow.from_iterator(
        "in", lambda i, of: iter([{"k": n, "at": n} for n in range(3)]), schema={"k": int, "at": int}, splits=1
    )
    retry = Retry(2, timedelta(milliseconds=1))
    keyed = numbers.with_watermarks("at", max_out_of_orderness=AT_ONCE).key_by("k")
    seen = keyed.process_groups("g", groups, schema={"k": int, "seen": int}, state={"seen": "int64"}, on_error=retry)
    seen.sink("groups", sinks["groups"])
    hours = keyed.window("w", Tumbling(timedelta(hours=1)), event_time="at")
    hours.apply(whole, schema={"rows": int}, batches=True, on_error=retry).sink("window", sinks["window"])
    rows, side = numbers.process("p", alone, schema={"k": int, "at": int}, side={"side": {"k": int}}, on_error=retry)
    rows.sink("rows", sinks["rows"])
    side.sink("side", sinks["side"])
    flow.run_local(parallelism=1)
    found = {name: sorted(tuple(row.values()) for row in sink.rows()) for name, sink in sinks.items()}
    assert found == {
        "groups": [(0, 1), (1, 1), (2, 1)],
        "window": [(1,), (1,), (1,)],
        "rows": [(10, 0), (11, 1), (12, 2)],
        "side": [(0,), (1,), (2,)],
    }
    assert not failing


class Flaky:
    """Every third call fails at first, after writes and an emit."""

    seen = ValueState(int, default=0)
    pages = MapState(int, int)

    def __init__(self) -> None:
        self._calls = 0

    def process(self, key: int, row: dict[str, Any], ctx: Any) -> Any:
        self._calls += 1
        self.seen.value += 1
        self.pages[row["n"]] = self.seen.value
        ctx.emit("side", {"n": row["n"]})
        if self._calls % 3 == 0:
            raise ConnectionError("away")
        yield {"key": key, "n": row["n"], "seen": self.seen.value, "pages": len(self.pages)}


@pytest.mark.slow
def test_repeated_calls_are_exactly_once_through_crashes_in_each_phase() -> None:
    def flow() -> Dataflow:
        made = Dataflow("repeated")
        numbers = made.from_iterator("in", lambda i, of: iter(()), schema={"key": int, "n": int}, splits=1)
        schema = {"key": int, "n": int, "seen": int, "pages": int}
        out, side = numbers.key_by("key").process(
            "flaky", Flaky, schema=schema, side={"side": {"n": int}}, on_error=Retry(2, AT_ONCE)
        )
        out.sink("out", CollectSink())
        side.sink("side", CollectSink())
        return made

    check(flow, {"in": [{"key": n % 2, "n": n} for n in range(16)]}, parallelism=1)


def test_finally_failing_call_reports_its_attempts_and_a_lookup_names_its_argument() -> None:
    def away(key: int, row: dict[str, Any], ctx: Any) -> None:
        raise ConnectionError("away")

    with (
        KeyedHarness(away, key="k", on_error=Retry(2, AT_ONCE)) as harness,
        pytest.raises(Unavailable, match=r"away.* raised ConnectionError: away, 3 times for one row"),
    ):
        harness.push({"k": 1})
    numbers = Dataflow("refused").from_iterator("in", lambda i, of: iter(()), schema={"k": int}, splits=1)
    with pytest.raises(InvalidJob, match=r"on_error=Retry.*: pass it as retry="):
        numbers.lookup("l", lambda keys: {}, key="k", schema={"n": int}, on_error=Retry(1))  # type: ignore[call-overload]
    with pytest.raises(InvalidJob, match=r"its slot stands still: keep them within 1 s"):
        numbers.key_by("k").process("p", away, on_error=Retry(5, timedelta(seconds=0.2)))
