"""Building a flow: immediate refusals with their reasons, and the resulting chains and edges."""

import datetime
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

from barrier_runtime import (
    CallableSink,
    CollectSink,
    Dataflow,
    KafkaSink,
    ProcessContext,
    Tumbling,
    ValueState,
    count,
    max_,
    mean,
    sum_,
)
from barrier_runtime.api.dataflow import Stream
from barrier_runtime.connectors.source import Split
from barrier_runtime.data.rows import Row
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.graph.logical import SourceNode
from barrier_runtime.state.errors import InvalidJob

SECOND = datetime.timedelta(seconds=1)


def flow_and_stream() -> tuple[Dataflow, Stream]:
    flow = Dataflow("job")
    return flow, flow.rate("ticks", 1_000, 100, keys=10, event_time="intended_at")


def shape(graph: JobGraph) -> list[tuple[str, list[str]]]:
    """Returns the name and the input edges of each chain."""
    return [
        (chain.name, [f"{edge.source_chain} {edge.partitioning} {','.join(edge.keys)}".strip() for edge in edges])
        for chain in graph.chains
        for edges in [graph.inputs(chain.id)]
    ]


def nothing(rows: pa.RecordBatch) -> None: ...


def no_rows(index: int, of: int) -> Iterator[dict[str, Any]]:
    return iter(())


# ---------------------------------------------------------------- importing


@pytest.mark.slow
def test_importing_the_package_or_showing_help_imports_no_pyspark_or_pyarrow() -> None:
    code = (
        "import sys, barrier_runtime, barrier_runtime.tools.cli\n"
        "sys.argv = ['barrier-runtime', '--help']\n"
        "try:\n    barrier_runtime.tools.cli.main()\n"
        "finally:\n    print([m for m in ('pyspark', 'pyarrow', 'numpy', 'boto3') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "rescale" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_using_the_dataflow_language_does_not_import_pyspark() -> None:
    code = "import sys; from barrier_runtime import Dataflow, ValueState, count; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    import barrier_runtime

    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = barrier_runtime.Nonsense


# ---------------------------------------------------------------- names


def test_two_steps_with_one_name_are_refused_and_the_name_is_said() -> None:
    _, ticks = flow_and_stream()
    ticks.key_by("key").aggregate("totals", n=count())
    with pytest.raises(InvalidJob, match="name 'totals' is used twice, by a running aggregate and a sink"):
        ticks.sink("totals", CollectSink())


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 65, "a/b"])
def test_a_name_that_could_not_be_a_key_is_refused(name: str) -> None:
    _, ticks = flow_and_stream()
    with pytest.raises(InvalidJob, match="operator name"):
        ticks.sink(name, CollectSink())


def test_a_job_name_that_could_not_be_a_folder_is_refused() -> None:
    with pytest.raises(InvalidJob, match="job name"):
        Dataflow("../other")


def test_unnamed_steps_get_names_that_no_named_step_has() -> None:
    flow, ticks = flow_and_stream()
    ticks.filter(pc.field("value") > 1).map(dict, name="filter-1").filter(lambda row: True).sink("out", CollectSink())
    assert compile_plan(flow.plan, 1).chains[0].name == "ticks → filter-2 → filter-1 → filter-3 → out"


def test_a_stateful_step_without_a_name_is_refused() -> None:
    _, ticks = flow_and_stream()
    with pytest.raises(InvalidJob, match="first argument is the step's name"):
        ticks.key_by("key").process(lambda key, row, ctx: None, lambda key, row, ctx: None)  # type: ignore[arg-type]


# ---------------------------------------------------------------- columns and types


def test_a_missing_column_is_named_with_those_there_are() -> None:
    _, ticks = flow_and_stream()
    with pytest.raises(InvalidJob, match=r"no column 'shop': use one of value, intended_at, key"):
        ticks.key_by("shop")
    with pytest.raises(InvalidJob, match="no column 'at'"):
        ticks.key_by("key").window("w", Tumbling(SECOND), event_time="at")
    with pytest.raises(InvalidJob, match="needs a column 'amount'"):
        ticks.key_by("key").aggregate("totals", total=sum_("amount"))
    with pytest.raises(InvalidJob, match="no column 'x'"):
        ticks.select(["x"])
    with pytest.raises(InvalidJob, match="filter: there is no column 'x'"):
        ticks.filter(pc.field("x") > 1)


