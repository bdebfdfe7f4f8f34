"""Natural code in a user's function gives right rows, or is refused: whole jobs, as users write them."""

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, InvalidJob, JobFailed, JsonlSink, ProcessContext, Stream, ValueState

Row = dict[str, Any]
NUMBERS = [{"k": "a", "n": n} for n in range(3)]
PLAIN = {"k": str, "n": int}


def ran(rows: Sequence[Row], schema: Any, step: Callable[[Stream], Stream], **options: Any) -> CollectSink:
    flow = Dataflow("natural")
    out = CollectSink()
    source = flow.from_iterator("s", lambda index, of: iter(rows), schema=schema, splits=1)
    step(source).sink("o", out)
    flow.run_local(parallelism=1, **options)
    return out


def keyed(function: Any, **options: Any) -> Callable[[Stream], Stream]:
    return lambda stream: stream.key_by("k").process("p", function, **options)


# ------------------------------------------------------------ a yielded row keeps the values


class YieldsItsState:
    seen = ValueState(list[int], default_factory=list)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Iterator[Row]:
        seen = self.seen.value
        seen.append(row["n"])
        self.seen.update(seen)
        yield {"seen": seen}


def test_a_list_that_is_yielded_and_grows_later_counts_as_it_was() -> None:
    out = ran(NUMBERS, PLAIN, keyed(YieldsItsState))
    assert [row["seen"] for row in out.rows()] == [[0], [0, 1], [0, 1, 2]]


class YieldsARowTwice:
    def process(self, key: str, row: Row, ctx: ProcessContext) -> Iterator[Row]:
        yield row
        row["n"] *= 10
        yield row


class ReturnsAKeptRow:
    def __init__(self) -> None:
        self.row: Row = {}

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        self.row["n"] = row["n"]
        return self.row


def doubled(key: str, row: Row, ctx: ProcessContext) -> list[Row]:
    kept = {"n": row["n"]}
    result = [kept, kept.copy()]
    result[1]["n"] *= 10
    return result


IGNORES_KEPT_ROWS = pytest.mark.filterwarnings("ignore:.*changed while rows were processed, and is not state")


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (YieldsARowTwice, [0, 0, 1, 10, 2, 20]),
        pytest.param(ReturnsAKeptRow, [0, 1, 2], marks=IGNORES_KEPT_ROWS),
        (doubled, [0, 0, 1, 10, 2, 20]),
    ],
)
@pytest.mark.parametrize("schema", [None, {"n": int}, {"n": float}])
def test_a_row_that_changes_after_it_was_given_counts_as_it_was(function: Any, numbers: list[int], schema: Any) -> None:
    if function is YieldsARowTwice and schema is not None:
        schema = {"k": str, **schema}
    out = ran(NUMBERS, PLAIN, keyed(function, schema=schema))
    assert [row["n"] for row in out.rows()] == numbers


def one_dict_for_all(row: Row) -> list[Row]:
    kept, rows = {}, []
    for times in (1, 10):
        kept["n"] = row["n"] * times
        rows.append(kept)
    return rows


def the_input_row_changed(row: Row) -> list[Row]:
    rows = []
    for times in (1, 10):
        row["n"] *= times
        rows.append(row)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("function", [one_dict_for_all, the_input_row_changed])
@pytest.mark.parametrize("schema", [None, {"n": int}])
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_one_dict_that_is_several_rows_of_a_list_is_refused(function: Any, schema: Any, on_error: Any) -> None:
    def select(stream: Stream) -> Stream:
        return stream.map(lambda row: {"n": row["n"]})

    steps: list[Callable[[Stream], Stream]] = [
        lambda stream: select(stream).flat_map(function, schema=schema, on_error=on_error),
        lambda stream: select(stream).process("p", lambda row, ctx: function(row), schema=schema, on_error=on_error),
        lambda stream: (
            select(stream)
            .key_by("n")
            .process("p", lambda key, row, ctx: function(row), schema=schema, on_error=on_error)
        ),
    ]
    for step in steps:
        with pytest.raises(JobFailed, match=r"(?s)the same row 2 times, .* make a dict for each row"):
            ran(NUMBERS, PLAIN, step)


