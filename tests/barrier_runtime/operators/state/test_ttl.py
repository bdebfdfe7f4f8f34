"""State with a TTL in keyed functions: expired values are never returned, after any read, restore or rescaling;
changes between programs with and without TTL; and refusals.
"""

import datetime
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from operator_harness import Driven, Kind, World

from barrier_runtime import (
    TTL,
    AggregatingState,
    CollectSink,
    Dataflow,
    InvalidJob,
    ListState,
    MapState,
    ProcessContext,
    ReducingState,
    UserCodeError,
    ValueState,
)
from barrier_runtime.connectors.sink_bases.upsert import UpsertSink
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state.snapshots.value_types import ValueType
from barrier_runtime.state.values.expiry import StoredTtl
from barrier_runtime.testing import KeyedHarness

Row = dict[str, Any]
KINDS: list[Kind] = ["memory", "rocksdb"]
T = 1_700_000_000_000


def ms(milliseconds: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=milliseconds)


class Total:
    def zero(self) -> int:
        return 0

    def add(self, total: int, value: int) -> int:
        return total + value

    def result(self, total: int) -> int:
        return total


def function(ttl: TTL | None) -> type:
    """Returns a function class with all kinds of state.

    A row with n > 0 writes, n = 0 only reads, and n < 0 appends to the list and changes a map entry.
    """

    class Everything:
        last = ValueState(int, default=-1, ttl=ttl)
        recent = ListState(int, ttl=ttl)
        seen = MapState(int, int, ttl=ttl)
        peak = ReducingState(int, max, ttl=ttl)
        total = AggregatingState(Total(), int, ttl=ttl)

        def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
            n = row["n"]
            if n > 0:
                self.last.value = n
                self.peak.add(n)
                self.total.add(n)
            if n != 0:
                self.recent.append(n)
                self.seen[n] = n
            return looked(self)

    return Everything


def looked(state: Any) -> Row:
    recent, seen = list(state.recent), dict(state.seen.items())
    assert len(state.recent) == len(recent)
    assert bool(state.recent) == bool(recent)
    assert [state.recent[at] for at in range(len(recent))] == recent
    assert len(state.seen) == len(seen)
    assert bool(state.seen) == bool(seen)
    assert list(state.seen) == list(state.seen.keys()) == list(seen)
    assert list(state.seen.values()) == list(seen.values())
    for n in range(-9, 10):
        assert (n in state.seen) == (n in seen)
        assert state.seen.get(n) == seen.get(n)
    return {
        "last": state.last.value,
        "recent": repr(recent),
        "seen": repr(seen),
        "peak": state.peak.value,
        "total": state.total.value,
    }


def saw(last: int = -1, recent: list[int] | None = None, peak: int | None = None, total: int | None = None) -> Row:
    recent = recent or []
    return {
        "last": last,
        "recent": repr(recent),
        "seen": repr({n: n for n in sorted(recent)}),
        "peak": peak,
        "total": total,
    }


SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64()), ("n", pa.int64())])
OUT = pa.schema([("last", "int64"), ("recent", "string"), ("seen", "string"), ("peak", "int64"), ("total", "int64")])


def operator(made: Any) -> ProcessOperator:
    return ProcessOperator("p", ["k"], made, event_time="at", schema=SCHEMA, output=OUT)


class Job:
    """A subtask on a real store, driven step by step."""

    def __init__(self, kind: Kind, made: Any, world: World | None = None, restored: Any = ()) -> None:
        self.world = world or World(kind)
        self.now_s = 0.0
        context = self.world.context
        self.world.context = lambda *given: replace(context(*given), now_s=lambda: self.now_s)  # type: ignore[method-assign]
        self.driven = Driven(operator(made), self.world, restored, "p")
        self.checkpoint = 100 * self.world._token

    def row(self, at: int, n: int = 0, key: str = "a") -> Row:
        self.driven.feed([{"k": key, "at": at, "n": n}], SCHEMA)
        return self.driven.take()[0]

    def snapshot(self) -> Any:
        self.checkpoint += 1
        self.now_s += 3_600.0  # the pause between two clean-ups is over
        taken = self.driven.snapshot(self.checkpoint)
        self.driven.operator.on_complete(self.checkpoint)
        return taken

    def again(self, kind: Kind, made: Any) -> "Job":
        taken = self.snapshot()
        self.close()
        return Job(kind, made, self.world, (taken,))

    def close(self) -> None:
        self.driven.operator.close()

    def stored(self) -> int:
        """Entries in the store, once everything is written."""
        self.snapshot()
        return sum(1 for _ in self.driven.operator.backend._shard.kv.scan(b"", b"\xff" * 8))  # type: ignore[attr-defined]


