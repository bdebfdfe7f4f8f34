"""Small batches as lists: the same rows as in Arrow, in every step that takes lists."""

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, World

from barrier_runtime import arg_min, count, first, last, max_, mean, min_, sum_, variance
from barrier_runtime.connectors.memory.rate import GeneratedRows
from barrier_runtime.data.elements import WATERMARK_MIN, Batch
from barrier_runtime.data.event_time import event_times_ms, greatest_event_time_ms
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows, layout_of
from barrier_runtime.data.keys import hash_partition
from barrier_runtime.data.rows import each_row_of
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.functions.batch_functions import SelectColumnsOperator
from barrier_runtime.runtime.network.frames import FrameError, FrameReader, FrameWriter, RowTooLarge
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys import key_groups
from tests.drawn import examples


def ints(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): ints(8),
    pa.int32(): ints(32),
    pa.int64(): ints(64),
    pa.uint16(): ints(16, signed=False),
    pa.uint64(): ints(64, signed=False),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=5),
    pa.large_string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.date32(): ints(20),
    pa.date64(): ints(20).map(lambda days: days * 86_400_000),
    pa.time32("ms"): st.integers(0, 86_399_999),
    pa.time64("ns"): st.integers(0, 86_399_999_999_999),
    pa.duration("us"): ints(60),
    pa.timestamp("ns", "UTC"): ints(60),
    pa.timestamp("s"): ints(33),
}
KEYS = tuple(kind for kind in KINDS if layout_of(pa.schema([("k", kind)])).keys)  # type: ignore[union-attr]
TIMES = tuple(kind for kind in KINDS if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or kind == pa.int64())


@st.composite
def batches(draw: st.DrawFn, kinds: tuple[pa.DataType, ...] = tuple(KINDS)) -> pa.RecordBatch:
    """1 to 64 rows of 1 to 5 columns, cut out of more."""
    rows, before = draw(st.integers(1, MOST_ROWS)), draw(st.integers(0, 3))
    columns = {}
    for number, kind in enumerate(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5))):
        few = draw(st.lists(st.none() | KINDS[kind], min_size=1, max_size=4))  # repeated: drawing each would take long
        columns[f"c{number}"] = pa.array([few[at * 7 % len(few)] for at in range(before + rows + 1)], kind)
    return pa.RecordBatch.from_pydict(columns).slice(before, rows)


