"""Arguments of a wrong kind to any public method of flows, streams, harnesses and handles: the runtime's own error
names the parameter or the value, and no wrong argument is silently accepted.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

import barrier_runtime as br
from barrier_runtime import BarrierRuntimeError, Dataflow, InvalidJob, RateSource, Tumbling, connect, count
from barrier_runtime.api.connected import ConnectedStreams
from barrier_runtime.api.windowed import WindowedStream
from barrier_runtime.launch.job_handle import JobHandle
from barrier_runtime.launch.local_handle import LocalJobHandle
from barrier_runtime.testing import ConnectedHarness, KeyedHarness, certify, check

# Methods check their arguments before they use the job.
HANDLE: Any = JobHandle.__new__(JobHandle)
LOCAL: Any = LocalJobHandle.__new__(LocalJobHandle)
DAY = timedelta(days=1)
SPANS = [5, 1.5, DAY]  # durations: seconds, or a timedelta
SCHEMA = "k string, n bigint, t timestamp"
AT_T = {"event_time": "t"}
# None, lists, texts and functions are valid in some places, and tried in the others.
VALUES = [5, -1, 1.5, b"x", object(), ("a", 5), [None], {"x": 1}, None, DAY, print]


@dataclass
class Event:
    k: str | None
    n: int | None
    t: datetime | None


def rows_of(part: int, parts: int) -> Iterable[dict[str, Any]]:
    return []


def stream(name: str = "in") -> Any:
    return Dataflow("f").from_iterator(name, rows_of, schema=SCHEMA, event_time="t")


def keyed() -> Any:
    return stream().key_by("k")


class OfRow:
    def process(self, row: Any, ctx: Any) -> None: ...


class OfKey:
    def process(self, key: Any, row: Any, ctx: Any) -> None: ...


class OfGroups:
    state = {"x": "int64"}

    def process_groups(self, keys: Any, batch: Any, state: Any) -> None: ...


class OfInputs:
    def on_a(self, key: Any, row: Any, ctx: Any) -> None: ...

    def on_b(self, key: Any, row: Any, ctx: Any) -> None: ...


def same(row: Any) -> Any:
    return row


async def fetch(keys: list[Any]) -> list[None]:
    return [None] * len(keys)


def of_flow(method: str, **right: Any) -> Any:
    return lambda: getattr(Dataflow("f"), method), {"name": "s", **right}


def of_stream(method: str, **right: Any) -> Any:
    return lambda: getattr(stream(), method), right


def of_keyed(method: str, **right: Any) -> Any:
    return lambda: getattr(keyed(), method), {"name": "step", **right}


def of_windows(method: str, **right: Any) -> Any:
    return lambda: getattr(keyed().window("w", Tumbling(DAY), event_time="t"), method), right


def two() -> tuple[Any, Any]:
    flow = Dataflow("f")
    return tuple(flow.from_iterator(name, rows_of, schema=SCHEMA, event_time="t").key_by("k") for name in "ab")  # type: ignore[return-value]


def join(method: str, other: str = "right", **right: Any) -> Any:
    """`other`: the parameter that has the second stream, which each call makes."""

    def make() -> Any:
        left, second = two()
        called = getattr(left, method)
        call = lambda **given: called(**{other: second, **given})  # noqa: E731
        call.__signature__ = inspect.signature(called)  # type: ignore[attr-defined]
        return call

    return make, {"name": "step", **right}


def followed() -> Any:
    flow = Dataflow("f")
    history, later = (flow.from_iterator(name, rows_of, schema=SCHEMA, event_time="t") for name in ("old", "new"))
    return variadic(
        lambda name="followed", later=later: history.followed_by(name, later),
        "name",
        "later",
    )


def connected() -> Any:
    a, b = two()
    return connect(a=a, b=b).process


def variadic(call: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Returns `call` with the `*columns` or `**aggregates` as named parameters."""
    kinds = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    call.__signature__ = inspect.Signature(kinds)  # type: ignore[attr-defined]
    return call


def harness_method(method: str) -> Any:
    def call(**given: Any) -> Any:
        with KeyedHarness(OfKey, key="k", rows=SCHEMA) as harness:
            called = getattr(harness, method)
            return called(*given.values())

    names = [name for name in inspect.signature(getattr(KeyedHarness, method)).parameters if name != "self"]
    return lambda: variadic(call, *names), {}


