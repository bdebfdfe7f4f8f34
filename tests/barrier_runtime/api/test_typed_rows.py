"""Typed rows: dataclasses and `msgspec.Struct` classes as rows of sources, functions and harnesses."""

import datetime
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from barrier_runtime import (
    CollectSink,
    CsvSource,
    Dataflow,
    Global,
    IteratorSource,
    JsonlSource,
    ParquetSource,
    PollSource,
    RabbitMQSource,
    Stream,
    TypedStream,
    ValueState,
    max_,
)
from barrier_runtime.api.sources import SettingsOfSource, SourceOptions
from barrier_runtime.connectors.source import SourceSettings
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.row_class import row_class
from barrier_runtime.operators.functions.instances import Instances
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob
from barrier_runtime.testing import KeyedHarness

UTC = datetime.timezone.utc


class Kind(enum.Enum):
    WEB = "web"
    SHOP = "shop"


@dataclass
class Line:
    sku: str
    price: Annotated[Decimal, "decimal(10, 2)"]


@dataclass
class Order:
    id: int
    at: datetime.datetime
    kind: Kind
    lines: list[Line]
    note: str | None = None
    tags: dict[str, int] = field(default_factory=dict)


class Total(msgspec.Struct, rename="camel"):
    order_id: int
    amount: float


@dataclass(frozen=True)
class Point:
    n: int
    x: float


AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
ORDER = Order(1, AT, Kind.SHOP, [Line("a", Decimal("1.50"))], None, {"gift": 1})
PLAIN: dict[str, Any] = {
    "id": 1,
    "at": AT,
    "kind": "shop",
    "lines": [{"sku": "a", "price": Decimal("1.50")}],
    "note": None,
    "tags": {"gift": 1},
}


def rows_of(*rows: dict[str, Any]) -> Callable[[int, int], list[dict[str, Any]]]:
    return lambda index, of: list(rows) if index == 0 else []


def results(
    build: Callable[[Stream], Stream], schema: Any, *rows: dict[str, Any], name: str = "typed"
) -> list[dict[str, Any]]:
    flow, collected = Dataflow(name), CollectSink()
    build(flow.source("in", IteratorSource(rows_of(*rows), schema=schema))).sink("out", collected)
    flow.run_local()
    return collected.rows()


def points(count: int) -> list[dict[str, Any]]:
    return [{"n": n, "x": n / 2} for n in range(count)]


@pytest.mark.parametrize("count", [1, 300])
def test_a_source_of_a_class_gives_and_takes_instances(count: int) -> None:
    seen: list[Any] = []

    def total(order: Order) -> Total:
        seen.append(order)
        return Total(order.id, float(sum(line.price for line in order.lines)))

    made = results(lambda rows: rows.typed(Order).map(total), Order, *[{**PLAIN, "id": n} for n in range(count)])
    assert sorted(row["orderId"] for row in made) == list(range(count))
    assert {row["amount"] for row in made} == {1.5}
    assert min(seen, key=lambda order: order.id) == Order(0, AT, Kind.SHOP, ORDER.lines, None, {"gift": 1})


@pytest.mark.parametrize("count", [3, 500])
def test_steps_that_keep_rows_keep_their_class(count: int) -> None:
    seen: list[type] = []

    def build(rows: Stream) -> Stream:
        points = rows.typed(Point)
        kept = (
            points.filter("n >= 0").inspect(lambda point: seen.append(type(point))).filter(lambda point: point.n >= 1)
        )
        big, small = kept.split("size", lambda point: "big" if point.x > 1 else "small", into=("big", "small"))
        return big.union(small).map(lambda point: {"n": point.n})

    assert sorted(row["n"] for row in results(build, Point, *points(count))) == list(range(1, count))
    assert set(seen) == {Point}


def test_columns_after_select_are_dicts_and_typed_gives_instances() -> None:
    def build(rows: Stream) -> Stream:
        doubled = rows.select({"n": "n", "x": "x * 2"})
        checked = doubled.filter(lambda row: row["x"] >= 0)
        return checked.typed(Point).map(lambda point: Point(point.n, point.x + 1), schema=Point)

    assert results(build, Point, *points(3)) == [{"n": 0, "x": 1.0}, {"n": 1, "x": 2.0}, {"n": 2, "x": 3.0}]


