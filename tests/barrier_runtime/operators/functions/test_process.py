"""Keyed functions with state and timers, called with single rows, over snapshots and restores."""

import dataclasses
import datetime
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Kind, World

from barrier_runtime import ProcessContext, ValueState
from barrier_runtime.data.elements import WATERMARK_MAX
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.state.errors import InvalidJob, Unavailable, UserCodeError
from tests.drawn import examples

Row = dict[str, Any]
KINDS: list[Kind] = ["memory", "rocksdb"]


HEARD = pa.schema([("key", pa.string()), ("at", pa.int64()), ("heard", pa.list_(pa.int64()))])


class Totals:
    total = ValueState(int, default=0)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Iterator[Row]:
        self.total.value += row["n"]
        yield {"key": key, "total": self.total.value}


class Reminder:
    """Emits the received values after 10 ms of silence."""

    heard = ValueState(list[int], default_factory=list)
    due = ValueState(int)

    def process(self, key: Any, row: Row, ctx: ProcessContext) -> None:
        assert ctx.timestamp is not None
        if self.due.value is not None:
            ctx.timers.delete(self.due.value)
        heard = self.heard.value
        heard.append(row["n"])
        self.heard.update(heard)
        self.due.value = ctx.timestamp + 10
        ctx.timers.register(ctx.timestamp + 10)

    def on_timer(self, key: Any, timestamp_ms: int, ctx: ProcessContext) -> Row:
        row = {"key": str(key), "at": timestamp_ms, "heard": self.heard.value}
        self.heard.clear()
        self.due.clear()
        return row


def totals(**options: Any) -> ProcessOperator:
    return ProcessOperator("p", ["k"], Totals, **options)


def reminder(keys: tuple[str, ...] = ("k",)) -> ProcessOperator:
    return ProcessOperator("p", list(keys), Reminder, event_time="t", output=HEARD)


def test_every_key_has_its_own_value() -> None:
    driven = Driven(totals())
    driven.feed([{"k": "a", "n": 1}, {"k": "b", "n": 5}, {"k": "a", "n": 2}], emit_ns=4)
    assert driven.rows == [{"key": "a", "total": 1}, {"key": "b", "total": 5}, {"key": "a", "total": 3}]
    assert driven.batches[0].emit_ns == 4


@pytest.mark.parametrize("kind", KINDS)
def test_state_goes_on_after_a_restore_and_rows_after_the_barrier_are_not_in_it(kind: Kind) -> None:
    world = World(kind)
    driven = Driven(totals(), world, name="p")
    driven.feed([{"k": "a", "n": 1}, {"k": None, "n": 7}])
    capture = driven.operator.snapshot(1)
    driven.feed([{"k": "a", "n": 100}])
    snapshot = world.finish("p", 1, capture)
    driven.operator.close()
    driven = Driven(totals(), world, (snapshot,), name="p")
    driven.feed([{"k": "a", "n": 1}, {"k": None, "n": 1}])
    assert driven.rows == [{"key": "a", "total": 2}, {"key": None, "total": 8}]
    driven.operator.close()


def test_changing_a_value_in_place_after_the_barrier_does_not_reach_the_snapshot() -> None:
    class Collect:
        seen = ValueState(list[int], default_factory=list)

        def process(self, key: int, row: Row, ctx: ProcessContext) -> Row:
            seen = self.seen.value
            seen.append(row["n"])
            self.seen.update(seen)
            return {"seen": list(seen)}

    world = World()
    driven = Driven(ProcessOperator("p", ["k"], Collect), world, name="p")
    driven.feed([{"k": 1, "n": 1}])
    capture = driven.operator.snapshot(1)
    driven.feed([{"k": 1, "n": 2}])
    driven = Driven(ProcessOperator("p", ["k"], Collect), world, (world.finish("p", 1, capture),), name="p")
    driven.feed([{"k": 1, "n": 3}])
    assert driven.rows == [{"seen": [1, 3]}]


def test_several_key_columns_come_as_a_tuple_and_dates_as_dates() -> None:
    seen = []
    day = datetime.date(2013, 1, 1)
    operator = ProcessOperator("p", ["k", "day"], lambda key, row, ctx: seen.append((key, ctx.key)))
    Driven(operator).feed([{"k": "a", "day": day, "n": 1}])
    assert seen == [(("a", day), ("a", day))]


