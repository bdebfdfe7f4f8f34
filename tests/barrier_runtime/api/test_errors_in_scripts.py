"""Errors as programs see them: the user's own exception is the cause, and no runtime frames precede the message."""

import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import barrier_runtime
from barrier_runtime import (
    ClickHouseSink,
    CollectSink,
    Dataflow,
    DeltaSink,
    IcebergSink,
    InvalidJob,
    JobFailed,
    JsonlSink,
    KafkaSink,
    KinesisSource,
    MySQLSink,
    PostgresSink,
    RedisUpsertSink,
    Stream,
    TwoPhaseCommitSink,
    count_distinct,
)
from barrier_runtime.operators.aggregation.kinds import sketches

Row = dict[str, Any]


def source(flow: Dataflow) -> Stream:
    rows = [{"k": "a", "n": n} for n in range(3)]
    return flow.from_iterator("s", lambda i, n: iter(rows), schema={"k": str, "n": int}, splits=1)


def fails(row: Row) -> Row:
    return {"x": 1 // row["n"]}


def fails_deeper(key: str, row: Row, ctx: Any) -> Row:
    return fails(row)


def raises(row: Row) -> bool:
    raise LookupError("no such thing") from ValueError("deeper")


@pytest.mark.parametrize(
    ("step", "kind", "innermost"),
    [
        (lambda s: s.map(fails), ZeroDivisionError, "fails"),
        (lambda s: s.flat_map(lambda row: [fails(row)]), ZeroDivisionError, "fails"),
        (lambda s: s.filter(raises), LookupError, "raises"),
        (lambda s: s.key_by("k").process("p", fails_deeper), ZeroDivisionError, "fails"),
    ],
    ids=["map", "flat_map", "filter", "process"],
)
def test_the_cause_is_the_users_own_exception_from_its_first_frame_on(
    step: Callable[[Stream], Stream], kind: type[Exception], innermost: str
) -> None:
    """Debuggers and error collectors can then jump to that frame."""
    flow = Dataflow("script")
    step(source(flow)).sink("o", CollectSink())
    with pytest.raises(JobFailed) as failed:
        flow.run_local(parallelism=1)
    cause = failed.value.__cause__
    assert type(cause) is kind
    frames = traceback.extract_tb(cause.__traceback__)
    assert frames[-1].name == innermost
    assert {Path(frame.filename).name for frame in frames} == {Path(__file__).name}
    assert "Traceback" not in str(failed.value)  # shown only once, in the cause
    assert "Traceback" in failed.value.told
    assert f"raised {kind.__name__}" in str(failed.value)
    assert str(failed.value).endswith("then start the job again.")


class FullDisk(TwoPhaseCommitSink):
    def begin_transaction(self) -> None: ...

    def write(self, transaction: None, rows: pa.RecordBatch) -> None:
        raise OSError("disk full")

    def pre_commit(self, transaction: None, checkpoint: int) -> None: ...

    def commit(self, committable: bytes) -> None: ...


def test_the_cause_is_what_a_users_sink_raised() -> None:
    flow = Dataflow("script")
    source(flow).sink("o", FullDisk())
    with pytest.raises(JobFailed, match="sink 'o'") as failed:
        flow.run_local(parallelism=1, restart="none")
    assert isinstance(failed.value.__cause__, OSError)
    assert traceback.extract_tb(failed.value.__cause__.__traceback__)[0].name == "write"


@pytest.mark.parametrize(
    "mistake",
    [
        lambda flow: source(flow).key_by("kk"),
        lambda flow: flow.from_iterator("x", lambda i, n: [], schema={"x": "nothing"}),
        lambda flow: flow.run_local(),
        lambda flow: flow.run_local(parallelism=0),
        lambda flow: flow.run(),
        lambda flow: flow.explain(paralelism=2),
        lambda flow: source(flow).sink("o", repr),
    ],
    ids=["key_by", "schema", "empty", "option", "spark", "explain", "sink"],
)
def test_a_mistake_is_told_in_one_traceback_with_one_frame_of_ours(mistake: Callable[[Dataflow], Any]) -> None:
    with pytest.raises(InvalidJob) as refused:
        mistake(Dataflow("script"))
    shown = traceback.TracebackException.from_exception(refused.value)
    ours = [frame for frame in shown.stack if Path(frame.filename).name != Path(__file__).name]
    assert [Path(frame.filename).name for frame in ours] == ["outcome.py"]
    assert (shown.__cause__, shown.__suppress_context__) == (None, True)


def into(sink: Any, **options: Any) -> Callable[[Dataflow], None]:
    def use(flow: Dataflow) -> None:
        source(flow).sink("o", sink)
        flow.run_local(parallelism=1, **options)

    return use


def out_of(read: Callable[[Dataflow], Stream]) -> Callable[[Dataflow], None]:
    def use(flow: Dataflow) -> None:
        read(flow).sink("o", CollectSink())
        flow.run_local(parallelism=1)

    return use


def on_spark(flow: Dataflow) -> None:
    source(flow).sink("o", JsonlSink("out"))
    flow.run(master="local[1]", parallelism=1, checkpoints="c")


NO_SERVER = "127.0.0.1:9"
MISSING: dict[str, tuple[str, str, Callable[[Dataflow], Any]]] = {  # case: module, extra, code that needs the module
    "spark": ("pyspark", "spark", on_spark),
    "s3 checkpoints": ("boto3", "s3", into(CollectSink(), checkpoints="s3://bucket/c")),
    "s3 checkpoints by obstore": (
        "obstore",
        "s3",
        into(CollectSink(), checkpoints=f"s3://bucket/c?endpoint=http://{NO_SERVER}"),
    ),
    "s3 sink": ("boto3", "s3", into(JsonlSink("s3://bucket/out"))),
    "gs sink": ("obstore", "clouds", into(JsonlSink("gs://bucket/out"))),
    "gs source": ("obstore", "clouds", out_of(lambda flow: flow.read_jsonl("in", "gs://bucket/in"))),
    "azure": ("obstore", "clouds", into(CollectSink(), checkpoints="abfss://c@a.dfs.core.windows.net/x")),
    "delta": ("deltalake", "delta", into(DeltaSink("out"))),
    "iceberg": ("pyiceberg", "iceberg", into(IcebergSink("shop.orders"))),
    "kafka source": (
        "confluent_kafka",
        "kafka",
        out_of(lambda flow: flow.read_kafka("in", NO_SERVER, ["t"], group="g")),
    ),
    "kafka sink": ("confluent_kafka", "kafka", into(KafkaSink(NO_SERVER, "t"))),
    "postgres sink": ("psycopg", "postgres", into(PostgresSink(f"postgresql://{NO_SERVER}/x", "t"))),
    "postgres changes": (
        "psycopg",
        "postgres",
        out_of(lambda flow: flow.read_postgres_changes("in", f"postgresql://{NO_SERVER}/x", ["t"], slot="s")),
    ),
    "mysql": ("pymysql", "mysql", into(MySQLSink(f"mysql://u@{NO_SERVER}/x", "t"))),
    "clickhouse": (
        "clickhouse_driver",
        "clickhouse",
        into(ClickHouseSink(f"clickhouse://{NO_SERVER}/x", "t", key="k", deterministic=True)),
    ),
    "rabbitmq": (
        "pika",
        "rabbitmq",
        out_of(lambda flow: flow.read_rabbitmq("in", f"amqp://{NO_SERVER}", "q", deduplicate="forever")),
    ),
    "redis": ("redis", "redis", into(RedisUpsertSink(f"redis://{NO_SERVER}", key="k", deterministic=True))),
    "kinesis": (
        "boto3",
        "kinesis",
        out_of(lambda flow: flow.source("in", KinesisSource("events", region="eu-central-1"))),
    ),
    "sketches": (
        "datasketches",
        "sketches",
        out_of(lambda flow: source(flow).key_by("k").aggregate("a", d=count_distinct("n", approximate=True))),
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_missing_extra_is_reported_in_a_single_line_without_stack_frames(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, extra, use = MISSING[case]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    sketches._library.cache_clear()  # another test may have loaded the module
    with pytest.raises((InvalidJob, JobFailed)) as refused:
        use(Dataflow("script"))
    shown = traceback.TracebackException.from_exception(refused.value)
    ours = [frame for frame in shown.stack if Path(frame.filename).name != Path(__file__).name]
    assert [Path(frame.filename).name for frame in ours] == ["outcome.py"]
    assert (shown.__cause__, shown.__suppress_context__) == (None, True)
    assert f"pip install 'barrier-runtime[{extra}]', on every machine that runs the job" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_script_that_needs_a_package_for_tests_or_pandas_says_so_in_one_traceback() -> None:
    for module, code, told in (
        ("greenlet", "from barrier_runtime.testing import check", "pip install 'barrier-runtime[testing]'"),
        ("pandas", "import barrier_runtime as b\nb.CollectSink().to_pandas()", "pip install pandas"),
    ):
        hidden = f"import sys\nsys.modules[{module!r}] = None\n{code}"
        done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 1
        assert told in done.stderr.splitlines()[-1]
        assert (done.stderr.count("Traceback"), done.stderr.count('  File "')) == (1, 2)


@pytest.mark.slow
def test_a_script_that_fails_prints_the_users_frames_then_the_message(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from barrier_runtime import CollectSink, Dataflow

            def fails(row):
                return {"x": 1 // row["value"]}

            if __name__ == "__main__":
                flow = Dataflow("script")
                flow.rate("s", 1000, 10).map(fails).sink("o", CollectSink())
                flow.run_local(parallelism=1)
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    frames = [line for line in done.stderr.splitlines() if line.startswith('  File "')]
    assert [line.split(", in ")[1] for line in frames] == ["fails", "<module>", "called"]
    assert done.stderr.index("ZeroDivisionError") < done.stderr.index("JobFailed: fails() of operator 'map-1'")


def test_every_error_can_be_imported_from_the_package() -> None:
    from barrier_runtime.state import errors

    names = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == "barrier_runtime.state.errors"
    ]
    assert {name for name in names if name not in barrier_runtime.__all__} == set()


@pytest.mark.slow
def test_a_mistyped_step_gets_one_suggestion() -> None:
    """Python adds its own suggestion to an AttributeError that has its object."""
    code = "from barrier_runtime import Dataflow\nDataflow('s').rate('r', 10, 10).fliter('value > 3')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    told = "AttributeError: 'Stream' object has no attribute 'fliter': did you mean 'filter'?"
    assert done.stderr.splitlines()[-1] == told
