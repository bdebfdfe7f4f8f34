"""The functions of the recorded job, in a module that Spark's workers can import. Files in `PLANTED` are its troubles.

A file that is named once (`claim`) is taken by one slot; others (`is_planted`) hold for all slots while they are there.
"""

import contextlib
import os
import time
from pathlib import Path

import pyarrow as pa

from barrier_runtime import JsonlSink, ValueState
from barrier_runtime.state.store.local import LocalStore

PLANTED = Path(os.environ["PLANTED"])
PAUSE_S = 1.5


def claim(cause: str) -> bool:
    try:
        (PLANTED / cause).unlink()
    except FileNotFoundError:
        return False
    return True


def is_planted(cause: str) -> bool:
    return (PLANTED / cause).exists()


def read(rows: pa.RecordBatch) -> pa.RecordBatch:
    """In the source's chain."""
    if claim("step"):
        time.sleep(PAUSE_S)
    if is_planted("skew"):
        hot = pa.array([0] * rows.num_rows, pa.int64())
        rows = rows.set_column(rows.schema.get_field_index("key"), "key", hot)
    if claim("store"):
        _slow_uploads()
    return rows


def _slow_uploads() -> None:
    """The next uploads of this slot wait, as for a store that throttles."""
    until, put_file, put = time.monotonic() + 4 * PAUSE_S, LocalStore.put_file, LocalStore.put

    def wait() -> None:
        if time.monotonic() < until:
            time.sleep(PAUSE_S / 2)

    def slow_file(store: LocalStore, key: str, path: Path) -> None:
        wait()
        put_file(store, key, path)

    def slow(store: LocalStore, key: str, data: bytes) -> None:
        wait()
        put(store, key, data)

    LocalStore.put_file, LocalStore.put = slow_file, slow


class Keep:
    """State per key: small, but for `large` half a megabyte that does not compress."""

    count = ValueState(int, default=0)
    payload = ValueState(bytes, default=b"")

    def process(self, key, row, ctx):
        self.count.value += 1
        if is_planted("large"):
            self.payload.value = os.urandom(200_000)
        if is_planted("skew"):
            time.sleep(0.005)
        yield {"key": key, "value": row["value"], "n": self.count.value}


class Sink(JsonlSink):
    def write(self, transaction, rows):
        if is_planted("backpressure"):
            time.sleep(rows.num_rows * 0.01)
        super().write(transaction, rows)

    def pre_commit(self, transaction, checkpoint):
        if claim("precommit"):
            time.sleep(PAUSE_S)
        return super().pre_commit(transaction, checkpoint)


def remove(cause: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        (PLANTED / cause).unlink()
