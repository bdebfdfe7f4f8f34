"""State of a checkpoint as a Spark DataFrame: `spark.read.format("barrier-state")`."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from barrier_runtime import CollectSink, Dataflow, MapState, ValueState, count
from barrier_runtime.spark.state_source import BarrierStateSource
from tests.barrier_runtime.state_tables.test_pinned_reads import flow as living
from tests.waiting import until

pytestmark = pytest.mark.spark

ROWS = [{"user": f"user-{n % 20}", "n": n} for n in range(1_000)]


class Kept:
    last = ValueState(int)
    by_digit = MapState(str, int)

    def process(self, user, row, ctx):
        self.last.value = row["n"]
        self.by_digit[str(row["n"] % 10)] = row["n"]
        return [row]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("state") / "checkpoints")
    flow = Dataflow("kept")
    rows = flow.from_iterator("in", lambda index, of: iter(ROWS), schema={"user": str, "n": int}, splits=1)
    kept = rows.key_by("user").process("kept", Kept, schema={"user": str, "n": int})
    kept.key_by("user").aggregate("sums", rows=count()).sink("out", CollectSink())
    flow.run_local(checkpoints=folder, parallelism=3)
    return folder


def read(spark, folder, state, **options):
    spark.dataSource.register(BarrierStateSource)
    reader = spark.read.format("barrier-state").option("path", folder).option("job", "kept").option("state", state)
    return reader.options(**options).load()


def test_a_state_is_a_data_frame_with_a_partition_per_subtask(spark, folder):
    rows = read(spark, folder, "kept.last")
    assert rows.schema.simpleString() == "struct<user:string,value:bigint>"
    assert rows.rdd.getNumPartitions() == 3
    assert {row.user: row.value for row in rows.collect()} == {f"user-{n}": 980 + n for n in range(20)}
    assert read(spark, folder, "kept.by_digit").count() == sum(
        len({row["n"] % 10 for row in ROWS if row["user"] == f"user-{n}"}) for n in range(20)
    )


def test_it_is_joined_and_filtered_as_any_other(spark, folder):
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        (row,) = read(spark, folder, "kept.last", pushdown="true").where("user = 'user-7'").collect()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert row.value == 987
    sums = read(spark, folder, next(iter(_columns(folder))))
    assert sums.where("user = 'user-3'").count() == 1


def _columns(folder):
    from barrier_runtime.state_tables import open_checkpoint

    with open_checkpoint(folder, "kept") as stored:
        return [f"{each.operator}.{each.state}" for each in stored.tables() if each.operator == "sums"]


def test_what_is_not_there_is_named(spark, folder):
    with pytest.raises(Exception, match=r"no state 'first' of operator 'kept'; it has: kept\."):
        read(spark, folder, "kept.first").collect()


def test_what_spark_reads_is_kept_while_the_job_drops_its_checkpoints(spark, tmp_path):
    """4.4: the frame shows one checkpoint, and is read whole long after the job has completed others."""
    over = []
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(living(over).run_local, checkpoints=tmp_path, parallelism=2, checkpoint_interval=0.1)
        try:
            until(lambda: newest(tmp_path) is not None, "a checkpoint completed")
            frame = read(spark, str(tmp_path), "last.last")
            first = newest(tmp_path)
            until(lambda: newest(tmp_path) >= first + 5, "it has dropped that checkpoint")
            rows = frame.collect()
            assert len(rows) == len({row.user for row in rows}) > 0
            assert frame.collect() == rows, "the same again"
        finally:
            over.append(True)
            job.result()


def newest(folder):
    from barrier_runtime import InvalidJob
    from barrier_runtime.state_tables import open_checkpoint

    try:
        with open_checkpoint(str(folder), "kept", pin=False) as stored:
            return stored.checkpoint
    except InvalidJob:
        return None
