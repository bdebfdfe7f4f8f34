"""The functions of the held-out jobs (`held_out.py`), in a module that Spark's workers can import. Files in `PLANTED`
are their troubles, as in `planted`; other places, lengths and sizes than there."""

import asyncio
import os
import time
from typing import Any

from planted import claim, is_planted

from barrier_runtime import JsonlSink, ListState, ValueState
from barrier_runtime.runtime.network import control_link

STEP_S = 0.9
PRECOMMIT_S = 1.1
PARTITION_S = 4.0


def price(row: dict[str, Any]) -> dict[str, Any]:
    """A row function in the source's chain; some keys become one while the skew is planted."""
    key = row["key"]
    if is_planted("skew") and key % 4:
        key = 7
    if claim("partition"):
        _cut_off(PARTITION_S)
    return {"key": key, "value": row["value"], "price": row["value"] % 997, "intended_at": row["intended_at"]}


def _cut_off(seconds: float) -> None:
    """Nothing of this slot's control connection gets through for so long; it comes later, as with TCP."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    send, received = control_link._ControlConnection.send, control_link._ControlConnection.data_received

    def late_send(connection: Any, payload: bytes) -> None:
        # One timer per message: those of one time fire in the order in which they were made.
        wait = until - loop.time()
        if wait <= 0:
            send(connection, payload)
        else:
            loop.call_at(until, send, connection, payload)

    def late_received(connection: Any, data: bytes) -> None:
        if until - loop.time() <= 0:
            received(connection, data)
        else:
            loop.call_at(until, received, connection, data)

    control_link._ControlConnection.send = late_send  # type: ignore[method-assign]
    control_link._ControlConnection.data_received = late_received  # type: ignore[method-assign]


class Basket:
    """A list per key and a total."""

    total = ValueState(int, default=0)
    last = ListState(int)
    blob = ValueState(bytes, default=b"")

    def process(self, key, row, ctx):
        if claim("step"):
            time.sleep(STEP_S)
        if is_planted("slow-keyed"):
            time.sleep(0.003)
        if is_planted("skew"):
            time.sleep(0.0025)
        self.total.value += row["price"]
        if row["value"] % 5 == 0:
            self.last.append(row["value"])
        if is_planted("large"):
            self.blob.value = os.urandom(60_000)
        yield {"key": key, "value": row["value"], "total": self.total.value}


class Sink(JsonlSink):
    def pre_commit(self, transaction, checkpoint):
        if claim("precommit"):
            time.sleep(PRECOMMIT_S)
        return super().pre_commit(transaction, checkpoint)
