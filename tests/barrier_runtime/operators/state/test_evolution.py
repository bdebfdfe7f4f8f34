"""Fields of stored classes over versions of a program: no value is lost without a word."""

import datetime
from dataclasses import dataclass, field, make_dataclass, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime import TTL, InvalidJob, ListState, MapState, ReducingState, ValueState
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state.snapshots.value_types import FieldType, ValueType
from barrier_runtime.testing import KeyedHarness
from barrier_runtime.testing.function_harness import HarnessSnapshot
from tests.drawn import examples


@dataclass
class First:
    amount: int
    at: datetime.datetime
    note: str = ""


@dataclass
class Second:
    total: int
    at: datetime.datetime
    note: str = ""
    kind: str = "unknown"


class Third(msgspec.Struct, rename={"total": "cents"}):
    at: datetime.datetime
    total: int
    kind: str = "none"


@dataclass
class Line:
    cents: int


@dataclass
class Basket:
    line: Line
    lines: list[Line]


class Dotted(msgspec.Struct, rename={"total": "sum.total"}):
    total: int


AT = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)


def after(state: Any, snapshot: HarnessSnapshot | None = None, rows: tuple[Any, ...] = (), parallelism: int = 1) -> Any:
    """Returns the stored value of each key after `rows` of (key, value to store), and the snapshot."""

    class Keeps:
        kept = state

        def process(self, key: str, row: dict[str, Any], ctx: Any) -> None:
            store(self.kept, rows[row["at"]][1])

    with KeyedHarness(Keeps, key="k", rows={"k": str, "at": int}, restore=snapshot, parallelism=parallelism) as harness:
        for at, (key, _) in enumerate(rows):
            harness.push({"k": key, "at": at})
        return {key: harness.state(key)["kept"] for key in "abc"}, harness.snapshot()


def store(state: Any, value: Any) -> None:
    if isinstance(state, ListState):
        state.append(value)
    elif isinstance(state, MapState):
        state["one"] = value
    elif isinstance(state, ReducingState):
        state.add(value)
    else:
        state.value = value


def content(stored: Any) -> Any:
    if isinstance(stored, dict):
        return stored.get("one")
    return stored[0] if isinstance(stored, list) and stored else stored or None


