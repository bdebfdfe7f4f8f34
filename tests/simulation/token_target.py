"""A target that takes an idempotency token with each delivery and tells nobody what it got, behind the write-ahead
sink: whether something was delivered is known from notes alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from servers import Doorway

from barrier_runtime.connectors.sink_bases.write_ahead import WriteAheadSink
from barrier_runtime.connectors.sink_bases.write_ahead_committable import DeliveryToken
from barrier_runtime.state.errors import Unavailable

_PART_BYTES = 2_000  # a batch: so most transactions are several objects


@dataclass
class TokenTarget:
    doorway: Doorway
    on_visible: Callable[[list[dict[str, Any]]], None]
    delivered: dict[str, int] = field(default_factory=dict)
    repeated: int = 0

    def take(self, token: str, rows: list[dict[str, Any]]) -> None:
        if token in self.delivered:
            self.repeated += 1
            return
        self.delivered[token] = len(rows)
        self.on_visible(rows)


class TokenSink(WriteAheadSink):
    def __init__(self, target: TokenTarget) -> None:
        super().__init__(max_bytes_in_memory=_PART_BYTES)
        self._target = target

    def __deepcopy__(self, memo: dict[int, object]) -> "TokenSink":
        return TokenSink(self._target)

    def deliver(self, token: DeliveryToken, batches: Iterator[pa.RecordBatch]) -> None:
        rows = [row for batch in batches for row in batch.to_pylist()]
        self._target.doorway.ask("deliver", lambda: self._target.take(token.text, rows), Unavailable)