def test_types_that_cannot_be_used_are_refused_when_the_step_is_written() -> None:
    flow = Dataflow("job")
    rows = flow.from_iterator("rows", no_rows, schema={"name": str, "price": pa.decimal128(10, 2), "n": int})
    with pytest.raises(InvalidJob, match=r"key column 'price' has type decimal128\(10, 2\)"):
        rows.key_by("price")
    with pytest.raises(InvalidJob, match="mean=mean\\(name\\) cannot be computed of type string"):
        rows.key_by("n").aggregate("m", mean=mean("name"))
    with pytest.raises(InvalidJob, match="event-time column 'name' has type string"):
        rows.with_watermarks("name")
    with pytest.raises(InvalidJob, match="gives int64: use one that gives true or false"):
        rows.filter(pc.field("n") + 1)


def test_schemas_are_followed_through_the_flow() -> None:
    _, ticks = flow_and_stream()
    enriched = ticks.broadcast_join("names", [{"key": 1, "name": "one"}], on="key")
    chosen = enriched.select({"name": "name", "twice": pc.field("value") * 2, "at": "intended_at"})
    windows = chosen.key_by("name").window("w", Tumbling(SECOND), event_time="at").aggregate(n=count(), top=max_("at"))
    assert windows.schema == pa.schema(
        [
            ("name", pa.string()),
            ("window_start", pa.timestamp("ms", "UTC")),
            ("window_end", pa.timestamp("ms", "UTC")),
            ("n", pa.int64()),
            ("top", pa.timestamp("ns", "UTC")),
        ]
    )
    running = ticks.key_by("key").aggregate("r", n=count())
    assert running.schema is not None
    assert running.schema.names == ["value", "intended_at", "key", "n"]


def test_an_output_column_that_exists_is_refused() -> None:
    _, ticks = flow_and_stream()
    with pytest.raises(InvalidJob, match="output column 'value' exists already"):
        ticks.key_by("key").aggregate("r", value=count())
    with pytest.raises(InvalidJob, match="output column 'window_end' exists already"):
        ticks.key_by("key").window("w", Tumbling(SECOND), event_time="intended_at").aggregate(window_end=count())
    named = ticks.select({"window_start": "key", "intended_at": "intended_at"}).key_by("window_start")
    with pytest.raises(InvalidJob, match="key column 'window_start' has the name of a column that results of windows"):
        named.window("w", Tumbling(SECOND), event_time="intended_at").aggregate(n=count())


def test_a_union_of_different_columns_is_refused() -> None:
    _, ticks = flow_and_stream()
    with pytest.raises(InvalidJob, match="select\\(\\) the same columns"):
        ticks.union(ticks.select(["value"]))


def test_a_union_with_a_stream_of_another_flow_is_refused() -> None:
    _, ticks = flow_and_stream()
    _, others = flow_and_stream()
    with pytest.raises(InvalidJob, match="is not a stream of flow 'job'"):
        ticks.union(others)


def test_a_broadcast_table_must_have_unique_keys() -> None:
    _, ticks = flow_and_stream()
    with pytest.raises(InvalidJob, match="more than once"):
        ticks.broadcast_join("names", [{"key": 1, "a": 1}, {"key": 1, "a": 2}], on="key")
    with pytest.raises(InvalidJob, match="column 'value' is on both sides"):
        ticks.broadcast_join("values", [{"key": 1, "value": 1}], on="key")


def test_what_is_no_sink_is_refused() -> None:
    _, ticks = flow_and_stream()
    with pytest.raises(InvalidJob, match="is not a sink"):
        ticks.sink("out", repr)


def test_a_process_class_without_process_is_refused() -> None:
    class Nothing:
        total = ValueState(int)

    _, ticks = flow_and_stream()
    with pytest.raises(InvalidJob, match="class Nothing has no method process"):
        ticks.key_by("key").process("p", Nothing)


# ---------------------------------------------------------------- chains and edges


def test_plain_steps_share_a_chain_and_a_key_begins_a_new_one() -> None:
    flow, ticks = flow_and_stream()
    ticks.map(dict).key_by("key").aggregate("n", n=count()).filter(lambda row: True).sink("out", CollectSink())
    assert shape(compile_plan(flow.plan, 2)) == [("ticks → map-1", []), ("n → filter-1 → out", ["0 hash key"])]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*counts every update")
def test_a_stream_with_two_readers_ends_its_chain_and_each_reader_begins_one() -> None:
    flow, ticks = flow_and_stream()
    counted = ticks.key_by("key").aggregate("n", n=count())
    counted.sink("all", CollectSink())
    counted.key_by("n").aggregate("m", m=count()).sink("some", CollectSink())
    assert shape(compile_plan(flow.plan, 2)) == [
        ("ticks", []),
        ("n", ["0 hash key"]),
        ("all", ["1 forward"]),
        ("m → some", ["1 hash n"]),
    ]