# ---------------------------------------------------------------- the edge


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("restored", [False, True])
def test_an_entry_is_given_until_a_millisecond_before_its_time_is_over(kind: Kind, restored: bool) -> None:
    made = function(TTL(ms(100)))
    for at, live in ((T + 99, True), (T + 100, False), (T + 101, False), (T + 99, True)):
        job = Job(kind, made)
        assert job.row(T, 5) == saw(5, [5], 5, 5)
        if restored:
            job = job.again(kind, made)
        assert job.row(at) == (saw(5, [5], 5, 5) if live else saw())
        assert job.row(at, 3) == (saw(3, [5, 3], 5, 8) if live else saw(3, [3], 3, 3))
        job.close()


@pytest.mark.parametrize("kind", KINDS)
def test_elements_and_entries_expire_one_by_one(kind: Kind) -> None:
    job = Job(kind, function(TTL(ms(100))))
    for at in (0, 40, 80):
        job.row(T + at, 1 + at // 40)
    assert job.row(T + 139) == saw(3, [2, 3], 3, 6)
    job = job.again(kind, function(TTL(ms(100))))
    assert job.row(T + 140) == saw(3, [3], 3, 6)
    assert job.row(T + 141, -7) == saw(3, [3, -7], 3, 6)
    assert job.row(T + 180) == saw(-1, [-7])
    job.driven.watermark(T + 241)
    assert job.row(T + 242) == saw()
    assert job.row(T + 243, 4) == saw(4, [4], 4, 4)
    job.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("swept", [False, True], ids=["read", "swept"])
@pytest.mark.parametrize("late", [0, 1, 2, 3], ids=["first", "second", "third", "last"])
def test_a_list_loses_the_element_that_expires_first_wherever_it_stands(kind: Kind, swept: bool, late: int) -> None:
    """In event time a later element may be older, because rows arrive out of order."""
    made = function(TTL(ms(100)))
    job = Job(kind, made)
    for index in range(4):
        job.row(T if index == late else T + 50 + index, -1 - index)
    job.driven.watermark(T + 110)  # no later row can see the old element
    live = [-1 - index for index in range(4) if index != late]
    if swept:
        job.stored()
        job.stored()
    for _ in range(2):  # the first read removes elements; the second finds them gone
        assert job.row(T + 120) == saw(recent=live)
        job = job.again(kind, made)
    assert job.row(T + 130, -9) == saw(recent=[*live, -9])
    assert job.row(T + 154) == saw(recent=[-9])
    job.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_refreshes_only_where_it_is_declared(kind: Kind) -> None:
    for refresh, live in (("on_write", False), ("on_read", True)):
        made = function(TTL(ms(100), refresh=refresh))  # type: ignore[arg-type]
        job = Job(kind, made)
        job.row(T, 5)
        job.row(T + 90)
        job = job.again(kind, made)
        assert job.row(T + 150) == (saw(5, [5], 5, 5) if live else saw())
        job.close()


def test_len_and_truth_do_not_count_as_reads() -> None:
    class Counts:
        recent = ListState(int, ttl=TTL(ms(100), refresh="on_read"))

        def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
            if row["n"]:
                self.recent.append(row["n"])
            return {"len": len(self.recent), "any": bool(self.recent)}

    with KeyedHarness(Counts, key="k", event_time="at") as harness:
        harness.push({"k": "a", "at": T, "n": 1}, {"k": "a", "at": T + 60, "n": 0})
        assert harness.push({"k": "a", "at": T + 100, "n": 0}) == [{"len": 0, "any": False}]


# ---------------------------------------------------------------- event time


def test_rows_out_of_order_are_judged_by_their_own_times_and_leave_the_latest_write() -> None:
    made = function(TTL(ms(100)))
    with KeyedHarness(made, key="k", event_time="at") as harness:
        give = lambda at, n=0: harness.push({"k": "a", "at": T + at, "n": n})[0]  # noqa: E731
        assert give(50, 5) == saw(5, [5], 5, 5)
        assert give(150) == saw()  # expired for this row …
        assert give(120) == saw(5, [5], 5, 5)  # … but not for this earlier row
        assert give(20, 3)["last"] == 3  # an earlier row
        assert give(149)["last"] == 3  # takes no time away
        assert give(150)["last"] == -1


def test_the_watermark_decides_nothing_for_rows_that_are_not_late() -> None:
    made = function(TTL(ms(100)))
    given = []
    for watermarks in ([], [30], [98]):
        with KeyedHarness(made, key="k", event_time="at") as harness:
            harness.push({"k": "a", "at": T, "n": 5})
            for at in watermarks:
                harness.watermark(T + at)
            given.append(harness.push({"k": "a", "at": T + 99, "n": 0}, {"k": "a", "at": T + 100, "n": 0}))
    assert given == [[saw(5, [5], 5, 5), saw()]] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_row_does_not_see_whether_a_sweep_came_by(kind: Kind) -> None:
    made = function(TTL(ms(100)))
    for swept in (False, True):
        job = Job(kind, made)
        job.row(T, 5)
        job.driven.watermark(T + 100)
        if swept:
            assert job.stored() == 7  # not in the store before this checkpoint
            assert job.stored() == 0
        assert job.row(T + 50) == saw()
        assert job.row(T + 51, 4) == saw(4, [4], 4, 4)  # reads the row's own write
        job.close()


def test_a_timer_judges_by_its_own_time() -> None:
    class Fires:
        last = ValueState(int, default=-1, ttl=TTL(ms(100)))

        def process(self, key: str, row: Row, ctx: ProcessContext) -> None:
            self.last.value = row["n"]
            for after in (99, 100):
                ctx.timers.register(row["at"] + after)

        def on_timer(self, key: str, at_ms: int, ctx: ProcessContext) -> Row:
            return {"at": at_ms, "last": self.last.value}

    with KeyedHarness(Fires, key="k", event_time="at") as harness:
        harness.push({"k": "a", "at": T, "n": 5})
        assert harness.watermark(T + 5_000) == [{"at": T + 99, "last": 5}, {"at": T + 100, "last": -1}]
        harness.push({"k": "a", "at": T + 6_000, "n": 6})
        assert harness.end() == [{"at": T + 6_099, "last": 6}, {"at": T + 6_100, "last": -1}]


def test_the_end_of_the_input_expires_nothing_since_the_job_may_go_on() -> None:
    made = function(TTL(ms(100)))
    with KeyedHarness(made, key="k", event_time="at") as harness:
        harness.push({"k": "a", "at": T, "n": 5})
        harness.end()
        harness.snapshot()
        snapshot = harness.snapshot()
    with KeyedHarness(made, key="k", event_time="at", restore=snapshot) as harness:
        assert harness.push({"k": "a", "at": T + 99, "n": 0}) == [saw(5, [5], 5, 5)]


def test_a_row_without_a_time_is_told_when_it_uses_such_state() -> None:
    with (
        KeyedHarness(function(TTL(ms(100))), key="k", event_time="at", rows=SCHEMA) as harness,
        pytest.raises((InvalidJob, UserCodeError), match=r"without event time.* filter such rows before"),
    ):
        harness.push({"k": "a", "at": None, "n": 1})


# ---------------------------------------------------------------- the wall clock


@pytest.mark.parametrize("kind", KINDS)
def test_processing_time_stands_still_within_a_batch_and_never_goes_back(kind: Kind) -> None:
    made = function(TTL(ms(100), clock="processing"))
    job = Job(kind, made)
    job.world.wall_ms = T
    job.row(0, 5)
    job.world.wall_ms = T + 99
    assert job.row(0) == saw(5, [5], 5, 5)
    job.world.wall_ms = T + 100
    assert job.row(0) == saw()
    job.world.wall_ms = T + 50
    assert job.row(0) == saw()
    job.close()


def test_the_harness_has_a_wall_clock_of_its_own() -> None:
    made = function(TTL(ms(100), clock="processing"))
    with KeyedHarness(made, key="k", wall_ms=T) as harness:
        harness.push({"k": "a", "n": 5})
        harness.wall(T + 99)
        assert harness.state("a")["recent"] == [5]
        snapshot = harness.snapshot()
    with KeyedHarness(made, key="k", restore=snapshot, parallelism=3) as harness:
        assert harness.state("a")["last"] == 5
        harness.wall(T + 100)
        assert harness.state("a") == {"last": -1, "recent": [], "seen": {}, "peak": None, "total": None}


# ---------------------------------------------------------------- changes in place


class Kept:
    """Objects that can be changed."""

    last = ValueState(list[int], default_factory=list, ttl=TTL(ms(100), refresh="on_read"))
    items = ListState(list[int], ttl=TTL(ms(100)))
    seen = MapState(str, list[int], ttl=TTL(ms(100)))

    def process(self, key: str, row: Row, ctx: ProcessContext) -> None:
        getattr(self, row["do"])(row)

    def stores(self, row: Row) -> None:
        self.last.value = [1]
        self.items.append([1])
        self.seen["a"] = [1]

    def shares(self, row: Row) -> None:
        one = [1]
        self.items.append(one)
        self.items.append(one)

    def changes(self, row: Row) -> None:
        self.seen["a"].append(2)

    def reads(self, row: Row) -> None:
        assert (self.last.value, list(self.items), self.seen["a"]) == ([1], [[1]], [1])


def kept(*does: tuple[int, str]) -> None:
    with KeyedHarness(Kept, key="k", event_time="at") as harness:
        for at, do in does:
            harness.push({"k": "a", "at": T + at, "do": do})
            harness.snapshot()


def test_objects_that_are_changed_in_place_or_shared_are_told_as_without_a_ttl() -> None:
    kept((0, "stores"), (1, "reads"), (99, "reads"))
    with pytest.raises(InvalidJob, match=r"state 'seen', key 'a', entry 'a': its value was changed in place"):
        kept((0, "stores"), (1, "changes"))
    with pytest.raises(
        (InvalidJob, UserCodeError), match=r"key 'a', entry 1: the object .* also that of key 'a', entry 0"
    ):
        kept((0, "shares"))


def test_a_value_of_another_shape_is_told_with_its_key_also_beside_deleted_ones() -> None:
    class Wrong:
        seen = MapState(str, list[int], ttl=TTL(ms(100)))

        def process(self, key: str, row: Row, ctx: ProcessContext) -> None:
            for name in "abc":
                self.seen[name] = [1]
            del self.seen["a"]
            self.seen["b"] = ["text"]  # type: ignore[list-item]
            del self.seen["c"]

    with KeyedHarness(Wrong, key="k", event_time="at") as harness:
        harness.push({"k": "x", "at": T})
        with pytest.raises(InvalidJob, match=r"key 'x', entry 'b' of process 'function', state 'seen': .*does not fit"):
            harness.snapshot()


# ---------------------------------------------------------------- between programs

NONE, SHORT, LONG = None, TTL(ms(100)), TTL(ms(1_000))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("before", "after", "seen_until"),
    [
        (NONE, NONE, None),
        (NONE, SHORT, 60 + 100),  # counted from the restore, at watermark 60
        (NONE, LONG, 60 + 1_000),
        (SHORT, NONE, None),
        (SHORT, SHORT, 100),
        (SHORT, LONG, 1_000),
        (LONG, NONE, None),
        (LONG, SHORT, 100),
        (LONG, LONG, 1_000),
    ],
)
def test_a_ttl_may_be_switched_on_off_and_changed_between_checkpoint_and_program(
    kind: Kind, before: TTL | None, after: TTL | None, seen_until: int | None
) -> None:
    """R6"""
    for at in (61, *([99_999] if seen_until is None else [seen_until - 1, seen_until])):
        job = Job(kind, function(before))
        job.row(T, 5)
        job.driven.watermark(T + 60)
        job = job.again(kind, function(after))
        expired = seen_until is not None and at >= seen_until
        assert job.row(T + at) == (saw() if expired else saw(5, [5], 5, 5))
        job = job.again(kind, function(after))  # a second restore does not restart the TTL
        assert job.row(T + at) == (saw() if expired else saw(5, [5], 5, 5))
        assert job.row(T + at, 6) == (saw(6, [6], 6, 6) if expired else saw(6, [5, 6], 6, 11))
        job.close()