def test_typed_with_the_class_that_rows_have_adds_no_step() -> None:
    flow = Dataflow("typed")
    rows = flow.source("in", IteratorSource(rows_of(), schema=Point))

    def large(points: TypedStream[Point]) -> TypedStream[Point]:
        return points.filter(lambda point: point.x > 1)

    assert rows.typed(Point) is rows
    assert len(large(rows.typed(Point))._plan.nodes) == 2
    assert rows.map(lambda row: {"n": 1}, schema={"n": int, "x": float}).typed(Point) is not rows


def test_typed_refuses_a_column_of_another_type_with_its_name() -> None:
    rows = Dataflow("typed").source("in", IteratorSource(rows_of(), schema={"n": str, "x": float}))
    with pytest.raises(InvalidJob, match=r"class Point has column 'n' of type int64"):
        rows.typed(Point)
    with pytest.raises(InvalidJob, match="no column 'x'"):
        rows.select("n").typed(Point)
    assert rows.typed(dict).schema == rows.schema


def test_dicts_of_a_declared_mapping_stay_dicts() -> None:
    made = results(lambda rows: rows.map(lambda row: {"n": row["n"] + 1}), {"n": int, "x": float}, *points(2))
    assert made == [{"n": 1}, {"n": 2}]


class Largest:
    top = ValueState(float)

    def process(self, key: int, point: Point, ctx: Any) -> Iterator[Point]:
        self.top.value = max(self.top.value or 0.0, point.x)
        yield Point(key, self.top.value)


def test_keyed_functions_get_and_yield_instances() -> None:
    def build(rows: Stream) -> Stream:
        most = rows.typed(Point).key_by(bucket="n % 2").process("most", Largest, schema=Point)
        return most.map(lambda point: {"key": point.n, "x": point.x})

    made = results(build, Point, *points(5))
    assert max(row["x"] for row in made if row["key"] == 0) == 2.0
    assert max(row["x"] for row in made if row["key"] == 1) == 1.5


def test_a_function_may_return_one_instance_without_a_list() -> None:
    def build(rows: Stream) -> Stream:
        made = rows.typed(Point).process("one", lambda point, ctx: Point(point.n + 1, point.x), schema=Point)
        return made.flat_map(lambda point: [point, point], schema=Point)

    assert [row["n"] for row in results(build, Point, *points(2))] == [1, 1, 2, 2]


def test_side_outputs_have_the_class_that_side_declares() -> None:
    def both(point: Point, ctx: Any) -> Point:
        ctx.emit("twice", Point(point.n * 2, point.x))
        return point

    def build(rows: Stream) -> Stream:
        main, twice = rows.typed(Point).process("both", both, side={"twice": Point})
        return main.union(twice.typed(Point).filter(lambda point: point.n > 1))

    assert sorted(row["n"] for row in results(build, Point, *points(3))) == [0, 1, 2, 2, 4]


@pytest.mark.parametrize("count", [1, 300])
def test_a_null_in_a_field_that_is_not_optional_is_refused(count: int) -> None:
    rows = [*points(count), {"n": 7, "x": None}]
    with pytest.raises(
        BarrierRuntimeError, match=r"column 'x': Point.x is null: declare the field with \"\| None\""
    ) as told:
        results(lambda made: made.typed(Point).map(lambda point: {"n": point.n}), {"n": int, "x": float}, *rows)
    assert "{'n': 7, 'x': None}" in str(told.value)


def test_a_returned_none_in_such_a_field_is_refused() -> None:
    def without_x(point: Point) -> Point:
        return Point(point.n, None)  # type: ignore[arg-type]

    with pytest.raises(BarrierRuntimeError, match=r"column 'x' is double, but a row has None"):
        results(lambda rows: rows.typed(Point).map(without_x), Point, *points(1))


def test_an_instance_without_a_declared_class_names_the_remedy() -> None:
    with pytest.raises(BarrierRuntimeError, match="pass schema=Point, or annotate what the function returns"):
        results(lambda rows: rows.typed(Point).map(lambda point: Point(point.n, 1.0)), Point, *points(1))