CASES: dict[str, tuple[Callable[[], Callable[..., Any]], dict[str, Any]]] = {
    "Dataflow.source": of_flow("source", source=RateSource(1)),
    "Dataflow.source_with_dead_letters": of_flow(
        "source_with_dead_letters", source=br.KafkaSource("h:1", "t", group="g", bad_records="dead_letter")
    ),
    "Dataflow.read_parquet": of_flow("read_parquet", paths=__file__, schema=SCHEMA, **AT_T),
    "Dataflow.read_csv": of_flow("read_csv", paths=__file__, schema=SCHEMA, **AT_T),
    "Dataflow.read_jsonl": of_flow("read_jsonl", paths=__file__, schema=SCHEMA, **AT_T),
    "Dataflow.read_text": of_flow("read_text", paths=__file__),
    "Dataflow.read_binary": of_flow("read_binary", paths=__file__),
    "Dataflow.from_iterator": of_flow("from_iterator", make_iterator=rows_of, schema=SCHEMA, **AT_T),
    "Dataflow.from_poll": of_flow("from_poll", fetch=same, every=DAY, schema=SCHEMA, **AT_T),
    "Dataflow.read_kafka": of_flow("read_kafka", bootstrap_servers="h:1", topics="t", group="g"),
    "Dataflow.read_rabbitmq": of_flow("read_rabbitmq", url="amqp://h", queue="q", deduplicate=None),
    "Dataflow.rate": of_flow("rate", rows_per_second=10),
    "Stream.map": of_stream("map", function=same),
    "Stream.flat_map": of_stream("flat_map", function=same),
    "Stream.filter": of_stream("filter", condition=same),
    "Stream.split": of_stream("split", name="s", by=same, into=("a", "b")),
    "Stream.map_batches": of_stream("map_batches", function=same),
    "Stream.select": of_stream("select", columns=["k"]),
    "Stream.with_columns": of_stream("with_columns", columns={"x": "n + 1"}),
    "Stream.rename": of_stream("rename", columns={"n": "x"}),
    "Stream.drop": (lambda: variadic(lambda columns: stream().drop(columns), "columns"), {}),
    "Stream.explode": of_stream("explode", column="array(n)", into="x"),
    "Stream.inspect": of_stream("inspect", function=same),
    "Stream.typed": of_stream("typed", rows=Event),
    "Stream.broadcast_join": of_stream("broadcast_join", name="j", table=[{"k": "a", "z": 1}], on="k"),
    "Stream.lookup": of_stream("lookup", name="l", fetch_many=fetch, key="k", schema="z bigint"),
    "Stream.stable": of_stream("stable", name="st"),
    "Stream.with_watermarks": of_stream("with_watermarks", column="t"),
    "Stream.key_by": (lambda: variadic(lambda columns: stream().key_by(columns), "columns"), {}),
    "Stream.union": (lambda: variadic(lambda others: stream().union(others), "others"), {}),
    "Stream.followed_by": (followed, {}),
    "Stream.window_all": of_stream("window_all", name="w", window=Tumbling(DAY), **AT_T),
    "Stream.broadcast": of_stream("broadcast"),
    "Stream.process": of_stream("process", name="p", function=OfRow),
    "Stream.deduplicate": (
        lambda: variadic(
            lambda name, columns, within: stream().deduplicate(name, columns, within=within),
            "name",
            "columns",
            "within",
        ),
        {"name": "d", "columns": "k", "within": DAY},
    ),
    "Stream.sink": of_stream("sink", name="s", sink=print),
    "Stream.for_each_batch": of_stream("for_each_batch", function=print),
    "Stream.take": of_stream("take"),
    "Stream.show": of_stream("show"),
    "Stream.preview": of_stream("preview", within=1.0),
    "KeyedStream.sink": of_keyed("sink", sink=print),
    "KeyedStream.window": of_keyed("window", window=Tumbling(DAY), **AT_T),
    "KeyedStream.aggregate": (
        lambda: variadic(lambda name, total: keyed().aggregate(name, total=total), "name", "total"),
        {"name": "a", "total": count()},
    ),
    "Stream.top": (
        lambda: keyed().window("w", Tumbling(DAY)).aggregate(n=count()).top,
        {"name": "s", "n": 3, "by": "n"},
    ),
    "KeyedStream.process_groups": of_keyed("process_groups", function=OfGroups),
    "KeyedStream.process": of_keyed("process", function=OfKey),
    "KeyedStream.join": join("join", between=(timedelta(0), DAY), **AT_T),
    "KeyedStream.window_join": join("window_join", window=Tumbling(DAY), **AT_T),
    "KeyedStream.asof_join": join("asof_join", **AT_T),
    "KeyedStream.table_join": join("table_join", "table"),
    "WindowedStream.aggregate": of_windows("aggregate", total=count()),
    "WindowedStream.apply": of_windows("apply", function=lambda key, window, table: None, schema="n bigint"),
    "WindowedStream.top": of_windows("top", n=3, by="n"),
    "ConnectedStreams.process": (connected, {"name": "c", "function": OfInputs}),
    "KeyedHarness": (lambda: KeyedHarness, {"function": OfKey, "key": "k", "rows": SCHEMA, "schema": SCHEMA}),
    **{f"KeyedHarness.{each}": harness_method(each) for each in ("push", "watermark", "wall", "side")},
    "ConnectedHarness": (lambda: ConnectedHarness, {"function": OfInputs, "keys": {"a": "k", "b": "k"}}),
}
# Valid values that annotations cannot express: functions of any kind, literals, empty names, missing bounds.
TAKEN: dict[str, list[Any]] = {
    "function": [print],
    "fetch_many": [print],
    "make_iterator": [print],
    "fetch": [print],
    "condition": [print],
    "by": [print],
    "generator": [None, print],
    "config": [None, {"x": 1}, print],
    "sink": [print],
    "columns": [{"x": 1}],
    **{each: [None, *SPANS] for each in ("within", "tolerance", "watch", "discover", "until_idle", "idle_timeout")},
    **dict.fromkeys(("every", "timeout", "linger", "max_out_of_orderness", "allowed_lateness"), SPANS),
    "deduplicate": SPANS,
    **{each: [5, 1.5, None] for each in ("pace", "rows_per_second")},
    **{each: [5, 1.5, None] for each in ("max_rows_per_second", "max_requests_per_second")},
    **{each: [5, None] for each in ("rows", "keys", "splits", "parallelism", "max_parallelism", "max_requests")},
    **{each: [5] for each in ("capacity", "max_batch", "attempts", "prefetch", "n")},
    **{each: [5, -1, None] for each in ("at_ms", "wall_ms")},
}
OPTIONAL = {
    *(
        "schema",
        "types",
        "file_order",
        "key_schema",
        "event_time",
        "name",
        "pattern",
        "until",
        "key",
        "debezium",
        "deduplicate",
        "retry",
        "rate_limit",
    ),
    *("cache", "early", "side", "state", "deleted", "restore", "into", "position"),
}
ELSEWHERE = {  # these query their system first, or run; tested below
    *("Dataflow.from_spark", "Dataflow.read_postgres_changes", "Dataflow.explain", "Dataflow.run", "Dataflow.start"),
    *("Dataflow.run_local", "Dataflow.start_local"),  # options: tests/test_options_table.py
}


