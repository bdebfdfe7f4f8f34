"""Connected functions: named inputs that share state, broadcast state in every subtask, errors for wrong use."""

import dataclasses
import datetime
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime import (
    TTL,
    BroadcastState,
    Corrupt,
    InvalidJob,
    ListState,
    MapState,
    ProcessContext,
    ReducingState,
    UserCodeError,
    ValueState,
    WrongUse,
)
from barrier_runtime.operators.base import Capture
from barrier_runtime.operators.state.broadcast_copy import SUMMARY, BroadcastCopies, StoredCopies
from barrier_runtime.state.snapshots.snapshot import FileRef, OperatorSnapshot
from barrier_runtime.testing import ConnectedHarness, ConnectedHarnessSnapshot, KeyedHarness
from tests.drawn import examples

Row = dict[str, Any]
KEYS = {"orders": "id", "payments": "order_id"}


class Match:
    """Orders wait for their payment; those above the limit of their shop are refused."""

    order = ValueState(float)
    limits = BroadcastState(str, float)

    def on_orders(self, key: int, row: Row, ctx: ProcessContext) -> Iterator[Row]:
        if row["amount"] > self.limits.get(row["shop"], 100.0):
            ctx.emit("refused", {"id": key})
        else:
            self.order.value = row["amount"]
            ctx.timers.register((ctx.timestamp or 0) + 10)
        yield from ()

    def on_payments(self, key: int, row: Row, ctx: ProcessContext) -> Row | None:
        if self.order.value is None:
            return None
        open_amount, self.order.value = self.order.value, None
        ctx.timers.delete((ctx.timestamp or 0) + 10)
        return {"id": key, "left": open_amount - row["eur"]}

    def on_rules(self, row: Row, ctx: ProcessContext) -> Iterator[Row]:
        if row["max"] is None:
            self.limits.pop(row["shop"], None)
        else:
            self.limits[row["shop"]] = row["max"]
        yield {"id": -1, "left": float(len(self.limits))}

    def on_timer(self, key: int, timestamp_ms: int, ctx: ProcessContext) -> Row | None:
        return None if self.order.value is None else {"id": key, "left": self.order.value}


def match(**options: Any) -> ConnectedHarness:
    options = {"side": {"refused": {"id": int}}, "event_time": {"orders": "at", "payments": "at"}, **options}
    rows = {"rules": {"shop": str, "max": float}}
    return ConnectedHarness(Match, keys=KEYS, broadcast=["rules"], rows=rows, **options)


@pytest.mark.parametrize("parallelism", [1, 5])
def test_inputs_of_other_columns_meet_by_key_values_under_rules_all_subtasks_have(
    parallelism: int,
) -> None:
    with match(parallelism=parallelism) as harness:
        orders = [{"id": id, "shop": "ab"[id % 2], "amount": 10.0 * id, "at": 0} for id in range(8)]
        assert harness.push("rules", {"shop": "a", "max": 30.0}) == [{"id": -1, "left": 1.0}], "once, of all subtasks"
        assert harness.push("orders", *orders) == []
        assert harness.side("refused") == [{"id": 4}, {"id": 6}]
        assert harness.push("payments", {"order_id": 3, "eur": 12.0, "at": 0}) == [{"id": 3, "left": 18.0}]
        assert harness.push("payments", {"order_id": 6, "eur": 12.0, "at": 0}) == []
        assert harness.broadcast("limits") == {"a": 30.0}
        assert harness.state(5)["order"] == 50.0
        assert harness.timers(5) == [10]
        assert sorted(row["id"] for row in harness.watermark(10)) == [0, 1, 2, 5, 7], "3 is paid"


@pytest.mark.parametrize(("before", "after"), [(1, 5), (5, 2), (2, 1), (3, 3)])
def test_keyed_and_broadcast_state_go_on_at_another_parallelism(before: int, after: int) -> None:
    with match(parallelism=before) as harness:
        harness.push("rules", {"shop": "b", "max": 1.0}, {"shop": "a", "max": 2.0}, {"shop": "b", "max": 3.0})
        harness.push("orders", *({"id": id, "shop": "c", "amount": 1.0 * id, "at": 0} for id in range(9)))
        snapshot = harness.snapshot()
        harness.push("rules", {"shop": "b", "max": None})
    with match(parallelism=after, restore=snapshot) as harness:
        assert list(harness.broadcast("limits").items()) == [("b", 3.0), ("a", 2.0)]
        payments = [{"order_id": id, "eur": 1.0, "at": 0} for id in range(9)]
        assert harness.push("payments", *payments) == [{"id": id, "left": id - 1.0} for id in range(9)]


