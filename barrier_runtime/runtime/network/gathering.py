"""Rows that wait to be partitioned together: a part for each of many slots costs the same for a row or for fifty.
Design: docs/design/wide-jobs.md.
"""

import pyarrow as pa

from barrier_runtime.data.elements import Batch, joined

MOST_ROWS = 65_536
_ROWS_EACH = 1_024  # for a slot: more save nothing
_BYTES_EACH = 32 * 1024
_MOST_BYTES = 8 * 1024 * 1024


class Gathered:
    def __init__(self, slots: int) -> None:
        self.batches: list[Batch] = []
        self._rows = 0
        self._bytes = 0
        self._most_rows = min(MOST_ROWS, slots * _ROWS_EACH)
        self._most_bytes = min(_MOST_BYTES, slots * _BYTES_EACH)

    def takes(self, batch: Batch) -> bool:
        """Returns whether `batch` can be joined to the rows that wait."""
        if not self.batches:
            return True
        last = self.batches[-1]
        if (last.reached is None) != (batch.reached is None) or not last.schema.equals(batch.schema, True):
            return False
        return last.reached is None or batch.reached is None or bool(last.reached[-1] <= batch.reached[0])

    def add(self, batch: Batch) -> bool:
        """Returns whether the rows suffice."""
        self.batches.append(batch)
        self._rows += batch.count
        self._bytes += pa.ipc.get_record_batch_size(batch.rows) if batch.few is None else batch.few.most_bytes
        return self._rows >= self._most_rows or self._bytes >= self._most_bytes

    def take(self) -> Batch | None:
        batches, self.batches = self.batches, []
        self._rows = self._bytes = 0
        return joined(batches) if batches else None
