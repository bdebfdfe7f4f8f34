"""Writes counted numbers into Kafka, PostgreSQL, Redis, a Delta table and files at once; reads and judges them."""

from typing import Any

from barrier_runtime import Dataflow, DeltaSink, JsonlSink, count
from barrier_runtime.connectors.kafka.sink.sink import KafkaSink
from barrier_runtime.connectors.postgres.sink import PostgresSink
from barrier_runtime.connectors.redis.sink import RedisUpsertSink
from tests.integration.ends import redis_counts
from tests.integration.ends.audit import Numbers
from tests.integration.ends.committed_records import CommittedRecords
from tests.integration.ends.committed_rows import CommittedRows
from tests.integration.ends.delta_rows import TableRows
from tests.integration.ends.postgres_counts import Reader
from tests.integration.ends.several import EachTarget, Looks

NAME, KEYS, TOPIC, TABLE = "five-sinks", 50, "counted", "counts"


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = flow.rate("numbers", settings["rate"], settings["rows"], keys=KEYS)
    counted = numbers.key_by("key").aggregate("count", n=count()).select(["value", "key", "n"])
    counted.sink("kafka", KafkaSink(settings["bootstrap"], TOPIC, key="key"))
    counted.sink("postgres", PostgresSink(settings["postgres"], TABLE))
    prefix = redis_counts.PREFIX
    counted.sink("redis", RedisUpsertSink(settings["redis"], key="key", prefix=prefix, deterministic=True))
    counted.sink("delta", DeltaSink(settings["delta"]))
    counted.sink("files", JsonlSink(settings["files"]))
    return flow


def looks_at_all(settings: dict[str, Any], postgres_every: int) -> Looks:
    """A look at all five targets. `postgres_every`: every n-th look includes the table, which is read whole."""
    return Looks(
        {
            "kafka": CommittedRecords(settings["bootstrap"], TOPIC).look,
            "delta": TableRows(settings["delta"]).look,
            "files": CommittedRows(settings["files"], NAME, "files").look,
            "redis": lambda: redis_counts.look(settings["redis"]),
            "postgres": Reader(settings["postgres"], since_last=False).look,
        },
        seldom={"postgres": postgres_every},
    )


def judge_of_all() -> EachTarget:
    return EachTarget(
        {
            "kafka": Numbers(KEYS),
            "postgres": Numbers(KEYS),
            "redis": redis_counts.Overwritten(KEYS),
            "delta": Numbers(KEYS, together=True, ordered=False),
            "files": Numbers(KEYS, together=True),
        }
    )