def test_the_snapshot_has_the_content_once_and_describes_the_state() -> None:
    with match(parallelism=3) as harness:
        harness.push("rules", {"shop": "a", "max": 2.0})
        content = harness.snapshot().content
    shared = [sorted(name for name in each.values if name.startswith("shared-")) for each in content.operators]
    assert shared == [[SUMMARY, f"{SUMMARY}-0"], [SUMMARY], [SUMMARY]]
    assert len({each.values[SUMMARY] for each in content.operators}) == 1
    for each in content.operators:
        assert each.keyed is not None
        found = each.keyed.described["limits"]
        assert found == Match.limits.declared()
        assert (found.kind, found.key) == ("broadcast", "str")


# ---------------------------------------------------------------- against a dict

NAMES = st.sampled_from("abcdef")
STEP = st.one_of(
    st.tuples(st.just("set"), NAMES, st.integers(0, 9)),
    st.tuples(st.sampled_from(["del", "pop"]), NAMES, st.just(0)),
    st.tuples(st.just("setdefault"), NAMES, st.integers(0, 9)),
    st.tuples(st.sampled_from(["clear", "crash", "snapshot"]), st.just(""), st.just(0)),
    st.tuples(st.just("restore"), st.just(""), st.sampled_from([1, 2, 5])),
)


class Commands:
    """Executes the commands in broadcast rows; rows of the other input report the state."""

    rules = BroadcastState(str, list[int])

    def on_told(self, row: Row, ctx: ProcessContext) -> None:
        rules, what, name, value = self.rules, row["what"], row["name"], row["value"]
        if what == "set":
            rules[name] = [*rules.get(name, []), value]
        elif what == "del" and name in rules:
            del rules[name]
        elif what == "pop":
            rules.pop(name, None)
        elif what == "setdefault":
            rules.setdefault(name, [value]).append(99)  # of a copy
        elif what == "clear":
            rules.clear()

    def on_asked(self, key: int, row: Row, ctx: ProcessContext) -> Row:
        return {"key": key, "rules": repr(list(self.rules.items())), "n": len(self.rules), "a": "a" in self.rules}


def told(model: dict[str, list[int]], what: str, name: str, value: int) -> None:
    if what == "set":
        model[name] = [*model.get(name, []), value]
    elif what in ("del", "pop"):
        model.pop(name, None)
    elif what == "setdefault":
        model.setdefault(name, [value])
    elif what == "clear":
        model.clear()


@pytest.mark.slow
@examples(200)
@given(steps=st.lists(STEP, max_size=25), parallelism=st.sampled_from([1, 2, 5]))
def test_every_subtask_has_what_a_dict_has_over_crashes_and_rescaling(
    steps: list[tuple[str, str, int]], parallelism: int
) -> None:
    def opened(restore: ConnectedHarnessSnapshot | None) -> ConnectedHarness:
        rows = {"told": {"what": str, "name": str, "value": int}, "asked": {"k": int}}
        return ConnectedHarness(
            Commands, keys={"asked": "k"}, broadcast=["told"], rows=rows, parallelism=parallelism, restore=restore
        )

    model: dict[str, list[int]] = {}
    snapshot, saved = None, dict(model)
    harness = opened(None)
    for what, name, value in steps:
        if what in ("snapshot", "restore"):
            snapshot, saved = harness.snapshot(), {key: list(values) for key, values in model.items()}
        if what in ("crash", "restore"):
            parallelism = value or parallelism
            harness.close()
            harness, model = opened(snapshot), {key: list(values) for key, values in saved.items()}
        else:
            harness.push("told", {"what": what, "name": name, "value": value})
            told(model, what, name, value)
        assert list(harness.broadcast("rules").items()) == list(model.items())
    seen = harness.push("asked", *({"k": key} for key in range(6)))
    expected = {"rules": repr(list(model.items())), "n": len(model), "a": "a" in model}
    assert seen == [{"key": key, **expected} for key in range(6)]
    harness.close()