@pytest.mark.parametrize("kind", KINDS)
def test_times_that_were_left_behind_count_when_the_ttl_is_back(kind: Kind) -> None:
    job = Job(kind, function(SHORT))
    job.row(T, 5)
    job.row(T + 50, -6)
    job.driven.watermark(T + 60)
    job = job.again(kind, function(NONE))
    assert job.row(T + 500, -7) == saw(5, [5, -6, -7], 5, 5)
    job.driven.watermark(T + 70)
    job = job.again(kind, function(SHORT))
    assert job.row(T + 120) == saw(-1, [-6, -7])
    assert job.row(T + 169) == saw(-1, [-7])  # written without a time: from the restore at 70
    assert job.row(T + 170) == saw()
    job.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_that_lost_elements_is_whole_without_a_ttl(kind: Kind) -> None:
    job = Job(kind, function(SHORT))
    for at, n in ((0, 1), (50, 2), (60, 3)):
        job.row(T + at, n)
    job.driven.watermark(T + 120)
    assert job.stored() > 0
    job.stored()  # the first element is swept
    job = job.again(kind, function(NONE))
    assert job.row(T + 500, 4) == saw(4, [2, 3, 4], 4, 10)
    job = job.again(kind, function(NONE))
    assert job.row(T + 500, -5) == saw(4, [2, 3, 4, -5], 4, 10)
    job.close()


