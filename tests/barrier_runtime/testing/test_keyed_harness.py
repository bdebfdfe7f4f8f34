"""`KeyedHarness`, the harness for users' tests of keyed functions."""

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import (
    AggregatingState,
    InvalidJob,
    ListState,
    MapState,
    ProcessContext,
    ReducingState,
    UserCodeError,
    ValueState,
)
from barrier_runtime.testing import KeyedHarness

Row = dict[str, Any]


class Total:
    def zero(self) -> int:
        return 0

    def add(self, total: int, value: int) -> int:
        return total + value

    def result(self, total: int) -> int:
        return total


class Sessions:
    """Emits the number of rows of the user, and 10 ms after each row the negated number of received values."""

    n = ValueState(int, default=0)
    heard = ListState(int)
    last = MapState(str, int)
    peak = ReducingState(int, max)
    total = AggregatingState(Total(), int)

    def process(self, user: str, row: Row, ctx: ProcessContext) -> Iterator[Row]:
        assert ctx.timestamp is not None
        self.n.value += 1
        self.heard.append(row["v"])
        self.last[row["page"]] = row["v"]
        self.peak.add(row["v"])
        self.total.add(row["v"])
        for at_ms in (ctx.timestamp + 10, ctx.timestamp + 20):
            ctx.timers.register(at_ms)
        ctx.timers.delete(ctx.timestamp + 20)
        yield {"user": user, "at": ctx.timestamp, "n": self.n.value}

    def on_timer(self, user: str, timestamp_ms: int, ctx: ProcessContext) -> Row:
        return {"user": user, "at": timestamp_ms, "n": -len(self.heard)}


def row(user: str, v: int, at: int, page: str = "a") -> Row:
    return {"user": user, "v": v, "at": at, "page": page}


def harness(**options: Any) -> KeyedHarness:
    return KeyedHarness(Sessions, key="user", event_time="at", **options)


def test_rows_watermarks_states_and_timers() -> None:
    with harness() as world:
        assert world.push(row("ann", 3, 100), row("bob", 5, 105), row("ann", 4, 101, "b")) == [
            {"user": "ann", "at": 100, "n": 1},
            {"user": "bob", "at": 105, "n": 1},
            {"user": "ann", "at": 101, "n": 2},
        ]
        assert world.state("ann") == {"n": 2, "heard": [3, 4], "last": {"a": 3, "b": 4}, "peak": 4, "total": 7}
        assert world.state("eve") == {"n": 0, "heard": [], "last": {}, "peak": None, "total": None}
        assert world.timers("ann") == [110, 111]
        assert world.timers("eve") == []
        assert world.watermark(109) == []
        assert world.watermark(110) == [{"user": "ann", "at": 110, "n": -2}]
        assert world.timers("ann") == [111]
        assert world.end() == [{"user": "ann", "at": 111, "n": -2}, {"user": "bob", "at": 115, "n": -1}]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (3, 2), (2, 1)])
def test_a_snapshot_restores_at_another_parallelism_and_leaves_the_harness_as_it_is(before: int, after: int) -> None:
    users = [f"user {number}" for number in range(20)]
    with harness(parallelism=before) as world:
        world.push(*[row(user, at, at) for at, user in enumerate(users)])
        snapshot = world.snapshot()
        world.push(row(users[0], 9, 50))
        assert world.state(users[0])["heard"] == [0, 9]
    with harness(restore=snapshot, parallelism=after) as world:
        assert [world.state(user)["heard"] for user in users] == [[at] for at in range(20)]
        assert world.push(row(users[7], 1, 60)) == [{"user": users[7], "at": 60, "n": 2}]
        assert sorted(each["at"] for each in world.watermark(40)) == list(range(10, 30))
        later = world.snapshot()
    with harness(restore=later) as world:
        assert world.state(users[7])["heard"] == [7, 1]
        assert world.timers(users[7]) == [70]