# ---------------------------------------------------------------- several broadcast inputs


class Ordered:
    """Broadcast function whose state depends on the order of both broadcast inputs."""

    log = BroadcastState(int, str)

    def on_first(self, row: Row, ctx: ProcessContext) -> None:
        self.log[len(self.log)] = f"first {row['a']} {row['at']:%M:%S.%f}"

    def on_second(self, row: Row, ctx: ProcessContext) -> None:
        self.log[len(self.log)] = f"second {row['b']} {self.log.get(0)}"

    def on_keyed(self, key: int, row: Row, ctx: ProcessContext) -> None:
        """Only to have a key."""


def test_several_broadcast_inputs_are_one_sequence_in_every_subtask() -> None:
    rows = {"first": {"a": int, "at": pa.timestamp("ns", "UTC")}, "second": {"b": pa.list_(pa.string())}}
    with ConnectedHarness(
        Ordered, keys={"keyed": "k"}, broadcast=["first", "second"], rows=rows, parallelism=3
    ) as harness:
        at = datetime.datetime(2026, 1, 1, 0, 0, 1, 5, datetime.timezone.utc)
        harness.push("second", {"b": ["x"]}, {"b": None})
        harness.push("first", {"a": 7, "at": at})
        assert harness.broadcast("log") == {
            0: "second ['x'] None",
            1: "second None second ['x'] None",
            2: "first 7 00:01.000005",
        }


# ---------------------------------------------------------------- values


@dataclasses.dataclass
class Rule:
    shop: str
    most: float
    tags: set[str] = dataclasses.field(default_factory=set)


class Ruled:
    rules = BroadcastState(int, Rule)

    def on_rules(self, row: Row, ctx: ProcessContext) -> None:
        self.rules[row["n"]] = Rule("a", 1.5, {"x", "y", "z"})

    def on_rows(self, key: int, row: Row, ctx: ProcessContext) -> Row:
        rule = self.rules[7]
        rule.most = 9.0  # changes only the copy that was read
        rule.tags.clear()
        return {"rule": repr(self.rules[7].most), "tags": len(self.rules[7].tags)}


def ruled(function: Any = Ruled, **options: Any) -> ConnectedHarness:
    return ConnectedHarness(
        function, keys={"rows": "k"}, broadcast=["rules"], rows={"rules": {"n": int}, "rows": {"k": int}}, **options
    )


def test_a_value_that_is_read_is_a_copy_that_changes_nobodys_state() -> None:
    with ruled(parallelism=2) as harness:
        harness.push("rules", {"n": 7})
        for _ in range(2):
            assert harness.push("rows", {"k": 1}) == [{"rule": "1.5", "tags": 3}]
        harness.snapshot()


def test_fields_of_values_may_be_renamed_and_kinds_may_not_change() -> None:
    with ruled() as harness:
        harness.push("rules", {"n": 7})
        snapshot = harness.snapshot()

    @dataclasses.dataclass
    class Renamed:
        shop: str
        limit: float

    class Later:
        rules = BroadcastState(int, Renamed, renamed={"most": "limit", "tags": None})

        def on_rules(self, row: Row, ctx: ProcessContext) -> None: ...

        def on_rows(self, key: int, row: Row, ctx: ProcessContext) -> Row:
            return {"limit": self.rules[7].limit}

    with ruled(Later, restore=snapshot, parallelism=3) as harness:
        assert harness.push("rows", {"k": 1}) == [{"limit": 1.5}]
        again = harness.snapshot()
    with ruled(Later, restore=again) as harness:
        assert harness.push("rows", {"k": 1}) == [{"limit": 1.5}]

    def other(state: Any) -> type:
        return type("Other", (Later,), {"rules": state})

    for state, said in (
        (ValueState(int), "was written as a BroadcastState with keys of type int and is a ValueState now"),
        (MapState(int, int), "is a MapState with keys of type int now"),
        (BroadcastState(str, Rule), "is a BroadcastState with keys of type str now"),
        (BroadcastState(int, Renamed), "its class has lost the fields 'most', 'tags'"),
    ):
        with pytest.raises(InvalidJob, match=said):
            ruled(other(state), restore=snapshot)

    class Mapped(Later):
        rules = MapState(int, int)

        def on_rows(self, key: int, row: Row, ctx: ProcessContext) -> Any:
            self.rules[1] = 1

    with ruled(Mapped) as harness:
        harness.push("rows", {"k": 1})
        mapped = harness.snapshot()
    with pytest.raises(InvalidJob, match=r"was written as a MapState .* and is a BroadcastState"):
        ruled(Later, restore=mapped)


