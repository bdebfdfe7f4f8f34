"""pydantic's models as values of every kind of state, over versions of the program."""

import datetime
import decimal
import enum
import uuid
from typing import Any

import pydantic
import pytest

from barrier_runtime import BroadcastState, InvalidJob, ListState, MapState, ReducingState, ValueState
from barrier_runtime.operators.state.stored_type import StoredType
from barrier_runtime.state.errors import UserCodeError
from barrier_runtime.state.snapshots.snapshot import ONE_VALUE
from barrier_runtime.testing import ConnectedHarness, KeyedHarness


class Colour(enum.Enum):
    RED = "red"


class Line(pydantic.BaseModel):
    item: str
    price: decimal.Decimal = decimal.Decimal("1.50")


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", strict=True)
    number: int = pydantic.Field(alias="no", gt=0)
    lines: list[Line] = []
    at: datetime.datetime | None = None
    day: datetime.date = datetime.date(2026, 1, 2)
    kept: dict[str, tuple[int, ...]] = {}
    colour: Colour = Colour.RED
    ident: uuid.UUID = uuid.UUID(int=7)
    raw: bytes = b"\x00\xff"
    back: "Order | None" = None


AT = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)


def order(number: int) -> Order:
    return Order(no=number, lines=[Line(item="pen")], at=AT, kept={"a": (1, 2)}, back=Order(no=9), seen=True)


def through(written: Any, value: Any, read: Any) -> Any:
    """Returns `value` as a restored program that declares `read` reads it after a program with `written` stored it."""

    class Function:
        kept = written

        def process(self, key: str, row: dict[str, Any], ctx: Any) -> None:
            if isinstance(self.kept, ListState):
                self.kept.append(value)
            elif isinstance(self.kept, MapState):
                self.kept["entry"] = value
            elif isinstance(self.kept, ReducingState):
                self.kept.add(value)
            else:
                self.kept.value = value

    with KeyedHarness(Function, key="k", rows={"k": str}) as harness:
        harness.push({"k": "a"})
        snapshot = harness.snapshot()

    class Later:
        kept = read

        def process(self, key: str, row: dict[str, Any], ctx: Any) -> None:
            pass

    with KeyedHarness(Later, key="k", rows={"k": str}, restore=snapshot, parallelism=2) as harness:
        return harness.state("a")["kept"]


@pytest.mark.parametrize(
    ("state", "held"),
    [
        (lambda: ValueState(Order), lambda value: value),
        (lambda: ListState(Order), lambda value: [value]),
        (lambda: MapState(str, Order), lambda value: {"entry": value}),
        (lambda: ReducingState(Order, max), lambda value: value),
        (lambda: ListState(Order | None), lambda value: [value]),
    ],
)
def test_a_model_comes_back_as_itself_with_all_it_holds(state: Any, held: Any) -> None:
    value = order(3)
    assert through(state(), value, state()) == held(value)


class Rules:
    rules = BroadcastState(str, Line)

    def on_rules(self, row: dict[str, Any], ctx: Any) -> None:
        self.rules["pen"] = Line(item="pen")

    def on_rows(self, key: str, row: dict[str, Any], ctx: Any) -> Any:
        yield {"k": key, "price": str(self.rules["pen"].price)}


def test_broadcast_state_holds_models() -> None:
    with ConnectedHarness(Rules, keys={"rows": "k"}, broadcast=["rules"]) as harness:
        harness.push("rules", {"n": 1})
        assert harness.push("rows", {"k": "a"}) == [{"k": "a", "price": "1.50"}]


class First(pydantic.BaseModel):
    no: int
    lines: list[Line] = []


class Wider(pydantic.BaseModel):
    no: float
    lines: list[Line] = []
    kind: str = "web"


class Renamed(pydantic.BaseModel):
    count: int
    lines: list[Line]


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    number: int


def test_versions_of_a_model_are_read_as_those_of_other_classes() -> None:
    first = First(no=3, lines=[Line(item="pen")])
    assert through(ValueState(First), first, ValueState(Wider)) == Wider(no=3, lines=first.lines)
    renamed = ValueState(Renamed, renamed={"no": "count"})
    assert through(ValueState(First), first, renamed) == Renamed(count=3, lines=first.lines)
    migrated = ValueState(Strict, migrate=[lambda old: Strict(number=old["no"])])
    assert through(ValueState(First), first, migrated) == Strict(number=3)
    with pytest.raises(InvalidJob, match=r"lost the fields 'no', 'lines' .* the field 'number' is new"):
        through(ValueState(First), first, ValueState(Strict))
    with pytest.raises(InvalidJob, match=r"field no was float .* is int now"):
        through(ValueState(Wider), Wider(no=1.5), ValueState(First))


def test_a_value_that_the_model_refuses_is_told_when_it_is_written() -> None:
    wrong = Order.model_construct(number=-1)
    with pytest.raises((InvalidJob, UserCodeError), match="does not fit its declared type"):
        through(ValueState(Order), wrong, ValueState(Order))


def test_what_cannot_be_written_is_refused_when_it_is_declared() -> None:
    with pytest.raises(InvalidJob, match="Url"):
        ListState(pydantic.create_model("Linked", to=(pydantic.AnyUrl, ...)))
    several = pydantic.create_model(
        "Several", a=(int, pydantic.Field(validation_alias=pydantic.AliasChoices("a", "b")))
    )
    with pytest.raises(InvalidJob, match="is not a single name"):
        ValueState(several)


def test_snapshots_describe_a_model_by_its_fields() -> None:
    described = StoredType(Order, "msgpack", "ValueState").declared(ONE_VALUE)
    assert described.fields[:2] == ("no", "lines")
    assert described.type is not None
    assert {field.name: field.default for field in described.type.fields}["no"] is False
    assert str(described.type.fields[-1].type) == "Order | None"
