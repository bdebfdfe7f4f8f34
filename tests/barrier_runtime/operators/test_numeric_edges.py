"""Numbers, decimals and times at their limits: windowed and running aggregates, keys of groups, keys of joins. No
value wraps, and none is rounded where the docs say exact.
"""

import datetime
import math
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from operator_harness import Driven
from window_operators import aggregating

from barrier_runtime import (
    CollectSink,
    Dataflow,
    Tumbling,
    arg_max,
    count,
    count_distinct,
    first,
    max_,
    mean,
    min_,
    sum_,
)
from barrier_runtime.data.elements import WATERMARK_MAX
from barrier_runtime.data.event_time import event_times_ms
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.operators.joins.base import Side
from barrier_runtime.operators.joins.interval import IntervalJoinOperator
from barrier_runtime.state.errors import InvalidJob

MS = datetime.timedelta(milliseconds=1)
MOST, LEAST = 2**63 - 1, -(2**63)
NAN, INF = float("nan"), float("inf")
ZURICH = ZoneInfo("Europe/Zurich")
NOON = datetime.datetime(2024, 7, 1, 12, tzinfo=ZURICH)


def aggregated(step: str, kind: pa.DataType, values: list[Any], aggregate: Any) -> Any:
    """Returns the result of the last row, or of the window, for one key with these values."""
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("x", kind)])
    rows = pa.RecordBatch.from_pylist([{"k": 1, "t": 1, "x": value} for value in values], schema=schema)
    if step == "window":
        it = Driven(aggregating("w", ["k"], Tumbling(10 * MS), "t", {"out": aggregate}, schema))
    else:
        it = Driven(RunningAggregateOperator("w", ["k"], {"out": aggregate}, schema))
    it.feed(rows)
    it.watermark(WATERMARK_MAX)
    return it.rows[-1]["out"]


def _decimals() -> list[tuple[str, pa.DataType, list[Any], Any, Any]]:
    """Every scale: of 20 digits or more, so that the sum of three and the mean are within 38."""
    found = []
    for scale in range(35):
        kind, unit = pa.decimal128(max(20, scale), scale), Decimal(1).scaleb(-scale)
        found.append((f"sum of scale {scale}", kind, [unit, unit, None, unit], sum_("x"), 3 * unit))
        found.append((f"max of scale {scale}", kind, [-unit, unit, None], max_("x"), unit))
        if scale <= 18:
            found.append((f"mean of scale {scale}", kind, [unit, unit * 2], mean("x"), unit * 3 / 2))
    return found


EDGES: list[tuple[str, pa.DataType, list[Any], Any, Any]] = [
    ("NaN is the greatest", pa.float64(), [1.0, NAN, INF], max_("x"), NAN),
    ("NaN is not the least", pa.float64(), [NAN, 1.0], min_("x"), 1.0),
    ("NaN in a sum", pa.float64(), [NAN, 1.0], sum_("x"), NAN),
    ("NaN in a mean", pa.float64(), [NAN, 1.0], mean("x"), NAN),
    ("NaN counts", pa.float64(), [NAN, None, 1.0], count("x"), 2),
    ("all NaN are one value", pa.float64(), [NAN, -NAN, 1.0], count_distinct("x"), 2),
    ("infinities cancel to NaN", pa.float64(), [INF, -INF], sum_("x"), NAN),
    ("both zeros are one value", pa.float64(), [0.0, -0.0], count_distinct("x"), 1),
    ("both zeros are equal", pa.float64(), [0.0, -0.0], min_("x"), 0.0),
    ("int64 at its end", pa.int64(), [MOST, 0], sum_("x"), MOST),
    ("int64 at its other end", pa.int64(), [LEAST, 0], sum_("x"), LEAST),
    ("int64 from end to end", pa.int64(), [MOST, LEAST], sum_("x"), -1),
    ("beyond int64, widened", pa.int64(), [MOST, MOST, MOST], sum_("x", widen=True), Decimal(3 * MOST)),
    ("below int64, widened", pa.int64(), [LEAST, LEAST], sum_("x", widen=True), Decimal(2 * LEAST)),
    ("mean beyond int64", pa.int64(), [MOST, MOST], mean("x"), float(MOST)),
    ("extremes of int64", pa.int64(), [MOST, LEAST, 0], min_("x"), LEAST),
    ("arg_max of int64", pa.int64(), [MOST - 1, MOST], arg_max("x", by="x"), MOST),
    ("2^53 + 1 in a sum", pa.int64(), [2**53, 1], sum_("x"), 2**53 + 1),
    ("2^53 + 1 as greatest", pa.int64(), [2**53, 2**53 + 1], max_("x"), 2**53 + 1),
    ("2^53 + 1 is another value", pa.int64(), [2**53, 2**53 + 1], count_distinct("x"), 2),
    ("mean beside 2^53", pa.int64(), [2**53 + 1, 2**53 + 3], mean("x"), float(2**53 + 2)),
    ("int8 sums are int64", pa.int8(), [127, 127], sum_("x"), 254),
    ("uint32 sums are int64", pa.uint32(), [2**32 - 1, 2**32 - 1], sum_("x"), 2**33 - 2),
    ("booleans are summed", pa.bool_(), [True, True, None], sum_("x"), 2),
    ("times of a zone", pa.timestamp("us", "Europe/Zurich"), [NOON, NOON + MS], max_("x"), NOON + MS),
    ("the first of a zone", pa.timestamp("s", "Asia/Kolkata"), [NOON], first("x"), NOON),
    (
        "dates before 1970",
        pa.date32(),
        [datetime.date(1, 1, 1), datetime.date(1970, 1, 1)],
        min_("x"),
        datetime.date(1, 1, 1),
    ),
    ("38 digits", pa.decimal128(38, 0), [Decimal(10**38 - 1), None], max_("x"), Decimal(10**38 - 1)),
    *_decimals(),
]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["window", "running"])
def test_aggregates_at_the_edges(step: str) -> None:
    wrong = {}
    for what, kind, values, aggregate, wanted in EDGES:
        got = aggregated(step, kind, values, aggregate)
        both_nan = isinstance(wanted, float) and math.isnan(wanted) and isinstance(got, float) and math.isnan(got)
        if not both_nan and got != wanted:
            wrong[what] = got, wanted
    assert wrong == {}


