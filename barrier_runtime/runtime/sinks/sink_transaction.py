"""Rows of a sink's transaction in this incarnation."""

from typing import Any

from barrier_runtime.data.latency import EmitTimes


class SinkTransaction:
    """Rows of a transaction, from the first write until they are visible."""

    __slots__ = ("began_ms", "checkpoint", "committable", "emitted", "sealed", "transaction")

    def __init__(self, transaction: Any, began_ms: int) -> None:
        self.transaction = transaction
        self.began_ms = began_ms
        self.emitted = EmitTimes()
        self.checkpoint = 0
        self.sealed = False  # set last by the sealing thread, when `committable` is final
        self.committable: bytes | None = None