@pytest.mark.parametrize(
    "function", [lambda row: [row] * 2, lambda row: [row for _ in "ab"], lambda row: [{**row}] * 2]
)
def test_a_row_may_be_several_rows_where_nothing_can_have_changed(function: Any) -> None:
    out = ran(NUMBERS, PLAIN, lambda stream: stream.flat_map(function))
    assert [row["n"] for row in out.rows()] == [0, 0, 1, 1, 2, 2]


def test_rows_of_a_full_list_are_equal_and_a_warning_says_so() -> None:
    with pytest.warns(UserWarning, match="the same row 4 times"):
        out = ran(NUMBERS, PLAIN, lambda stream: stream.flat_map(lambda row: [{"n": row["n"]}] * 4))
    assert [row["n"] for row in out.rows()] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


LATER: list[Row] = []


def keeps_rows_and_lists(row: Row) -> Row:
    """Changes the row returned by the previous call."""
    for given in LATER:
        given["n"] = -1
        given["all"].append(-1)
    row["all"] = [row["n"]]
    LATER[:] = [row]
    return row


def keeps_lists(row: Row) -> Row:
    for given in LATER:
        given["all"].append(-1)
    kept = {"all": [row["n"]]}
    LATER[:] = [kept]
    return {"n": row["n"], "all": kept["all"]}


@pytest.mark.parametrize("schema", [None, {"n": int, "all": pa.list_(pa.int64())}])
@pytest.mark.parametrize("function", [keeps_rows_and_lists, keeps_lists])
@pytest.mark.parametrize("times", [1, pytest.param(400, marks=pytest.mark.slow)])
def test_a_row_or_a_list_that_the_function_keeps_and_changes_counts_as_it_was(
    function: Any, schema: Any, times: int
) -> None:
    rows = [{"n": n} for n in range(3 * times)]
    steps: list[Callable[[Stream], Stream]] = [
        lambda s: s.map(function, schema=schema),
        lambda s: s.flat_map(lambda row: [function(row)], schema=schema),
        lambda s: s.flat_map(lambda row: (function(each) for each in [row]), schema=schema),
        lambda s: s.key_by("n").process("p", lambda key, row, ctx: function(row), schema=schema),
        lambda s: s.key_by("n").process("p", lambda key, row, ctx: [function(row)], schema=schema),
    ]
    for step in steps:
        LATER.clear()
        assert ran(rows, {"n": int}, step).rows() == [{"n": row["n"], "all": [row["n"]]} for row in rows]


class KeepsRowsForTimers:
    """Yields the same dict at every timer."""

    out: Row

    def __init__(self) -> None:
        self.out = {"at": 0, "all": []}

    def process(self, key: str, row: Row, ctx: ProcessContext) -> None:
        ctx.timers.register(row["n"])

    def on_timer(self, key: str, timestamp_ms: int, ctx: ProcessContext) -> Iterator[Row]:
        self.out["at"] = timestamp_ms
        self.out["all"].append(timestamp_ms)
        yield self.out


def test_a_row_that_a_timer_gives_and_changes_later_counts_as_it_was() -> None:
    out = ran(NUMBERS, PLAIN, lambda stream: keyed(KeepsRowsForTimers)(stream.with_watermarks("n")))
    assert out.rows() == [{"at": 0, "all": [0]}, {"at": 1, "all": [0, 1]}, {"at": 2, "all": [0, 1, 2]}]


KEPT: Row = {}


def keeps(row: Row) -> Row:
    KEPT["n"] = row["n"]
    return KEPT


def gives_twice(row: Row) -> Iterator[Row]:
    yield keeps(row)
    KEPT["n"] = -1
    yield KEPT


@pytest.mark.slow
def test_map_and_flat_map_may_use_one_dict_for_all_rows() -> None:
    assert [row["n"] for row in ran(NUMBERS, PLAIN, lambda s: s.map(keeps)).rows()] == [0, 1, 2]
    assert [row["n"] for row in ran(NUMBERS, PLAIN, lambda s: s.map(keeps, schema={"n": int})).rows()] == [0, 1, 2]
    assert [row["n"] for row in ran(NUMBERS, PLAIN, lambda s: s.flat_map(gives_twice)).rows()] == [0, -1, 1, -1, 2, -1]
    declared = ran(NUMBERS, PLAIN, lambda s: s.flat_map(gives_twice, schema={"n": int}))
    assert [row["n"] for row in declared.rows()] == [0, -1, 1, -1, 2, -1]