KINDS = {
    "value": ValueState,
    "list": ListState,
    "map": lambda kind, **more: MapState(str, kind, **more),
    "reducing": lambda kind, **more: ReducingState(kind, lambda one, other: other, **more),
    "value with a ttl": lambda kind, **more: ValueState(
        kind, ttl=TTL(datetime.timedelta(days=1), clock="processing"), **more
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_renamed_field_keeps_its_values_over_versions_and_parallelism(kind: str) -> None:
    declare: Any = KINDS[kind]
    _, first = after(declare(First), rows=(("a", First(1, AT, "x")), ("b", First(2, AT))))
    renamed = declare(Second, renamed={"amount": "total"})
    kept, second = after(renamed, first, (("c", Second(3, AT, "y", "z")),), parallelism=3)
    assert [content(kept[key]) for key in "abc"] == [
        Second(1, AT, "x", "unknown"),
        Second(2, AT, "", "unknown"),
        Second(3, AT, "y", "z"),
    ]
    # The next version declares only new changes, although entries of both earlier versions exist.
    kept, third = after(declare(Third, renamed={"total": "cents", "note": None}), second, parallelism=2)
    assert [content(kept[key]) for key in "abc"] == [Third(AT, 1), Third(AT, 2), Third(AT, 3, "z")]
    # The version after that declares nothing.
    kept, _ = after(declare(Third), third)
    assert [content(kept[key]).total for key in "abc"] == [1, 2, 3]


def test_without_a_word_it_is_refused() -> None:
    _, first = after(ValueState(First), rows=(("a", First(1, AT)),))
    with pytest.raises(InvalidJob) as refused:
        after(ValueState(Second), first)
    said = str(refused.value)
    assert "state 'kept'" in said
    assert "has lost the field 'amount' since the checkpoint, and the fields 'total', 'kind' are new" in said
    assert "renamed={'amount': 'total'}" in said
    assert "renamed={'amount': None}" in said
    dropped = make_dataclass("Dropped", [("at", datetime.datetime), ("kind", str, "k")])
    kept, _ = after(ValueState(dropped, renamed={"amount": None, "note": None}), first)
    assert kept["a"] == dropped(AT, "k")


def test_a_version_that_was_never_checkpointed_is_no_gap() -> None:
    """The program renames a field of a version that was never checkpointed; the checkpoint is of an older version."""
    _, first = after(ValueState(First), rows=(("a", First(1, AT)),))
    with pytest.raises(InvalidJob, match=r"renamed=\{'amount': 'cents'\}"):
        after(ValueState(Third, renamed={"total": "cents", "note": None}), first)
    kept, _ = after(ValueState(Third, renamed={"amount": "cents", "total": "cents", "note": None}), first)
    assert kept["a"] == Third(AT, 1)


def test_fields_may_come_or_go_as_before() -> None:
    more = make_dataclass(
        "More",
        [("amount", int), ("at", datetime.datetime), ("note", str, ""), ("tags", list, field(default_factory=list))],
    )
    fewer = make_dataclass("Fewer", [("note", str), ("amount", int)])
    _, first = after(ValueState(First), rows=(("a", First(1, AT, "n")),))
    kept, second = after(ValueState(more), first)
    assert (kept["a"].amount, kept["a"].tags) == (1, [])
    kept, _ = after(ValueState(fewer), second)
    assert (kept["a"].amount, kept["a"].note) == (1, "n")


def test_an_earlier_name_is_not_given_to_another_field() -> None:
    _, first = after(ValueState(First), rows=(("a", First(1, AT)),))
    _, second = after(ValueState(Second, renamed={"amount": "total"}), first)
    again = make_dataclass("Again", [("total", int), ("at", datetime.datetime), ("note", str, ""), ("amount", int, 0)])
    with pytest.raises(InvalidJob, match="entries of earlier versions may have a field 'amount', which became 'total'"):
        after(ValueState(again), second)


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: ValueState(First, renamed={"old": "new"}), "the class has no field 'new', only amount, at, note"),
        (lambda: ValueState(First, renamed={"amount": "note"}), "the class still has a field 'amount'"),
        (lambda: ValueState(int, renamed={"a": "b"}), "its values have no named fields"),
        *[
            (
                lambda names=names: ListState(Basket, renamed=names),
                rf"'{inner}' is a field of an inner class, and renamed=",
            )
            for names, inner in [
                ({"line.price": "line.cents"}, r"line\.price"),
                ({"line.price": None}, r"line\.price"),
                ({"price": "line.cents"}, r"line\.cents"),
                ({"lines[].price": "lines[].cents"}, r"lines\[\]\.price"),
            ]
        ],
        (lambda: ListState(First, renamed=["amount"]), "pass a dict of old name to new"),
        (lambda: MapState(str, First, codec="pickle", renamed={"a": "note"}), "its values have no named fields"),
    ],
)
def test_wrong_use_is_refused_when_it_is_declared(declare: Any, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        declare()


def test_a_name_with_a_dot_may_be_an_outer_one() -> None:
    _, first = after(ValueState(Dotted), rows=(("a", Dotted(1)),))
    kept, _ = after(ValueState(make_dataclass("Plain", [("total", int)]), renamed={"sum.total": "total"}), first)
    assert kept["a"].total == 1


def test_a_snapshot_of_a_release_that_names_no_fields_is_read() -> None:
    _, first = after(ValueState(First), rows=(("a", First(1, AT)),))
    older = replace(
        first,
        operators=tuple(
            msgspec.structs.replace(each, keyed=msgspec.structs.replace(each.keyed, described={}))
            for each in first.operators
        ),
    )
    kept, second = after(ValueState(Second, renamed={"amount": "total"}), older)
    assert kept["a"].total == 1
    kept, _ = after(ValueState(Second), second)
    assert kept["a"].total == 1


def described(snapshot: HarnessSnapshot) -> list[dict[str, StateDescription]]:
    """The states of the user's, by subtask."""
    return [
        {name: what for name, what in each.keyed.described.items() if not name.startswith("@")}
        for each in snapshot.operators
        if each.keyed is not None
    ]


def test_a_snapshot_says_the_types_of_its_values() -> None:
    _, snapshot = after(ValueState(int), rows=(("a", 1),))
    assert described(snapshot) == [{"kept": StateDescription(type=ValueType("int"))}]
    _, snapshot = after(ValueState(First), rows=(("a", First(1, AT)),))
    fields = (
        FieldType("amount", ValueType("int")),
        FieldType("at", ValueType("datetime")),
        FieldType("note", ValueType("str"), default=True),
    )
    assert described(snapshot) == [
        {"kept": StateDescription(fields=("amount", "at", "note"), type=ValueType("class", "First", fields=fields))}
    ]


@pytest.mark.slow
@examples(60)
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=5))
def test_three_fields_go_through_any_renamings(steps: list[tuple[int, bool]]) -> None:
    """Each version renames one of three fields to a new name, and may write a key again."""
    names = ["f0", "f1", "f2"]
    make = lambda: make_dataclass("Version", [(name, int) for name in names])  # noqa: E731
    kind = make()
    _, snapshot = after(ValueState(kind), rows=tuple((key, kind(1, 2, 3)) for key in "abc"))
    for number, (which, writes) in enumerate(steps, 3):
        old, names[which] = names[which], f"f{number}"
        kind = make()
        rows = (("b", kind(4, 5, 6)),) if writes else ()
        kept, snapshot = after(
            ValueState(kind, renamed={old: names[which]}), snapshot, rows, parallelism=1 + number % 3
        )
        assert [getattr(kept["a"], name) for name in names] == [1, 2, 3]
        if writes:
            assert [getattr(kept["b"], name) for name in names] == [4, 5, 6]


