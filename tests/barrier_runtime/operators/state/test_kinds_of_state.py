"""`ListState`, `MapState`, `ReducingState` and `AggregatingState` in keyed functions: use, snapshots, restores, and
errors for wrong use.
"""

import dataclasses
import datetime
import enum
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from operator_harness import Driven, Kind, World

from barrier_runtime import (
    AggregatingState,
    CollectSink,
    Dataflow,
    InvalidJob,
    JobFailed,
    ListState,
    MapState,
    ProcessContext,
    ReducingState,
    UserCodeError,
    ValueState,
)
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.testing import KeyedHarness

Row = dict[str, Any]
KINDS: list[Kind] = ["memory", "rocksdb"]
UTC = datetime.timezone.utc


class Mean:
    def zero(self) -> tuple[float, int]:
        return 0.0, 0

    def add(self, total: tuple[float, int], value: float) -> tuple[float, int]:
        return total[0] + value, total[1] + 1

    def result(self, total: tuple[float, int]) -> float:
        return total[0] / total[1]


@dataclasses.dataclass
class Visit:
    page: str
    seconds: float = 0.0


class Point(msgspec.Struct):
    x: int


class Everything:
    recent = ListState(float)
    seen = MapState(str, int)
    peak = ReducingState(float, max)
    mean = AggregatingState(Mean(), tuple[float, int])

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        if row["n"] is None:
            for state in (self.recent, self.seen, self.peak, self.mean):
                state.clear()
        else:
            self.recent.append(row["n"])
            self.seen[str(row["n"])] = self.seen.get(str(row["n"]), 0) + 1
            self.peak.add(row["n"])
            self.mean.add(row["n"])
        return {
            "recent": list(self.recent),
            "seen": repr(dict(self.seen.items())),
            "peak": self.peak.value,
            "mean": self.mean.value,
        }


def operator(function: Any, **states: Any) -> ProcessOperator:
    return ProcessOperator("p", ["k"], function, states)


def once(do: Callable[[Any], Any], **states: Any) -> Any:
    found: list[Any] = []
    Driven(operator(lambda key, row, ctx: found.append(do(ctx.state)), **states)).feed([{"k": 1}])
    return found[0]


def message(do: Callable[[Any], Any], **states: Any) -> str:
    with pytest.raises(InvalidJob) as told:
        once(do, **states)
    return str(told.value)


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_restore_by_key_without_rows_that_came_after_the_barrier(kind: Kind) -> None:
    world = World(kind)
    driven = Driven(operator(Everything), world, name="p")
    driven.feed([{"k": "a", "n": 2}, {"k": "b", "n": 9}, {"k": "a", "n": 1}])
    capture = driven.operator.snapshot(1)
    driven.feed([{"k": "a", "n": 100}, {"k": "b", "n": None}])
    snapshot = world.finish("p", 1, capture)
    driven.operator.close()
    driven = Driven(operator(Everything), world, (snapshot,), name="p")
    driven.feed([{"k": "a", "n": 2}, {"k": "b", "n": None}, {"k": "c", "n": None}])
    empty = {"recent": [], "seen": "{}", "peak": None, "mean": None}
    assert driven.rows == [
        {"recent": [2.0, 1.0, 2.0], "seen": "{'1': 1, '2': 2}", "peak": 2.0, "mean": pytest.approx(5 / 3)},
        empty,
        empty,
    ]
    driven.operator.close()


def test_a_whole_job_uses_all_kinds() -> None:
    rows = [{"k": "ab"[n % 2], "n": float(n)} for n in range(6)]
    flow, out = Dataflow("kinds"), CollectSink()
    numbers = flow.from_iterator("s", lambda index, of: iter(rows), schema={"k": str, "n": float}, splits=1)
    numbers.key_by("k").process("p", Everything).sink("o", out)
    flow.run_local(parallelism=2, checkpoint_interval=0.05)
    assert {"recent": [0.0, 2.0, 4.0], "seen": "{'0.0': 1, '2.0': 1, '4.0': 1}", "peak": 4.0, "mean": 2.0} in out.rows()
    assert len(out.rows()) == 6