def bits(rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """The rows with floats as their bits: 0.0 is not -0.0, and NaN equals itself."""
    columns = [
        [value if not isinstance(value, float) else struct.pack("<d", value) for value in column.to_pylist()]
        if pa.types.is_floating(column.type)
        else _stored(column)
        for column in rows.columns
    ]
    return list(zip(*columns, strict=True))


def _stored(column: pa.Array) -> list[Any]:
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return column.to_pylist()


@pytest.mark.slow
@examples(200)
@given(batches())
def test_lists_and_frames_of_them_give_the_same_rows_bit_for_bit(rows: pa.RecordBatch) -> None:
    few = FewRows.of(rows)
    assert few is not None
    again = few.record_batch()
    assert again.schema == rows.schema
    assert bits(again) == bits(rows)
    batch = Batch(rows, 5)
    assert batch.as_few is not None
    writer, reader = FrameWriter(), FrameReader()
    for _ in range(2):  # the second frame has no schema
        ((element, _),) = reader.feed(b"".join(bytes(chunk) for chunk in writer.encode(batch)))
        assert isinstance(element, Batch)
        assert (element.emit_ns, len(element)) == (5, rows.num_rows)
        assert element.few is not None
        assert bits(element.rows) == bits(rows)


@examples(100)
@given(batches(), st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_joined_lists_have_all_rows_in_order_and_no_more_bytes_than_said(rows: pa.RecordBatch, cuts: list[int]) -> None:
    parts, at = [], 0
    for cut in [*cuts, MOST_ROWS]:
        part = FewRows.of(rows.slice(at, cut))
        if part is not None:
            assert part.most_bytes >= part.record_batch().nbytes
            parts.append(part)
        at += cut
    joined = FewRows.joined(parts)
    assert joined.count == rows.num_rows
    assert joined.record_batch().schema == rows.schema
    assert bits(joined.record_batch()) == bits(rows)


@pytest.mark.parametrize(
    "rows",
    [
        pa.record_batch({"n": list(range(MOST_ROWS + 1))}),
        pa.record_batch({"n": pa.array([], pa.int64())}),
        pa.record_batch({"n": [[1]]}),
        pa.record_batch({"n": pa.array(["a"]).dictionary_encode()}),
        pa.record_batch([pa.array([1]), pa.array([2])], ["n", "n"]),
    ],
    ids=["many", "none", "lists", "dictionary", "one name twice"],
)
def test_other_batches_stay_in_arrow(rows: pa.RecordBatch) -> None:
    assert Batch(rows, 0).as_few is None


def test_equal_schemas_are_one_but_for_what_their_metadata_say() -> None:
    def rows(metadata: dict[str, str] | None) -> pa.RecordBatch:
        return pa.record_batch({"n": [1]}).replace_schema_metadata(metadata)

    first, second, other = (FewRows.of(rows(metadata)) for metadata in (None, None, {"unit": "m"}))
    assert first is not None
    assert second is not None
    assert other is not None
    assert first.schema is second.schema
    assert other.record_batch().schema.metadata == {b"unit": b"m"}
    many = [FewRows.of(rows(None)) for _ in range(1_000)]
    assert all(each is not None and each.schema is first.schema for each in many)
    again = FewRows.of(rows(None))
    assert again is not None
    assert again.record_batch().schema.metadata is None


def test_a_frame_that_does_not_fit_its_schema_is_refused() -> None:
    def frames(rows: pa.RecordBatch) -> tuple[bytes, bytes]:
        batch = Batch(rows, 0)
        assert batch.as_few is not None
        schema, few = map(bytes, FrameWriter().encode(batch))
        return schema, few

    schema, _ = frames(pa.record_batch({"a": [1], "b": [2]}))
    _, few = frames(pa.record_batch({"a": [1]}))
    with pytest.raises(FrameError, match="cannot be decoded"):
        FrameReader().feed(schema + few)


@pytest.mark.slow
def test_small_batch_of_large_rows_is_cut_into_frames_and_too_large_row_is_named() -> None:
    rows = pa.record_batch({"n": list(range(40)), "text": ["x" * 2_000_000] * 40})
    batch = Batch(rows, 0)
    assert batch.as_few is not None
    data = b"".join(bytes(chunk) for chunk in FrameWriter().encode(batch))
    found = [element.rows for element, _ in FrameReader().feed(data) if isinstance(element, Batch)]
    assert len(found) > 4
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches([rows]))
    large = Batch(pa.record_batch({"n": [1], "text": ["x" * 70_000_000]}), 0)
    assert large.as_few is not None
    with pytest.raises(RowTooLarge, match="split it into several rows"):
        FrameWriter().encode(large)


# ---------------------------------------------------------------- partition


@pytest.mark.slow
@examples(150)
@given(batches(KEYS), st.integers(2, 5), st.sampled_from([7, 128]), st.booleans())
def test_each_row_goes_to_the_owner_of_its_key_group_as_in_arrow(
    rows: pa.RecordBatch, parallelism: int, max_parallelism: int, forgotten: bool
) -> None:
    keys = tuple(rows.schema.names[:2])
    groups = key_groups.key_groups_of([rows.column(key) for key in keys], max_parallelism).tolist()
    owners = [group * parallelism // max_parallelism for group in groups]
    reached = np.arange(rows.num_rows)
    known = key_groups._remembered_groups
    if forgotten:  # as after too many different keys
        known.update(dict.fromkeys(known))
    try:
        parts = hash_partition(Batch(rows, 3, reached), keys, parallelism, max_parallelism)
    finally:
        if forgotten:
            known.clear()
    assert [target for target, _ in parts] == sorted(set(owners))
    for target, part in parts:
        at = [position for position, owner in enumerate(owners) if owner == target]
        assert bits(part.rows) == [bits(rows)[position] for position in at]
        assert part.emit_ns == 3
        assert part.reached is not None
        assert part.reached.tolist() == at


# ---------------------------------------------------------------- operators

SCHEMA = pa.schema([("k", pa.int32()), ("s", pa.string()), ("v", pa.int64()), ("w", pa.int16()), ("x", pa.float64())])
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(0, 3),
        st.none() | st.sampled_from("ab"),
        st.sampled_from([2**62, -(2**62)]) | st.integers(-5, 5),
        st.none() | st.integers(-5, 5),
        st.floats(),
    ),
    min_size=1,
    max_size=12,
)
AGGREGATES = {
    "counts": {"n": count(), "nv": count("v"), "nw": count("w")},
    "extremes": {"low": min_("w"), "high": max_("v")},
    "sums": {"n": count(), "total": sum_("v"), "real": sum_("x"), "small": sum_("w")},
    "numpy": {"m": mean("v"), "low": min_("x"), "total": sum_("v", widen=True)},
    "ordered": {"n": count(), "old": first("w"), "new": last("x"), "at": arg_min("w", by="x"), "spread": variance("x")},
}


def outcome(driven: Driven, batch: Batch) -> Any:
    try:
        driven.operator.process(batch, Emit(driven.batches.append))
    except InvalidJob as error:
        return str(error)
    return bits(driven.batches[-1].rows), driven.batches[-1].rows.schema, driven.batches[-1].emit_ns