@pytest.mark.parametrize("kind", KINDS)
def test_another_clock_counts_from_the_restore(kind: Kind) -> None:
    job = Job(kind, function(SHORT))
    job.row(T, 5)
    by_wall_clock = function(TTL(ms(100), clock="processing"))
    job.world.wall_ms = 5_000
    job = job.again(kind, by_wall_clock)
    job.world.wall_ms = 5_099
    assert job.row(0) == saw(5, [5], 5, 5)
    job = job.again(kind, by_wall_clock)
    job.world.wall_ms = 5_100
    assert job.row(0) == saw()
    job.close()


@pytest.mark.parametrize("kind", KINDS)
def test_undated_entries_count_from_the_first_judged_time_without_a_watermark(kind: Kind) -> None:
    job = Job(kind, function(NONE))
    job.row(T, 5)
    job = job.again(kind, function(SHORT))
    assert job.row(T + 1_000) == saw(5, [5], 5, 5)
    job = job.again(kind, function(SHORT))
    assert job.row(T + 1_099) == saw(5, [5], 5, 5)
    assert job.row(T + 1_100) == saw()
    job.close()


@pytest.mark.parametrize("through", [2, 3, 5])
def test_times_survive_another_parallelism(through: int) -> None:
    """R6"""
    made = function(SHORT)
    keys = [f"key {n}" for n in range(20)]
    with KeyedHarness(made, key="k", event_time="at", parallelism=through) as harness:
        for n, key in enumerate(keys):
            harness.push({"k": key, "at": T + n, "n": 5})
        harness.watermark(T)
        snapshot = harness.snapshot()
    for parallelism in (1, 4):
        with KeyedHarness(made, key="k", event_time="at", parallelism=parallelism, restore=snapshot) as harness:
            for n, key in enumerate(keys):
                assert harness.state(key, T + n + 99)["last"] == 5
                assert harness.state(key, T + n + 100)["last"] == -1