class Pair(msgspec.Struct, array_like=True):
    left: int
    right: int = 0


class Alone(msgspec.Struct, array_like=True):
    left: int


class Beside(msgspec.Struct, array_like=True):
    left: int
    weight: int = 7


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    total: int


WITH = make_dataclass("With", [("total", int), ("note", int, 0)])
WITHOUT = make_dataclass("Without", [("total", int)])
INSIDE, NOT_INSIDE = (make_dataclass("Around", [("inner", each)]) for each in (WITH, WITHOUT))
OTHER = make_dataclass("Other", [("total", int), ("note", str, "")])


@pytest.mark.parametrize(
    ("value", "between", "now", "said"),
    [
        (WITH(1, 2), WITHOUT, OTHER, "its field note was int in entries of an earlier version and is str now"),
        (INSIDE(WITH(1, 2)), NOT_INSIDE, make_dataclass("Around", [("inner", OTHER)]), "its field inner.note was int"),
        (WITH(1, 2), WITHOUT, Strict, "it forbids unknown fields, and entries have the field 'note'"),
        (Pair(1, 2), Alone, Beside, r"its field weight was right, int in entries of an earlier version and is int"),
    ],
    ids=["field", "inner field", "strict", "place in an array"],
)
def test_a_field_that_was_lost_is_not_read_as_another_one(value: Any, between: Any, now: Any, said: str) -> None:
    """Entries that were not written again still contain the field."""
    _, first = after(ValueState(type(value)), rows=(("a", value),))
    _, second = after(ValueState(between), first)
    _, third = after(ValueState(between), second, parallelism=2)
    with pytest.raises(InvalidJob, match=said):
        after(ValueState(now), third)
    kept, _ = after(ValueState(type(value)), third)  # the old type can still read the value
    assert kept["a"] == value


def test_a_field_may_be_lost_and_others_come_one_version_later() -> None:
    _, first = after(ValueState(INSIDE), rows=(("a", INSIDE(WITH(1, 2))),))
    _, second = after(ValueState(NOT_INSIDE), first)
    grown = make_dataclass("Grown", [("total", int), ("kind", str, "k")])
    kept, third = after(ValueState(make_dataclass("Around", [("inner", grown)])), second)
    assert kept["a"].inner == grown(1, "k")
    kept, _ = after(ValueState(make_dataclass("Around", [("inner", grown)])), third)
    assert kept["a"].inner == grown(1, "k")


def test_a_field_may_have_its_old_name_again() -> None:
    one, other = (make_dataclass(name, [(name, int)]) for name in ("one", "other"))
    _, first = after(ValueState(one), rows=(("a", one(1)),))
    _, second = after(ValueState(other, renamed={"one": "other"}), first, (("b", other(2)),))
    kept, third = after(ValueState(one, renamed={"other": "one"}), second)
    assert (kept["a"], kept["b"]) == (one(1), one(2))
    both = make_dataclass("Both", [("one", int), ("other", int, 0)])
    with pytest.raises(InvalidJob, match="may have a field 'other', which became 'one'"):
        after(ValueState(both), third)
