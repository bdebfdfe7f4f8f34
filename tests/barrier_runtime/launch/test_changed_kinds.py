"""Every kind of step with state under the name of another kind: refused before any write; the error names both kinds.

`KINDS` are all public kinds of steps that keep state, sources and sinks; each runs once, and what the job has stored is
then offered to every other kind. Nothing is begun at zero without a word, and nothing is read as what it is not.

| from \\ to             | the same kind                          | another kind | a step without state | gone       |
|-----------------------|----------------------------------------|--------------|----------------------|------------|
| a step with state     | goes on; another definition, key or    | refused      | refused              | refused (*)|
|                       | kind of state is refused (`CHANGED`)   |              |                      |            |
| a source              | goes on                                | refused      | refused              | refused (*)|
| a sink, rows pending  | goes on; another target is refused     | refused      | refused              | refused (+)|
| a sink, all visible   | goes on                                | goes on      | refused              | refused (+)|

(*) With allow_non_restored the state is dropped. (+) With allow_non_restored decided rows are committed first.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from barrier_runtime import (
    AggregatingState,
    BroadcastState,
    CollectSink,
    Count,
    CsvSink,
    Dataflow,
    DeltaSink,
    DeltaUpsertSink,
    Every,
    Global,
    InvalidJob,
    JsonlSink,
    KafkaSink,
    ListState,
    MapState,
    MySQLSink,
    PostgresSink,
    RedisUpsertSink,
    ReducingState,
    Session,
    Sliding,
    Tumbling,
    ValueState,
    connect,
    count,
    max_,
    min_,
    sum_,
)
from barrier_runtime.api.dataflow import Stream
from barrier_runtime.connectors.source import Split
from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.log.restore_choice import check_fits
from barrier_runtime.coordinator.log.restore_diff import RestoreDiff
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.snapshots.snapshot import KIND, PENDING, TARGET, FileRef, OperatorSnapshot
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state_tables.finding import find_checkpoint
from tests.barrier_runtime.running_job import RunningJob

JOB, STEP = "kinds", "step"
SCHEMA = {"k": str, "v": int, "at": int}
ROWS = [{"k": "abc"[n % 3], "v": n, "at": 1_000 * n} for n in range(9)]
HOUR, ZERO = timedelta(hours=1), timedelta()


class Seen:
    seen = ValueState(int, default=0)

    def process(self, key: str, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        self.seen.value += 1
        return {"k": key}


class Both:
    seen = ValueState(int, default=0)
    rules = BroadcastState(str, int)

    def on_rows(self, key: str, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        self.seen.value += 1
        return {"k": key}

    def on_new(self, row: dict[str, Any], ctx: Any) -> None:
        self.rules[row["k"]] = row["v"]


class Changes:
    state: Mapping[str, Any] = {"n": "int64"}

    def process_groups(self, keys: Any, batch: Any, state: Any) -> None:
        state["n"] += 1


class Total:
    def zero(self) -> int:
        return 0

    def add(self, total: int, value: int) -> int:
        return total + value

    def result(self, total: int) -> int:
        return total


def held(keys: list[str]) -> dict[str, Any]:
    return {}


def keyed(rows: Stream) -> Any:
    return rows.key_by("k")


def windowed(rows: Stream, window: Any, **options: Any) -> Any:
    bounded = not isinstance(window, Global) and options.get("clock") != "processing"
    return keyed(rows).window(STEP, window, **({"event_time": "at"} if bounded else {}), **options)


STEPS: dict[str, Callable[[Stream, Stream], Any]] = {
    "aggregate": lambda rows, more: keyed(rows).aggregate(STEP, n=count()),
    "process": lambda rows, more: keyed(rows).process(STEP, Seen, schema={"k": str}),
    "process_groups": lambda rows, more: keyed(rows).process_groups(STEP, Changes, schema={"k": str}),
    "connect": lambda rows, more: connect(rows=keyed(rows), new=more.broadcast()).process(
        STEP, Both, schema={"k": str}
    ),
    "deduplicate": lambda rows, more: rows.deduplicate(STEP, "k", within=None),
    "tumbling": lambda rows, more: windowed(rows, Tumbling(HOUR)).aggregate(n=count()),
    "sliding": lambda rows, more: windowed(rows, Sliding(HOUR, HOUR / 2)).aggregate(n=count()),
    "session": lambda rows, more: windowed(rows, Session(HOUR)).aggregate(n=count()),
    "count window": lambda rows, more: windowed(rows, Count(100)).aggregate(n=count()),
    "global window": lambda rows, more: windowed(rows, Global()).aggregate(n=count()),
    "apply": lambda rows, more: windowed(rows, Tumbling(HOUR)).apply(lambda *of: None, schema={"k": str}),
    "top": lambda rows, more: windowed(rows, Tumbling(HOUR)).top(2, by="v"),
    "join": lambda rows, more: keyed(rows).join(STEP, keyed(more), between=(-HOUR, HOUR), event_time="at"),
    "window_join": lambda rows, more: keyed(rows).window_join(STEP, keyed(more), Tumbling(HOUR), event_time="at"),
    "asof_join": lambda rows, more: keyed(rows).asof_join(STEP, keyed(more), event_time="at"),
    "table_join": lambda rows, more: keyed(rows).table_join(STEP, keyed(more)),
}
WITHOUT_STATE: dict[str, Callable[[Stream, Stream], Any]] = {
    "map": lambda rows, more: rows.map(lambda row: row, name=STEP, schema=SCHEMA),
    "filter": lambda rows, more: rows.filter(lambda row: True, name=STEP),
    "process without a key": lambda rows, more: rows.process(STEP, lambda row, ctx: row, schema=SCHEMA),
    "lookup": lambda rows, more: rows.lookup(STEP, held, key="k", schema={"name": str}),
}


def flow_of(step: Callable[[Stream, Stream], Any] | None, sink: Any = None) -> Dataflow:
    flow = Dataflow(JOB)
    rows, more = (flow.from_iterator(name, _rows, schema=SCHEMA, event_time="at") for name in ("rows", "more"))
    out = rows.union(more) if step is None else step(rows, more)
    out.sink("out", sink or CollectSink())
    more.sink("more-out", CollectSink())
    return flow


def _rows(index: int, of: int) -> Iterator[dict[str, Any]]:
    return iter(ROWS[index::of])


def spec_of(flow: Dataflow) -> JobSpec:
    options: dict[str, Any] = {"checkpoints": "memory://nowhere", "parallelism": 1}
    return PreparedJob(flow.plan, JobOptions.for_local_run(options)).spec


def stored_by(flow: Dataflow, folder: Path) -> Manifest:
    flow.run_local(checkpoints=str(folder), parallelism=1)
    return find_checkpoint(str(folder), JOB).manifest


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Manifest]:
    """Returns the stored manifest of a job of each kind."""
    return {kind: stored_by(flow_of(step), tmp_path_factory.mktemp("stored")) for kind, step in STEPS.items()}


@pytest.fixture(scope="module")
def specs() -> Mapping[str, JobSpec]:
    return {kind: spec_of(flow_of(step)) for kind, step in {**STEPS, **WITHOUT_STATE}.items()}


def of_step(manifest: Manifest) -> list[OperatorSnapshot]:
    return [each for each in manifest.operators if each.operator == STEP]


def without(manifest: Manifest, *values: str) -> Manifest:
    """Returns the manifest as an earlier release wrote it."""
    return msgspec.structs.replace(
        manifest,
        operators=tuple(
            msgspec.structs.replace(each, values={name: of for name, of in each.values.items() if name not in values})
            for each in manifest.operators
        ),
    )


def refusal(spec: JobSpec, manifest: Manifest, **changes: Any) -> str:
    try:
        check_fits(msgspec.structs.replace(spec, **changes), manifest, "the checkpoint")
    except InvalidJob as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_every_snapshot_says_its_kind_and_a_kind_goes_on_as_it_was(stored: Any, specs: Any) -> None:
    for kind, manifest in stored.items():
        assert of_step(manifest), kind
        for each in manifest.operators:
            assert each.values.get(KIND), (kind, each.operator)
        assert refusal(specs[kind], manifest) == "", kind


def test_every_change_of_kind_is_refused_with_both_kinds_and_the_remedy(stored: Any, specs: Any) -> None:
    for (before, manifest), (now, spec) in itertools.product(stored.items(), specs.items()):
        if before == now:
            continue
        said = refusal(spec, manifest, allow_non_restored=True)  # drops only removed operators
        assert "'step'" in said, (before, now)
        assert "new name" in said or "another name" in said, said
        assert "allow_non_restored" in said
        kinds = (
            of_step(manifest)[0].values[KIND].decode(),
            *[chain.kinds[STEP] for chain in spec.chains if STEP in chain.kinds],
        )
        if kinds[0] != kinds[1]:
            assert f"{kinds[0]} step" in said, said
            assert f"{kinds[1]} step" in said, said
        diff = RestoreDiff(spec, manifest, "the checkpoint")
        assert any(line.startswith("step: refused, its") for line in diff.lines), diff.lines
        assert diff.refused


def test_a_state_of_a_name_that_is_gone_is_dropped_by_express_wish_alone(stored: Any) -> None:
    gone = spec_of(flow_of(None))
    for manifest in stored.values():
        assert "missing: step" in refusal(gone, manifest)
        assert refusal(gone, manifest, allow_non_restored=True) == ""


def test_what_an_earlier_release_stored_without_a_kind_is_told_by_its_tables(stored: Any, specs: Any) -> None:
    """The definition or the key identifies the kind."""
    for before, manifest in stored.items():
        earlier = without(manifest, KIND, TARGET)
        assert refusal(specs[before], earlier) == "", before
        taken = {now for now, spec in specs.items() if now != before and not refusal(spec, earlier)}
        assert taken == set(), before


# ---------------------------------------------------------------- one kind, changed


MINUTES = timedelta(minutes=5)
STATES: dict[
    str, tuple[Any, Callable[[Any, dict[str, Any]], object]]
] = {  # name: (state, function that writes the state)
    "ValueState": (ValueState(int, default=0), lambda state, row: setattr(state, "value", row["v"])),
    "ValueState of text": (ValueState(str), lambda state, row: setattr(state, "value", row["k"])),
    "ListState": (ListState(int), lambda state, row: state.append(row["v"])),
    "MapState": (MapState(str, int), lambda state, row: state.update({row["k"]: row["v"]})),
    "MapState by numbers": (MapState(int, int), lambda state, row: state.update({row["v"]: row["v"]})),
    "ReducingState": (ReducingState(int, max), lambda state, row: state.add(row["v"])),
    "AggregatingState": (AggregatingState(Total(), int), lambda state, row: state.add(row["v"])),
}


def with_state(state: Any, write: Callable[[Any, dict[str, Any]], object]) -> Callable[[Stream, Stream], Any]:
    """Returns a step whose function has this state under the name `seen`, and writes the state."""

    def process(self: Any, key: str, row: dict[str, Any], ctx: Any) -> dict[str, Any]:
        write(self.seen, row)
        return {"k": key}

    made = type("Function", (), {"seen": state, "process": process})
    return lambda rows, more: keyed(rows).process(STEP, made, schema={"k": str})


def tumbling(window: Any = Tumbling(HOUR), **options: Any) -> Callable[[Stream, Stream], Any]:
    return lambda rows, more: windowed(rows, window, **options).aggregate(n=count())


def joined(lower: timedelta = -HOUR, key: str = "k", how: Any = "inner") -> Callable[[Stream, Stream], Any]:
    between = (lower, HOUR)
    return lambda rows, more: rows.key_by(key).join(STEP, more.key_by(key), between=between, event_time="at", how=how)


def joined_in(window: Any) -> Callable[[Stream, Stream], Any]:
    return lambda rows, more: keyed(rows).window_join(STEP, keyed(more), window, event_time="at")


def numbered(rows: Stream) -> Any:
    """By a key of the same name and another type."""
    return rows.select({"k": "v"}).key_by("k")


def texts(rows: Stream) -> Any:
    return rows.select({"k": "k", "v": "CAST(v AS VARCHAR)"}).key_by("k")


def later(rows: Stream) -> Any:
    """With another type of event times."""
    schema = {"k": str, "v": int, "at": "timestamp[ms]"}
    return windowed(rows.map(lambda row: row, schema=schema), Tumbling(HOUR))


def totals(**aggregates: Any) -> Callable[[Stream, Stream], Any]:
    return lambda rows, more: keyed(rows).aggregate(STEP, **aggregates)


def columns(kind: str) -> Callable[[Stream, Stream], Any]:
    def nothing(keys: Any, batch: Any, state: Any) -> None: ...

    return lambda rows, more: keyed(rows).process_groups(STEP, nothing, state={"n": kind}, schema={"k": str})


BEFORE = {**STEPS, "greatest": totals(n=max_("v")), **{name: with_state(*each) for name, each in STATES.items()}}
# (kind before, kind now, text of the refusal on the old definition, key or state)
CHANGED: list[tuple[str, Callable[[Stream, Stream], Any], str]] = [
    ("tumbling", tumbling(Tumbling(MINUTES)), "as tumbling 1:00:00, but the job now has it as tumbling 0:05:00"),
    ("tumbling", tumbling(Tumbling(HOUR, offset=MINUTES)), "as tumbling 1:00:00, but"),
    ("tumbling", tumbling(early=Every(rows=2)), "as tumbling 1:00:00, but the job now has it as .*early results"),
    ("tumbling", tumbling(allowed_lateness=HOUR), "as tumbling 1:00:00, but the job now has it as .*allowed lateness"),
    ("tumbling", tumbling(clock="processing"), "as tumbling 1:00:00, but the job now has it as .*by the wall clock"),
    ("tumbling", lambda rows, more: windowed(rows, Tumbling(HOUR)).aggregate(n=sum_("v")), r"values of .*count\(\*\)"),
    ("sliding", tumbling(Sliding(HOUR, HOUR / 4)), "as sliding 1:00:00 every 0:30:00, but"),
    ("session", tumbling(Session(MINUTES)), "as session 1:00:00, but"),
    ("session", tumbling(Session(HOUR), early=Every(rows=2)), "as session 1:00:00, but"),
    ("count window", tumbling(Count(50)), "as count 100, but"),
    ("top", lambda rows, more: windowed(rows, Tumbling(HOUR)).top(3, by="v"), "the 2 largest by v, but"),
    ("top", lambda rows, more: windowed(rows, Tumbling(HOUR)).top(2, by="at"), "the 2 largest by v, but"),
    ("join", joined(how="left"), "as inner join.*as left join"),
    ("join", joined(ZERO), "from -1:00:00 to 1:00:00.*from 0:00:00 to 1:00:00"),
    ("join", joined(key="v"), r"the key \(left k: string, right k: string\), but its rows have \(left v: int64"),
    ("window_join", joined_in(Tumbling(MINUTES)), "in tumbling 1:00:00, but .* in tumbling 0:05:00"),
    ("aggregate", lambda rows, more: rows.key_by("v").aggregate(STEP, n=count()), r"the key \(k: string\)"),
    ("aggregate", lambda rows, more: numbered(rows).aggregate(STEP, n=count()), r"\(k: string\), .* \(k: int64\)"),
    ("aggregate", totals(n=sum_("v")), r"values of aggregate count\(\*\)"),
    ("greatest", totals(n=max_("at")), r"values of aggregate max\(v\)"),
    ("greatest", totals(n=min_("v")), r"values of aggregate max\(v\)"),
    ("greatest", lambda rows, more: texts(rows).aggregate(STEP, n=max_("v")), "column 'v' as int64, .* as string now"),
    ("tumbling", lambda rows, more: later(rows).aggregate(n=count()), r"column 'at' as int64, .* timestamp\[ms\] now"),
    ("top", lambda rows, more: later(rows).top(2, by="v"), "column 'at' as int64, but its rows have it as timestamp"),
    ("deduplicate", lambda rows, more: rows.deduplicate(STEP, "v", within=None), r"the key \(k: string\)"),
    ("process_groups", columns("float64"), "columns .<i8. in the checkpoint and is columns .<f8. now"),
    ("process_groups", columns("int32"), "columns .<i8. in the checkpoint and is columns .<i4. now"),
]


@pytest.fixture(scope="module")
def stored_once(stored: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Manifest]:
    return cache(lambda kind: stored.get(kind) or stored_by(flow_of(BEFORE[kind]), tmp_path_factory.mktemp("stored")))


@pytest.mark.slow
def test_a_changed_setting_of_a_kind_is_refused_with_what_it_was(stored_once: Callable[[str], Manifest]) -> None:
    for kind, now, said in CHANGED:
        told = refusal(spec_of(flow_of(now)), stored_once(kind))
        assert re.search(said, told), (kind, said, told)
        assert "'step'" in told


@pytest.mark.slow
def test_another_kind_of_state_under_one_name_is_refused_with_both(stored_once: Callable[[str], Manifest]) -> None:
    for before, now in itertools.permutations(STATES, 2):
        told = refusal(spec_of(flow_of(BEFORE[now])), stored_once(before))
        assert "operator 'step', state 'seen'" in told, (before, now)
        kinds = [name.split(" ")[0] for name in (before, now)]
        said = (
            " in the checkpoint and are " if kinds == ["ValueState"] * 2 else f"{kinds[0]}.* and is .*{kinds[1]}.* now"
        )
        assert re.search(said, told), told


# ---------------------------------------------------------------- sources


SOURCES: dict[str, Callable[[Dataflow, Path], Stream]] = {
    "jsonl": lambda flow, folder: flow.read_jsonl("in", str(folder / "in.jsonl"), schema={"v": int}),
    "watched": lambda flow, folder: flow.read_jsonl(
        "in", str(folder / "*.jsonl"), schema={"v": int}, watch=timedelta(minutes=1)
    ),
    "text": lambda flow, folder: flow.read_text("in", str(folder / "in.jsonl")).select({"v": "1"}),
    "iterator": lambda flow, folder: flow.from_iterator("in", _rows, schema=SCHEMA).select(["v"]),
    "rate": lambda flow, folder: flow.rate("in", 1_000).select({"v": "1"}),
    "Kafka": lambda flow, folder: flow.source("in", Other("Kafka")),
    "Kinesis stream orders": lambda flow, folder: flow.source("in", Other("Kinesis stream orders")),
    "Kinesis stream others": lambda flow, folder: flow.source("in", Other("Kinesis stream others")),
    "a user's": lambda flow, folder: flow.source("in", Other("")),
}
ALIKE = {"jsonl": "JSONL files", "watched": "JSONL files"}


class Other:
    """A source that declares `positions_in`, and is never read."""

    exactly_once = True
    schema = pa.schema({"v": pa.int64()})

    def __init__(self, positions_in: str) -> None:
        self.positions_in = positions_in

    def splits(self, parallelism: int) -> list[Split]:
        return [Split("all")]

    def reader(self, split: Split) -> Any:
        raise NotImplementedError


def reading(source: Callable[[Dataflow, Path], Stream], folder: Path, sink: Any = None) -> Dataflow:
    flow = Dataflow(JOB)
    source(flow, folder).sink("out", sink or CollectSink())
    return flow


def test_a_source_of_another_kind_does_not_go_on_with_the_positions_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"v": 1}\n')
    manifest = stored_by(reading(SOURCES["jsonl"], tmp_path), tmp_path / "jobs")
    specs = {name: spec_of(reading(source, tmp_path)) for name, source in SOURCES.items()}
    kinds = {
        name: next(chain.kinds["in"] for chain in spec.chains if "in" in chain.kinds) for name, spec in specs.items()
    }
    for before, now in itertools.permutations(SOURCES, 2):
        was = with_kind(manifest, "in", kinds[before])
        told = refusal(specs[now], was, allow_non_restored=True)
        if ALIKE.get(before, before) == ALIKE.get(now, now):
            assert told == ""
            continue
        assert "has state of 'in' as a source" in told, (before, now)
        assert "give the new step another name to start without state" in told
        assert refusal(specs[now], without(manifest, KIND)) == "", "an earlier release does not say what of"
    assert "of 'in' as a source of JSONL files, but the job now has it as a source of Kafka" in refusal(
        specs["Kafka"], manifest
    )
    assert "of 'in' as a source of JSONL files, but the job now has it as a map step" in refusal(
        spec_of(beside("in")), manifest, allow_non_restored=True
    )


def beside(name: str) -> Dataflow:
    flow = Dataflow(JOB)
    flow.from_iterator("rows", _rows, schema=SCHEMA).map(lambda row: row, name=name, schema=SCHEMA).sink(
        "last", CollectSink()
    )
    return flow


def with_kind(manifest: Manifest, operator: str, kind: str) -> Manifest:
    return msgspec.structs.replace(
        manifest,
        operators=tuple(
            msgspec.structs.replace(each, values={**each.values, KIND: kind.encode()})
            if each.operator == operator
            else each
            for each in manifest.operators
        ),
    )


# ---------------------------------------------------------------- sinks


SINKS: dict[str, tuple[Any, str, str]] = {  # name: (sink, kind, target)
    "jsonl": (JsonlSink("/nowhere/out"), "a jsonl sink", "folder out"),
    "csv": (CsvSink("/nowhere/out"), "a csv sink", "folder out"),
    "elsewhere": (CsvSink("/nowhere/others"), "a csv sink", "folder others"),
    "delta": (DeltaSink("s3://lake/out"), "a delta sink", "Delta table out"),
    "delta upsert": (DeltaUpsertSink("s3://lake/out", key=["v"]), "a delta_upsert sink", "Delta table out"),
    "kafka": (KafkaSink("broker:9092", "orders"), "a kafka sink", "topic orders"),
    "another topic": (KafkaSink("broker:9092", "others"), "a kafka sink", "topic others"),
    "postgres": (PostgresSink("host=db dbname=shop", "orders"), "a postgres sink", "table public.orders"),
    "another table": (PostgresSink("host=db dbname=shop", "others"), "a postgres sink", "table public.others"),
    "another schema": (
        PostgresSink("host=db dbname=shop", "orders", schema="old"),
        "a postgres sink",
        "table old.orders",
    ),
    "mysql": (MySQLSink("mysql://db/shop", "orders"), "a mysql sink", "table orders"),
    "redis": (RedisUpsertSink("redis://db", key=["v"], prefix="a:"), "a redis sink", "keys a:*"),
    "another prefix": (RedisUpsertSink("redis://db", key=["v"], prefix="b:"), "a redis sink", "keys b:*"),
    "a user's": (CollectSink(), "a sink", ""),
}
PENDING_SET = b'{"version":1,"checkpoint":1,"entries":[[1,0,"eHg="]]}'


def test_a_sink_of_another_kind_or_target_takes_no_transactions_of_the_first(tmp_path: Path) -> None:
    """If no commit is pending, as in a savepoint or after the job has finished, the job is restored."""
    manifest = stored_by(reading(SOURCES["iterator"], tmp_path), tmp_path / "jobs")
    specs = {name: spec_of(reading(SOURCES["iterator"], tmp_path, sink)) for name, (sink, _, _) in SINKS.items()}
    for before, now in itertools.product(SINKS, repeat=2):
        _, kind, target = SINKS[before]
        was = of_sink(manifest, PENDING_SET, kind, target)
        told = refusal(specs[now], was, allow_non_restored=True)
        if before == now:
            assert told == ""
            continue
        assert f"transactions of 'out' as {kind}" in told or f"of 'out' as a sink of {target}" in told, (before, now)
        assert "give the new sink another name, and set allow_non_restored: then they are committed first" in told
        diff = RestoreDiff(specs[now], was, "the checkpoint")
        assert any(line.startswith("out: refused, its kind changed: ") for line in diff.lines)
        check_fits(specs[now], was, "a finished job's checkpoint", settled=True)
        empty = of_sink(manifest, b'{"version":1,"checkpoint":1,"entries":[]}', kind, target)
        assert refusal(specs[now], empty) == ""
        assert refusal(specs[now], with_an_object_of_transactions(was), allow_non_restored=True) == told
    assert "of 'out' as a sink, but the job now has it as a map step without state" in refusal(
        spec_of(beside("out")), manifest, allow_non_restored=True
    )


def with_an_object_of_transactions(manifest: Manifest) -> Manifest:
    """As with so many transactions that they have an object of their own."""
    many = FileRef(PENDING, 1, "0" * 64, key="many")
    return msgspec.structs.replace(
        manifest,
        operators=tuple(
            msgspec.structs.replace(
                each,
                values={name: value for name, value in each.values.items() if name != PENDING},
                objects={PENDING: many},
            )
            if each.operator == "out"
            else each
            for each in manifest.operators
        ),
    )


def of_sink(manifest: Manifest, pending: bytes, kind: str, target: str) -> Manifest:
    family = kind.removeprefix("a ").removesuffix("sink").strip()
    said = {KIND: f"sink: {family}".encode() if family else b"sink", PENDING: pending}
    if target:
        said[TARGET] = target.encode()
    return msgspec.structs.replace(
        manifest,
        operators=tuple(
            msgspec.structs.replace(each, values={**each.values, **said}) if each.operator == "out" else each
            for each in manifest.operators
        ),
    )


def test_a_sink_of_an_earlier_release_is_told_by_its_description(tmp_path: Path) -> None:
    manifest = stored_by(reading(SOURCES["iterator"], tmp_path, JsonlSink(str(tmp_path / "out"))), tmp_path / "jobs")
    earlier = without(manifest, KIND, TARGET)
    spec = spec_of(reading(SOURCES["iterator"], tmp_path, CsvSink(str(tmp_path / "out"))))
    assert "as a jsonl sink, which are decided" in refusal(spec, earlier)
    same = spec_of(reading(SOURCES["iterator"], tmp_path, JsonlSink(str(tmp_path / "others"))))
    assert refusal(same, earlier) == "", "it did not say where"
    assert "as a sink of folder out" in refusal(same, manifest)


class Held(JsonlSink):
    """Sink whose target does not answer."""

    def commit(self, committable: bytes) -> None:
        raise Unavailable("the target does not answer: wait")


@pytest.mark.slow
async def test_decided_transactions_are_committed_before_a_sink_of_another_kind_takes_over(tmp_path: Path) -> None:
    """A whole job: refused while they are pending, under the old name; committed first under a new name."""
    (tmp_path / "in.jsonl").write_text("".join(f'{{"v": {n}}}\n' for n in range(5)))
    source, folder, old = SOURCES["watched"], tmp_path / "jobs", str(tmp_path / "old")
    job = RunningJob(reading(source, tmp_path, Held(old)), folder, parallelism=1)
    await job.until(lambda status: status.checkpoints.completed >= 2)
    job.runner.stop("now")
    await job.task
    before = sorted(folder.rglob("log/*"))
    for sink in (CsvSink(str(tmp_path / "new")), JsonlSink(str(tmp_path / "new"))):
        status = await RunningJob(reading(source, tmp_path, sink), folder, parallelism=1).task
        assert "has transactions of 'out' as a" in status.error, status
        assert "allow_non_restored: then they are committed first" in status.error
    assert sorted(folder.rglob("log/*")) == before, "no FENCE was written"
    flow = Dataflow(JOB)
    source(flow, tmp_path).sink("others", CsvSink(str(tmp_path / "new")))
    options: dict[str, Any] = {"checkpoints": str(folder), "parallelism": 1, "allow_non_restored": True}
    PreparedJob(flow.plan, JobOptions.from_keywords(options)).resolve_in_doubt(open_store(str(folder)))
    assert [json.loads(row)["v"] for file in Path(old).glob("[!.]*.jsonl") for row in file.open()] == [0, 1, 2, 3, 4]