@pytest.mark.parametrize(
    "make",
    [list, set, bytearray, lambda values: np.array(values), lambda values: {"x": list(values)}, lambda v: [[list(v)]]],
    ids=["list", "set", "bytearray", "array", "dict", "nested"],
)
@pytest.mark.parametrize("declared", [False, True])
def test_no_kind_of_value_is_kept_by_reference(make: Callable[[Iterable[int]], Any], declared: bool) -> None:
    def change(value: Any) -> None:
        if isinstance(value, set):
            value.add(9)
        elif isinstance(value, np.ndarray | bytearray):
            value[0] = 9
        elif isinstance(value, dict):
            value["x"].append(9)
        else:
            while isinstance(value[0], list):
                value = value[0]
            value.append(9)

    def give(row: Row) -> Iterator[Row]:
        value = make([row["n"]])
        yield {"v": value}
        change(value)

    before = ran(NUMBERS, PLAIN, lambda s: s.map(lambda row: {"v": make([row["n"]])}))
    schema = before.batches()[0].schema if declared else None
    assert ran(NUMBERS, PLAIN, lambda s: s.flat_map(give, schema=schema)).rows() == before.rows()


def test_an_iterator_may_use_one_dict_for_all_rows() -> None:
    def rows(index: int, of: int) -> Iterator[Row]:
        row: Row = {"n": 0, "all": []}
        for n in range(3):
            row["n"] = n
            row["all"].append(n)
            yield row

    flow = Dataflow("natural")
    out = CollectSink()
    flow.from_iterator("s", rows, schema={"n": int, "all": pa.list_(pa.int64())}, splits=1).sink("o", out)
    flow.run_local(parallelism=1)
    assert out.rows() == [{"n": 0, "all": [0]}, {"n": 1, "all": [0, 1]}, {"n": 2, "all": [0, 1, 2]}]


# ------------------------------------------------------------ types that the first rows leave open

PRICES = [{"k": "a", "x": Decimal("9.99")}] * 1_500 + [{"k": "a", "x": Decimal("10.00")}]
PRICE = {"k": str, "x": pa.decimal128(10, 2)}


def identity(key: str, row: Row, ctx: ProcessContext) -> Row:
    return {"x": row["x"]}


@pytest.mark.parametrize("step", [lambda s: s.map(lambda r: {"x": r["x"]}), keyed(identity)], ids=["map", "process"])
def test_a_decimal_that_is_passed_on_keeps_its_declared_type(step: Callable[[Stream], Stream]) -> None:
    """The digits of the first rows do not determine the type."""
    out = ran(PRICES, PRICE, step)
    assert len(out.rows()) == len(PRICES)
    assert out.batches()[0].schema.field("x").type == pa.decimal128(10, 2)


def test_a_decimal_of_a_new_column_may_have_more_digits_later() -> None:
    out = ran(PRICES, PRICE, lambda s: s.map(lambda r: {"twice": r["x"] * 2}))
    assert out.rows()[-1] == {"twice": Decimal("20.00")}
    assert out.batches()[0].schema.field("twice").type == pa.decimal128(38, 2)


@pytest.mark.parametrize(
    ("kind", "first", "later"),
    [
        (pa.int64(), None, 5),
        (pa.string(), None, "text"),
        (pa.list_(pa.int64()), [], [1, 2]),
        (pa.uint64(), 1, 2**64 - 1),
        (pa.list_(pa.decimal128(10, 2)), [Decimal("1.00")], [Decimal("100.00")]),
        (pa.struct([("x", pa.decimal128(10, 2))]), {"x": None}, {"x": Decimal("100.00")}),
    ],
)
def test_a_column_that_is_passed_on_keeps_what_its_first_rows_leave_open(
    kind: pa.DataType, first: Any, later: Any
) -> None:
    rows = [{"v": first}] * 1_500 + [{"v": later}]
    out = ran(rows, {"v": kind}, lambda s: s.map(lambda row: dict(row)))
    assert out.rows()[-1] == {"v": later}