@pytest.mark.parametrize("step", ["window", "running"])
@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (pa.int64(), [MOST, 1], "leaves 64 bits"),
        (pa.int64(), [LEAST, -1], "leaves 64 bits"),
        (pa.int32(), [1] * 3 + [None], ""),
        (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(1)], r"leaves decimal128\(38, 0\)"),
        (pa.decimal128(38, 38), [Decimal((0, (9,) * 38, -38))] * 2, r"leaves decimal128\(38, 38\)"),
    ],
)
def test_what_does_not_fit_ends_the_job_and_names_the_key(
    step: str, kind: pa.DataType, values: list[Any], says: str
) -> None:
    if not says:
        assert aggregated(step, kind, values, sum_("x")) == 3
        return
    with pytest.raises(InvalidJob, match=rf"key 1.*{says}|{says}.*key 1"):
        aggregated(step, kind, values, sum_("x"))


GROUPS: list[tuple[pa.DataType, list[Any], int]] = [
    (pa.float64(), [0.0, -0.0], 1),
    (pa.float64(), [None, None, 0.0], 2),  # a null is a group, as in SQL
    (pa.int64(), [2**53, 2**53 + 1, MOST, LEAST, None], 5),
    (pa.timestamp("ms", "Europe/Zurich"), [NOON, NOON.astimezone(datetime.timezone.utc)], 1),
    (pa.bool_(), [True, False, None], 3),
]


@pytest.mark.parametrize(("kind", "keys", "groups"), GROUPS)
def test_keys_at_the_edges(kind: pa.DataType, keys: list[Any], groups: int) -> None:
    schema = pa.schema([("k", kind), ("t", pa.int64())])
    it = Driven(aggregating("w", ["k"], Tumbling(10 * MS), "t", {"n": count()}, schema))
    for key in keys:  # each key in a separate batch
        it.feed([{"k": key, "t": 1}], schema)
    it.feed([{"k": key, "t": 1} for key in keys], schema)
    it.watermark(WATERMARK_MAX)
    assert len(it.rows) == groups
    assert sum(row["n"] for row in it.rows) == 2 * len(keys)


JOINED: list[tuple[pa.DataType, list[Any], list[Any], int]] = [
    (pa.int64(), [None], [None], 0),  # nulls match nothing, as in SQL
    (pa.int64(), [2**53, MOST], [2**53 + 1, MOST], 1),
    (pa.float64(), [0.0], [-0.0], 1),
    (pa.timestamp("us", "Asia/Kolkata"), [NOON], [NOON.astimezone(datetime.timezone.utc)], 1),
]