def test_the_keyed_side_may_not_write_after_a_broadcast_row_either() -> None:
    class Writes(Ruled):
        def on_rows(self, key: int, row: Row, ctx: ProcessContext) -> Row:
            del self.rules[7]
            return row

    with ruled(Writes) as harness:
        harness.push("rules", {"n": 7})
        with pytest.raises(
            UserCodeError, match="is a BroadcastState, which only handlers of broadcast inputs may change"
        ):
            harness.push("rows", {"k": 1})


def test_values_of_an_earlier_version_are_migrated_beside_those_written_since() -> None:
    """Over two versions, at other parallelisms: values that were never rewritten pass through both migrations."""
    with ruled() as harness:
        harness.push("rules", {"n": 7}, {"n": 8})
        snapshot = harness.snapshot()

    def to_text(old: Rule) -> str:
        return f"{old.shop} {old.most}"

    def to_words(old: str) -> list[str]:
        return old.split()

    class Text(Ruled):
        rules = BroadcastState(int, str, migrate=to_text)

        def on_rules(self, row: Row, ctx: ProcessContext) -> None:
            self.rules[row["n"]] = "b 2.5"

    class Words(Ruled):
        rules = BroadcastState(int, list[str], migrate=[to_text, to_words])

        def on_rules(self, row: Row, ctx: ProcessContext) -> None:
            self.rules[row["n"]] = ["c", "3.5"]

    with ruled(Text, restore=snapshot, parallelism=3) as harness:
        assert harness.broadcast("rules") == {7: "a 1.5", 8: "a 1.5"}
        harness.push("rules", {"n": 8})
        snapshot = harness.snapshot()
    with ruled(Words, restore=snapshot, parallelism=2) as harness:
        harness.push("rules", {"n": 9})
        assert harness.broadcast("rules") == {7: ["a", "1.5"], 8: ["b", "2.5"], 9: ["c", "3.5"]}
        snapshot = harness.snapshot()
    with ruled(Words, restore=snapshot) as harness:
        assert harness.broadcast("rules") == {7: ["a", "1.5"], 8: ["b", "2.5"], 9: ["c", "3.5"]}
    with pytest.raises(InvalidJob, match=r"values of version 2, .* keep all of them, in their order"):
        ruled(Text, restore=snapshot)


def test_it_has_no_time_to_live_and_says_what_to_do_in_its_place() -> None:
    with pytest.raises(InvalidJob, match=r"BroadcastState\(…, ttl=.*would differ: remove entries in the handler"):
        BroadcastState(int, Rule, ttl=TTL(datetime.timedelta(hours=1)))  # type: ignore[arg-type]


def test_a_value_that_does_not_fit_is_refused_where_it_is_written() -> None:
    class Wrong(Ruled):
        def on_rules(self, row: Row, ctx: ProcessContext) -> None:
            self.rules[row["n"]] = {"shop": 3} if row["n"] else None  # type: ignore[assignment]

    with ruled(Wrong) as harness:
        with pytest.raises(UserCodeError, match=r"does not fit its declared type(.|\n)*on_rules\(\)"):
            harness.push("rules", {"n": 1})
        with pytest.raises(UserCodeError, match=r"None cannot be a value of self.rules: remove the entry with del"):
            harness.push("rules", {"n": 0})


# ---------------------------------------------------------------- copies that differ


