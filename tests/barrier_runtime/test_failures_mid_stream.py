"""A job that is struck where it hurts: in an operator, in a snapshot, in an operator again and in its recovery, and at
its last row. In one process, with real checkpoints; counted is what the sink has made visible."""

import hashlib
import uuid
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, ValueState
from state.errors import Unavailable
from state.memory_store import Fault, MemoryStore
from state.open_store import open_store

ROWS = 6_000
KEYS = 600  # a multiple of every parallelism: a key's rows come from one split, so that their order is defined


@dataclass
class Strikes:
    """Each failure happens once, as soon as its row has come."""

    store: MemoryStore
    struck: list[str] = field(default_factory=list)
    recovery_fails: bool = False

    def at(self, value: int) -> None:
        if value >= ROWS // 4 and self._first("map at n/4"):
            raise Unavailable("the map fails: try again")
        if value >= ROWS // 2 and self._first("snapshot at n/2"):
            self.store.inject(Fault.FAIL_BEFORE, "put", "/data/")
        if value >= 3 * ROWS // 4 and self._first("map at 3n/4"):
            self.recovery_fails = True
            raise Unavailable("the map fails again: try again")
        if value >= ROWS - 1 and self._first("map at the last row"):
            raise Unavailable("the map fails at the very end: try again")

    def on_recovery(self) -> None:
        if self.recovery_fails and self._first("recovery at 3n/4"):
            raise Unavailable("the recovery fails: try again")

    def _first(self, what: str) -> bool:
        if what in self.struck:
            return False
        self.struck.append(what)
        return True


def job(strikes, parallelism):
    class Numbered:
        """Rows of a key, numbered. Carries enough state that snapshots are uploaded."""

        seen = ValueState(int, default=0)
        ballast = ValueState(str, default="")

        def __init__(self):
            strikes.on_recovery()

        def process(self, key, row, ctx):
            self.seen.value = self.seen.value + 1
            self.ballast.value = hashlib.sha512(f"{key} {row['value']}".encode()).hexdigest()
            yield {"key": key, "value": row["value"], "number": self.seen.value}

    def fail_once(row):
        strikes.at(row["value"])
        return row

    flow = Dataflow("struck")
    sink = CollectSink()
    shape = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("number", pa.int64())])
    source = flow.rate("numbers", 6_000, ROWS, keys=KEYS, splits=parallelism).select(["value", "key"])
    lanes = pa.schema([("value", pa.int64()), ("key", pa.int64()), ("lane", pa.int64())])
    shifted = source.map(lambda row: {**row, "lane": (row["key"] + 1) % parallelism}, schema=lanes)
    failing = shifted.key_by("lane").process("failing", lambda key, row, ctx: [fail_once(row)], schema=lanes)
    failing.key_by("key").process("numbered", Numbered, schema=shape).sink("out", sink)
    return flow, sink


@pytest.mark.parametrize("parallelism", [1, 5])
def test_failures_in_operator_snapshot_recovery_and_at_the_end_lose_double_and_reorder_nothing(parallelism):
    """U10, T3, C18."""
    url = f"memory://{uuid.uuid4().hex}"
    strikes = Strikes(open_store(url))
    flow, sink = job(strikes, parallelism)
    result = flow.run_local(parallelism=parallelism, checkpoint_interval=0.05, checkpoints=url)
    assert sorted(strikes.struck) == [
        "map at 3n/4",
        "map at n/4",
        "map at the last row",
        "recovery at 3n/4",
        "snapshot at n/2",
    ]
    assert len(result.status.recoveries) == 1 + len(strikes.struck)
    rows = sink.rows()
    values = [row["value"] for row in rows]
    assert sorted(set(values)) == list(range(ROWS)), "lost"
    assert len(values) == ROWS, "duplicated"
    for key in range(KEYS):
        of_key = [(row["value"], row["number"]) for row in rows if row["key"] == key]
        assert of_key == [(value, number) for number, value in enumerate(range(key, ROWS, KEYS), start=1)], "out of order"
