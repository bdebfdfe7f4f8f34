"""Every change of a stored type between two versions, on each backend and in columns.

The value is read, or refused before the run begins with operator, state, path of the field, both types and the remedy.
"""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, make_dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from operator_harness import Driven, World

from barrier_runtime import InvalidJob, ListState, MapState, RowAggregate, ValueState
from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.log.restore_choice import check_fits
from barrier_runtime.coordinator.wire.messages import ChainSpec, JobSpec
from barrier_runtime.operators.aggregation.described import described_aggregates
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.operators.base import Operator
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.operators.functions.process_groups import described_columns
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot, OperatorSnapshot, StateDescription

ROWS = pa.schema([("k", pa.string()), ("n", pa.int64())])
SHOWN = pa.schema([("kept", pa.string())])
REMEDY = r"pass migrate=\[.*give the changed state a new name"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class MoreColours(enum.Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class FewColours(enum.Enum):
    RED = "red"


@dataclass
class Line:
    price: int


@dataclass
class TaxedLine:
    price: int
    tax: int = 7


@dataclass
class RenamedLine:
    cents: int = 0


class AliasedLine(msgspec.Struct):
    cents: int = msgspec.field(name="price")


class Aliased(msgspec.Struct):
    number: int = msgspec.field(name="id")


@dataclass
class Basket:
    lines: list[Line] = field(default_factory=list)


@dataclass
class TaxedBasket:
    lines: list[TaxedLine] = field(default_factory=list)


@dataclass
class RenamedBasket:
    lines: list[RenamedLine] = field(default_factory=list)


class AliasedBasket(msgspec.Struct):
    lines: list[AliasedLine] = []


def order(**fields: Any) -> type:
    return make_dataclass(
        "Order", [(name, *(given if isinstance(given, tuple) else (given,))) for name, given in fields.items()]
    )


ID = order(id=int)
# case: type before, a value of this type, type now, the value after
READ: dict[str, tuple[Any, Any, Any, Any]] = {
    "field added with a default": (ID, {"id": 3}, order(id=int, kind=(str, "web")), {"id": 3, "kind": "web"}),
    "field removed": (order(id=int, note=str), {"id": 3, "note": "n"}, ID, {"id": 3}),
    "fields reordered": (order(id=int, n=int), {"id": 3, "n": 4}, order(n=int, id=int), {"n": 4, "id": 3}),
    "field renamed by alias": (ID, {"id": 3}, Aliased, {"id": 3}),
    "widened": (ID, {"id": 3}, order(id=float), {"id": 3.0}),
    "optional on": (ID, {"id": 3}, order(id=int | None), {"id": 3}),
    "list to tuple": (list[int], [1, 2], tuple[int, ...], [1, 2]),
    "tuple to list": (tuple[int, int], [1, 2], list[int], [1, 2]),
    "enum gains a member": (Colour, "blue", MoreColours, "blue"),
    "nested class gains a field": (
        Basket,
        {"lines": [{"price": 3}]},
        TaxedBasket,
        {"lines": [{"price": 3, "tax": 7}]},
    ),
    "nested field renamed by alias": (Basket, {"lines": [{"price": 3}]}, AliasedBasket, {"lines": [{"price": 3}]}),
    "union gains a member": (order(id=int | str), {"id": "a"}, order(id=int | str | bool), {"id": "a"}),
}
# case: type before, a value of this type, type now, the error's text on path and types
REFUSED: dict[str, tuple[Any, Any, Any, str]] = {
    "field added without a default": (
        ID,
        {"id": 3},
        order(id=int, kind=str),
        "field kind .*was nothing in the checkpoint and is str now",
    ),
    "narrowed": (order(id=float), {"id": 1.5}, ID, "field id .*was float in the checkpoint and is int now"),
    "optional off": (
        order(id=int | None),
        {"id": None},
        ID,
        r"field id .*was int \| None in the checkpoint and is int now",
    ),
    "list to a tuple of two": (
        list[int],
        [1],
        tuple[int, int],
        r"(were|was) list\[int\] in the .* tuple\[int, int\] now",
    ),
    "enum loses a member": (
        Colour,
        "blue",
        FewColours,
        r"(were|was) Colour\('red', 'blue'\) in the .* FewColours\('red'\) now",
    ),
    "nested field renamed without a word": (
        Basket,
        {"lines": [{"price": 3}]},
        RenamedBasket,
        r"field lines\[\] .*was Line .* RenamedLine now .*lost the field 'price', and the field 'cents' came",
    ),
    "union loses a member": (
        order(id=int | str),
        {"id": "a"},
        ID,
        r"field id .*was int \| str in the checkpoint and is int now",
    ),
    "scalar to class": (int, 3, ID, "(were|was) int in the .* Order now"),
    "class to scalar": (ID, {"id": 3}, int, "(were|was) Order in the .* int now"),
}


def keeping(state: Any) -> Any:
    """Keyed function that stores `given` for a row with n = 0 and returns the stored value of each row."""

    class Keeps:
        kept = state
        given: Any = None

        def process(self, key: str, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
            if row["n"] == 0:
                self.kept.value = self.given
            yield {"kept": msgspec.json.encode(self.kept.value).decode()}

    return Keeps


def in_entries(kind: Any, value: Any) -> Operator:
    function = keeping(ValueState(kind))
    function.given = value
    return ProcessOperator("p", ["k"], function, output=SHOWN, schema=ROWS)


def in_columns(kind: Any, value: Any) -> Operator:
    """Operator with the state of a user's own aggregate, in a cell of a column table."""

    class Keeps(RowAggregate):
        type, state = pa.string(), kind

        def zero(self) -> Any:
            return value

        def add(self, state: Any, n: Any) -> Any:  # type: ignore[override]
            return state

        def result(self, state: Any) -> str:
            return msgspec.json.encode(state).decode()

    return RunningAggregateOperator("p", ["k"], {"kept": Keeps("n")}, ROWS)


Make = Callable[[Any, Any], Operator]
PLACES = pytest.mark.parametrize(
    ("make", "kind"),
    [(in_entries, "memory"), (in_entries, "rocksdb"), (in_columns, "memory")],
    ids=["memory", "rocksdb", "columns"],
)


def stored(make: Make, kind: Any, before: Any, plain: Any) -> tuple[World, Any]:
    world = World(kind)
    driven = Driven(make(before, msgspec.convert(plain, before)), world, name="p")
    driven.feed([{"k": "a", "n": 0}], ROWS)
    snapshot = driven.snapshot(1)
    driven.operator.close()
    return world, snapshot


def shown(operator: Operator, world: World, snapshot: Any) -> str:
    driven = Driven(operator, world, (snapshot,), name="p")
    driven.feed([{"k": "a", "n": 1}], ROWS)
    (row,) = driven.rows
    driven.operator.close()
    return str(row["kept"])


def decided(snapshot: Any, states: dict[str, StateDescription], keys: str = "k: string") -> None:
    """Checks a checkpoint as the coordinator does before appending FENCE."""
    chain = ChainSpec(0, ("p",), ("p",), keys={"p": keys}, states={"p": states})
    manifest = Manifest(
        job="job",
        lineage="",
        checkpoint=1,
        token=1,
        created_wall_ms=0,
        parallelism=1,
        max_parallelism=128,
        operators=(snapshot,),
        parent_position=0,
        parent_sha256="",
    )
    check_fits(JobSpec("job", "run", "", 1, 128, (chain,)), manifest, "checkpoint 1")


def declared(make: Make, kind: Any) -> dict[str, StateDescription]:
    if make is in_entries:
        return {"kept": ValueState(kind).declared()}
    operator = in_columns(kind, None)
    assert isinstance(operator, RunningAggregateOperator)
    return described_aggregates(operator._aggregates)


@PLACES
@pytest.mark.parametrize("case", READ)
def test_what_stays_readable_is_read(case: str, make: Make, kind: Any) -> None:
    before, plain, now, then = READ[case]
    expected = msgspec.convert(then, now)
    world, snapshot = stored(make, kind, before, plain)
    decided(snapshot, declared(make, now))
    assert msgspec.json.decode(shown(make(now, expected), world, snapshot), type=now) == expected


@PLACES
@pytest.mark.parametrize("case", REFUSED)
def test_what_could_not_be_read_is_refused_before_the_run_begins(case: str, make: Make, kind: Any) -> None:
    before, plain, now, said = REFUSED[case]
    world, snapshot = stored(make, kind, before, plain)
    state, remedy = ("state 'kept'", REMEDY) if make is in_entries else ("aggregate kept ", "another name")
    with pytest.raises(InvalidJob, match=rf"checkpoint 1, operator 'p', {state}.*{said}.*{remedy}"):
        decided(snapshot, declared(make, now))
    if make is in_entries:  # opening the state raises, too
        with pytest.raises(InvalidJob, match=r"'p'.*'kept'"):
            shown(make(now, None), world, snapshot)
    assert msgspec.json.decode(shown(make(before, None), world, snapshot)) == plain


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_keys_of_another_type_and_state_of_another_kind_are_refused_before_the_run(kind: Any) -> None:
    _, snapshot = stored(in_entries, kind, int, 3)
    states = declared(in_entries, int)
    with pytest.raises(InvalidJob, match=r"operator 'p': its state is kept by the key \(k: string\), .*\(k: int64\)"):
        decided(snapshot, states, keys="k: int64")
    for other, said in ((ListState(int), "a ListState"), (MapState(str, int), "a MapState with keys of type str")):
        with pytest.raises(InvalidJob, match=rf"'p', state 'kept' was written as a ValueState and is {said}.*new name"):
            decided(snapshot, {"kept": other.declared()})


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_a_state_that_is_not_declared_any_more_stays_and_is_there_again(kind: Any) -> None:
    world, first = stored(in_entries, kind, int, 3)
    decided(first, {})
    without = ProcessOperator("p", ["k"], lambda key, row, ctx: {"kept": "nothing"}, output=SHOWN, schema=ROWS)
    driven = Driven(without, world, (first,), name="p")
    driven.feed([{"k": "a", "n": 1}], ROWS)
    second = driven.snapshot(2)
    without.close()
    assert shown(in_entries(int, None), world, second) == "3"


def test_a_column_of_numbers_of_another_type_is_refused_before_the_run_begins() -> None:
    described = described_columns({"n": ("<i8", 0)})
    columns = KeyedSnapshot("memory", 128, 0, 127, {}, (), 0, 0, described)
    snapshot = OperatorSnapshot("p", 0, 1, keyed=columns)
    decided(snapshot, described_columns({"n": ("<i8", 5)}), keys="")
    with pytest.raises(InvalidJob, match=r"'p', column n.*<i8.*<f8.*another name"):
        decided(snapshot, described_columns({"n": ("<f8", 0)}), keys="")