def test_a_snapshot_says_the_ttl() -> None:
    for ttl, stored in (
        (SHORT, StoredTtl(100)),
        (TTL(ms(7), "on_read", "processing"), StoredTtl(7, "on_read", "processing")),
        (NONE, None),
    ):
        job = Job("memory", function(ttl))
        job.row(T, 5)
        described = job.snapshot().keyed.described
        assert described["recent"] == StateDescription("list", ttl=stored, type=ValueType("int"))
        assert described["seen"] == StateDescription("map", "int", ttl=stored, type=described["seen"].type)
        assert described["last"] == StateDescription(ttl=stored, type=ValueType("int"))
        job.close()


# ---------------------------------------------------------------- going away


def stored_bytes(snapshot: Any) -> int:
    """Size of the entries in bytes, without the database's metadata."""
    return sum(ref.size for ref in snapshot.keyed.files if ref.name.endswith((".sst", ".kv")))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clock", ["event", "processing"])
def test_what_has_expired_is_gone_within_three_checkpoints_without_access(kind: Kind, clock: Any) -> None:
    ttl = TTL(ms(100), clock=clock)

    class Writes:
        last = ValueState(int, ttl=ttl)
        recent = ListState(int, ttl=ttl)
        seen = MapState(int, int, ttl=ttl)
        peak = ReducingState(int, max, ttl=ttl)

        def process(self, key: str, row: Row, ctx: ProcessContext) -> None:
            self.last.value = self.seen[row["n"]] = self.peak.add(row["n"])
            self.recent.append(row["n"])

    job = Job(kind, Writes)
    job.world.wall_ms = T
    rows = [{"k": f"key {n % 500}", "at": T, "n": 1 + n % 4} for n in range(1_500)]
    job.driven.feed(rows, SCHEMA)
    peak = stored_bytes(job.snapshot())
    job.world.wall_ms = T + 100
    job.driven.watermark(T + 100)
    sizes = [stored_bytes(job.snapshot()) for _ in range(3)]
    assert sizes[-1] <= peak / 10, (peak, sizes)
    assert job.stored() == 0
    job.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_sweep_leaves_what_was_refreshed_in_the_same_step(kind: Kind) -> None:
    job = Job(kind, function(SHORT))
    for key in "abc":
        job.row(T, 5, key)
    job.snapshot()
    job.row(T + 99, 6, "b")  # in memory; the store still has the old value
    job.driven.watermark(T + 100)
    assert job.stored() > 0
    assert job.row(T + 198, key="b")["last"] == 6
    assert job.row(T + 198, key="a") == saw()
    job = job.again(kind, function(SHORT))
    assert job.row(T + 198, key="b")["last"] == 6
    job.close()