# ---------------------------------------------------------------- lists


def test_a_list_does_what_lists_do() -> None:
    def use(state: Any) -> Any:
        items = state.items
        assert not items
        assert list(items) == []
        items.extend(n for n in (1, 2))
        items.append(3)
        items += [4]
        state.items += [5]
        items.extend(items)
        assert items
        assert (len(items), items[0], items[-1], 5 in items) == (10, 1, 5, True)
        with pytest.raises(IndexError, match=r"\[10\]: the list of this key has 10 elements"):
            items[10]
        items.update(sorted(items, reverse=True))
        before = list(items)
        items.update([7])
        return before, list(items), sum(items)

    assert once(use, items=ListState(int)) == ([5, 5, 4, 4, 3, 3, 2, 2, 1, 1], [7], 7)


def test_list_growing_during_iteration_yields_new_elements_and_a_cleared_list_ends() -> None:
    def use(state: Any) -> Any:
        state.items.update([1, 2])
        given = []
        for value in state.items:
            given.append(value)
            if len(state.items) < 4:
                state.items.append(value * 10)
        cleared = []
        for value in state.items:
            cleared.append(value)
            state.items.clear()
        return given, cleared

    assert once(use, items=ListState(int)) == ([1, 2, 10, 20], [1])


def test_an_iteration_stays_with_its_key() -> None:
    kept: list[Iterator[int]] = []

    def function(key: str, row: Row, ctx: ProcessContext) -> None:
        ctx.state.items.append(row["n"])
        kept.append(iter(ctx.state.items))

    Driven(operator(function, items=ListState(int))).feed([{"k": "a", "n": 1}, {"k": "b", "n": 2}])
    assert [list(each) for each in kept] == [[1], [2]]


# ---------------------------------------------------------------- maps


def test_a_map_does_what_dicts_do_in_the_order_of_its_keys() -> None:
    def use(state: Any) -> Any:
        seen = state.seen
        assert not seen
        seen["b"] = 2
        seen["a"] = 1
        seen.update({"d": 4, "c": 3})
        seen.update([("c", 33)])
        assert (seen["a"], seen.get("x"), seen.get("x", 0), "b" in seen, "x" in seen) == (1, None, 0, True, False)
        assert (seen.setdefault("a", 9), seen.setdefault("e", 5)) == (1, 5)
        assert (seen.pop("b"), seen.pop("b", -1)) == (2, -1)
        for refused in (lambda: seen["b"], lambda: seen.pop("b"), lambda: seen.__delitem__("b")):
            with pytest.raises(KeyError, match="b"):
                refused()
        del seen["d"]
        seen["b"] = 7
        assert len(seen) == 4, "an entry that was removed is one more again"
        del seen["b"]
        found = list(seen), list(seen.keys()), list(seen.values()), list(seen.items()), len(seen)
        seen.clear()
        return *found, len(seen), list(seen)

    keys = ["a", "c", "e"]
    items = [("a", 1), ("c", 33), ("e", 5)]
    assert once(use, seen=MapState(str, int)) == (keys, keys, [1, 33, 5], items, 3, 0, [])