class _OnlyRows:
    def process(self, key: int, row: Row, ctx: ProcessContext) -> Row:
        return row


class _ByEventTime(_OnlyRows):
    def on_timer(self, key: int, timestamp_ms: int, ctx: ProcessContext) -> None:
        """Waits for watermarks."""


class _ByWallClock(_OnlyRows):
    def on_wall_timer(self, key: int, due_ms: int, ctx: ProcessContext) -> None:
        """May run without rows, and reads the event time."""


@pytest.mark.parametrize(
    ("function", "event_time", "interval_ms"),
    [(_OnlyRows, None, 10), (_OnlyRows, "intended_at", 0), (_ByEventTime, None, 0), (_ByWallClock, None, 0)],
)
def test_watermarks_that_no_step_waits_for_are_told_every_10_ms(
    function: type[_OnlyRows], event_time: str | None, interval_ms: int
) -> None:
    flow, ticks = flow_and_stream()
    keyed, schema = ticks.key_by("key"), {"key": int, "value": int, "intended_at": int}
    out = keyed.process("each", function, schema=schema, event_time=event_time)
    out.sink("out", CollectSink())

    def told_every_ms() -> int:
        source = compile_plan(flow.plan, 2).chains[0].source
        assert source is not None
        return source.watermark_interval_ms

    assert told_every_ms() == interval_ms
    out.key_by("key").window("windows", Tumbling(SECOND), event_time="intended_at").aggregate(n=count()).sink(
        "windows-out", CollectSink()
    )
    assert told_every_ms() == 0


def test_a_union_begins_a_chain_with_one_port_per_input() -> None:
    flow, ticks = flow_and_stream()
    more = flow.rate("more", 10, 10, keys=10)
    ticks.union(more.rebalance(), ticks).sink("out", CollectSink())
    graph = compile_plan(flow.plan, 2)
    assert shape(graph) == [("ticks", []), ("more", []), ("union-1 → out", ["0 forward", "1 rebalance", "0 forward"])]
    assert [edge.port for edge in graph.edges] == [0, 1, 2]
    assert len({edge.id for edge in graph.edges}) == 3


def test_rebalance_begins_a_chain() -> None:
    flow, ticks = flow_and_stream()
    ticks.rebalance().map(dict).sink("out", CollectSink())
    assert shape(compile_plan(flow.plan, 2)) == [("ticks", []), ("map-1 → out", ["0 rebalance"])]


def test_the_coordinator_hears_of_stateful_operators_and_sinks() -> None:
    flow, ticks = flow_and_stream()
    ticks.key_by("key").aggregate("n", n=count()).map(dict).sink("out", CollectSink())
    first, second = compile_plan(flow.plan, 2).chain_specs()
    assert (first.is_source, first.operators, first.stateful) == (True, ("ticks",), ("ticks",))
    assert (second.operators, second.stateful, second.sinks) == (("n", "map-1", "out"), ("n", "out"), ("out",))


def test_watermarks_right_after_a_source_are_made_per_split_there() -> None:
    flow, ticks = flow_and_stream()
    ticks.with_watermarks("intended_at", SECOND).sink("out", CollectSink())
    node = flow.plan.nodes[0]
    assert isinstance(node, SourceNode)
    assert (node.event_time, node.max_out_of_orderness_ms) == ("intended_at", 1_000)
    assert shape(compile_plan(flow.plan, 1)) == [("ticks → out", [])]


def test_watermarks_further_down_are_a_step() -> None:
    flow, ticks = flow_and_stream()
    ticks.map(dict).with_watermarks("intended_at").sink("out", CollectSink())
    assert shape(compile_plan(flow.plan, 1)) == [("ticks → map-1 → with_watermarks-1 → out", [])]