@pytest.mark.slow
def test_a_sweep_works_in_slices_and_ends_with_its_operator() -> None:
    later: list[Callable[[], None]] = []
    world = World("rocksdb")
    context = world.context
    calling = lambda seconds, call: later.append(call)  # noqa: E731
    world.context = lambda *given: replace(context(*given), call_later=calling)  # type: ignore[method-assign]
    job = Job("rocksdb", function(SHORT), world)
    rows = [{"k": f"key {n}", "at": T, "n": 1} for n in range(400)]
    job.driven.feed(rows, SCHEMA)
    job.snapshot()
    job.driven.watermark(T + 100)
    job.snapshot()
    slices, most = 0, 0
    backend = job.driven.operator.backend  # type: ignore[attr-defined]
    while later:
        before = _dirty(backend)
        later.pop(0)()
        slices, most = slices + 1, max(most, _dirty(backend) - before)
        assert len(later) <= 1
    assert slices >= 400 * 7 // 256
    assert 0 < most <= 2 * 256
    job.row(T, 1)
    job.driven.watermark(T + 300)
    job.snapshot()
    job.close()
    for call in later:
        call()  # the database is closed: the call must not use the database


def _dirty(backend: Any) -> int:
    return sum(len(table._dirty) for table in backend._tables.values())


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (lambda: TTL("5"), r"time of a TTL is '5': pass a datetime.timedelta, or a number"),  # type: ignore[arg-type]
        (lambda: TTL(ms(0)), "use whole milliseconds, one or more"),
        (lambda: TTL(datetime.timedelta(microseconds=1_500)), "use whole milliseconds"),
        (lambda: TTL(ms(5), refresh="never"), "TTL refresh 'never' is unknown"),  # type: ignore[arg-type]
        (lambda: TTL(ms(5), clock="wall"), "TTL clock 'wall' is unknown"),  # type: ignore[arg-type]
        (lambda: ValueState(int, ttl=ms(5)), "ValueState ttl=.*: pass a TTL"),  # type: ignore[arg-type]
        (lambda: ListState(int, ttl=5), "ListState ttl=5: pass a TTL"),  # type: ignore[arg-type]
    ],
)
def test_a_ttl_that_is_none_is_refused_when_it_is_written(declare: Callable[[], Any], told: str) -> None:
    with pytest.raises(InvalidJob, match=told):
        declare()