def test_keys_of_several_columns_and_of_dates_and_functions_without_a_class() -> None:
    def count(key: Any, row: Row, ctx: ProcessContext) -> Row:
        ctx.state.n.value += 1
        return {"key": repr(key), "n": ctx.state.n.value}

    day = datetime.date(2020, 1, 2)
    states = {"n": ValueState(int, default=0)}
    with KeyedHarness(count, key=("day", "k"), state=states, schema={"key": str, "n": int}, parallelism=2) as world:
        world.push({"day": day, "k": 1}, {"day": day, "k": 2})
        assert world.push({"day": day, "k": 1}) == [{"key": repr((day, 1)), "n": 2}]
        assert (world.state((day, 1)), world.state((day, 2))) == ({"n": 2}, {"n": 1})


def test_what_is_wrong_is_told_as_in_a_job() -> None:
    with harness(rows={"user": str, "v": int, "at": int, "page": str}) as world:
        with pytest.raises(UserCodeError, match=r"assert ctx.timestamp is not None"):
            world.push({"user": "ann", "v": 1, "page": "a", "at": None})
        with pytest.raises(InvalidJob, match=r"has 'x', which earlier rows .* give all columns in rows="):
            world.push({**row("ann", 1, 1), "x": 1})
        with pytest.raises(InvalidJob, match="column 'v' is int64, but a row has 'text'"):
            world.push(row("ann", "text", 1))  # type: ignore[arg-type]
    with harness() as world, pytest.raises(InvalidJob, match=r"no row came yet.* give rows="):
        world.state("ann")
    with harness(parallelism=2) as world, pytest.raises(InvalidJob, match="have no key column 'user'"):
        world.push({"v": 1})


def test_a_value_that_is_changed_in_place_and_not_stored_is_refused_at_the_snapshot() -> None:
    def forgets(key: Any, row: Row, ctx: ProcessContext) -> None:
        ctx.state.seen.setdefault("a", []).append(row["v"])

    with KeyedHarness(forgets, key="user", state={"seen": MapState(str, list[int])}) as world:
        world.push({"user": "ann", "v": 1})
        world.snapshot()
        world.push({"user": "ann", "v": 2})
        with pytest.raises(InvalidJob, match=r"changed in place but not stored"):
            world.snapshot()


def test_nothing_is_left_behind() -> None:
    world = harness()
    folder: Path = world._directory
    world.push(row("ann", 1, 1))
    world.snapshot()
    assert folder.exists()
    world.close()
    assert not folder.exists()


class AtTheirTimes:
    """Sets a timer at the datetime of each row, and a timer of the wall clock."""

    def process(self, user: str, row: Row, ctx: ProcessContext) -> None:
        ctx.timers.register(row["due"])
        ctx.timers.register(row["due"] + datetime.timedelta(seconds=1))
        ctx.timers.delete(row["due"] + datetime.timedelta(seconds=1))
        ctx.wall_timers.register(row["due"].replace(tzinfo=None))

    def on_timer(self, user: str, timestamp_ms: int, ctx: ProcessContext) -> Row:
        return {"user": user, "at": timestamp_ms}

    def on_wall_timer(self, user: str, due_ms: int, ctx: ProcessContext) -> Row:
        return {"user": user, "at": -due_ms}


def test_timers_and_the_harness_take_datetimes() -> None:
    due = datetime.datetime(2026, 1, 31, 12, 0, 0, 5_700, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    utc = datetime.datetime(2026, 1, 31, 10, 0, 0, 5_000)
    due_ms = int(utc.replace(tzinfo=datetime.timezone.utc).timestamp() * 1000)
    with KeyedHarness(AtTheirTimes, key="user", event_time="at") as world:
        world.push(
            {"user": "ann", "at": due - datetime.timedelta(hours=1), "due": due.astimezone(datetime.timezone.utc)}
        )
        assert world.timers("ann") == world.wall_timers("ann") == [due_ms]
        assert world.watermark(utc - datetime.timedelta(milliseconds=1)) == []
        assert world.watermark(due) == [{"user": "ann", "at": due_ms}]
        assert world.wall(utc) == [{"user": "ann", "at": -due_ms}]
