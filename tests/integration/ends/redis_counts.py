"""Counted numbers as hashes of Redis, one per key: the job of test_redis_upsert; its reader, and its judge."""

from typing import Any

import redis as client

from barrier_runtime import Dataflow, count
from barrier_runtime.connectors.redis.sink import RedisUpsertSink
from tests.integration.ends.audit import Latest

NAME, SINK, PREFIX = "redis-counts", "out", "count:"


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = flow.rate("numbers", settings["rate"], settings["rows"], keys=settings["keys"])
    counted = numbers.key_by("key").aggregate("count", n=count())
    counted.sink(SINK, RedisUpsertSink(settings["url"], key="key", prefix=PREFIX, deterministic=True))
    return flow


class Overwritten(Latest):
    """A replay writes what was there before, so a key may go back for a while; every value must have the count that
    belongs to it, no key may vanish, and in the end all must have arrived."""

    def observe(self, where: str, seen: Any) -> None:
        self._reached = dict.fromkeys(self._reached, -1)
        super().observe(where, seen)


def look(url: str) -> dict[int, tuple[int, int]]:
    with client.Redis.from_url(url, decode_responses=True, socket_timeout=15) as database:
        keys = list(database.scan_iter(f"{PREFIX}*", count=1_000))
        pipe = database.pipeline(transaction=True)
        for key in keys:
            pipe.hgetall(key)
        rows = pipe.execute()
    names = [int(key.removeprefix(PREFIX)) for key in keys]
    return {name: (int(row["value"]), int(row["n"])) for name, row in zip(names, rows, strict=True)}
