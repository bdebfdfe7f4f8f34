"""Counted numbers into five targets at once: Kafka, PostgreSQL, Redis, a Delta table and files; their readers, and one
judge for all of them."""

from collections.abc import Callable, Mapping
from typing import Any

from barrier_runtime import Dataflow, DeltaSink, JsonlSink, count
from barrier_runtime.connectors.kafka.sink.sink import KafkaSink
from barrier_runtime.connectors.postgres.sink import PostgresSink
from barrier_runtime.connectors.redis.sink import RedisUpsertSink
from tests.integration.chaos.verdict import Figures
from tests.integration.ends import redis_counts
from tests.integration.ends.audit import Audit, Numbers, Seen
from tests.integration.ends.committed_rows import CommittedRows
from tests.integration.ends.delta_numbers import TableRows
from tests.integration.ends.kafka_to_kafka import CommittedRecords
from tests.integration.ends.postgres_counts import Reader

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


class Looks:
    """A look at each of the targets; a table that is read whole only now and then."""

    def __init__(self, settings: dict[str, Any], postgres_every: int = 1) -> None:
        self._records = CommittedRecords(settings["bootstrap"], TOPIC)
        self._table = Reader(settings["postgres"], since_last=False)
        self._redis = settings["redis"]
        self._once: dict[str, Callable[[], Seen]] = {
            "kafka": self._records.look,
            "delta": TableRows(settings["delta"]).look,
            "files": CommittedRows(settings["files"], NAME, "files").look,
        }
        self._given: dict[str, Seen] = {}  # what those give is given once: kept while another target cannot be read
        self._every = postgres_every
        self._looks = 0

    def __str__(self) -> str:
        return f"{self._looks} whole looks; Kafka: {self._records}"

    def look(self) -> dict[str, Any]:
        for name, look in self._once.items():
            if name not in self._given:
                self._given[name] = look()
        seen: dict[str, Any] = {"redis": redis_counts.look(self._redis)}
        if self._looks % self._every == 0:
            seen["postgres"] = self._table.look()
        self._looks += 1
        seen |= self._given
        self._given = {}
        return seen


class AllTargets:
    """Judges each target by itself. `rows`: what is visible in every one of them."""

    def __init__(self) -> None:
        self._audits: dict[str, Audit] = {
            "kafka": Numbers(KEYS),
            "postgres": Numbers(KEYS),
            "redis": redis_counts.Overwritten(KEYS),
            "delta": Numbers(KEYS, together=True, ordered=False),
            "files": Numbers(KEYS, together=True),
        }

    def observe(self, where: str, seen: Mapping[str, Any]) -> None:
        for name, each in seen.items():
            self._audits[name].observe(f"{where} at {name}", each)

    def __str__(self) -> str:
        return ", ".join(f"{each.rows} rows of {name}" for name, each in self._audits.items())

    @property
    def rows(self) -> int:
        return min(each.rows for each in self._audits.values())

    @property
    def figures(self) -> Figures:
        total = Figures()
        for audit in self._audits.values():
            each = audit.figures
            for name in ("rows", "observations", "wrong_observations", "lost", "duplicated", "out_of_order", "torn"):
                setattr(total, name, getattr(total, name) + getattr(each, name))
            total.wrong_state += each.wrong_state
            for example in each.examples:
                total.example(example)
        return total

    @property
    def by_target(self) -> dict[str, Figures]:
        return {name: audit.figures for name, audit in self._audits.items()}
