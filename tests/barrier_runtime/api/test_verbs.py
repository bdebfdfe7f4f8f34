"""The everyday verbs: columns added, dropped, renamed; keys by expression; looking at rows; sinks by key."""

import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from barrier_runtime import CollectSink, Dataflow, Sliding, Stream, Tumbling, count
from barrier_runtime.operators.functions.batch_functions import SelectColumnsOperator
from barrier_runtime.state.errors import InvalidJob

ROWS = [{"id": 1, "price": 10, "at": 0}, {"id": 2, "price": 20, "at": 60_000}, {"id": 3, "price": 30, "at": 61_000}]
SCHEMA = {"id": int, "price": int, "at": int}
MINUTE = Tumbling(datetime.timedelta(minutes=1))


def rows_in(flow: Dataflow, rows: list[dict[str, Any]] = ROWS, schema: Any = SCHEMA, name: str = "in") -> Stream:
    return flow.from_iterator(name, lambda index, of: iter(rows), schema=schema, splits=1, event_time="at")


def result(stream: Stream, flow: Dataflow) -> list[dict[str, Any]]:
    stream.sink("out", out := CollectSink())
    flow.run_local(parallelism=2)
    return out.rows()


def test_columns_are_added_and_replaced_in_their_places() -> None:
    flow = Dataflow("verbs")
    rows = rows_in(flow).with_columns({"price": "price + 1"}, eur="price * 0.5", shop="'berlin'", n=2)
    assert rows.schema.names == ["id", "price", "at", "eur", "shop", "n"]
    assert result(rows, flow)[0] == {"id": 1, "price": 11, "at": 0, "eur": 5.0, "shop": "berlin", "n": 2}


def test_columns_are_dropped_and_renamed_without_expressions() -> None:
    flow = Dataflow("verbs")
    rows = rows_in(flow).rename(price="amount").rename({"id": "order"}).drop("at")
    assert {node.make.func for node in rows._plan.nodes[1:]} == {SelectColumnsOperator}  # type: ignore[union-attr]
    assert result(rows, flow) == [{"order": row["id"], "amount": row["price"]} for row in ROWS]


def test_two_columns_swap_their_names() -> None:
    flow = Dataflow("verbs")
    assert result(rows_in(flow).rename(id="price", price="id"), flow)[0] == {"price": 1, "id": 10, "at": 0}