def test_a_column_of_another_kind_of_value_has_a_type_of_its_own() -> None:
    out = ran(PRICES, PRICE, lambda s: s.map(lambda row: {"x": str(row["x"])}))
    assert out.batches()[0].schema.field("x").type == pa.string()
    fine = ran([{"x": Decimal("9.99")}], {"x": pa.decimal128(3, 2)}, lambda s: s.map(lambda r: {"x": r["x"] / 8}))
    assert fine.rows() == [{"x": Decimal("1.24875")}]


# ------------------------------------------------------------ state


@dataclasses.dataclass
class Sum:
    n: int = 0


@dataclasses.dataclass(frozen=True)
class FrozenSum:
    n: int = 0


@dataclasses.dataclass(frozen=True)
class FrozenAround:
    parts: list[int]


class Struct(msgspec.Struct):
    n: int = 0


class FrozenStruct(msgspec.Struct, frozen=True):
    n: int = 0


@pytest.mark.parametrize(
    "default", [Sum(), Struct(), FrozenAround([]), (1, [2]), {"a": 1}, {1}, bytearray(b"x")], ids=repr
)
def test_a_default_that_can_be_changed_is_refused_since_all_keys_would_share_it(default: Any) -> None:
    with pytest.raises(InvalidJob, match=f"shared by all keys.*default_factory={type(default).__name__}"):
        ValueState(type(default), default=default, codec="pickle")


@pytest.mark.parametrize(
    "default", [FrozenSum(), FrozenStruct(), (1, "a"), frozenset({1}), np.int64(1), Decimal("1"), b"x", True], ids=repr
)
def test_a_default_that_cannot_be_changed_is_accepted(default: Any) -> None:
    ValueState(type(default), default=default, codec="pickle")


class Assigns:
    n = ValueState(int, default=0)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        self.n = row["n"]  # type: ignore[assignment]
        return {"n": 1}


class AssignsItsOwn:
    def __init__(self) -> None:
        self.n: Any = ValueState(int, default=0)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        self.n = row["n"]
        return {"n": 1}


class Adds:
    n = ValueState(int, default=0)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        self.n += 1  # type: ignore[assignment, operator]
        return {"n": 1}


class Asks:
    n = ValueState(int, default=0)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        return {"n": 1 if self.n else 0}


class Appends:
    n = ValueState(list[int], default_factory=list)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        self.n.append(1)
        return {"n": 1}


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (Assigns, r"0 is assigned to self\.n, .*write self\.n\.value = … or self\.n\.update\(…\)"),
        (AssignsItsOwn, r"is assigned to self\.n, .*write self\.n\.value = … or self\.n\.update\(…\)"),
        (Adds, r"self\.n is a ValueState, not its value \(__iadd__\): .* self\.n\.value = … or self\.n\.update\(…\)"),
        (Asks, r"self\.n is a ValueState, not its value \(__bool__\): .* self\.n\.value = … or self\.n\.update\(…\)"),
        (Appends, r"self\.n is a ValueState, not its value \(append\): .* self\.n\.value = … or self\.n\.update\(…\)"),
    ],
)
def test_a_handle_that_is_taken_for_its_value_is_refused_with_what_to_write(function: Any, remedy: str) -> None:
    """All keys would share a value assigned to the attribute, and no checkpoint would contain the value."""
    with pytest.raises(JobFailed, match=remedy):
        ran(NUMBERS, PLAIN, keyed(function))


def test_a_state_beside_a_plain_function_is_told_from_its_value_too() -> None:
    def assigns(key: str, row: Row, ctx: ProcessContext) -> None:
        ctx.state.n = row["n"]

    with pytest.raises(JobFailed, match=r"assigned to ctx\.state\.n.*write ctx\.state\.n\.value = …"):
        ran(NUMBERS, PLAIN, keyed(assigns, state={"n": ValueState(int)}))
    with pytest.raises(JobFailed, match=r"ctx\.state\.n is not a declared state: add 'n' to state="):
        ran(NUMBERS, PLAIN, keyed(assigns))


