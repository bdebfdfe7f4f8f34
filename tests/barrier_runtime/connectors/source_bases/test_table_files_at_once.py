"""Concurrent reading of the files of a table version: rows and positions equal those of sequential reading."""

import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.connectors.source_bases.table_reader import TableReader
from barrier_runtime.data.elements import Batch
from tests.waiting import until

SCHEMA = pa.schema([("n", pa.int64())])
ROWS = 3  # of a file
AT_ONCE = 8


class Files:
    """A version with files 0, 1, … of three rows. `together`: a read waits until this many files are being read."""

    def __init__(self, count: int, together: int, size: int) -> None:
        self._count = count
        self._size = size
        self._lock = threading.Condition()
        self._together = together
        self.reading = self.most = 0

    def refresh(self) -> None:
        pass

    def current(self) -> int | None:
        return 7

    def mark(self, version: int) -> str:
        return ""

    def following(self, after: int) -> int | None:
        return None

    def files(self, version: int, *, whole: bool) -> Sequence[Any]:
        return range(self._count)

    def size(self, file: Any) -> int:
        return self._size

    def rows(self, file: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
        with self._lock:
            self.reading += 1
            self.most = max(self.most, self.reading)
            self._lock.notify_all()
            assert self._lock.wait_for(lambda: self.most >= self._together, 60)
            self.reading -= 1
        return [pa.RecordBatch.from_pydict({"n": [file * ROWS + n for n in range(ROWS)]}, schema)]


def read(reader: TableReader, most: int | None = None) -> list[int]:
    found: list[int] = []

    def all_there() -> bool:
        while (polled := reader.poll(2, 0)) is not None:
            found.extend(Batch(polled.rows, 0).rows["n"].to_pylist())
            if most is not None and len(found) >= most:
                return True
        return reader.finished

    until(all_there)
    return found


def test_small_files_are_read_together_and_come_in_their_order() -> None:
    history = Files(40, AT_ONCE, 1_000)
    reader = TableReader(lambda: history, SCHEMA, None, "a test")
    assert read(reader) == list(range(40 * ROWS))
    assert AT_ONCE <= history.most <= 16
    reader.close()


def test_large_files_are_read_one_after_the_other() -> None:
    history = Files(5, 1, 1 << 30)
    reader = TableReader(lambda: history, SCHEMA, None, "a test")
    assert read(reader) == list(range(5 * ROWS))
    assert history.most == 1
    reader.close()


@pytest.mark.slow
def test_a_position_in_the_middle_of_files_that_are_read_together_is_exact() -> None:
    for cut in range(1, 20, 3):
        before = TableReader(lambda: Files(40, 1, 1_000), SCHEMA, None, "a test")
        found = read(before, cut)
        position = before.position()
        before.close()
        after = TableReader(lambda: Files(40, 1, 1_000), SCHEMA, None, "a test")
        after.seek(position)
        assert found + read(after) == list(range(40 * ROWS))
        after.close()