@pytest.mark.parametrize(("kind", "left", "right", "pairs"), JOINED)
def test_keys_of_joins_at_the_edges(kind: pa.DataType, left: list[Any], right: list[Any], pairs: int) -> None:
    schema = pa.schema([("k", kind), ("t", pa.int64())])
    side = Side(("k",), "t", schema)
    it = Driven(IntervalJoinOperator("j", side, side, (0 * MS, 0 * MS), "inner"))
    for port, keys in enumerate((left, right)):
        it.feed([{"k": key, "t": 1} for key in keys], schema, port=port)
    assert len(it.rows) == pairs


@pytest.mark.parametrize(
    ("kind", "key", "says"),
    [
        (pa.float64(), NAN, "holds NaN, which equals nothing: replace or filter it before key_by"),
        (pa.decimal128(20, 2), Decimal("1.1"), "cannot be a key: cast it to an integer, string, bytes, date"),
    ],
)
def test_what_cannot_be_a_key_is_refused_with_the_remedy(kind: pa.DataType, key: Any, says: str) -> None:
    schema = pa.schema([("k", kind), ("t", pa.int64())])
    side = Side(("k",), "t", schema)
    for make in (
        lambda: aggregating("w", ["k"], Tumbling(10 * MS), "t", {"n": count()}, schema),
        lambda: RunningAggregateOperator("w", ["k"], {"n": count()}, schema),
        lambda: IntervalJoinOperator("j", side, side, (0 * MS, 0 * MS), "inner"),
    ):
        with pytest.raises(InvalidJob, match=says):
            Driven(make()).feed([{"k": key, "t": 1}], schema)


def test_windows_of_times_in_a_zone_are_those_of_their_instants() -> None:
    """Over the hour that summer time leaves out: 01:30 and 03:30 are an hour apart."""
    times = [datetime.datetime(2024, 3, 31, hour, 30, tzinfo=ZURICH) for hour in (1, 3)]
    schema = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", "Europe/Zurich"))])
    hour = Tumbling(datetime.timedelta(hours=1))
    it = Driven(aggregating("w", ["k"], hour, "t", {"n": count()}, schema))
    it.feed([{"k": 1, "t": time} for time in times], schema)
    it.watermark(WATERMARK_MAX)
    assert [row["window_start"].hour for row in it.rows] == [0, 1]
    assert [row["n"] for row in it.rows] == [1, 1]


def test_dictionary_columns_are_what_they_stand_for(tmp_path: Any) -> None:
    """As keys, values and text, from two files whose dictionaries number the same words differently."""
    for number, words in enumerate((["a", "b", None, "a"], ["b", "a", "a", None])):
        coded = pa.array(words).dictionary_encode()
        columns = {"k": coded, "word": coded, "t": pa.array([1, 2, 3, 4])}
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet")
    flow, out = Dataflow("coded"), CollectSink()
    rows = flow.read_parquet("rows", str(tmp_path), event_time="t")
    windows = rows.key_by("k").window("w", Tumbling(10 * MS), event_time="t")
    windows.aggregate(n=count(), words=count("word"), least=min_("word")).sink("out", out)
    flow.run_local(parallelism=1)
    found = {row["k"]: (row["n"], row["words"], row["least"]) for row in out.rows()}
    assert found == {"a": (4, 4, "a"), "b": (2, 2, "b"), None: (2, 0, None)}


def test_expressions_see_the_values_of_dictionary_columns() -> None:
    """The expressions follow the source, so the source's batches are unchanged."""
    schema, flow, out = pa.schema([("word", pa.dictionary(pa.int8(), pa.string()))]), Dataflow("coded"), CollectSink()
    rows = flow.from_iterator("rows", lambda part, of: [{"word": " 7 "}, {"word": None}], schema=schema, splits=1)
    long = rows.filter("word IS NULL OR length(word) = 3")
    long.select({"word": "word", "number": "CAST(word AS INT)", "none": "nullif(word, ' 7 ')"}).sink("out", out)
    flow.run_local(parallelism=1)
    assert out.rows() == [{"word": " 7 ", "number": 7, "none": None}, {"word": None, "number": None, "none": None}]


def test_seconds_beyond_64_bits_of_milliseconds_do_not_wrap() -> None:
    times = pa.array([10, 2**62 + 5, -(2**62)]).view(pa.timestamp("s"))
    ten, far, before = event_times_ms(times).tolist()
    assert (ten, far > 2**62, before < -(2**62)) == (10_000, True, True)