def test_a_plain_function_finds_its_states_in_the_context() -> None:
    def count_up(key: str, row: Row, ctx: ProcessContext) -> list[Row]:
        ctx.state.n.value += 1
        return [{"key": key, "n": ctx.state.n.value}]

    driven = Driven(ProcessOperator("p", ["k"], count_up, {"n": ValueState(int, default=0)}))
    driven.feed([{"k": "a"}, {"k": "a"}])
    assert [row["n"] for row in driven.rows] == [1, 2]


def test_two_subtasks_of_one_object_do_not_share_its_attributes() -> None:
    prototype = Totals()
    first, second = (Driven(ProcessOperator("p", ["k"], prototype)) for _ in range(2))
    first.feed([{"k": "a", "n": 1}])
    second.feed([{"k": "a", "n": 10}])
    first.feed([{"k": "a", "n": 1}])
    assert [row["total"] for row in first.rows + second.rows] == [1, 2, 10]


def test_clear_and_none_bring_back_the_default() -> None:
    class Forget:
        n = ValueState(int, default=40)

        def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
            before = self.n.value
            self.n.value = row["n"]
            if row["n"] == 3:
                self.n.clear()
            return {"before": before}

    driven = Driven(ProcessOperator("p", ["k"], Forget))
    driven.feed([{"k": "a", "n": n} for n in (1, 3, None, 2, 5)])
    assert [row["before"] for row in driven.rows] == [40, 1, 40, 40, 2]


# ---------------------------------------------------------------- types of state


@dataclasses.dataclass
class Named:
    name: str
    number: int = 0


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


def keep(kind: Any, value: Any, **options: Any) -> ProcessOperator:
    def function(key: Any, row: Row, ctx: ProcessContext) -> Row:
        before = repr(ctx.state.kept.value)
        if value is not None:
            ctx.state.kept.update(value)
        return {"before": before}

    return ProcessOperator("p", ["k"], function, {"kept": ValueState(kind, **options)})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, -5),
        (float, 2.5),
        (str, "é"),
        (bytes, b"\x00"),
        (bool, True),
        (list[int], [1, 2]),
        (dict[str, float], {"a": 1.0}),
        (set[int], {1, 2}),
        (tuple[int, str], (1, "a")),
        (datetime.datetime, datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)),
        (Named, Named("a", 1)),
        (Point, Point(1, 2.0)),
    ],
)
def test_every_declared_type_comes_back_as_itself(kind: Any, value: Any) -> None:
    world = World()
    driven = Driven(keep(kind, value), world, name="p")
    driven.feed([{"k": 1}])
    driven = Driven(keep(kind, value), world, (driven.snapshot(1),), name="p")
    driven.feed([{"k": 1}])
    assert driven.rows[0]["before"] == repr(value)


def test_stored_values_that_the_new_type_cannot_read_are_named_with_the_remedy() -> None:
    world = World()
    driven = Driven(keep(str, "text"), world, name="p")
    driven.feed([{"k": 1}])
    snapshot = driven.snapshot(1)
    with pytest.raises(InvalidJob, match=r"state 'kept': its values were str in the checkpoint and are int now"):
        Driven(keep(int, None), world, (snapshot,), name="p")
    older = msgspec.structs.replace(snapshot, keyed=msgspec.structs.replace(snapshot.keyed, described={}))
    driven = Driven(keep(int, None), world, (older,), name="p")  # a snapshot without types
    with pytest.raises(InvalidJob, match=r"state 'kept': the stored value cannot be read as <class 'int'>"):
        driven.feed([{"k": 1}])


def test_a_value_of_the_wrong_type_is_refused_when_it_is_stored() -> None:
    driven = Driven(keep(int, "text"))
    with pytest.raises(InvalidJob, match=r"state 'kept' is declared int, but 'text' \(str\) is stored"):
        driven.feed([{"k": 1}])


def test_unreadable_state_value_is_refused_before_the_checkpoint_completes() -> None:
    driven = Driven(keep(list[int], ["text"]))
    driven.feed([{"k": 1}])
    with pytest.raises(InvalidJob, match="does not fit its declared type"):
        driven.snapshot(1)


def test_an_object_that_msgspec_cannot_write_needs_pickle_by_name() -> None:
    with pytest.raises(InvalidJob, match='codec="pickle"'):
        ValueState(ProcessOperator)
    world = World()
    driven = Driven(keep(complex, 1j, codec="pickle"), world, name="p")
    driven.feed([{"k": 1}])
    driven = Driven(keep(complex, None, codec="pickle"), world, (driven.snapshot(1),), name="p")
    driven.feed([{"k": 1}])
    assert driven.rows == [{"before": "1j"}]


