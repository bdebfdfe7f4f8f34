"""Types of stored values over versions of a program: readable values are read, others are refused before the run, and
`migrate=` converts old values.
"""

import datetime
import decimal
import enum
import uuid
from contextlib import nullcontext
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Optional, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime import CollectSink, Dataflow, InvalidJob, ListState, MapState, ReducingState, ValueState
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.operators.state.described_types import value_type
from barrier_runtime.state.snapshots.value_types import ValueType, misfit, to_floats
from barrier_runtime.testing import KeyedHarness
from barrier_runtime.testing.function_harness import HarnessSnapshot
from tests.barrier_runtime.operators.state.test_evolution import after
from tests.drawn import examples

NEW_NAME = "give the changed state a new name"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Only(enum.Enum):
    RED = "red"


class More(enum.Enum):
    GREEN = "green"
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    item: str
    price: int


@dataclass
class PricedLine:
    item: str
    price: float
    tax: float = 0.2


@dataclass
class RenamedLine:
    item: str
    cents: int = 0


@dataclass
class Tree:
    size: int
    below: "list[Tree]" = field(default_factory=list)


@dataclass
class WideTree:
    size: float
    below: "list[WideTree]" = field(default_factory=list)


@dataclass
class NarrowTree:
    size: int
    below: "tuple[NarrowTree, NarrowTree] | None" = None


@dataclass
class RenamedTree:
    below: "list[RenamedTree]"
    weight: int = 0


class Pair(msgspec.Struct, array_like=True):
    left: int
    right: int


class Swapped(msgspec.Struct, array_like=True):
    right: int
    left: int


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    item: str


class Point(NamedTuple):
    x: int
    y: int


class Circle(msgspec.Struct, tag=True):
    radius: int


class Square(msgspec.Struct, tag=True):
    side: int


class Loose(TypedDict, total=False):
    item: str


def order(**fields: Any) -> type:
    return make_dataclass(
        "Order", [(name, *(given if isinstance(given, tuple) else (given,))) for name, given in fields.items()]
    )


DAY = datetime.date(2026, 1, 2)

WORKS = {
    "field added with a default": (order(id=int), {"id": 3}, order(id=int, kind=(str, "web"))),
    "field removed": (order(id=int, note=str), {"id": 3, "note": "n"}, order(id=int)),
    "fields reordered": (order(id=int, note=str), {"id": 3, "note": "n"}, order(note=str, id=int)),
    "int to float": (int, 3, float),
    "field int to float": (order(id=int), {"id": 3}, order(id=float)),
    "float to decimal": (float, 1.5, decimal.Decimal),
    "optional on": (order(id=int), {"id": 3}, order(id=int | None)),
    "list to tuple": (list[int], [1, 2], tuple[int, ...]),
    "fixed tuple to list": (tuple[int, str], [1, "a"], list[int | str]),
    "list to set": (list[int], [1, 2], set[int]),
    "enum gains": (Colour, "red", More),
    "enum to text": (Colour, "red", str),
    "literal gains": (Literal["a"], "a", Literal["b", "a"]),
    "nested class": (list[Line], [{"item": "i", "price": 3}], list[PricedLine]),
    "a class inside itself": (Tree, {"size": 1, "below": [{"size": 2, "below": []}]}, WideTree),
    "union gains": (int, 3, int | str),
    "union of tagged classes gains": (Circle, {"type": "Circle", "radius": 3}, Circle | Square),
    "anything": (order(id=int), {"id": 3}, Any),
    "class to dict": (order(id=int, n=int), {"id": 3, "n": 4}, dict[str, int]),
    "date to text": (datetime.date, "2026-01-02", str),
    "named tuple to list": (Point, [1, 2], list[int]),
    "typed dict": (order(item=str), {"item": "i"}, Loose),
}