class ChangesInPlace:
    """Stores the first list, and later changes the list in place."""

    seen = ValueState(list[int])

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        if self.seen.value is None:
            self.seen.update([row["n"]])
        else:
            self.seen.value.append(row["n"])
        return {"n": len(self.seen.value)}


class ForgetsToStore:
    seen = ValueState(list[int], default_factory=list)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        seen = self.seen.value
        seen.append(row["n"])
        return {"n": len(seen)}


class OnlyLooks:
    seen = ValueState(set[str], default_factory=set)
    best = ValueState(dict[str, int], default_factory=dict)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        if row["n"] == 0:
            self.seen.update({str(n) for n in range(100)})
        return {"n": len(self.seen.value) + len(self.best.value)}


LOST = (
    r"p, state 'seen', key 'a': its value was changed in place but not stored.*call update\(value\) after each change"
)


@pytest.mark.slow
def test_state_that_is_changed_in_place_and_not_stored_ends_a_local_job(tmp_path: Any) -> None:
    """The lost changes would show only after a restart."""
    with pytest.raises(JobFailed, match=LOST):
        ran(NUMBERS, PLAIN, keyed(ForgetsToStore))

    (tmp_path / "in").mkdir()

    def run(day: str) -> None:
        (tmp_path / "in" / day).write_text('{"k": "a", "n": 1}\n')
        flow = Dataflow("natural")
        source = flow.read_jsonl("s", str(tmp_path / "in"), schema=PLAIN)
        keyed(ChangesInPlace)(source).sink("o", JsonlSink(str(tmp_path / "out")))
        flow.run_local(parallelism=1, checkpoints=str(tmp_path / "checkpoints"))

    run("1.jsonl")
    with pytest.raises(JobFailed, match=LOST):
        run("2.jsonl")
    assert ran(NUMBERS, PLAIN, keyed(OnlyLooks)).rows() == [{"n": 100}] * 3


def test_changes_in_place_are_not_looked_for_when_the_check_is_off() -> None:
    assert ran(NUMBERS, PLAIN, keyed(ForgetsToStore), check_state=False).rows() == [{"n": 1}] * 3


class OneForAll:
    """Stores an object of `make` for each key; the object may be shared between keys."""

    def __init__(self, make: Any, **state: Any) -> None:
        self.seen: Any = ValueState(list[int], **state)
        self.make = make

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        seen = self.seen.value
        if seen is None:
            seen = self.make()
        seen.append(row["n"])
        self.seen.update(seen)
        return {"n": len(seen)}


class Constants:
    last = ValueState(tuple[int, ...])
    once = ValueState(list[int])
    none: tuple[int, ...] = ()

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        self.last.update(self.none)
        if row["n"] == 0:
            self.once.update([1])
        return {"n": len(self.last.value)}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"state_backend": "memory"}, {"wire": True}])
def test_an_object_that_is_stored_for_two_keys_ends_a_local_job(options: dict[str, Any]) -> None:
    """The shared object would count the rows of both keys."""
    rows = [{"k": key, "n": n} for n, key in enumerate("abab")]
    shared: list[int] = []
    for function in (OneForAll(lambda: shared), OneForAll(list, default_factory=lambda: shared)):
        shared.clear()
        with pytest.raises(
            JobFailed, match=r"(?s)'seen', key 'b': the object .* is also that of key 'a'.*store a copy"
        ):
            ran(rows, PLAIN, keyed(function), **options)
    shared.clear()
    assert len(ran(rows, PLAIN, keyed(function), **options, check_state=False).rows()) == 4
    assert [row["n"] for row in ran(rows, PLAIN, keyed(OneForAll(list)), **options).rows()] == [1, 1, 2, 2]
    assert [row["n"] for row in ran(rows, PLAIN, keyed(Constants), **options).rows()] == [0] * 4


class Stores:
    def __init__(self, kind: Any, value: Any) -> None:
        self.kept: Any = ValueState(kind)
        self.new = value

    def process(self, key: str, row: Row, ctx: ProcessContext) -> None:
        if row["n"] == 2:
            self.kept.value = self.new


class StoresByUpdate(Stores):
    def process(self, key: str, row: Row, ctx: ProcessContext) -> None:
        self.kept.update(self.new)


class Whole(int):
    pass