def test_a_numpy_number_is_stored_as_a_number() -> None:
    import numpy as np

    driven = Driven(keep(int, np.int64(5)))
    driven.feed([{"k": 1}, {"k": 1}])
    assert driven.rows[1] == {"before": "5"}


def test_a_mutable_default_and_a_state_outside_process_are_refused() -> None:
    with pytest.raises(InvalidJob, match="default_factory=list"):
        ValueState(list[int], [])
    with pytest.raises(InvalidJob, match="outside a keyed function"):
        _ = Totals().total.value
    with pytest.raises(InvalidJob, match="is declared in"):
        Driven(ProcessOperator("p", ["k"], Totals, {"total": ValueState(int)})).feed([{"k": 1, "n": 1}])


# ---------------------------------------------------------------- timers


def test_a_timer_fires_once_when_the_watermark_reaches_it() -> None:
    driven = Driven(reminder())
    driven.feed([{"k": "a", "t": 100, "n": 1}, {"k": "a", "t": 105, "n": 2}])
    driven.watermark(114)
    assert driven.rows == []
    driven.watermark(115)
    assert driven.take() == [{"key": "a", "at": 115, "heard": [1, 2]}]
    driven.watermark(WATERMARK_MAX)
    assert driven.rows == []


def test_timers_fire_in_the_order_of_time_then_key() -> None:
    driven = Driven(reminder(("k", "j")))
    rows = [{"k": k, "j": j, "t": t, "n": 0} for k, j, t in [("b", 1, 5), ("a", None, 5), ("a", 2, 5), ("z", 0, 1)]]
    driven.feed(rows)
    driven.watermark(50)
    assert [row["key"] for row in driven.rows] == ["('z', 0)", "('a', None)", "('a', 2)", "('b', 1)"]


def test_a_timer_registered_twice_fires_once_and_a_deleted_one_never() -> None:
    class Often:
        def process(self, key: int, row: Row, ctx: ProcessContext) -> None:
            ctx.timers.register(10)
            ctx.timers.register(10)
            ctx.timers.register(20)
            ctx.timers.delete(20)
            ctx.timers.delete(99)
            ctx.timers.register(30)
            ctx.timers.delete(30)
            ctx.timers.register(30)

        def on_timer(self, key: int, timestamp_ms: int, ctx: ProcessContext) -> Row:
            return {"at": timestamp_ms, "watermark": ctx.watermark, "timestamp": ctx.timestamp}

    driven = Driven(ProcessOperator("p", ["k"], Often))
    driven.feed([{"k": 1}])
    driven.watermark(40)
    assert driven.rows == [{"at": at, "watermark": at, "timestamp": at} for at in (10, 30)]


def test_a_timer_may_register_the_next_and_the_end_of_input_ends_that() -> None:
    class Every10:
        def process(self, key: int, row: Row, ctx: ProcessContext) -> None:
            ctx.timers.register(10)

        def on_timer(self, key: int, timestamp_ms: int, ctx: ProcessContext) -> Row:
            ctx.timers.register(timestamp_ms + 10)
            return {"at": timestamp_ms}

    driven = Driven(ProcessOperator("p", ["k"], Every10))
    driven.feed([{"k": 1}])
    driven.watermark(35)
    assert [row["at"] for row in driven.take()] == [10, 20, 30]
    driven.watermark(WATERMARK_MAX)
    assert [row["at"] for row in driven.take()] == [40]


@pytest.mark.parametrize("kind", KINDS)
def test_timers_survive_a_restore_and_fire_before_any_row_came(kind: Kind) -> None:
    world = World(kind)
    driven = Driven(reminder(), world, name="p")
    driven.feed([{"k": datetime.date(2020, 1, day), "t": day, "n": day} for day in (3, 1, 2)])
    driven.watermark(11)
    assert [row["at"] for row in driven.take()] == [11]
    snapshot = driven.snapshot(1)
    driven.operator.close()
    driven = Driven(reminder(), world, (snapshot,), name="p")
    driven.watermark(100)
    assert driven.rows == [{"key": f"2020-01-0{day}", "at": day + 10, "heard": [day]} for day in (2, 3)]
    driven.operator.close()


def test_a_timer_that_nothing_would_handle_is_refused_when_it_is_registered() -> None:
    driven = Driven(ProcessOperator("p", ["k"], lambda key, row, ctx: ctx.timers.register(5)))
    with pytest.raises(InvalidJob, match="registers a timer but nothing handles it"):
        driven.feed([{"k": 1}])