@pytest.mark.parametrize("case", WORKS)
def test_what_stays_readable_is_read_after_the_change(case: str) -> None:
    before, plain, now = WORKS[case]
    value = msgspec.convert(plain, before)
    kept, first = after(ValueState(before), rows=(("a", value),))
    assert kept["a"] == value
    kept, second = after(ValueState(now), first, (("b", msgspec.convert(plain, now)),), parallelism=2)
    assert kept["a"] == kept["b"] == msgspec.convert(plain, now)
    kept, _ = after(ValueState(now), second)
    assert kept["a"] == kept["b"] == msgspec.convert(plain, now)


REFUSED = {
    "field added without a default": (order(id=int), order(id=int, kind=str), "field kind was nothing .* is str now"),
    "float to int": (float, int, "its values were float in the checkpoint and are int now"),
    "field narrowed": (order(id=int | str), order(id=int), r"its field id was int \| str .* is int now"),
    "optional off": (order(id=int | None), order(id=int), r"its field id was int \| None .* is int now"),
    "list to fixed tuple": (list[int], tuple[int, int], r"were list\[int\] .* are tuple\[int, int\] now"),
    "shorter tuple": (tuple[int, int], tuple[int], r"were tuple\[int, int\] .* are tuple\[int\] now"),
    "enum loses": (Colour, Only, r"Colour\('red', 'blue'\) .* Only\('red'\) now \(it has lost 'blue'\)"),
    "text to enum": (str, Colour, r"were str .* are Colour\('red', 'blue'\) now"),
    "int enum to text": (Literal[1], str, r"were Literal\(1\) .* are str now"),
    "nested field narrowed": (list[PricedLine], list[Line], r"field \[\]\.price was float .* is int now"),
    "nested field renamed": (dict[str, Line], dict[str, RenamedLine], "lost the field 'price', and the field 'cents'"),
    "inside itself": (Tree, NarrowTree, r"its field below was list\[Tree\]"),
    "inside itself, the other way": (WideTree, Tree, "its field size was float .* is int now"),
    "union loses": (int | str, int, r"were int \| str .* are int now"),
    "tagged union loses": (Circle | Square, Circle, r"its tag is 'Circle' and was 'Square'"),
    "tag comes to several": (order(radius=int), Circle | Square, "Order .* are Circle"),
    "scalar to class": (int, order(id=int), "were int .* are Order now"),
    "class to scalar": (order(id=int), int, "were Order .* are int now"),
    "dict to class": (dict[str, int], order(id=int), r"were dict\[str, int\] .* are Order now"),
    "keys of a dict": (dict[str, int], dict[int, int], r"its field \[\] was str .* is int now"),
    "written in order": (Pair, Swapped, "its field right was field 2 .* is field 1 now"),
    "strict": (order(item=str, note=str), Strict, "it forbids unknown fields, and entries have the field 'note'"),
    "may lack": (Loose, order(item=str), "its field item was str, where it is not the default"),
    "bytes to text": (bytes, str, "were bytes .* are str now"),
    "datetime to text": (datetime.datetime, str, "were datetime .* are str now"),
}  # fmt: skip
SAMPLES = {
    int: 1,
    float: 1.5,
    str: "s",
    bytes: b"b",
    datetime.datetime: datetime.datetime(2026, 1, 2),
    Colour: Colour.RED,
}
PLAIN = {
    "field narrowed": {"id": "s"}, "optional off": {"id": None}, "may lack": {}, "strict": {"item": "i", "note": "n"},
    "field added without a default": {"id": 1}, "class to scalar": {"id": 1}, "tag comes to several": {"radius": 1},
    "list to fixed tuple": [1], "shorter tuple": [1, 2], "int enum to text": 1, "union loses": "s",
    "nested field narrowed": [{"item": "i", "price": 1.5}], "nested field renamed": {"k": {"item": "i", "price": 1}},
    "inside itself": {"size": 1, "below": [{"size": 1}]}, "inside itself, the other way": {"size": 1.5},
    "tagged union loses": {"type": "Square", "side": 1}, "dict to class": {"n": 1}, "keys of a dict": {"n": 1},
    "written in order": [1, 2],
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_could_not_be_read_is_refused_with_path_types_and_remedy(case: str) -> None:
    before, now, said = REFUSED[case]
    value = msgspec.convert(PLAIN[case], before) if case in PLAIN else SAMPLES[before]
    _, first = after(ValueState(before), rows=(("a", value),))
    with pytest.raises(InvalidJob, match=rf"state 'kept': .*{said}.*{NEW_NAME}"):
        after(ValueState(now), first)
    kept, _ = after(ValueState(before), first)
    assert kept["a"] == value


WIDE = 2**53 + 1  # no float


def passed_on(state: Any, snapshot: HarnessSnapshot) -> HarnessSnapshot:
    """Next snapshot of a run that reads no value."""

    class Keeps:
        kept = state

        def process(self, key: str, row: dict[str, Any], ctx: Any) -> None: ...

    with KeyedHarness(Keeps, key="k", rows={"k": str}, restore=snapshot) as harness:
        return harness.snapshot()


@pytest.mark.parametrize(
    ("before", "plain", "now"),
    [
        (int, WIDE, float),
        (int, -WIDE, float | None),
        (order(id=int), {"id": WIDE}, order(id=float)),
        (list[Line], [{"item": "i", "price": WIDE}], list[PricedLine]),
        (set[int], [1, WIDE], set[float]),
        (dict[int, str], {WIDE: "a"}, dict[float, str]),
    ],
)
def test_an_int_that_a_float_would_round_is_refused_when_it_is_read(before: Any, plain: Any, now: Any) -> None:
    _, first = after(ValueState(before), rows=(("a", msgspec.convert(plain, before)),))
    with pytest.raises(
        InvalidJob, match=r"state 'kept'.* cannot be read as .* does not hold all digits of -?9007\d+93"
    ):
        after(ValueState(now), first)
    with pytest.raises(InvalidJob, match="does not hold all digits"):
        after(ValueState(now), passed_on(ValueState(now), first))


def test_wide_ints_that_are_floats_or_stay_ints_are_read() -> None:
    even = 2**60
    for before, value, now in (
        (int, even, float),
        (set[int], {even, 1, 2**54, 7}, set[float]),
        (int, WIDE, int | float),
    ):
        _, first = after(ValueState(before), rows=(("a", value),))
        kept, _ = after(ValueState(now), first)
        assert kept["a"] == value


@pytest.mark.parametrize(("before", "now"), [(list[float], list[float]), (list[int], list[int] | None)])
def test_types_that_read_no_int_as_a_float_are_decoded_without_a_check(before: Any, now: Any) -> None:
    """The check costs as much as decoding, and is kept for ever."""
    assert not to_floats(value_type(before), value_type(now), {})
    _, first = after(ValueState(before), rows=(("a", [1]),))
    _, second = after(ValueState(now), first)
    assert '"earlier"' not in msgspec.json.encode(second.operators[0].keyed).decode()


def omitting(kind: Any, **more: Any) -> Any:
    more.setdefault("omit_defaults", True)
    return msgspec.defstruct("Order", [("id", int), ("kind", *kind)], **more)


MANY = msgspec.field(default_factory=lambda: [1])
NONE = msgspec.field(default_factory=list)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ((str, "web"), (str, "app"), r'field kind was "web" by default .* is "app" by default'),
        ((Colour, Colour.RED), (More, More.BLUE), r'field kind was "red" by default .* is "blue" by default'),
        ((int | None, None), (int | None, 0), r"field kind was null by default .* is 0 by default"),
        ((list[int], NONE), (list[int], MANY), r"field kind was \[\] by default .* is a new value by default"),
    ],
)
@pytest.mark.parametrize("omits", [True, False])
def test_another_default_that_entries_omit_is_refused(before: Any, now: Any, said: str, omits: bool) -> None:
    first, second = omitting(before), omitting(now, omit_defaults=omits)
    _, kept = after(ValueState(first), rows=(("a", first(1)),))
    with pytest.raises(InvalidJob, match=said):
        after(ValueState(second), kept)
    _, kept = after(ValueState(list[first]), rows=(("a", [first(1)]),))
    with pytest.raises(InvalidJob, match=said.replace("kind", r"\[\]\.kind", 1)):
        after(ValueState(list[second]), kept)


