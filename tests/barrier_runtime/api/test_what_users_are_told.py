"""Mistakes of first users, each refused with a remedy: ignored arguments, missing things, and invalid answers."""

import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import barrier_runtime as br
from barrier_runtime import (
    CallableSink,
    CollectSink,
    Count,
    Dataflow,
    InvalidJob,
    JobFailed,
    KeyedStream,
    Stream,
    Tumbling,
    TwoPhaseCommitSink,
    UpsertSink,
    WriteAheadSink,
    count,
)

Row = dict[str, Any]
ROWS = [{"k": "a", "n": n} for n in range(3)]


def stream(rows: Sequence[Row] = ROWS) -> tuple[Dataflow, Stream]:
    flow = Dataflow("told")
    return flow, flow.from_iterator("s", lambda index, of: iter(rows), schema={"k": str, "n": int}, splits=1)


def ended(step: Callable[[Stream], Stream], sink: Any = None, rows: Sequence[Row] = ROWS, **options: Any) -> JobFailed:
    flow, source = stream(rows)
    step(source).sink("o", sink or CollectSink())
    with pytest.raises(JobFailed) as failed:
        flow.run_local(parallelism=1, **options)
    return failed.value


# ------------------------------------------------------------ options


@pytest.mark.parametrize(
    "option",
    [
        {"master": "spark://x"},
        {"spark_conf": {"a": "b"}},
        {"coordinator": "http://x:1", "token_file": "/none"},
        {"coordinator_host": "x"},
        {"coordinator_bind": "x"},
        {"slot_ports": "7200-7299"},
        {"coordinator_lease": 5.0},
    ],
    ids=lambda option: next(iter(option)),
)
def test_a_local_run_refuses_what_belongs_to_spark(option: Row) -> None:
    flow, source = stream()
    source.sink("o", CollectSink())
    with pytest.raises(InvalidJob, match=f"{', '.join(option)} ha.* no meaning in a local run.*or use run()"):
        flow.run_local(**option)


@pytest.mark.parametrize(("wrong", "right"), [("paralelism", "parallelism"), ("checkpoint_dir", "checkpoint")])
def test_an_option_that_is_almost_one_is_told_from_it(wrong: str, right: str) -> None:
    flow, source = stream()
    source.sink("o", CollectSink())
    with pytest.raises(InvalidJob, match=rf"unknown option {wrong} \(did you mean {right}.*\?\): the options are"):
        flow.run_local(**{wrong: 2})


# ------------------------------------------------------------ steps


@pytest.mark.parametrize("step", ["window", "aggregate"])
def test_a_keyed_step_without_key_by_says_what_is_missing(step: str) -> None:
    _, source = stream()
    with pytest.raises(InvalidJob, match=rf"Stream has no method '{step}': it comes after \.key_by"):
        getattr(source, step)
    assert not hasattr(source, step)


@pytest.mark.parametrize("step", ["map", "filter", "drop", "union"])
def test_a_step_of_plain_streams_after_key_by_says_where_it_belongs(step: str) -> None:
    _, source = stream()
    with pytest.raises(InvalidJob, match=rf"KeyedStream has no method '{step}': it comes before \.key_by"):
        getattr(source.key_by("k"), step)


@pytest.mark.parametrize("step", ["map", "sink", "key_by", "join", "lookup"])
def test_a_step_behind_a_window_says_that_the_window_wants_a_result(step: str) -> None:
    _, source = stream()
    windowed = source.key_by("k").window("w", Count(3))
    with pytest.raises(InvalidJob, match=rf"WindowedStream has no method '{step}': it comes after \.aggregate"):
        getattr(windowed, step)
    assert not hasattr(windowed, "agregate")
    assert repr(windowed) == "<WindowedStream w: count 3>"


@pytest.mark.parametrize("step", ["join", "window_join", "asof_join"])
def test_a_join_without_keys_says_what_is_missing(step: str) -> None:
    _, source = stream()
    with pytest.raises(
        InvalidJob, match=rf"no method '{step}': it comes after .key_by\(…\) of both streams; broadcast_"
    ):
        getattr(source, step)


def test_any_other_name_is_no_attribute() -> None:
    _, source = stream()
    with pytest.raises(AttributeError, match="'Stream' object has no attribute 'nothing'"):
        getattr(source, "nothing")  # noqa: B009