@pytest.mark.parametrize("when", [1.5, True, "noon", 2**63, None, float("inf")])
def test_a_timer_at_no_whole_millisecond_is_refused(when: Any) -> None:
    class Wrong(Reminder):
        def process(self, key: Any, row: Row, ctx: ProcessContext) -> None:
            ctx.timers.register(when)

    with pytest.raises(InvalidJob, match="timer at"):
        Driven(ProcessOperator("p", ["k"], Wrong)).feed([{"k": 1}])


@examples(60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 200)),
            st.tuples(st.just("watermark"), st.integers(0, 250)),
            st.just(("restart", 0)),
        ),
        max_size=25,
    )
)
def test_an_interrupted_run_gives_the_rows_of_an_uninterrupted_one(events: list[tuple[str | None, int]]) -> None:
    def run(restarts: bool) -> list[Row]:
        world, out = World(), []
        driven = Driven(reminder(), world, name="p")
        schema = pa.schema([("k", pa.string()), ("t", pa.int64()), ("n", pa.int64())])
        for number, (what, value) in enumerate(events, 1):
            if what == "watermark":
                driven.watermark(value)
            elif what != "restart":
                driven.feed([{"k": what, "t": value, "n": number}], schema)
            elif restarts:
                snapshot = driven.snapshot(number)
                out += driven.take()
                driven.operator.close()
                driven = Driven(reminder(), world, (snapshot,), name="p")
        driven.watermark(WATERMARK_MAX)
        return out + driven.rows

    assert run(True) == run(False)


# ---------------------------------------------------------------- context and errors


def test_the_context_knows_time_watermark_and_place() -> None:
    seen = []
    operator = ProcessOperator(
        "p",
        ["k"],
        lambda key, row, ctx: seen.append((ctx.timestamp, ctx.watermark, ctx.operator, ctx.subtask)),
        event_time="t",
    )
    driven = Driven(operator)
    driven.watermark(5)
    driven.feed([{"k": 1, "t": 7}, {"k": 1, "t": None}])
    driven.watermark(9)
    driven.feed([{"k": 1, "t": 10}])
    assert seen == [(7, 5, "p", 0), (None, 5, "p", 0), (10, 9, "p", 0)]


def test_an_exception_shows_key_and_record_and_only_the_users_frames() -> None:
    class Broken:
        def process(self, key: str, row: Row, ctx: ProcessContext) -> Iterator[Row]:
            yield {"x": 1 // row["n"]}

    with pytest.raises(UserCodeError) as caught:
        Driven(ProcessOperator("p", ["k"], Broken), name="p").feed([{"k": "a", "n": 1}, {"k": "b", "n": 0}])
    text = str(caught.value)
    assert 'yield {"x": 1 // row["n"]}' in text
    assert "operator 'p', subtask 0, raised ZeroDivisionError" in text
    assert "key: 'b'" in text
    assert "record: {'k': 'b', 'n': 0}" in text
    assert "operators/functions/process.py" not in text


def test_an_exception_in_a_timer_shows_the_key() -> None:
    class Broken(Reminder):
        def on_timer(self, key: Any, timestamp_ms: int, ctx: ProcessContext) -> Row:
            raise KeyError("lost")

    driven = Driven(ProcessOperator("p", ["k"], Broken, event_time="t"))
    driven.feed([{"k": "a", "t": 1, "n": 1}])
    with pytest.raises(UserCodeError, match=r"on_timer\(\) of operator 'p'.*\n  key: 'a'"):
        driven.watermark(100)


def test_a_constructor_that_fails_is_shown_as_user_code() -> None:
    class Broken(Totals):
        def __init__(self) -> None:
            raise RuntimeError("no model file")

    with pytest.raises(UserCodeError, match="RuntimeError: no model file"):
        Driven(ProcessOperator("p", ["k"], Broken)).feed([{"k": "a", "n": 1}])


def test_storage_trouble_inside_the_users_call_stays_what_it_is() -> None:
    def unlucky(key: Any, row: Row, ctx: ProcessContext) -> None:
        raise Unavailable("store away")

    with pytest.raises(Unavailable):
        Driven(ProcessOperator("p", ["k"], unlucky)).feed([{"k": 1}])


def test_the_declared_output_schema_is_used() -> None:
    driven = Driven(totals(output=pa.schema([("key", pa.string()), ("total", pa.int32())])))
    driven.feed([{"k": "a", "n": 1}])
    assert driven.batches[0].rows.schema.types == [pa.string(), pa.int32()]