def test_the_graph_travels_in_a_closure() -> None:
    class Totals:
        total = ValueState(int, default=0)

        def process(self, key: int, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
            yield row

    flow, ticks = flow_and_stream()
    keyed = ticks.filter(pc.field("value") > 3).key_by("key")
    keyed.process("p", Totals).sink("out", CallableSink(nothing))
    keyed.window("w", Tumbling(SECOND), event_time="intended_at").aggregate(n=count()).sink("w2", CallableSink(nothing))
    graph = cloudpickle.loads(cloudpickle.dumps(compile_plan(flow.plan, 2)))
    names = [operator.make() and operator.name for chain in graph.chains for operator in chain.operators]
    assert names == ["filter-1", "p", "out", "w", "w2"]


# ---------------------------------------------------------------- the whole


def test_a_flow_without_source_or_sink_is_refused() -> None:
    with pytest.raises(InvalidJob, match="has no source"):
        compile_plan(Dataflow("job").plan, 1)
    flow, _ = flow_and_stream()
    with pytest.raises(InvalidJob, match="has no sink"):
        compile_plan(flow.plan, 1)


def test_a_stream_that_nobody_reads_is_warned_of() -> None:
    flow, ticks = flow_and_stream()
    ticks.sink("out", CollectSink())
    ticks.map(dict, name="lost")
    with pytest.warns(UserWarning, match="nothing reads the output of 'lost'"):
        compile_plan(flow.plan, 1)


def test_exactly_once_refuses_unreplayable_sources_unless_the_sink_declares_less() -> None:
    flow = Dataflow("job")
    rows = flow.from_iterator("live", no_rows, schema={"n": int}, replayable=False)
    rows.map(dict).sink("printed", CallableSink(nothing))
    compile_plan(flow.plan, 1)
    rows.sink("collected", CollectSink())
    with pytest.raises(InvalidJob, match="sink 'collected' is exactly-once, but source 'live' has no stable positions"):
        compile_plan(flow.plan, 1)
    compile_plan(flow.plan, 1, mode="at_least_once")


@pytest.mark.parametrize(("parallelism", "most"), [(0, 128), (129, 128), (2, 40_000)])
def test_impossible_parallelism_is_refused(parallelism: int, most: int) -> None:
    flow, ticks = flow_and_stream()
    ticks.sink("out", CollectSink())
    with pytest.raises(InvalidJob, match="parallelism"):
        compile_plan(flow.plan, parallelism, most)


def test_explain_shows_chains_edges_settings_and_guarantees() -> None:
    flow, ticks = flow_and_stream()
    windows = (
        ticks.with_watermarks("intended_at", SECOND)
        .key_by("key")
        .window("per-second", Tumbling(SECOND), event_time="intended_at")
    )
    windows.aggregate(n=count(), top=max_("value")).sink("out", CollectSink())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = flow.explain(defaults=True, parallelism=3)
    for expected in (
        "job job: 3 slots, 2 chains, 1 edge",
        "ticks [source] rate 1000/s, 100 rows, 3 splits",
        "event time intended_at, up to 1000 ms out of order",
        "← chain 0, hash (key), by key: value int64",
        "per-second [window, state] tumbling 0:00:01: n=count(*), top=max(value)",
        "max_parallelism: 128 key groups",
        "source ticks: replays the same rows",
        "sink out: exactly-once",
    ):
        assert expected in text
    assert "overtook" not in text
    assert "may lack rows that a barrier overtook" in flow.explain(unaligned=True)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"a": "int65"}, "unknown type name 'int65'"),
        ({"a": list}, "which is not an Arrow type"),
        ({}, "no columns"),
        ([("a", int)], "pass a pyarrow.Schema, a mapping"),
    ],
)
def test_a_schema_that_says_nothing_clear_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        Dataflow("job").from_iterator("rows", no_rows, schema=schema)


class _WithTimers:
    def process(self, key: Any, row: Row, ctx: ProcessContext) -> None:
        ctx.timers.register(5)

    def on_timer(self, key: Any, timestamp_ms: int, ctx: ProcessContext) -> None: ...


TIMED = {"k": int, "t": int}


def test_a_bound_on_disorder_without_event_time_is_refused() -> None:
    flow = Dataflow("f")
    with pytest.raises(InvalidJob, match="event_time= does not say which column that is"):
        flow.from_iterator("rows", lambda i, n: iter(()), schema=TIMED, max_out_of_orderness=SECOND)


def _timed(flow: Dataflow, name: str, event_time: str | None = None) -> Stream:
    return flow.from_iterator(name, lambda i, n: iter(()), schema=TIMED, event_time=event_time)