@pytest.mark.slow
@examples(150)
@given(
    st.lists(st.tuples(ROWS, st.booleans()), min_size=1, max_size=6),
    st.sampled_from([["k"], ["s"], ["v"], ["s", "k"]]),
    st.sampled_from(sorted(AGGREGATES)),
)
def test_running_aggregates_of_lists_equal_those_of_arrow(
    fed: list[tuple[list[Any], bool]], keys: list[str], aggregates: str
) -> None:
    """Bit for bit, in any mixture, over a restart, and down to the error of a sum that leaves 64 bits."""

    def opened(snapshots: tuple[Any, ...] = (), world: World | None = None) -> Driven:
        return Driven(RunningAggregateOperator("r", keys, AGGREGATES[aggregates]), world, snapshots, name="r")

    arrow, world = opened(), World()
    lists = opened(world=world)
    for checkpoint, (rows, restart) in enumerate(fed, start=1):
        columns = zip(*rows, strict=True)
        batch = pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
        )
        few = FewRows.of(batch)
        assert few is not None
        expected = outcome(arrow, Batch(batch, 9))
        assert outcome(lists, Batch(few, 9)) == expected
        if isinstance(expected, str):
            return
        if restart:
            snapshot = lists.snapshot(checkpoint)
            lists.operator.close()
            lists = opened((snapshot,), world)


@pytest.mark.parametrize("aggregates", ["counts", "extremes", "sums"])
def test_running_aggregates_of_lists_go_on_with_the_next_batch(aggregates: str) -> None:
    """Without nulls, which numpy would handle: a key is repeated in the same batch and in later ones."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.int64()), ("x", pa.float64())])
    arrow, lists = (Driven(RunningAggregateOperator("r", ["k"], AGGREGATES[aggregates]), name="r") for _ in range(2))
    for numbers in ([(1, 5, -3, 0.1), (2, 7, 2, 1.5), (1, -2, 9, 0.2)], [(2, 1, 1, -0.7), (1, 8, -4, 0.4)]):
        columns = zip(*numbers, strict=True)
        batch = pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=schema)
        few = FewRows.of(batch)
        assert few is not None
        expected = outcome(arrow, Batch(batch, 9))
        assert outcome(lists, Batch(few, 9)) == expected
        assert lists.batches[-1].few is not None, "lists all the way"


def test_select_gives_the_same_columns() -> None:
    rows = pa.record_batch({"a": [1, 2], "b": ["x", None], "c": [1.0, 2.0]})
    select = SelectColumnsOperator("s", {"z": "c", "y": "a", "again": "a"})
    found: list[Batch] = []
    for batch in (Batch(rows, 4), Batch(FewRows.of(rows) or rows, 4)):
        select.process(batch, Emit(found.append))
    assert found[0] == found[1]
    assert found[1].few is not None
    with pytest.raises(InvalidJob, match="no column 'gone': use one of a, b, c"):
        SelectColumnsOperator("s", {"z": "gone"}).process(Batch(FewRows.of(rows) or rows, 4), Emit(found.append))


# ---------------------------------------------------------------- sources


@pytest.mark.slow
@examples(100)
@given(batches(TIMES))
def test_the_greatest_event_time_is_that_of_arrow(rows: pa.RecordBatch) -> None:
    times = rows.column(0)
    few, known = FewRows.of(rows), times.drop_null()
    assert few is not None
    expected = int(event_times_ms(known).max()) if len(known) else WATERMARK_MIN
    assert greatest_event_time_ms(few, rows.schema.names[0]) == expected


@pytest.mark.parametrize("keys", [None, 7])
def test_a_generator_gives_the_same_rows_few_at_a_time_and_many(keys: int | None) -> None:
    def rows_of(at_once: int) -> list[Any]:
        source = GeneratedRows("n", 3_333, 1_000, keys, 3)
        reader = source.reader(source.splits(3)[1])
        found: list[Any] = []
        now_ns = 10**15
        while not reader.finished:
            polled = reader.poll(at_once, now_ns)
            found += bits(Batch(polled.rows, polled.emit_ns).rows) if polled is not None else []
            now_ns = 10**15 + 10**12
        return found

    few, many = rows_of(5), rows_of(200)
    assert few == many
    assert len(few) == 333


@pytest.mark.parametrize("count", [1, 500])
@pytest.mark.parametrize(
    ("kind", "far"),
    [
        (pa.timestamp("ms"), 10**15),
        (pa.timestamp("ms", "UTC"), -(10**15)),
        (pa.timestamp("us", "Europe/Berlin"), 10**18),
        (pa.date32(), 10**7),
        (pa.list_(pa.timestamp("ms")), [10**15]),
    ],
)
def test_a_time_that_python_has_not_is_told_and_is_no_number(kind: pa.DataType, far: Any, count: int) -> None:
    """Otherwise `map` would emit a number as a time of another unit."""
    rows = pa.RecordBatch.from_arrays([pa.array([None, *[far] * count], kind)], ["at"])
    with pytest.raises(InvalidJob, match="is not in the years 1 to 9999"):
        list(each_row_of(Batch(rows, 0)))