def test_an_instance_of_another_class_is_refused() -> None:
    with pytest.raises(BarrierRuntimeError, match="gave a Total where a row is expected: return instances of Point"):
        results(lambda rows: rows.typed(Point).map(lambda point: Total(1, 1.0), schema=Point), Point, *points(1))


def test_an_instance_that_is_kept_and_changed_counts_as_it_was() -> None:
    class Kept:
        def __init__(self) -> None:
            self.row = Total(0, 0.0)

        def process(self, point: Point, ctx: Any) -> Iterator[Total]:
            for _ in range(2):
                self.row.order_id += 1
                yield self.row

    made = results(lambda rows: rows.typed(Point).process("kept", Kept, schema=Total), Point, *points(2))
    assert [row["orderId"] for row in made] == [1, 2, 3, 4]


def order_of(**changed: Any) -> Any:
    return lambda order: Order(**{**vars(ORDER), **changed})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (order_of(kind="mail"), r"column 'kind': 'mail' is no value of the enum Kind"),
        (lambda order: {**PLAIN, "kind": "mail"}, r"column 'kind': 'mail' is no value of the enum Kind"),
        (lambda order: {**PLAIN, "lines": [{"sku": None, "price": None}]}, r"column 'lines': Line.sku is None"),
    ],
)
def test_returned_values_that_are_none_of_the_class_are_refused(given: Any, told: str) -> None:
    with pytest.raises(BarrierRuntimeError, match=told):
        results(lambda rows: rows.map(given, schema=Order), Order, PLAIN)


def test_returned_dicts_may_hold_values_of_the_class() -> None:
    given = {**PLAIN, "kind": Kind.SHOP, "lines": ORDER.lines}
    (made,) = results(lambda rows: rows.map(lambda order: given, schema=Order), Order, PLAIN)
    assert (made["kind"], made["lines"]) == ("shop", PLAIN["lines"])


def instances_of(kind: type, **columns: pa.Array) -> list[Any]:
    rows = row_class(kind, "test")
    assert rows is not None
    return list(Instances(rows).each(Batch(pa.record_batch(columns), 0)))


@dataclass
class Tagged:
    tags: dict[str, int]


def test_a_map_with_a_key_twice_is_refused() -> None:
    twice = pa.MapArray.from_arrays([0, 2], ["a", "a"], pa.array([1, 2]))
    with pytest.raises(ValueError, match="column 'tags': the map has the key 'a' twice"):
        instances_of(Tagged, tags=twice)


@dataclass
class Timed:
    at: Annotated[datetime.datetime, "timestamp[ns, tz=UTC]"]


def test_a_time_with_nanoseconds_is_refused_and_not_cut() -> None:
    kind = pa.timestamp("ns", "UTC")
    assert instances_of(Timed, at=pa.array([1_000], kind)) == [Timed(datetime.datetime.fromtimestamp(1e-6, UTC))]
    with pytest.raises(ValueError, match=r"column 'at': Timed.at would lose 7 ns of 1970-01-01"):
        instances_of(Timed, at=pa.array([1_000, 2_007], kind))


class Answer(enum.Enum):
    YES = True
    NO = False


@dataclass
class Answered:
    answer: Answer


@dataclass
class Untyped:
    value: int | str


@dataclass
class Computed:
    n: int
    double: int = field(init=False)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Untyped, r"class Untyped: column 'value' has type int \| str"),
        (Answered, "enum Answer, whose values are neither all text nor all int"),
        (Computed, r"Computed\(…\) does not take the field 'double'"),
    ],
)
def test_a_class_without_exact_columns_is_refused(kind: type, told: str) -> None:
    with pytest.raises(InvalidJob, match=told):
        Dataflow("typed").source("in", IteratorSource(rows_of(), schema=kind))


def test_harnesses_take_and_give_instances() -> None:
    with KeyedHarness(Largest, key="n", rows=Point, schema=Point) as harness:
        assert harness.push(Point(1, 2.0), Point(1, 1.0)) == [Point(1, 2.0), Point(1, 2.0)]
        assert harness.state(1) == {"top": 2.0}


def test_an_iterator_yields_instances_of_its_class() -> None:
    flow, collected = Dataflow("typed"), CollectSink()
    flow.source("in", IteratorSource(lambda index, of: [Point(1, 0.5)] if index == 0 else [], schema=Point)).sink(
        "out", collected
    )
    flow.run_local()
    assert collected.rows() == [{"n": 1, "x": 0.5}]