def test_every_public_method_with_arguments_is_here() -> None:
    with_arguments = {
        f"{cls.__name__}.{name}"
        for cls in (Dataflow, br.Stream, br.KeyedStream, WindowedStream, ConnectedStreams)
        for name, method in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and len(inspect.signature(method).parameters) > 1
    }
    assert with_arguments == {name for name in CASES if "." in name and "Harness" not in name} | ELSEWHERE


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_kind_of_argument_is_told_by_its_name_or_its_value(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, right = CASES[name]
    for parameter, kind in inspect.signature(make()).parameters.items():
        if kind.kind in (kind.VAR_KEYWORD, kind.VAR_POSITIONAL):
            continue
        taken = [*TAKEN.get(parameter, []), *([None] if parameter in OPTIONAL else [])]
        for value in VALUES:
            try:
                made = make()(**{**right, parameter: value})
            except BarrierRuntimeError as error:
                told = str(error)
                assert any(each in told for each in (parameter, repr(value), "'x'", "on_")) or value in taken, told
                continue
            if isinstance(made, KeyedHarness | ConnectedHarness):
                made.close()
            assert value in taken, f"{parameter}={value!r} is taken"


def started() -> Any:
    """Stream keyed by a column whose name equals a window join's result column."""
    return stream().select({"window_start": "k", "t": "t"}).key_by("window_start")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: Dataflow("f").from_spark("s", None, staging=5), "Dataflow.from_spark: staging=5: give a text or None"),
        (
            lambda: Dataflow("f").read_postgres_changes("s", "postgresql://h/d", 5),  # type: ignore[call-overload]
            "PostgresChangesSource: tables=5: give a text or a list of texts",
        ),
        (lambda: Dataflow("f").source("s", br.KafkaSource), "is not a source: pass one, such as ParquetSource"),
        (lambda: Dataflow("f").from_iterator("s", rows_of, schema=SCHEMA, splits=-1), "splits=-1: give a whole number"),
        (lambda: keyed().process(OfKey), r"name=<type>: give a text: the first argument is the step's name"),
        (lambda: (left := keyed()).join("j", left, between=DAY, **AT_T), "between=.*: pass two timedeltas, or seconds"),
        (
            lambda: (left := started()).window_join("j", left, br.Tumbling(DAY), **AT_T),
            "the key column 'window_start' has the name of a column that the join adds: rename it in a select",
        ),
        (lambda: certify(print, list), "make_sink gave None: let it return a TwoPhaseCommitSink"),  # type: ignore[arg-type]
        (lambda: certify(br.CollectSink, 5), "certify: read=5: give a function"),  # type: ignore[arg-type]
        (lambda: certify(br.CollectSink, list, schema=5), "certify: schema=5: give the pyarrow.Schema"),
        (lambda: certify(br.CollectSink, list, seeds=1.5), "certify: seeds=1.5: give a list or a whole number"),  # type: ignore[arg-type]
        (lambda: certify(br.CollectSink, list, ordered=1), "certify: ordered=1: give True or False"),  # type: ignore[arg-type]
        (lambda: check(print, {}), "check: flow=None: give a Dataflow, or a function that builds"),  # type: ignore[arg-type]
        (lambda: check(5, {}), "check: flow=5: give a Dataflow"),  # type: ignore[arg-type]
        (lambda: check(Dataflow("f"), 5), "check: inputs=5: give a mapping"),  # type: ignore[arg-type]
        (lambda: check(Dataflow("f"), {}, parallelism=("a",)), "parallelism=.'a',.: give numbers"),  # type: ignore[arg-type]
        (lambda: check(Dataflow("f"), {}, seeds=1.5), "check: seeds=1.5: give a list or a whole number"),  # type: ignore[arg-type]
        (lambda: check(Dataflow("f"), {}, seeds=["a"]), "seeds=.'a',.: give at least one, whole numbers"),  # type: ignore[list-item]
        (lambda: JobHandle.savepoint(HANDLE, 5), "savepoint: url=5: give a text"),
        (lambda: JobHandle.wait(HANDLE, "a"), "wait: timeout=<str>: give a number or None"),
        (lambda: JobHandle.stop(HANDLE, "soon"), "stop: mode='soon': use 'checkpoint'"),
        (lambda: JobHandle.stop(HANDLE, drain=5), "stop: drain=5: give True or False"),
        (lambda: JobHandle.rescale(HANDLE, "a"), "rescale: parallelism=<str>: give a whole number"),
        (lambda: LocalJobHandle.stop(LOCAL, "soon"), "stop: mode='soon': use 'checkpoint'"),
        (lambda: LocalJobHandle.wait(LOCAL, "a"), "wait: timeout=<str>: give a number or None"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_what_to_give(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(InvalidJob, match=told):
        call()


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: br.sum_(None), "sum_: column=None: give the name of a column"),  # type: ignore[arg-type]
        (lambda: br.max_(None), "max_: column=None: give the name of a column"),  # type: ignore[arg-type]
        (lambda: br.first(None), "first: column=None: give the name of a column"),  # type: ignore[arg-type]
        (lambda: br.count_distinct(None), "count_distinct: column=None"),  # type: ignore[arg-type]
        (lambda: br.quantile(None, 0.5), "quantile: column=None"),  # type: ignore[arg-type]
        (lambda: br.arg_max("a", by=None), "arg_max: by=None: give the name of a column"),  # type: ignore[arg-type]
    ],
)
def test_an_aggregate_of_no_column_is_refused(made: Callable[[], Any], told: str) -> None:
    with pytest.raises(InvalidJob, match=told):
        made()