@pytest.mark.parametrize(
    ("before", "now", "omits", "kept"),
    [
        ((str, "web"), (str, "app"), False, "web"),
        ((list[int], MANY), (list[int], NONE), True, [1]),  # entries have what a function makes
        ((int, 0), (float, 0.0), True, 0.0),
        ((Colour, Colour.RED), (str, "red"), True, "red"),
    ],
)
def test_equal_defaults_and_defaults_that_entries_store_may_change(
    before: Any, now: Any, omits: bool, kept: Any
) -> None:
    first, second = omitting(before, omit_defaults=omits), omitting(now, omit_defaults=omits)
    _, snapshot = after(ValueState(first), rows=(("a", first(1)),))
    found, _ = after(ValueState(second), snapshot)
    assert found["a"].kind == kept


def test_a_renaming_is_of_the_outer_value_alone_also_where_a_class_holds_itself() -> None:
    _, first = after(ValueState(Tree), rows=(("a", Tree(1, [Tree(2)])),))
    with pytest.raises(
        InvalidJob, match=r"its field below\[\] was Tree .* \(it has lost the field 'size', and the field"
    ):
        after(ValueState(RenamedTree, renamed={"size": "weight"}), first)


def test_values_that_were_pickled_cannot_become_declared_ones_and_back() -> None:
    _, first = after(ValueState(int, codec="pickle"), rows=(("a", 1),))
    with pytest.raises(InvalidJob, match="its values were pickle in the checkpoint and are int now"):
        after(ValueState(int), first)
    with pytest.raises(InvalidJob, match="pickled values cannot be migrated"):
        after(ValueState(int, migrate=int), first)