def test_annotations_that_are_no_types_name_no_class() -> None:
    def total(point: Any, ctx: Any = None) -> Any:
        return {"n": point.n}

    def same(point: Any) -> Any:
        return point

    total.__annotations__ |= {"return": "its total", "ctx": "1 +"}
    same.__annotations__ |= {"return": Point, "point": "a point"}
    build: Any = lambda rows: rows.map(same).filter(lambda point: point.n < 2).process("p", total)  # noqa: E731
    made = results(build, Point, *points(3))
    assert [row["n"] for row in made] == [0, 1]


@pytest.mark.parametrize("form", ["changes", "upsert"])
def test_rows_of_debezium_are_dicts_with_the_columns_of_the_form(form: Any) -> None:
    told: Any = {"group": "typed", "value": "json", "schema": Point, "debezium": form}
    rows = Dataflow("typed").read_kafka("in", "localhost:1", "orders", **told)
    assert rows._rows is None


@pytest.mark.parametrize("whole", [True, False], ids=["rows", "aggregates"])
def test_a_function_of_windows_returns_instances(whole: bool) -> None:
    def largest(key: int, window: Any, table: Any) -> Total:
        return Total(key, float(pc.max(table["x"]).as_py()))

    def of_aggregates(key: int, window: Any, values: dict[str, Any]) -> list[Total]:
        return [Total(key, values["top"])]

    def build(rows: Stream) -> Stream:
        windows = rows.key_by("n").window("all", Global())
        made = (
            windows.apply(largest, schema=Total) if whole else windows.apply(of_aggregates, schema=Total, top=max_("x"))
        )
        return made.filter(lambda total: total.order_id > 0)

    rows = [{"n": n, "x": x} for n in (0, 1) for x in (1.0, 3.0, 2.0)]
    assert results(build, Point, *rows) == [{"orderId": 1, "amount": 3.0}]


@pytest.mark.parametrize("form", [list, dict])
def test_a_lookup_takes_instances_of_its_schema(form: Any) -> None:
    def fetch(keys: list[int]) -> Any:
        found = [Point(key, key / 4) if key else None for key in keys]
        return found if form is list else dict(zip(keys, found, strict=True))

    def build(rows: Stream) -> Stream:
        return rows.select("n").lookup("points", fetch, key="n", schema=Point).typed(Halved)

    made = results(build, Point, *points(3))
    assert sorted(made, key=lambda row: row["n"]) == [{"n": 0, "x": None}, {"n": 1, "x": 0.25}, {"n": 2, "x": 0.5}]


@dataclass
class Halved:
    n: int
    x: float | None


def test_a_lookup_refuses_instances_of_another_class() -> None:
    def fetch(keys: list[int]) -> list[Halved]:
        return [Halved(0, 1.0)]

    with pytest.raises(BarrierRuntimeError, match=r"gave Halved.* for the key 0: pass schema=Halved, or return a dict"):
        results(lambda rows: rows.select("n").lookup("points", fetch, key="n", schema=Point), Point, *points(1))


def test_collected_rows_are_read_as_instances() -> None:
    flow, collected = Dataflow("typed"), CollectSink()
    flow.from_iterator("in", rows_of(*points(2)), schema=Point).sink("out", collected)
    flow.run_local()
    assert collected.rows(Point) == [Point(0, 0.0), Point(1, 0.5)]
    with pytest.raises(InvalidJob, match=r"rows\(Total\): the rows have \(n: int64, x: double\), and class Total"):
        collected.rows(Total)
    with pytest.raises(InvalidJob, match=r"rows\(dict\): pass a dataclass"):
        collected.rows(dict)  # type: ignore[type-var]


def test_type_checkers_know_the_arguments_of_all_sources_with_a_schema() -> None:
    described = (ParquetSource, CsvSource, JsonlSource, RabbitMQSource, IteratorSource, PollSource)
    own = {each.name for kind in described for each in fields(kind)} - {"schema", "make_iterator", "fetch", "every"}
    assert SourceOptions.__annotations__.keys() == own
    assert SettingsOfSource.__annotations__.keys() == {each.name for each in fields(SourceSettings)}