def test_a_source_that_hands_on_to_another_is_one() -> None:
    class Wrapped:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            if name == "named":
                raise AttributeError(name)
            return getattr(self._inner, name)

    source: Any = Wrapped(RateSource(1).named("inner"))
    assert Dataflow("f").source("s", source).schema.names == source.schema.names


VALUE_CLASSES = (
    "Tumbling",
    "Sliding",
    "Session",
    "Count",
    "Global",
    "Calendar",
    "Every",
    "TTL",
    "Cache",
    "Retry",
    "RateLimit",
)
STATES = ("ValueState", "ListState", "MapState", "ReducingState", "AggregatingState", "BroadcastState")


@pytest.mark.parametrize("name", [*VALUE_CLASSES, *STATES, "KafkaBrokers"])
@pytest.mark.parametrize("arguments", [{"other": 1}, {"a": 1, "b": 2}])
def test_a_constructor_lists_its_arguments_if_they_do_not_fit(name: str, arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidJob, match=rf"^{name}: .* argument.*: it takes \("):
        getattr(br, name)(**arguments)
    with pytest.raises(TypeError, match="it takes"):
        getattr(br, name)(*range(9))


@pytest.mark.parametrize("call", [lambda: Dataflow(), lambda: Dataflow("a", "b"), lambda: Dataflow(called="a")])  # type: ignore[call-arg]
def test_a_flow_without_a_name_is_told_where_the_name_goes(call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidJob, match=r"^Dataflow: .*job's name, a string, as in Dataflow\('some-name'\)"):
        call()


def test_a_check_without_its_arguments_lists_them() -> None:
    with pytest.raises(InvalidJob, match=r"certify: missing a required argument: 'make_sink': it takes \(make_sink"):
        certify()  # type: ignore[call-arg]
