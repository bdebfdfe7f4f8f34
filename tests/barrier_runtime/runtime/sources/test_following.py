"""`followed_by`: history is read to the end in all slots before a live row is read, also across restores."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from source_harness import CountedReader

from barrier_runtime import (
    CollectSink,
    Dataflow,
    InvalidJob,
    IteratorSource,
    KafkaSource,
    KinesisSource,
    ProcessContext,
    RabbitMQSource,
    RateSource,
    Stream,
    Tumbling,
    ValueState,
    count,
)
from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.data.elements import Batch, EndOfInput
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.graph.job_graph import Edge
from barrier_runtime.runtime.network.channels import InputChannel, LocalOutput, ResultPartition
from barrier_runtime.runtime.network.wiring import Wiring
from barrier_runtime.testing import check
from tests.waiting import until

SCHEMA = pa.schema([("part", pa.string()), ("n", pa.int64()), ("at", pa.int64())])


class Stage:
    """What a test sees of a source and does to it: polls with rows, and how many rows a split may give for now."""

    def __init__(self) -> None:
        self.polls: list[str] = []
        self.may_give = 1_000_000


STAGES: dict[str, Stage] = {}


class Rows:
    """`splits` splits of `rows` rows from event time `from_ms` on, a second apart; a row per poll."""

    schema = SCHEMA
    exactly_once = True
    endless = False

    def __init__(self, part: str, splits: int, rows: int, from_ms: int = 0) -> None:
        self.part = part
        self.count = splits
        self.rows = rows
        self.from_ms = from_ms

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(f"{self.part}-{index}", b"%d" % index) for index in range(self.count)]

    def reader(self, split: Split) -> "RowsReader":
        return RowsReader(self, int(split.payload))


class RowsReader(CountedReader):
    def __init__(self, source: Rows, split: int) -> None:
        super().__init__(source.rows)
        self._source = source
        self._split = split

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        source, stage = self._source, STAGES[self._source.part]
        if self._next >= stage.may_give:
            return None
        stage.polls.append(source.part)
        number, self._next = self._next, self._next + 1
        columns = [[source.part], [self._split * source.rows + number], [source.from_ms + number * 1_000]]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        return Polled(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), now_ns)


@pytest.fixture(autouse=True)
def stages() -> dict[str, Stage]:
    order: list[str] = []
    STAGES.update(history=Stage(), live=Stage())
    STAGES["history"].polls = STAGES["live"].polls = order
    return STAGES


def both(flow: Dataflow, history: int = 3, live: int = 3, rows: int = 40) -> Stream:
    before = flow.source("history", Rows("history", history, rows), event_time="at")
    after = flow.source("live", Rows("live", live, rows, from_ms=rows * 1_000), event_time="at")
    return before.followed_by("orders", after)


def every(history: int = 3, live: int = 3, rows: int = 40) -> list[tuple[str, int]]:
    numbers = [("history", n) for n in range(history * rows)] + [("live", n) for n in range(live * rows)]
    return sorted(numbers)


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(("history", "live"), [(1, 5), (5, 1)])
def test_no_live_row_is_read_before_the_last_row_of_history(parallelism: int, history: int, live: int) -> None:
    flow, out = Dataflow("backfill"), CollectSink()
    both(flow, history, live).sink("out", out)
    flow.run_local(parallelism=parallelism)
    assert STAGES["live"].polls == ["history"] * (40 * history) + ["live"] * (40 * live)
    assert sorted((row["part"], row["n"]) for row in out.rows()) == every(history, live)


@pytest.mark.slow
def test_every_row_is_there_once_with_restores_on_both_sides_of_the_switch(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    def run(parallelism: int, history: int, live: int, rows: int | None) -> None:
        """Runs until `rows` rows are visible, then stops with a checkpoint; None: to the end."""
        STAGES["history"].may_give, STAGES["live"].may_give = history, live
        STAGES["live"].polls.clear()
        flow, part = Dataflow("backfill"), CollectSink()
        both(flow).sink("out", part)
        job = flow.start_local(checkpoints=str(tmp_path), parallelism=parallelism, checkpoint_interval=0.05)
        if rows is not None:
            until(lambda: len(part.rows()) == rows)
            job.stop()
        job.wait()
        seen.extend((row["part"], row["n"]) for row in part.rows())
        order = STAGES["live"].polls
        assert order == sorted(order), "history, then live"

    run(3, 10, 1_000, 3 * 10)  # before the switch
    run(2, 25, 1_000, 3 * 15)  # before the switch, at another parallelism
    run(3, 1_000, 10, 3 * 15 + 3 * 10)  # across the switch
    run(1, 1_000, 20, 3 * 10)  # behind the switch
    run(2, 1_000, 1_000, None)
    assert sorted(seen) == every()


@pytest.mark.slow
def test_windows_close_during_history_and_no_row_is_late_at_the_switch() -> None:
    flow, out = Dataflow("backfill"), CollectSink()
    windows = both(flow).window_all("w", Tumbling(10)).aggregate(late=True, n=count())
    late = CollectSink()
    windows.main.sink("out", out)
    windows.late.sink("late", late)
    STAGES["history"].may_give = 35
    job = flow.start_local(parallelism=2, checkpoint_interval=0.05)
    until(lambda: len(out.rows()) >= 3)
    assert "live" not in STAGES["live"].polls
    STAGES["history"].may_give = 1_000
    job.wait()
    assert [row["n"] for row in out.rows()] == [30] * 8
    assert late.rows() == []


def windows_of_both() -> Dataflow:
    flow = Dataflow("backfill")
    windows = both(flow).key_by("part").window("w", Tumbling(10)).aggregate(late=True, n=count())
    windows.main.sink("out", CollectSink())
    windows.late.sink("late", CollectSink())
    return flow


@pytest.mark.slow
def test_a_crash_in_any_phase_before_or_after_the_switch_changes_no_row() -> None:
    def rows(part: str, split: int, from_ms: int) -> list[dict[str, Any]]:
        return [{"part": part, "n": split, "at": from_ms + number * 1_000} for number in range(30)]

    history = [rows("history", split, 0) for split in range(3)]
    live = [rows("live", split, 30_000) for split in range(2)]
    checked = check(windows_of_both, {"history": history, "live": live}, parallelism=3)
    assert checked.rows["late"] == 0


class InOrder:
    """Emits, for each row of history, the row of history before it; live rows are only passed on."""

    last = ValueState(int, default=-1)

    def process(self, key: str, row: dict[str, Any], ctx: ProcessContext) -> Iterator[dict[str, Any]]:
        before, is_history = self.last.value, row["at"] < 1_000_000
        if is_history:
            self.last.value = row["n"]
        yield {"n": row["n"], "before": before if is_history else None}


def rows_of_one_key(first: int, rows: int, from_ms: int) -> list[dict[str, Any]]:
    return [{"part": "key", "n": n, "at": from_ms + n} for n in range(first, first + rows)]


def orders_of_files(folder: Path, history_rows: int, out: CollectSink) -> Dataflow:
    flow = Dataflow("backfill")
    for name, rows in (
        ("history", rows_of_one_key(0, history_rows, 0)),
        ("live", rows_of_one_key(0, 10, 1_000_000)),
    ):
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), folder / f"{name}.parquet")
    history, live = (flow.read_parquet(name, str(folder / f"{name}.parquet")) for name in ("history", "live"))
    keyed = history.followed_by("orders", live).key_by("part")
    keyed.process("order", InOrder(), schema={"n": int, "before": int}).sink("out", out)
    return flow


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [2, 3])
def test_rows_of_one_file_reach_a_keyed_step_in_their_order(parallelism: int, tmp_path: Path) -> None:
    out = CollectSink()
    orders_of_files(tmp_path, 20_000, out).run_local(parallelism=parallelism)
    pairs = [(row["before"], row["n"]) for row in out.rows() if row["before"] is not None]
    assert pairs == list(itertools.pairwise(range(-1, 20_000)))


@pytest.mark.slow
def test_a_crash_in_any_phase_keeps_the_order_of_history_at_another_parallelism(tmp_path: Path) -> None:
    inputs = {"history": rows_of_one_key(0, 90, 0), "live": rows_of_one_key(0, 10, 1_000_000)}
    flow = orders_of_files(tmp_path, 1, CollectSink())
    assert check(flow, inputs, parallelism=(2, 3)).rows == {"out": 100}


def test_history_passes_every_end_to_all_slots_and_its_barriers_overtake_no_row() -> None:
    flow = Dataflow("backfill")
    both(flow).sink("out", CollectSink())
    graph = compile_plan(flow.plan, 3)
    wiring: Any = Wiring(graph, 1, 1, None, lambda: None, 1, LocalOutput)  # type: ignore[arg-type] # connects nothing
    wiring.make_inputs()
    (chain,) = [chain.id for chain in graph.chains if chain.source is None]
    assert [channel.port for channel in wiring.inputs[chain]] == [0, 0, 0, 1]
    assert wiring.aligned_only(chain) == [0, 1, 2, 3]


def test_each_slot_keeps_its_rows_of_history_and_all_learn_of_its_end() -> None:
    channels = [InputChannel(slot, 0, lambda: None) for slot in range(3)]
    outputs: list[Any] = [LocalOutput(channel, lambda: None) for channel in channels]
    edge = ResultPartition(Edge(0, 0, 1, "same"), outputs, 1, 16)
    for rows in (1, 1_000):
        edge.emit(Batch(pa.record_batch({"n": range(rows)}), 0))
    edge.control(EndOfInput())
    sent = [[channel.pop() for _ in range(3) if channel.readable] for channel in channels]
    assert [[type(element) for element in elements] for elements in sent] == [
        [EndOfInput],
        [Batch, Batch, EndOfInput],
        [EndOfInput],
    ]


def test_rebalanced_history_is_spread_over_the_slots() -> None:
    flow = Dataflow("backfill")
    history, live = (flow.source(name, Rows(name, 1, 1)) for name in ("history", "live"))
    history.rebalance().followed_by("orders", live).sink("out", CollectSink())
    assert [edge.partitioning for edge in compile_plan(flow.plan, 2).edges] == ["rebalance", "forward"]


def test_the_plan_says_what_is_read_first() -> None:
    flow = Dataflow("backfill")
    both(flow).sink("out", CollectSink())
    assert "read after the first input of 'orders' has ended" in flow.explain()


def test_streams_that_cannot_follow_one_another_are_refused(tmp_path: Path) -> None:
    flow = Dataflow("backfill")
    rows = flow.source("history", Rows("history", 1, 1))
    with pytest.raises(InvalidJob, match="followed_by 'a': source 'history' is above both streams"):
        rows.followed_by("a", rows.filter("n > 1"))
    with pytest.raises(InvalidJob, match="followed_by 'b': one input has"):
        rows.followed_by("b", flow.source("other", Rows("live", 1, 1)).drop("n"))
    other: Any = Dataflow("other").source("in", Rows("live", 1, 1))
    with pytest.raises(InvalidJob, match=r"followed_by 'c': .* is not a stream of flow 'backfill'"):
        rows.followed_by("c", other)
    (tmp_path / "a.jsonl").write_text('{"part": "a", "n": 1, "at": 1}\n')
    watched = flow.read_jsonl("watched", str(tmp_path), schema=SCHEMA, watch=1)
    with pytest.raises(InvalidJob, match=r"source 'watched' .* never ends, so the later stream .* watch="):
        watched.followed_by("d", rows)


def test_two_streams_that_wait_for_one_another_are_refused() -> None:
    flow = Dataflow("backfill")
    a, b, c = (flow.source(name, Rows("history", 1, 1)) for name in "abc")
    a.followed_by("x", b).followed_by("y", c)
    with pytest.raises(InvalidJob, match="followed_by 'z': source 'b' is itself read after source 'a', so both would"):
        b.followed_by("z", a)
    with pytest.raises(InvalidJob, match="followed_by 'z': source 'c' is itself read after source 'a'"):
        c.followed_by("z", a.filter("n > 1"))
    a.followed_by("once-more", c)


def test_a_history_that_never_ends_is_refused() -> None:
    flow = Dataflow("backfill")
    live = flow.rate("live", 10)
    sources: dict[str, Any] = {
        "rate": RateSource(10),
        "kafka": KafkaSource("h:1", "t", group="g"),
        "kinesis": KinesisSource("s", region="eu-west-1"),
        "rabbitmq": RabbitMQSource("amqp://h", "q", deduplicate=None),
    }
    for name, source in sources.items():
        history = flow.source(name, source)
        same = live if name == "rate" else flow.source(f"live-{name}", source)
        with pytest.raises(InvalidJob, match=rf"source '{name}' .* never ends, so the later stream .*until="):
            history.followed_by(f"after-{name}", same)
    flow.rate("some", 10, rows=5).followed_by("orders", live)


def test_a_history_of_which_nobody_knows_whether_it_ends_is_a_warning() -> None:
    flow = Dataflow("backfill")
    iterated = flow.source("iterated", IteratorSource(lambda index, of: iter(()), schema=SCHEMA))
    with pytest.warns(UserWarning, match=r"followed_by 'orders': check that source 'iterated' .* ends") as warned:
        iterated.followed_by("orders", flow.source("live", Rows("live", 1, 1)))
    assert [warning.filename for warning in warned] == [__file__]
