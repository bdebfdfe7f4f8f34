"""A target of the write-ahead sink that takes an idempotency token per delivery and cannot be queried.

The sink knows from its own notes only which deliveries were made."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from servers import Doorway

from barrier_runtime.connectors.sink_bases.write_ahead import WriteAheadSink
from barrier_runtime.connectors.sink_bases.write_ahead_committable import DeliveryToken
from barrier_runtime.state.errors import Unavailable

_PART_BYTES = 2_000  # small, so that most transactions have several objects


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
