"""Counted numbers as hashes of Redis, one per key: the job of test_redis_upsert."""

from typing import Any

from barrier_runtime import Dataflow, count
from barrier_runtime.connectors.redis.sink import RedisUpsertSink

NAME, SINK, PREFIX = "redis-counts", "out", "count:"


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = flow.rate("numbers", settings["rate"], settings["rows"], keys=settings["keys"])
    counted = numbers.key_by("key").aggregate("count", n=count())
    counted.sink(SINK, RedisUpsertSink(settings["url"], key="key", prefix=PREFIX, deterministic=True))
    return flow