@pytest.mark.parametrize("timers", [False, True])
def test_windows_and_timers_of_rows_without_watermarks_are_refused_with_the_sources(timers: bool) -> None:
    flow = Dataflow("f")

    def use(stream: Stream, name: str) -> None:
        keyed = stream.key_by("k")
        if timers:
            keyed.process(name, _WithTimers, event_time="t")
        else:
            keyed.window(name, Tumbling(datetime.timedelta(hours=1)), event_time="t").aggregate(n=count())

    why = r"process 'x': _WithTimers has timers, which" if timers else "window 'x': a window is over when"
    plain, other, timed = _timed(flow, "plain"), _timed(flow, "other"), _timed(flow, "timed", "t")
    with pytest.raises(
        InvalidJob, match=f"{why}.*source 'plain' of its rows has none: pass event_time=.*with_watermarks"
    ):
        use(plain.filter(pc.field("k") > 3), "x")
    with pytest.raises(InvalidJob, match="sources 'plain', 'other' of its rows have none"):
        use(plain.union(timed, other, plain), "x")
    use(timed, "a")
    use(plain.rebalance().with_watermarks("t"), "b")
    use(timed.union(plain.map(lambda row: row, schema=TIMED).with_watermarks("t")), "c")
    other.with_watermarks("t")
    use(other, "d")


def test_a_function_without_timers_needs_no_watermarks() -> None:
    flow = Dataflow("f")
    _timed(flow, "plain").key_by("k").process("p", lambda key, row, ctx: row, event_time="t")


def kafka_flow(**source: Any) -> tuple[Dataflow, Any]:
    flow = Dataflow("job")
    options = {"group": "g", "value": "json", "schema": {"n": int}, **source}
    return flow, flow.read_kafka("src", "host:1", "numbers", **options)


def compiled_at_most_once(flow: Dataflow) -> None:
    compile_plan(flow.plan, 1, mode="at_most_once", list_splits=lambda source, parallelism: [Split("numbers-0")])


AT_MOST_ONCE = KafkaSink("host:1", "out", guarantee="at_most_once")


def test_at_most_once_takes_kafka_to_kafka_with_steps_that_emit_at_once() -> None:
    flow, rows = kafka_flow()
    counted = rows.filter("n > 1").key_by("n").aggregate("count", times=count())
    counted.sink("out", AT_MOST_ONCE)
    compiled_at_most_once(flow)


def test_at_most_once_refuses_sources_without_an_end() -> None:
    flow, ticks = flow_and_stream()
    ticks.sink("out", AT_MOST_ONCE)
    with pytest.raises(InvalidJob, match=r"source 'ticks' does not go with .*no present end"):
        compiled_at_most_once(flow)
    flow, rows = kafka_flow(until="latest")
    rows.sink("out", AT_MOST_ONCE)
    with pytest.raises(InvalidJob, match="until= ends the stream"):
        compiled_at_most_once(flow)


@pytest.mark.parametrize(
    ("sink", "reason"),
    [
        (CollectSink(), "writes the rows of a checkpoint after the decision"),
        (KafkaSink("host:1", "out"), "writes the rows of a checkpoint after the decision"),
        (KafkaSink("host:1", "out", guarantee="at_least_once"), "cannot stop an earlier process"),
        (CallableSink(nothing), "cannot stop an earlier process"),
    ],
)
def test_at_most_once_refuses_other_sinks(sink: Any, reason: str) -> None:
    flow, rows = kafka_flow()
    rows.sink("out", sink)
    with pytest.raises(InvalidJob, match=rf"sink 'out' .*{reason}.*Use\s+KafkaSink"):
        compiled_at_most_once(flow)


def test_at_most_once_refuses_windows_and_timers() -> None:
    flow, rows = kafka_flow(event_time="timestamp")
    windows = rows.key_by("n").window("count", Tumbling(SECOND), event_time="timestamp")
    windows.aggregate(total=count()).sink("out", AT_MOST_ONCE)
    with pytest.raises(InvalidJob, match=r"step 'count' .* the step would emit rows again"):
        compiled_at_most_once(flow)


def test_at_most_once_refuses_stored_rows() -> None:
    flow, rows = kafka_flow()
    rows.stable().sink("out", AT_MOST_ONCE)
    with pytest.raises(InvalidJob, match=r"step 'stable' .* the step would emit rows again"):
        compiled_at_most_once(flow)


@pytest.mark.parametrize("mode", ["exactly_once", "at_least_once"])
def test_at_most_once_sink_without_the_mode_is_refused(mode: str) -> None:
    flow, rows = kafka_flow()
    rows.sink("out", AT_MOST_ONCE)
    with pytest.raises(InvalidJob, match='would write them again: run the flow with mode="at_most_once"'):
        compile_plan(flow.plan, 1, mode=mode, list_splits=lambda source, parallelism: [Split("numbers-0")])