@pytest.mark.parametrize("function", [Stores, StoresByUpdate])
@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (int, 2**64, "number of 65 bits"),
        (int, Whole(2**100), "number of 101 bits"),
        (int, 10**5_000, "number of 16610 bits"),
        (str, "half \udc80", "halves of characters"),
    ],
    ids=["int", "subclass", "endless", "text"],
)
def test_a_value_that_cannot_be_written_is_refused_when_it_is_stored(
    function: Any, kind: Any, value: Any, why: str
) -> None:
    """At once and once: with operator, key and record, and without eleven restarts."""
    with pytest.raises(
        JobFailed, match=f"(?s)state 'kept' cannot hold .*{why}.*process.* of operator 'p'.*key: 'a'.*record: "
    ):
        ran(NUMBERS, PLAIN, keyed(function(kind, value), schema={"n": int}))


@pytest.mark.slow
def test_too_low_number_is_refused_by_update_or_with_operator_state_and_key() -> None:
    low = -(2**63) - 1
    with pytest.raises(JobFailed, match=r"(?s)state 'kept' cannot hold a number of 64 bits.*operator 'p'.*key: 'a'"):
        ran(NUMBERS, PLAIN, keyed(StoresByUpdate(int, low), schema={"n": int}))
    with pytest.raises(JobFailed, match=r"p, state 'kept', key 'a': its value cannot be written .*: store what"):
        ran(NUMBERS, PLAIN, keyed(Stores(int, low), schema={"n": int}))


@pytest.mark.parametrize(("kind", "value"), [(int, 2**64 - 1), (int, -(2**63)), (str, "é"), (str, "𝄞"), (str, "")])
def test_the_largest_values_that_can_be_written_are_stored(kind: Any, value: Any) -> None:
    ran(NUMBERS, PLAIN, keyed(Stores(kind, value), schema={"n": int}))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (list[int], [2**64]),
        (dict[str, str], {"x": "\udc80"}),
        (list[int], ["text"]),
        (dict[str, Any], {"x": object()}),
        (Sum, Sum(n=2**64)),
    ],
)
@pytest.mark.parametrize("options", [{}, {"check_state": False}], ids=["checked", "unchecked"])
def test_unwritable_value_in_a_container_is_refused_with_operator_state_and_key(
    kind: Any, value: Any, options: Row
) -> None:
    with pytest.raises(JobFailed) as failed:
        ran(NUMBERS, PLAIN, keyed(Stores(kind, value), schema={"n": int}), **options)
    text = str(failed.value)
    assert "key 'a' of process 'p', state 'kept'" in text
    assert "does not fit its declared type" in text
    assert "store what ValueState declares" in text
    assert failed.value.status.generations == 1


class CountsInAnAttribute:
    limit = 5

    def __init__(self) -> None:
        self.n = 0
        self.names = {"a": 1}

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        self.n += 1
        return {"n": self.n}


class HasSettings(CountsInAnAttribute):
    def process(self, key: str, row: Row, ctx: ProcessContext) -> Row:
        return {"n": self.n + self.names["a"]}


@pytest.mark.slow
def test_an_attribute_that_changes_is_said_to_be_no_state() -> None:
    """All keys share the attribute, and no checkpoint contains the attribute."""
    with pytest.warns(
        UserWarning, match=r"process 'p': 'n' of CountsInAnAttribute changed .* is not state: .*ValueState"
    ):
        ran(NUMBERS, PLAIN, keyed(CountsInAnAttribute))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ran(NUMBERS, PLAIN, keyed(HasSettings))
        ran(NUMBERS, PLAIN, keyed(CountsInAnAttribute), check_state=False)


# ------------------------------------------------------------ more text than Arrow joins


@pytest.mark.slow
def test_a_table_with_more_text_than_one_batch_holds_is_refused() -> None:
    """The texts share memory that is never written."""
    size = 1_200 << 20
    offsets = pa.py_buffer(np.array([0, size], np.int32))
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(np.zeros(size, np.uint8))])

    def returned(batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"text": pa.chunked_array([text, text])})

    with pytest.raises(JobFailed, match="returned 2 rows at once, with more than 2 GiB of text"):
        ran(NUMBERS, PLAIN, lambda stream: stream.map_batches(returned, schema={"text": str}))