class Colour(enum.IntEnum):
    RED = 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("key", "given", "stored"),
    [
        (
            int,
            [2**64 - 1, -5, Colour.RED, np.int64(7), 2**63 - 1, -(2**63)],
            [-(2**63), -5, 2, 7, 2**63 - 1, 2**64 - 1],
        ),
        (str, ["é", "\U0001f600", "", "a\0", "a", "Z"], ["", "Z", "a", "a\0", "é", "\U0001f600"]),
        (bytes, [b"\xff", b"", b"\0", b"\0\xff"], [b"", b"\0", b"\0\xff", b"\xff"]),
        (bool, [True, False], [False, True]),
        (float, [1, -0.0, float("inf"), -1.5], [-1.5, 0.0, 1.0, float("inf")]),
        (datetime.date, [datetime.date(2020, 1, 2), datetime.date(1960, 1, 1)], None),
        (datetime.datetime, [datetime.datetime(2020, 1, 2, 3), datetime.datetime(1960, 1, 1)], None),
        (
            datetime.datetime,
            [
                datetime.datetime(2020, 1, 1, 12, tzinfo=UTC),
                datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
            ],
            [datetime.datetime(2020, 1, 1, hour, tzinfo=UTC) for hour in (11, 12)],
        ),
    ],
)
def test_every_type_of_key_keeps_its_order_and_comes_back_as_itself(
    kind: Kind, key: Any, given: list[Any], stored: list[Any] | None
) -> None:
    found: list[Any] = []

    def function(key: Any, row: Row, ctx: ProcessContext) -> None:
        if row["n"] == 0:
            for each in given:
                ctx.state.seen[each] = repr(each)
        assert all(ctx.state.seen[each] == repr(each) for each in given)
        found.append(list(ctx.state.seen))

    world = World(kind)
    driven = Driven(operator(function, seen=MapState(key, str)), world, name="p")
    driven.feed([{"k": 1, "n": 0}])
    snapshot = driven.snapshot(1)
    driven.operator.close()
    driven = Driven(operator(function, seen=MapState(key, str)), world, (snapshot,), name="p")
    driven.feed([{"k": 1, "n": 1}])
    driven.operator.close()
    expected = sorted(given) if stored is None else stored
    assert found == [expected, expected]
    assert [type(each) for each in found[1]] == [key] * len(expected)


@pytest.mark.parametrize(
    ("kind", "value"), [(Visit, Visit("a", 1.5)), (Point, Point(3)), (list[int], [1]), (bytes, b"\0"), (bool, True)]
)
def test_values_of_every_declared_type_come_back_as_themselves(kind: Any, value: Any) -> None:
    def function(key: Any, row: Row, ctx: ProcessContext) -> Row:
        state = ctx.state
        if row["n"] == 0:
            state.items.append(value)
            state.seen["a"] = value
            state.last.add(value)
        return {"found": repr([*state.items, state.seen["a"], state.last.value])}

    def made() -> ProcessOperator:
        last = ReducingState(kind, lambda before, now: now)
        return operator(function, items=ListState(kind), seen=MapState(str, kind), last=last)

    world = World()
    driven = Driven(made(), world, name="p")
    driven.feed([{"k": 1, "n": 0}])
    driven = Driven(made(), world, (driven.snapshot(1),), name="p")
    driven.feed([{"k": 1, "n": 1}])
    assert driven.rows == [{"found": repr([value] * 3)}]