# ---------------------------------------------------------------- any types


def types() -> st.SearchStrategy[Any]:
    scalars: list[Any] = [int, float, str, bytes, bool, None, decimal.Decimal, datetime.date, uuid.UUID]
    scalars += [Colour, Only, More, Literal[1, 2], Literal["a"], Pair, Point, Tree, WideTree, Circle]
    return st.recursive(
        st.sampled_from(scalars),
        lambda inner: st.one_of(
            inner.map(lambda kind: list[kind]),
            inner.map(lambda kind: tuple[kind, ...]),
            st.tuples(inner, inner).map(lambda kinds: tuple[kinds]),
            inner.map(lambda kind: dict[str, kind]),
            inner.map(lambda kind: Optional[kind]),  # noqa: UP045 - of None, too
            st.tuples(inner, st.booleans()).map(
                lambda made: make_dataclass(
                    "Made",
                    [("a", int), ("b", Optional[made[0]], None) if made[1] else ("b", made[0])],  # noqa: UP045
                )
            ),
        ),
        max_leaves=4,
    )


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Of a described type, as plain as they are written."""
    what = kind if isinstance(kind, ValueType) else value_type(kind)
    scalar: dict[str, st.SearchStrategy[Any]] = {
        "int": st.integers(-9, 9),
        "float": st.floats(-9, 9),
        "str": st.text(max_size=3),
        "bytes": st.binary(max_size=3),
        "bool": st.booleans(),
        "none": st.none(),
        "decimal": st.just("1.5"),
        "date": st.just("2026-01-02"),
        "uuid": st.just(str(uuid.UUID(int=1))),
        "again": st.nothing(),
    }
    if what.kind in scalar:
        return scalar[what.kind]
    if what.kind == "list":
        return st.just([]) if what.of[0].kind == "again" else st.lists(values(what.of[0]), max_size=2)
    if what.kind == "tuple":
        return st.tuples(*map(values, what.of)).map(list)
    if what.kind == "dict":
        return st.dictionaries(st.text(max_size=2), values(what.of[1]), max_size=2)
    if what.kind == "choice":
        return st.sampled_from(what.values)
    if what.kind == "union":
        return st.one_of(*map(values, what.of))
    drawn = [values(each.type) for each in what.fields]
    if what.kind == "array":
        return st.tuples(*drawn).map(list)
    tag = {"type": what.tag} if what.tag else {}
    return st.tuples(*drawn).map(
        lambda given: {**tag, **{each.name: value for each, value in zip(what.fields, given, strict=True)}}
    )


@pytest.mark.slow
@examples(400)
@given(st.data())
def test_what_is_not_refused_can_be_read(data: st.DataObject) -> None:
    before, now = data.draw(types()), data.draw(types())
    assert misfit(value_type(before), value_type(before)) is None
    encoded = msgspec.msgpack.encode(msgspec.convert(data.draw(values(before)), before))
    if misfit(value_type(before), value_type(now)) is None:
        msgspec.msgpack.decode(encoded, type=now)


# ---------------------------------------------------------------- migrate


@dataclass
class Euros:
    euros: float


@dataclass
class Money:
    amount: int  # cents
    currency: str


def to_euros(old: int) -> Euros:
    return Euros(old / 100)


def to_money(old: Euros) -> dict[str, Any]:
    return {"amount": round(old.euros * 100), "currency": "EUR"}


KINDS: dict[str, Any] = {
    "value": ValueState,
    "list": ListState,
    "map": lambda kind, **more: MapState(str, kind, **more),
    "reducing": lambda kind, **more: ReducingState(kind, lambda one, other: other, **more),
}


def content(stored: Any) -> Any:
    return stored.get("one") if isinstance(stored, dict) else stored[0] if isinstance(stored, list) else stored


@pytest.mark.parametrize("kind", KINDS)
def test_old_values_go_through_all_functions_since_their_version(kind: str) -> None:
    declare = KINDS[kind]
    _, first = after(declare(int), rows=(("a", 150), ("b", 250)))
    with pytest.raises(InvalidJob, match=r"pass migrate=\[a function of the old value\]"):
        after(declare(Euros), first)
    kept, second = after(declare(Euros, migrate=to_euros), first, (("c", Euros(3.5)),), parallelism=2)
    assert [content(kept[key]) for key in "abc"] == [Euros(1.5), Euros(2.5), Euros(3.5)]
    kept, third = after(declare(Money, migrate=[to_euros, to_money]), second, (("b", Money(9, "USD")),), parallelism=3)
    expected = [Money(150, "EUR"), Money(9, "USD"), Money(350, "EUR")]
    assert [content(kept[key]) for key in "abc"] == (
        expected if kind != "list" else [expected[0], Money(250, "EUR"), expected[2]]
    )
    kept, _ = after(declare(Money, migrate=[to_euros, to_money]), third)
    assert content(kept["a"]) == Money(150, "EUR")
    with pytest.raises(
        InvalidJob, match="values of version 2, which 2 functions in migrate= made, but the program has 1"
    ):
        after(declare(Euros, migrate=to_euros), third)
    # A renamed field, in a version that began with a function.
    renamed = make_dataclass("Renamed", [("cents", int), ("currency", str)])
    kept, _ = after(declare(renamed, migrate=[to_euros, to_money], renamed={"amount": "cents"}), third)
    assert content(kept["a"]) == renamed(150, "EUR")
    # Both functions at once, over the version in between.
    kept, _ = after(declare(Money, migrate=[to_euros, to_money]), first)
    assert content(kept["b"]) == Money(250, "EUR")


def test_names_that_were_changed_before_a_function_came_are_known_to_it() -> None:
    old, renamed = make_dataclass("Old", [("a", int)]), make_dataclass("Named", [("b", int)])
    _, first = after(ValueState(old), rows=(("a", old(1)), ("b", old(2))))
    _, second = after(ValueState(renamed, renamed={"a": "b"}), first, (("b", renamed(3)),))
    said = []

    def flat(value: dict[str, int]) -> int:
        said.append(value)
        return value["b"]

    kept, _ = after(ValueState(int, migrate=flat), second)
    assert (kept["a"], kept["b"]) == (1, 3)
    assert said == [{"b": 1}, {"b": 3}]
    with pytest.raises(InvalidJob, match="and a new function in migrate= at once"):
        after(ValueState(old, migrate=flat, renamed={"b": "a"}), second)


def typed_wrong(old: str) -> int:
    return len(old)


def fails(old: int) -> int:
    raise KeyError(old)


def gives_nothing(old: int) -> None:
    return None


def gives_another(old: int) -> str:
    return "text"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            typed_wrong,
            r"typed_wrong\(\) in migrate= was not given the stored value 7, which does not fit its parameter",
        ),
        (fails, r"fails\(\) in migrate= raised KeyError: 7, for the stored value 7"),
        (gives_nothing, r"returned None for the stored value 7"),
        (gives_another, r"the stored value cannot be read as <class 'float'>"),
        (lambda old: object(), "returned object, which cannot be written"),
    ],
)
def test_a_function_that_does_not_do_is_told_with_state_and_value(function: Any, said: str) -> None:
    _, first = after(ValueState(int), rows=(("a", 7),))
    with pytest.raises(InvalidJob, match=rf"state 'kept'.*{said}"):
        after(ValueState(float, migrate=function), first)


@pytest.mark.parametrize("wrong", [3, "f", [int, 3]])
def test_what_is_no_function_is_refused_when_it_is_declared(wrong: Any) -> None:
    with pytest.raises(InvalidJob, match=r"ValueState migrate=.*: pass a function of the old value"):
        ValueState(int, migrate=wrong)


# ---------------------------------------------------------------- before a run begins


def run(folder: Path, state: Any, key: Any = int, fails: bool = False) -> list[dict[str, Any]]:
    """Returns the collected rows. `fails`: the job fails after some checkpoints."""
    log = folder / "typed" / "log"

    class Keeps:
        kept = state

        def process(self, key: Any, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
            if fails and len(list(log.iterdir())) > 3:
                raise ValueError("enough")
            if self.kept.value is None:
                self.kept.value = row["n"]
            return {"k": str(key), "kept": str(self.kept.value)}

    flow, sink = Dataflow("typed"), CollectSink()
    rate, count = (500, 1_000_000) if fails else (1_000_000, 2_000)
    rows = flow.rate("numbers", rate, count, splits=1).map(
        lambda row: {"k": key(row["value"] % 3), "n": row["value"]}, schema={"k": key, "n": int}
    )
    rows.key_by("k").process("keeps", Keeps, schema={"k": str, "kept": str}).sink("out", sink)
    with pytest.raises(JobFailed, match="enough") if fails else nullcontext():
        flow.run_local(checkpoints=str(folder), checkpoint_interval=0.05, restart="none")
    return sink.rows()


@pytest.mark.slow
def test_types_kinds_and_keys_are_compared_before_a_run_and_old_program_continues(tmp_path: Path) -> None:
    run(tmp_path, ValueState(int), fails=True)
    records = sorted(path.name for path in (tmp_path / "typed" / "log").iterdir())
    where = "job typed, operator 'keeps'"
    for state, key, said in (
        (ValueState(str), int, f"{where}, state 'kept': its values were int in the checkpoint and are str now"),
        (ListState(int), int, f"{where}, state 'kept' was written as a ValueState and is a ListState now"),
        (ValueState(int), str, rf"{where}: its state is kept by the key \(k: int64\), but its rows have \(k: string\)"),
    ):
        with pytest.raises(JobFailed, match=said):
            run(tmp_path, state, key)
    assert sorted(path.name for path in (tmp_path / "typed" / "log").iterdir()) == records
    rows = {(row["k"], row["kept"]) for row in run(tmp_path, ValueState(float, migrate=lambda old: old + 0.5))}
    before = {("0", "0"), ("1", "1"), ("2", "2")}  # which the failed run had not shown yet
    assert rows - before == {("0", "0.5"), ("1", "1.5"), ("2", "2.5")}