def test_a_star_stands_for_all_columns_where_it_is_written() -> None:
    rows = rows_in(Dataflow("verbs"))
    assert rows.select("*").schema == rows.schema
    assert rows.select(["*"]).schema == rows.schema
    assert rows.select({"eur": "price * 0.5", "*": "*"}).schema.names == ["eur", "id", "price", "at"]
    assert rows.select("*", {"eur": "price * 0.5"}).schema.names == ["id", "price", "at", "eur"]
    assert rows.select("id", "at").schema.names == ["id", "at"]


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda rows: rows.drop("prize"), r"drop: there is no column 'prize' \(did you mean 'price'\?\)"),
        (lambda rows: rows.drop(), "drop: no columns: name at least one"),
        (lambda rows: rows.drop("id", "price", "at"), "drop: no columns: name at least one"),
        (lambda rows: rows.rename(prize="x"), "rename: there is no column 'prize'"),
        (lambda rows: rows.rename(price="id"), "two columns would be named 'id': drop or rename the other"),
        (lambda rows: rows.rename(), r"as in rename\(old='new'\)"),
        (lambda rows: rows.with_columns(), r"as in with_columns\(eur='price \* 0.908'\)"),
        (lambda rows: rows.with_columns(["id"]), "with_columns: columns=.*: give a mapping or None"),
        (lambda rows: rows.with_columns(x="prize + 1"), "with_columns, column 'x'.*there is no column 'prize'"),
        (lambda rows: rows.map(dict).drop("id"), "drop: it has to know all columns.*pass schema= to the step before"),
        (lambda rows: rows.map(dict).select("*"), "select: it has to know all columns of its rows"),
        (lambda rows: rows.key_by("id % 2"), r"an expression gets a name, as in key_by\(group='sensor % 16'\)"),
        (lambda rows: rows.key_by(pc.field("id")), "an expression gets a name"),
        (lambda rows: rows.key_by(price="id % 2"), "the output column 'price' exists already"),
        (lambda rows: rows.key_by("id", id="id % 2"), "a column is named twice"),
        (lambda rows: rows.key_by(), "name at least one"),
        (lambda rows: rows.inspect("id"), "inspect: function=<str>: give a function"),
    ],
)
def test_mistakes_are_refused_when_the_flow_is_written(write: Any, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        write(rows_in(Dataflow("verbs")))


@pytest.mark.slow
def test_a_key_is_computed_by_an_expression() -> None:
    flow = Dataflow("verbs")
    counted = rows_in(flow).key_by(odd="id % 2").aggregate("n", n=count())
    assert sorted((row["id"], row["odd"], row["n"]) for row in result(counted, flow)) == [
        (1, 1, 1),
        (2, 0, 1),
        (3, 1, 2),
    ]


def test_rows_are_looked_at_in_the_middle_of_a_chain(capsys: pytest.CaptureFixture[str]) -> None:
    flow, seen = Dataflow("verbs"), list[Any]()
    looked_at = rows_in(flow).inspect(name="look").filter("id > 1").inspect(seen.append)
    assert result(looked_at, flow) == ROWS[1:] == seen
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")] == [str(row) for row in ROWS]


def test_an_inspected_row_does_not_change() -> None:
    flow = Dataflow("verbs")
    assert result(rows_in(flow).inspect(lambda row: row.update(id=7)), flow) == ROWS


def test_a_sink_behind_key_by_gets_all_rows_of_a_key_in_the_same_subtask() -> None:
    flow, many = Dataflow("verbs"), [{"id": number % 7, "price": number, "at": number} for number in range(500)]
    keyed = rows_in(flow, many).rebalance().filter("id >= 0").key_by("id")
    keyed.sink("out", out := CollectSink())
    (node,) = [node for node in keyed._stream._plan.nodes if getattr(node, "is_sink", False)]
    assert (node.inputs[0].partitioning, node.inputs[0].keys) == ("hash", ("id",))  # type: ignore[union-attr]
    flow.run_local(parallelism=2)
    assert sorted(row["price"] for row in out.rows()) == list(range(500))


@pytest.mark.slow
def test_the_top_rows_of_aggregates_of_the_same_windows_keep_their_window() -> None:
    flow = Dataflow("verbs")
    minutes = rows_in(flow).key_by("id").window("by-id", MINUTE, event_time="at").aggregate(n=count())
    best = minutes.window_all("best", MINUTE, event_time="window_start").top(1, by="id")
    assert best.schema.names == ["id", "window_start", "window_end", "n", "rank"]
    found = sorted(result(best, flow), key=lambda row: row["window_start"])
    assert [(row["id"], row["window_start"].minute, row["window_end"].minute) for row in found] == [
        (1, 0, 1),
        (3, 1, 2),
    ]


@pytest.mark.parametrize(
    ("window", "time"),
    [
        (Tumbling(datetime.timedelta(minutes=2)), "window_start"),
        (MINUTE, "window_end"),
        (Sliding(datetime.timedelta(minutes=1), datetime.timedelta(seconds=30)), "window_start"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_top_rows_of_other_windows_need_other_names(window: Any, time: str) -> None:
    minutes = rows_in(Dataflow("verbs")).key_by("id").window("by-id", MINUTE, event_time="at").aggregate(n=count())
    with pytest.raises(InvalidJob, match=r"'window_start' exists already: rename it before.*first_window"):
        minutes.window_all("best", window, event_time=time).top(1, by="id")
    renamed = minutes.rename(window_start="from", window_end="to")
    time = {"window_start": "from", "window_end": "to"}[time]
    assert renamed.window_all("best", window, event_time=time).top(1, by="id").schema.names[-3:-1] == [
        "window_start",
        "window_end",
    ]


def test_a_union_has_the_finest_unit_and_the_widest_number() -> None:
    flow = Dataflow("verbs")
    coarse = pa.schema([("id", pa.int32()), ("at", pa.timestamp("ms", "UTC"))])
    fine = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    time = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=datetime.timezone.utc)
    one = rows_in(flow, [{"id": 1, "at": time}], coarse, "coarse")
    other = rows_in(flow, [{"id": 1 << 40, "at": time + datetime.timedelta(microseconds=9)}], fine, "fine")
    both = one.union(other)
    assert both.schema == fine
    assert both._plan.event_times_of_batches(both._node) == {"at"}
    assert sorted((row["id"], row["at"].microsecond) for row in result(both, flow)) == [
        (1, 678_000),
        (1 << 40, 678_009),
    ]


def test_small_whole_numbers_beside_doubles_become_doubles_in_a_union() -> None:
    flow = Dataflow("verbs")
    small, double = ({"id": kind, "at": int} for kind in (pa.int32(), float))
    both = rows_in(flow, [{"id": 2**31 - 1, "at": 0}], small, "one").union(
        rows_in(flow, [{"id": 0.5, "at": 0}], double, "other")
    )
    assert sorted(row["id"] for row in result(both, flow)) == [0.5, 2.0**31 - 1]


def test_a_refused_union_names_the_column_that_differs() -> None:
    flow = Dataflow("verbs")
    one, two = rows_in(flow, [], {"id": int, "at": int}, "one"), rows_in(flow, [], {"id": float, "at": int}, "two")
    with pytest.raises(InvalidJob, match=r"id is int64 and double, so \.with_columns\(id='CAST\(id AS …\)'\)"):
        one.union(two)


@pytest.mark.parametrize(
    "other",
    [{"id": str, "at": int}, {"id": float, "at": int}, {"at": int, "id": int}, {"id": int, "at": int, "x": int}],
)
def test_a_union_of_other_columns_or_kinds_is_refused(other: Any) -> None:
    flow = Dataflow("verbs")
    one, two = rows_in(flow, [], {"id": int, "at": int}, "one"), rows_in(flow, [], other, "two")
    with pytest.raises(InvalidJob, match=r"union: one input has .*select\(\) the same columns and types"):
        one.union(two)