def test_a_time_with_a_zone_is_in_utc_before_a_restore_as_behind_it() -> None:
    class Times:
        value = ValueState(datetime.datetime)
        elements = ListState(datetime.datetime)
        entries = MapState(int, datetime.datetime)
        latest = ReducingState(datetime.datetime, max)

        def process(self, key: Any, row: Row, ctx: ProcessContext) -> Row:
            if not self.elements:
                at = datetime.datetime(2026, 7, 1, 1, 30, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
                self.value.value = self.entries[1] = at
                self.elements.append(at)
                self.latest.add(at)
            found = (self.value.value, self.elements[0], self.entries[1], self.latest.value)
            return {"shown": " ".join(str(at) for at in found)}

    with KeyedHarness(Times, key="k") as harness:
        (before,) = harness.push({"k": "a"})
        snapshot = harness.snapshot()
    with KeyedHarness(Times, key="k", restore=snapshot) as harness:
        assert harness.push({"k": "a"}) == [before]
    assert set(before["shown"].split("+00:00")) == {"2026-06-30 23:30:00", " 2026-06-30 23:30:00", ""}


@dataclasses.dataclass
class TimedVisit:
    at: datetime.datetime | None
    n: int = 0


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        (TimedVisit, lambda at: TimedVisit(at)),
        (list[TimedVisit], lambda at: [TimedVisit(None), TimedVisit(at, 2)]),
        (dict[str, list[datetime.datetime]], lambda at: {"a": [at]}),
        (dict[datetime.datetime, int], lambda at: {at: 1}),
        (tuple[datetime.datetime, int], lambda at: (at, 1)),
        (dict, lambda at: {"a": {"b": [1, at]}}),
    ],
)
def test_times_inside_classes_and_containers_are_in_utc_before_and_after_a_restore(kind: Any, made: Any) -> None:
    class Times:
        value = ValueState(kind)
        elements = ListState(kind)
        entries = MapState(int, kind)
        latest = ReducingState(kind, lambda before, now: now)

        def process(self, key: Any, row: Row, ctx: ProcessContext) -> Row:
            if self.value.value is None:
                given = made(
                    datetime.datetime(2026, 7, 1, 1, 30, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
                )
                self.value.value = self.entries[1] = given
                self.elements.append(given)
                self.latest.add(given)
                assert self.value.value == given
                assert "7, 1, 1, 30" in repr(given)
            return {"shown": repr((self.value.value, self.elements[0], self.entries[1], self.latest.value))}

    with KeyedHarness(Times, key="k") as harness:
        (before,) = harness.push({"k": "a"})
        snapshot = harness.snapshot()
    with KeyedHarness(Times, key="k", restore=snapshot) as harness:
        assert harness.push({"k": "a"}) == [before]
    assert before["shown"].count("2026, 6, 30, 23, 30, tzinfo=datetime.timezone.utc") == 4


def test_what_msgspec_cannot_write_is_kept_with_pickle_by_name() -> None:
    with pytest.raises(InvalidJob, match=r'ListState\(.*complex.*\): msgspec cannot write .*codec="pickle"'):
        ListState(complex)
    assert once(
        lambda state: (state.items.append(1j), state.seen.update({"a": 2j}), [*state.items, state.seen["a"]])[2],
        items=ListState(complex, codec="pickle"),
        seen=MapState(str, complex, codec="pickle"),
    ) == [1j, 2j]


# ---------------------------------------------------------------- aggregated values


def test_an_aggregate_may_change_its_accumulator_in_place() -> None:
    class Texts:
        def zero(self) -> list[str]:
            return []

        def add(self, texts: list[str], text: str) -> list[str]:
            texts.append(text)
            return texts

        def result(self, texts: list[str]) -> str:
            return "-".join(texts)

    def function(key: Any, row: Row, ctx: ProcessContext) -> Row:
        ctx.state.texts.add(row["t"])
        return {"all": ctx.state.texts.value}

    def made() -> ProcessOperator:
        return operator(function, texts=AggregatingState(Texts(), list[str]))

    world = World()
    driven = Driven(made(), world, name="p")
    driven.feed([{"k": 1, "t": "a"}, {"k": 2, "t": "x"}])
    capture = driven.operator.snapshot(1)
    driven.feed([{"k": 1, "t": "lost"}])
    driven = Driven(made(), world, (world.finish("p", 1, capture),), name="p")
    driven.feed([{"k": 1, "t": "b"}])
    assert driven.rows == [{"all": "a-b"}]


def test_an_error_in_the_users_own_reduction_is_shown_as_user_code() -> None:
    def fails(before: int, now: int) -> int:
        raise ZeroDivisionError("by the user")

    with pytest.raises(UserCodeError, match="by the user"):
        once(lambda state: (state.n.add(1), state.n.add(2)), n=ReducingState(int, fails))


# ---------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (lambda: ListState(None), r"ListState\(None\) could hold nothing: declare the type .* as in ListState\(int\)"),
        (lambda: ValueState(None), r"ValueState\(None\) could hold nothing"),
        (lambda: MapState(str, None), r"MapState\(None\) could hold nothing"),
        (
            lambda: MapState(None, int),
            "MapState keys cannot be None: use int, str, bytes, bool, float, date or datetime",
        ),
        (lambda: MapState(tuple, int), "MapState keys cannot be .*join several fields into a text"),
        (lambda: MapState(tuple[str, int], int), "MapState keys cannot be"),
        (lambda: ListState(int, codec="json"), "ListState codec 'json' is unknown: use 'msgpack' or 'pickle'"),
        (lambda: ReducingState(int, None), "ReducingState reduces with None, which is not a function"),
        (lambda: AggregatingState(Mean, tuple[float, int]), r"pass an object with zero\(\), add\(accumulator, value\)"),
        (lambda: AggregatingState(object(), int), r"AggregatingState of <object .*pass an object"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused_when_it_is_written(declare: Callable[[], Any], told: str) -> None:
    with pytest.raises(InvalidJob, match=told):
        declare()


@pytest.mark.parametrize(
    ("state", "use", "told"),
    [
        (
            ListState(float),
            lambda s: s.append("x"),
            r"state 'it' is declared float, but 'x' \(str\) is stored: convert",
        ),
        (ListState(int), lambda s: s.extend([1, 2.5]), r"state 'it' is declared int, but 2.5 \(float\) is stored"),
        (ListState(int), lambda s: s.append(2**64), "cannot hold a number of 65 bits"),
        (ListState(str), lambda s: s.append("\ud800"), "halves of characters"),
        (ListState(int), lambda s: s.append(None), r"None cannot be an element of ctx.state.it: leave it out"),
        (ListState(int), lambda s: s[0:1], r"for parts of it take list\(ctx.state.it\)"),
        (
            ListState(int),
            lambda s: s.pop(),
            r"ctx.state.it is a ListState, which has no pop: .*ctx.state.it.update\(…\)",
        ),
        (ListState(int), lambda s: s.__setitem__(0, 1), "is a ListState, which has no __setitem__"),
        (
            MapState(str, int),
            lambda s: s.get(5),
            r"state 'it' has keys of type str, but 5 \(int\) is given: convert it",
        ),
        (MapState(str, int), lambda s: 5 in s, "has keys of type str, but 5"),
        (MapState(int, int), lambda s: s[True], r"has keys of type int, but True \(bool\) is given"),
        (MapState(int, int), lambda s: s.get(2**64), "cannot have a key of 65 bits"),
        (MapState(str, int), lambda s: s.get("\ud800"), "halves of characters"),
        (MapState(float, int), lambda s: s.get(float("nan")), "NaN cannot be a key"),
        (MapState(datetime.date, int), lambda s: s.get(datetime.datetime(2020, 1, 1)), "keys of type date, but"),
        (MapState(str, int), lambda s: s.__setitem__("a", "b"), "state 'it' is declared int, but 'b'"),
        (MapState(str, int), lambda s: s.__setitem__("a", None), r"remove the entry with del ctx.state.it\[…\]"),
        (MapState(str, int), lambda s: s.append(1), r"is a MapState, which has no append: change it with"),
        (ReducingState(int, max), lambda s: s.add("x"), "state 'it' is declared int, but 'x'"),
        (ReducingState(int, max), lambda s: s.add(None), "None cannot be added to ctx.state.it"),
        (ReducingState(int, max), lambda s: s > 5, "is a ReducingState, not its value .*ctx.state.it.value"),
        (AggregatingState(Mean(), tuple[float, int]), lambda s: float(s), "is an AggregatingState, not its value"),
    ],
)
def test_wrong_use_is_told_with_the_state_and_the_remedy(state: Any, use: Callable[[Any], Any], told: str) -> None:
    assert re.search(told, message(lambda states: use(states.it), it=state))


def test_a_reduction_that_gives_nothing_is_told() -> None:
    told = message(lambda state: (state.n.add(1), state.n.add(2)), n=ReducingState(int, lambda before, now: None))
    assert "returned None, which state 'n' cannot hold: return the new value" in told


def test_value_of_another_shape_is_refused_by_entry_before_checkpoint_completion() -> None:
    function = lambda key, row, ctx: ctx.state.items.append(["text"])  # noqa: E731
    driven = Driven(operator(function, items=ListState(list[int])), name="p")
    driven.feed([{"k": "a"}])
    with pytest.raises(InvalidJob, match=r"key 'a', entry 0 of process 'p', state 'items': .*does not fit .*ListState"):
        driven.snapshot(1)


@pytest.mark.parametrize(
    ("state", "value", "told"),
    [
        (ListState(int), [], r"\[\] is assigned to self.it, which is a ListState: write self.it.update\(…\)"),
        (MapState(str, int), {}, r"{} is assigned to self.it, which is a MapState: write self.it\[…\] = …"),
        (ReducingState(int, max), 5, r"5 is assigned to self.it, which is a ReducingState: write self.it.clear\(\)"),
        (AggregatingState(Mean(), tuple[float, int]), 5, "which is an AggregatingState"),
    ],
)
@pytest.mark.parametrize("in_init", [False, True])
def test_an_assignment_to_the_handle_is_refused(state: Any, value: Any, told: str, in_init: bool) -> None:
    class Assigns:
        if not in_init:
            it = state

        def __init__(self) -> None:
            if in_init:
                self.it: Any = state

        def process(self, key: Any, row: Row, ctx: ProcessContext) -> None:
            self.it = value

    with pytest.raises(InvalidJob, match=told):
        Driven(operator(Assigns)).feed([{"k": 1}])
    with pytest.raises(InvalidJob, match=told.replace("self", "ctx.state")):
        once(lambda states: setattr(states, "it", value), it=state)


@pytest.mark.parametrize("use", [len, list, lambda it: it.clear(), lambda it: it.add(1), lambda it: it.value])
def test_state_is_not_touched_outside_a_keyed_function(use: Callable[[Any], Any]) -> None:
    kinds = [ListState(int), MapState(str, int), ReducingState(int, max), AggregatingState(Mean(), tuple[float, int])]
    told = 0
    for it in kinds:
        try:
            use(it)
        except InvalidJob as error:
            told += "is used outside a keyed function" in str(error)
        except AttributeError:
            pass  # the kind of state has no such method
    assert told >= 2


class Changes:
    seen = MapState(str, list[int])

    def process(self, key: str, row: Row, ctx: ProcessContext) -> None:
        if "a" in self.seen:
            self.seen["a"].append(row["n"])
        else:
            self.seen["a"] = [row["n"]]


@pytest.mark.slow
def test_an_entry_that_is_changed_in_place_and_not_stored_ends_a_local_job(tmp_path: Any) -> None:
    (tmp_path / "in").mkdir()

    def run(day: str) -> None:
        (tmp_path / "in" / day).write_text('{"k": "b", "n": 1}\n')
        flow = Dataflow("natural")
        source = flow.read_jsonl("s", str(tmp_path / "in"), schema={"k": str, "n": int})
        source.key_by("k").process("p", Changes, schema={"n": int}).sink("o", CollectSink())
        flow.run_local(parallelism=1, checkpoints=str(tmp_path / "checkpoints"))

    run("1.jsonl")
    told = r"p, state 'seen', key 'b', entry 'a': its value was changed in place but not stored.*: store it again \("
    with pytest.raises(JobFailed, match=told):
        run("2.jsonl")


class StoresOneForTwo:
    items = ListState(list[int])

    def process(self, key: str, row: Row, ctx: ProcessContext) -> None:
        one = [1]
        self.items.append(one)
        self.items.append(one)


def test_an_object_that_is_stored_for_two_entries_ends_a_local_job() -> None:
    rows = [{"k": "b"}]
    flow = Dataflow("natural")
    source = flow.from_iterator("s", lambda index, of: iter(rows), schema={"k": str}, splits=1)
    source.key_by("k").process("p", StoresOneForTwo, schema={"n": int}).sink("o", CollectSink())
    with pytest.raises(
        JobFailed, match="key 'b', entry 1: the object that is stored for it is also that of key 'b', entry 0"
    ):
        flow.run_local(parallelism=1)


def test_a_state_that_was_of_another_kind_is_refused_with_the_remedy() -> None:
    world = World()
    driven = Driven(operator(lambda key, row, ctx: ctx.state.it.append(1), it=ListState(int)), world, name="p")
    driven.feed([{"k": 1}])
    with pytest.raises(InvalidJob, match="state 'it' was written as a ListState and is a MapState with keys of type"):
        Driven(operator(lambda key, row, ctx: None, it=MapState(str, int)), world, (driven.snapshot(1),), name="p")