def stream(**time: Any) -> Any:
    rows = [{"k": "a", "at": T, "n": 5}]
    return Dataflow("f").from_iterator("in", lambda index, of: iter(rows), schema=SCHEMA, splits=1, **time).key_by("k")


def test_event_time_that_the_step_has_not_is_refused_when_the_flow_is_written() -> None:
    with pytest.raises(InvalidJob, match=r"process 'p': state 'last' has a TTL in event time, but .* pass event_time="):
        stream().process("p", function(SHORT))
    with pytest.raises(InvalidJob, match=r"process 'p': state 'last' has a TTL in event time, but source 'in'.* none"):
        stream().process("p", function(SHORT), event_time="at")
    with pytest.raises(InvalidJob, match="state 'last' has a TTL in event time, but the step"):
        KeyedHarness(function(SHORT), key="k", rows=SCHEMA)
    stream(event_time="at").process("p", function(SHORT))  # the source's event time
    stream().process("p", function(TTL(ms(5), clock="processing")))


class Upserts(UpsertSink):
    def upsert(self, rows: pa.RecordBatch) -> None:
        """To nowhere."""


def test_wall_clock_ttl_is_refused_before_a_sink_that_needs_deterministic_replay() -> None:
    by_wall_clock = function(TTL(ms(5), clock="processing"))
    told = "sink 'o' is declared deterministic=True, but in step 'p' before it state 'last' has a TTL by the wall clock"
    with pytest.raises(InvalidJob, match=told):
        stream().process("p", by_wall_clock).map(lambda row: row).sink("o", Upserts(deterministic=True))
    stream().process("p", by_wall_clock).sink("o", Upserts())
    stream(event_time="at").process("p", function(SHORT), event_time="at").sink("o", Upserts(deterministic=True))


def test_a_whole_job_forgets_by_event_time_at_any_parallelism() -> None:
    rows = [{"k": "ab"[n % 2], "at": T + 30 * n, "n": n + 1} for n in range(20)]
    rows += [{"k": key, "at": T + 10_000, "n": 0} for key in "ab"]
    flow, out = Dataflow("ttl"), CollectSink()
    source = flow.from_iterator("in", lambda index, of: iter(rows), schema=SCHEMA, splits=1, event_time="at")
    source.key_by("k").process("p", function(TTL(ms(100))), event_time="at", schema=OUT).sink("o", out)
    flow.run_local(parallelism=2, checkpoint_interval=0.05)
    recent = [row["recent"] for row in out.rows()]
    assert len(recent) == 22
    assert {"[17, 19]", "[18, 20]"} <= set(recent)
    assert recent.count("[]") == 2
