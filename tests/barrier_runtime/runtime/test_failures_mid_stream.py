"""A job with five failures: in an operator, a snapshot, an operator again, a recovery, and at the last row. Runs in
one process with real checkpoints; the test counts the rows visible in the sink.
"""

import hashlib
import threading
import time
import uuid

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, ValueState
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.store.open import open_store

ROWS = 3_600
KEYS = 360  # a multiple of every parallelism: the rows of a key are in one split, so their order is defined


class Strikes:
    """Raises failures in turn, each after a recovery and after a given number of distinct rows."""

    def __init__(self, store: MemoryStore) -> None:
        self.struck: list[str] = []
        self._store = store
        self._plan = [
            ("map at n/4", ROWS // 4),
            ("snapshot at n/2", ROWS // 2),
            ("map at 3n/4", 3 * ROWS // 4),
            ("recovery at 3n/4", 0),
            ("map at the last row", ROWS),
        ]
        self._seen: set[int] = set()
        self._recovered = True  # since the last failure
        self._lock = threading.Lock()

    def on_row(self, value: int) -> None:
        with self._lock:
            self._seen.add(value)
            if not self._plan or not self._recovered or len(self._seen) < self._plan[0][1]:
                return
            what = self._next()
        if what.startswith("snapshot"):
            self._store.inject(Fault.FAIL_BEFORE, "put", "/data/")
            return
        raise Unavailable(f"{what} fails: try again")

    def on_recovery(self) -> None:
        with self._lock:
            self._recovered = True
            if not self._plan or not self._plan[0][0].startswith("recovery"):
                return
            what = self._next()
        raise Unavailable(f"{what} fails: try again")

    def _next(self) -> str:
        what, _ = self._plan.pop(0)
        self.struck.append(what)
        self._recovered = False
        return what


def job(strikes, parallelism, rate, pause_s):
    """`pause_s`: time of the last operator per row; at a high rate, rows queue up before this operator."""

    class Numbered:
        """Rows of a key, numbered. Carries enough state that snapshots are uploaded."""

        seen = ValueState(int, default=0)
        ballast = ValueState(str, default="")

        def __init__(self):
            strikes.on_recovery()

        def process(self, key, row, ctx):
            time.sleep(pause_s)
            self.seen.value = self.seen.value + 1
            self.ballast.value = hashlib.shake_256(f"{key} {row['value']}".encode()).hexdigest(400)
            yield {"key": key, "value": row["value"], "number": self.seen.value}

    def fail_once(row):
        strikes.on_row(row["value"])
        return row

    flow = Dataflow("struck")
    sink = CollectSink()
    shape = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("number", pa.int64())])
    source = flow.rate("numbers", rate, ROWS, keys=KEYS, splits=parallelism).select(["value", "key"])
    lanes = pa.schema([("value", pa.int64()), ("key", pa.int64()), ("lane", pa.int64())])
    shifted = source.map(lambda row: {**row, "lane": (row["key"] + 1) % parallelism}, schema=lanes)
    failing = shifted.key_by("lane").process("failing", lambda key, row, ctx: [fail_once(row)], schema=lanes)
    failing.key_by("key").process("numbered", Numbered, schema=shape).sink("out", sink)
    return flow, sink


@pytest.mark.slow
@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("parallelism", [1, 5])
def test_failures_in_operator_snapshot_recovery_and_end_keep_rows_exact_and_ordered(parallelism):
    """U10, T3, C18."""
    result = struck(parallelism, rate=6_000, pause_s=0)
    assert not any(each.in_flight_bytes for each in result.status.checkpoints.history)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallelism", "aligned_timeout", "wire"), [(1, 0, True), (5, 0, False), (5, 0, True), (5, 0.02, True)]
)
def test_the_same_with_rows_in_flight_in_the_checkpoints(parallelism, aligned_timeout, wire, monkeypatch):
    """U10, U1: full queues before a slow operator; barriers overtake them."""
    monkeypatch.setattr("barrier_runtime.launch.local.wire_by_default", wire)
    result = struck(parallelism, 20_000, 0.0002, unaligned=True, aligned_timeout=aligned_timeout)
    assert any(each.in_flight_bytes for each in result.status.checkpoints.history if each.outcome == "complete")


def struck(parallelism, rate, pause_s, **options):
    url = f"memory://{uuid.uuid4().hex}"
    strikes = Strikes(open_store(url))
    flow, sink = job(strikes, parallelism, rate, pause_s)
    result = flow.run_local(parallelism=parallelism, checkpoint_interval=0.05, checkpoints=url, **options)
    assert len(strikes.struck) == 5
    assert len(result.status.recoveries) == len(strikes.struck)  # the slot itself waits for the failed recovery
    rows = sink.rows()
    values = [row["value"] for row in rows]
    assert sorted(set(values)) == list(range(ROWS)), "lost"
    assert len(values) == ROWS, "duplicated"
    of_key: dict[int, list[tuple[int, int]]] = {key: [] for key in range(KEYS)}
    for row in rows:
        of_key[row["key"]].append((row["value"], row["number"]))
    for key, found in of_key.items():
        expected = [(value, number) for number, value in enumerate(range(key, ROWS, KEYS), start=1)]
        assert found == expected, f"key {key} is out of order"
    return result