class Attribute(Ruled):
    """Writes broadcast state that depends on an attribute, which differs between subtasks."""

    def open(self, ctx: ProcessContext) -> None:
        self.mine = ctx.subtask

    def on_rules(self, row: Row, ctx: ProcessContext) -> None:
        self.rules[self.mine // 2] = Rule("a", 1.0)


def test_copies_that_differ_are_in_no_checkpoint() -> None:
    with ruled(Attribute, parallelism=3) as harness:
        harness.push("rules", {"n": 1})
        with pytest.raises(
            InvalidJob, match=r"not the same in its subtasks 0 and 2: what handlers of broadcast inputs"
        ):
            harness.snapshot()
        with pytest.raises(InvalidJob, match=r"in subtask 0, and .* in subtask 2"):
            harness.broadcast("rules")


def spoilt(snapshot: ConnectedHarnessSnapshot, spoil: Callable[[OperatorSnapshot], OperatorSnapshot]) -> Any:
    content = dataclasses.replace(snapshot.content, operators=tuple(map(spoil, snapshot.content.operators)))
    return dataclasses.replace(snapshot, content=content)


def test_a_checkpoint_whose_copies_differ_or_whose_content_is_another_is_refused() -> None:
    with ruled(parallelism=2) as harness:
        before = harness.snapshot()
        harness.push("rules", {"n": 7})
        snapshot = harness.snapshot()

    def stale(each: OperatorSnapshot) -> OperatorSnapshot:
        content = before.content.operators[0].values[f"{SUMMARY}-0"]
        return msgspec.structs.replace(
            each, values={**each.values, **({f"{SUMMARY}-0": content} if not each.subtask else {})}
        )

    def other(each: OperatorSnapshot) -> OperatorSnapshot:
        summary = before.content.operators[1].values[SUMMARY]
        return msgspec.structs.replace(each, values={**each.values, **({SUMMARY: summary} if each.subtask else {})})

    def headless(each: OperatorSnapshot) -> OperatorSnapshot:
        values = {name: value for name, value in each.values.items() if each.subtask or not name.startswith("shared-")}
        return msgspec.structs.replace(each, values=values)

    for spoil, said in (
        (stale, "content of broadcast state 'rules' is not what subtask 0 had at the barrier"),
        (other, r"has 1 entries in subtask 0, and other content \(0 entries\) in subtask 1"),
        (headless, "the checkpoint has no content of its broadcast state"),
    ):
        with pytest.raises(Corrupt, match=said):
            ruled(restore=spoilt(snapshot, spoil))


def test_a_checkpoint_that_is_at_least_once_has_no_hash() -> None:
    assert StoredCopies({}).version == 1
    written = []
    for subtask in (0, 1):
        copies = BroadcastCopies("op", subtask, False, ())
        copies.open("rules", int, msgspec.msgpack.decode).put(subtask, b"\x01")
        capture = Capture()
        copies.add_to(capture)
        assert capture.blocking is not None
        written.append(capture.blocking())
    assert written[0][SUMMARY] == written[1][SUMMARY], "the copies may differ"
    snapshot = OperatorSnapshot("op", 0, 1, written[0])
    restored = BroadcastCopies("op", 3, True, (snapshot,)).open("rules", int, msgspec.msgpack.decode)
    assert list(restored.keys()) == [0]


def test_what_comes_behind_a_barrier_is_not_in_its_snapshot() -> None:
    copies = BroadcastCopies("op", 0, True, ())
    copy = copies.open("rules", int, msgspec.msgpack.decode)
    copy.put(1, b"\x01")
    capture = Capture()
    copies.add_to(capture)
    copy.put(2, b"\x02")
    copy.remove(1)
    assert capture.blocking is not None
    restored = BroadcastCopies("op", 1, True, (OperatorSnapshot("op", 0, 1, capture.blocking()),))
    assert list(restored.open("rules", int, msgspec.msgpack.decode).keys()) == [1]


def test_content_stored_by_a_decided_checkpoint_is_named_again_until_changed() -> None:
    copies = BroadcastCopies("op", 0, True, ())
    copy = copies.open("rules", int, msgspec.msgpack.decode)
    ref = FileRef(f"{SUMMARY}-0", 1, "0" * 64, "key")

    def captured() -> tuple[Capture, dict[str, bytes]]:
        capture = Capture()
        copies.add_to(capture)
        assert capture.blocking is not None
        return capture, capture.blocking()

    first, written = captured()
    assert sorted(written) == [SUMMARY, ref.name]
    assert first.on_stored is not None
    copy.put(1, b"\x01")
    first.on_stored({ref.name: ref})
    changed, written = captured()
    assert (changed.stored, sorted(written)) == ({}, [SUMMARY, ref.name]), "what is stored is from before the change"
    assert changed.on_stored is not None
    changed.on_stored({ref.name: ref})
    same, written = captured()
    assert (same.stored, sorted(written)) == ({ref.name: ref}, [SUMMARY])
    assert same.on_stored is not None
    same.on_stored({})
    assert captured()[0].stored == {}, "only what the latest call said may be named"


# ---------------------------------------------------------------- wrong use


def misused(
    by_key: Callable[[Any, ProcessContext], Any] | None = None,
    for_all: Callable[[Any, ProcessContext], Any] | None = None,
) -> str:
    class Function:
        rules = BroadcastState(int, int)
        value = ValueState(int, default=0)
        items = ListState(int)
        map = MapState(int, int)
        peak = ReducingState(int, max)
        short = ValueState(int, ttl=TTL(datetime.timedelta(seconds=1), clock="processing"))

        def on_rules(self, row: Row, ctx: ProcessContext) -> Any:
            return for_all(self, ctx) if for_all is not None else None

        def on_rows(self, key: int, row: Row, ctx: ProcessContext) -> Any:
            return by_key(self, ctx) if by_key is not None else None

        def on_timer(self, key: int, at: int, ctx: ProcessContext) -> None: ...

        def on_wall_timer(self, key: int, at: int, ctx: ProcessContext) -> None: ...

    with ruled(Function) as harness, pytest.raises(UserCodeError) as told:
        harness.push("rules" if by_key is None else "rows", {"n": 1} if by_key is None else {"k": 1})
    return str(told.value)


WRITES: list[Callable[[Any, ProcessContext], Any]] = [
    lambda self, ctx: self.rules.__setitem__(1, 1),
    lambda self, ctx: self.rules.__delitem__(1),
    lambda self, ctx: self.rules.update({1: 1}),
    lambda self, ctx: self.rules.clear(),
    lambda self, ctx: self.rules.pop(1, None),
    lambda self, ctx: self.rules.setdefault(1, 1),
]


def test_a_walk_over_broadcast_state_omits_entries_removed_ahead_of_it() -> None:
    class Halves:
        rules = BroadcastState(int, int)

        def on_told(self, row: Row, ctx: ProcessContext) -> Iterator[Row]:
            self.rules.update({1: 2, 2: 3, 3: 4, 4: 5})
            for key, value in self.rules.items():
                yield {"key": key, "value": value}
                self.rules.pop(value, None)
            self.rules.update({1: 2, 2: 3})
            for value in self.rules.values():
                yield {"key": 0, "value": value}
                self.rules.clear()

        def on_asked(self, key: int, row: Row, ctx: ProcessContext) -> None: ...

    rows = {"told": {"n": int}, "asked": {"k": int}}
    with ConnectedHarness(Halves, keys={"asked": "k"}, broadcast=["told"], rows=rows) as harness:
        found = [(row["key"], row["value"]) for row in harness.push("told", {"n": 1})]
    assert found == [(1, 2), (3, 4), (0, 2)]


@pytest.mark.parametrize("write", WRITES)
def test_broadcast_state_is_not_written_where_there_is_a_key(write: Callable[[Any, ProcessContext], Any]) -> None:
    said = misused(by_key=write)
    assert "self.rules is a BroadcastState, which only handlers of broadcast inputs may change" in said
    assert "keep what belongs to a key in a ValueState or MapState" in said


USES: list[Callable[[Any, ProcessContext], Any]] = [
    lambda self, ctx: self.value.value,
    lambda self, ctx: setattr(self.value, "value", 3),
    lambda self, ctx: self.value.clear(),
    lambda self, ctx: self.items.append(1),
    lambda self, ctx: list(self.items),
    lambda self, ctx: self.map.get(1),
    lambda self, ctx: len(self.map),
    lambda self, ctx: list(self.map.items()),
    lambda self, ctx: self.map.update({1: 1}),
    lambda self, ctx: self.peak.add(1),
    lambda self, ctx: self.short.value,
    lambda self, ctx: ctx.timers.register(1),
    lambda self, ctx: ctx.timers.delete(1),
    lambda self, ctx: ctx.wall_timers.after(datetime.timedelta(seconds=1)),
]


OF_A_KEY = r"self\.value|self\.items|self\.map|self\.peak|self\.short|ctx\.timers|ctx\.wall_timers"


@pytest.mark.parametrize("use", USES)
def test_state_and_timers_of_a_key_are_not_used_in_open(use: Callable[[Any, ProcessContext], Any]) -> None:
    class Eager:
        value = ValueState(int, default=0)
        items = ListState(int)
        map = MapState(int, int)
        peak = ReducingState(int, max)
        short = ValueState(int, ttl=TTL(datetime.timedelta(seconds=1), clock="processing"))

        def open(self, ctx: ProcessContext) -> None:
            use(self, ctx)

        def process(self, key: int, row: Row, ctx: ProcessContext) -> None: ...

        def on_timer(self, key: int, at: int, ctx: ProcessContext) -> None: ...

        def on_wall_timer(self, key: int, at: int, ctx: ProcessContext) -> None: ...

    with pytest.raises(WrongUse) as told, KeyedHarness(Eager, key="k", rows={"k": int}) as harness:
        harness.push({"k": 1})
    assert re.match(
        rf"process '.*': open\(\) uses ({OF_A_KEY}), which belongs to a key, but it runs for no key: use it where "
        r"there is one, in the function that gets rows by key, in "
        r"on_timer\(\) or in on_wall_timer\(\)\n  in .*open\(\) of ",
        told.value.args[0],
    )


@pytest.mark.parametrize("use", USES)
def test_state_and_timers_of_a_key_are_not_used_where_there_is_none(use: Callable[[Any, ProcessContext], Any]) -> None:
    said = misused(for_all=use)
    assert re.search(
        rf"connect 'function': on_rules\(\) uses ({OF_A_KEY}), which belongs to a key, but it runs for ", said
    )


def test_operations_that_a_broadcast_state_has_not_say_what_it_has() -> None:
    assert "self.rules is a BroadcastState, which has no put: change it with self.rules[…] = …" in misused(
        for_all=lambda self, ctx: self.rules.put(1, 2)
    )
    assert "3 is assigned to self.rules, which is a BroadcastState" in misused(
        for_all=lambda self, ctx: setattr(self, "rules", 3)
    )
    with pytest.raises(InvalidJob, match="BroadcastState is used outside a keyed function"):
        BroadcastState(int, int)[1] = 2
    with pytest.raises(InvalidJob, match="BroadcastState keys cannot be <class 'list'>"):
        BroadcastState(list, int)


# ---------------------------------------------------------------- open, close, errors


class Failing:
    seen = BroadcastState(int, int)
    count = ValueState(int, default=0)

    def on_rules(self, row: Row, ctx: ProcessContext) -> Iterator[Row]:
        self.seen[row["n"]] = 1
        yield {"n": row["n"]}
        if row["n"] < 0:
            raise ValueError(str(row["n"]))

    def on_rows(self, key: int, row: Row, ctx: ProcessContext) -> Row:
        self.count.value += 1
        if key in self.seen:
            raise KeyError(key)
        return {"n": key}


def test_errors_are_data_once_also_those_of_rows_that_all_subtasks_get() -> None:
    with ruled(Failing, on_error="side", parallelism=3) as harness:
        assert harness.push("rules", {"n": -1}, {"n": 4}) == [{"n": 4}]
        assert harness.push("rows", {"k": 4}, {"k": 5}) == [{"n": 5}]
        errors = [(each["error_type"], each["row"], each["key"]) for each in harness.side("errors")]
        assert errors == [("ValueError", '{"n":-1}', None), ("KeyError", '{"k":4}', "4")]
        assert list(harness.broadcast("seen")) == [-1, 4], "what a call has written stays, in all copies"
        harness.snapshot()
    with ruled(Failing, on_error="skip") as harness, pytest.warns(UserWarning, match="the row is skipped"):
        assert harness.push("rules", {"n": -1}) == []
    with ruled(Failing) as harness, pytest.raises(UserCodeError, match=r"on_rules\(\) of operator(.|\n)*-1"):
        harness.push("rules", {"n": -1})


def test_a_function_is_opened_before_the_first_row_and_closed_at_the_end() -> None:
    calls: list[str] = []

    class Opened(Failing):
        def open(self, ctx: ProcessContext) -> None:
            calls.append(f"open {ctx.subtask} {len(self.seen)}")

        def close(self) -> None:
            calls.append("close")

    with ruled(Opened, parallelism=2) as harness:
        assert calls == ["open 0 0", "open 1 0"]
        harness.push("rules", {"n": 1})
        snapshot = harness.snapshot()
    assert calls[2:] == ["close", "close"]
    with ruled(Opened, restore=snapshot):
        assert calls[4:] == ["open 0 1"]

    class Touching(Failing):
        def open(self, ctx: ProcessContext) -> None:
            self.count.value = 1

    with pytest.raises(UserCodeError, match=r"open\(\) uses self\.\w+, which belongs to a key"):
        ruled(Touching)


def test_inputs_whose_keys_turn_out_to_be_of_other_types_are_refused() -> None:
    class Nothing:
        def on_a(self, key: Any, row: Row, ctx: ProcessContext) -> None: ...

        def on_b(self, key: Any, row: Row, ctx: ProcessContext) -> None: ...

    with ConnectedHarness(Nothing, keys={"a": "x", "b": "y"}) as harness:
        harness.push("a", {"x": 1})
        with pytest.raises(
            InvalidJob, match=r"input 'b': its keys are \(y: string\), but those of the inputs before are"
        ):
            harness.push("b", {"y": "1"})
        snapshot = harness.snapshot()
    with ConnectedHarness(
        Nothing, keys={"a": "x", "b": "y"}, rows={"a": {"z": int, "x": int}}, restore=snapshot
    ) as again:
        again.push("b", {"y": 1})
    with pytest.raises(InvalidJob, match="its state was made of"):
        ConnectedHarness(Nothing, keys={"a": "x", "b": "y"}, rows={"a": {"x": str}}, restore=snapshot)


def test_a_broadcast_row_before_any_row_with_a_key_whose_type_is_not_known() -> None:
    with ConnectedHarness(Failing, keys={"rows": "k"}, broadcast=["rules"]) as harness:
        assert harness.push("rules", {"n": 3}) == [{"n": 3}]
        snapshot = harness.snapshot()
    with ConnectedHarness(Failing, keys={"rows": "k"}, broadcast=["rules"], restore=snapshot) as harness:
        assert harness.broadcast("seen") == {3: 1}
        assert harness.push("rows", {"k": 4}) == [{"n": 4}]


def test_rows_of_a_sequence_keep_their_event_times() -> None:
    import numpy as np

    from barrier_runtime.data.elements import Batch
    from barrier_runtime.operators.base import Emit
    from barrier_runtime.operators.functions.connected import SequenceOperator, by_input

    schemas = [pa.schema([("a", pa.int64())]), pa.schema([("b", pa.string())])]
    sequencer = SequenceOperator("s", ("first", "second"), schemas)
    out: list[Batch] = []
    for port, schema in enumerate(schemas):
        rows = pa.RecordBatch.from_pylist([{schema.names[0]: None}, {schema.names[0]: ["x", 2][1 - port]}], schema)
        sequencer.process(Batch(rows, 5, np.array([1, 2 + port])), Emit(out.append), port)
    joined = pa.Table.from_batches([each.rows for each in out]).combine_chunks().to_batches()[0]
    parts = list(by_input(Batch(joined, 5, np.array([1, 2, 1, 3]))))
    assert [(port, part.rows.to_pylist(), list(part.reached), part.emit_ns) for port, part in parts] == [
        (0, [{"a": None}, {"a": 2}], [1, 2], 5),
        (1, [{"b": None}, {"b": "x"}], [1, 3], 5),
    ]


def test_what_a_test_does_wrong_is_told_in_the_name_of_its_harness() -> None:
    with match() as harness:
        for wrong in (
            lambda: harness.side("gone"),
            lambda: harness.push("orders", {"gone": 1}),
            lambda: harness.state(("a", "b")),
        ):
            with pytest.raises(InvalidJob, match=r"^ConnectedHarness: "):
                wrong()