NAMELESS: dict[str, Callable[[KeyedStream], object]] = {
    "process": lambda keyed: keyed.process(lambda key, row, ctx: None),  # type: ignore[call-arg, arg-type]
    "window": lambda keyed: keyed.window(Tumbling(timedelta(seconds=1)), event_time="at"),  # type: ignore[call-arg, arg-type]
    "aggregate": lambda keyed: keyed.aggregate(n=count()),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("step", NAMELESS)
def test_a_stateful_step_without_a_name_says_where_the_name_belongs(step: str) -> None:
    _, source = stream()
    with pytest.raises(InvalidJob, match=rf"KeyedStream.{step}: .*first argument is the step's name.*{step}\('some-na"):
        NAMELESS[step](source.key_by("k"))


def test_a_call_with_other_arguments_than_there_are_says_which_there_are() -> None:
    _, source = stream()
    with pytest.raises(
        TypeError,
        match=r"unexpected keyword argument 'nam' \(did you mean 'name'\?\): it takes \(function, \*, schema=None, nam",
    ):
        source.map(lambda row: row, nam="x")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", [name for name in br.__all__ if name.endswith(("Source", "Sink"))])
def test_a_source_or_sink_made_with_wrong_arguments_lists_its_arguments(name: str) -> None:
    made = getattr(br, name)
    if inspect.isabstract(made) or name in ("BatchFunctionSink", "WriteAheadSink", "UpsertSink", "TwoPhaseCommitSink"):
        return  # bases of sinks, and the sink that `for_each_batch` makes
    with pytest.raises(TypeError, match=rf"^{name}: .*: it takes \(") as told:
        made(deleted="gone")
    assert isinstance(told.value, InvalidJob)


@pytest.mark.parametrize(
    "make",
    [
        lambda key: br.DeltaUpsertSink("out", key=key),
        lambda key: br.SqliteSink("shop.db", "t", mode="upsert", key=key),
        lambda key: br.PostgresSink("postgresql://host/db", "t", mode="upsert", key=key),
        lambda key: br.MySQLSink("mysql://user@host/db", "t", mode="upsert", key=key),
        lambda key: br.RedisUpsertSink("redis://host", key=key),
        lambda key: br.ClickHouseSink("clickhouse://host", "t", key=key),
    ],
)
def test_a_key_of_a_single_column_may_be_its_name(make: Callable[[Any], Any]) -> None:
    assert make("id").key == make(["id"]).key == ("id",)


# ------------------------------------------------------------ functions


@pytest.mark.parametrize("answer", ["no", "", 1, 0, None, [1]], ids=repr)
def test_a_filter_that_answers_neither_yes_nor_no_is_refused(answer: Any) -> None:
    """The text "no" is true for Python, and a forgotten return drops every row."""
    failed = ended(lambda s: s.filter(lambda row: answer if row["n"] == 1 else True, name="kept"))
    assert f"operator 'kept' gave {answer!r} where True or False is expected" in str(failed)
    assert "record: {'k': 'a', 'n': 1}" in str(failed)


def test_a_filter_may_answer_with_numpys_truth() -> None:
    import numpy as np

    flow, source = stream()
    out = CollectSink()
    source.filter(lambda row: np.int64(row["n"]) > 0).sink("o", out)
    flow.run_local(parallelism=1)
    assert [row["n"] for row in out.rows()] == [1, 2]


def test_a_column_that_only_some_rows_have_is_told_the_right_way_round() -> None:
    failed = ended(lambda s: s.map(lambda row: {"n": 1} if row["n"] < 2 else {"n": 1, "w": 2}))
    assert "a row lacks the column 'w', which other rows have" in str(failed)
    assert "pass schema=" in str(failed)


# ------------------------------------------------------------ sinks


class NoCommit(TwoPhaseCommitSink):
    def begin_transaction(self) -> list[Any]:
        return []

    def write(self, transaction: list[Any], rows: pa.RecordBatch) -> None:
        transaction.append(rows)

    def pre_commit(self, transaction: list[Any], checkpoint: int) -> bytes:
        return b"x"


class NoGlobal(NoCommit):
    global_committer = True

    def commit(self, committable: bytes) -> None: ...


class NoUpsert(UpsertSink):
    pass


class NoDeliver(WriteAheadSink):
    pass


@pytest.mark.parametrize(
    ("sink", "missing"),
    [
        (TwoPhaseCommitSink(), "begin_transaction, write, pre_commit, commit"),
        (NoCommit(), "commit"),
        (NoCommit, "commit"),
        (NoGlobal(), "commit_globally"),
        (NoUpsert(), "upsert"),
        (NoDeliver(), "deliver"),
    ],
    ids=["base", "instance", "class", "global", "upsert", "deliver"],
)
def test_a_sink_that_lacks_a_method_is_refused_when_it_is_declared(sink: Any, missing: str) -> None:
    _, source = stream()
    with pytest.raises(InvalidJob, match=f"sink 'o': class .* has no method {missing}: add it"):
        source.sink("o", sink)


def test_a_factory_of_a_sink_that_lacks_a_method_fails_once() -> None:
    def make() -> TwoPhaseCommitSink:
        return NoCommit()

    make.guarantee = "exactly_once"  # type: ignore[attr-defined]
    failed = ended(lambda s: s, make)
    assert "class NoCommit has no method commit: add it" in str(failed)
    assert failed.status is not None
    assert failed.status.generations == 1


class FullDisk(NoCommit):
    def write(self, transaction: list[Any], rows: pa.RecordBatch) -> None:
        raise RuntimeError("disk full")

    def commit(self, committable: bytes) -> None: ...


def test_repeatedly_failing_sink_is_named_with_strategy_and_a_single_logged_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = ended(lambda s: s, FullDisk(), restart_attempts=2, restart_delay=0.01)
    assert "sink 'o' (FullDisk), subtask 0: RuntimeError: disk full" in str(failed)
    assert "restart_attempts" in str(failed)
    told = [record for record in caplog.records if "disk full" in record.getMessage()]
    assert [bool(record.exc_info) for record in told] == [True, False, False]


def test_a_function_as_a_sink_is_told_of_callable_sink() -> None:
    _, source = stream()
    with pytest.raises(InvalidJob, match=r"repr> is not a sink: give CallableSink\(…\) around a function"):
        source.sink("o", repr)  # type: ignore[arg-type]
    source.sink("o", CallableSink(print))
