"""Buffers of rows: what goes out early, late or again goes out once and in the order of the rows."""

import pyarrow as pa
import pytest

from barrier_runtime.sinks.row_buffer import InOrder, RowBuffer


class Target:
    def __init__(self) -> None:
        self.got: list[int] = []
        self.failures = 0

    def take(self, batches: list[pa.RecordBatch]) -> bool:
        if self.failures:
            self.failures -= 1
            raise OSError("not now")
        self.got += [value for batch in batches for value in batch.column(0).to_pylist()]
        return True


def write(buffer: RowBuffer[bool], *values: int) -> None:
    buffer.write(pa.RecordBatch.from_pydict({"n": list(values)}))


def test_a_newer_transaction_that_goes_out_early_takes_the_older_one_along() -> None:
    """The older one's pre-commit is late, or never comes because its checkpoint was given up."""
    target, buffers = Target(), InOrder[bool]()
    older = buffers.begin()
    write(older, 1)
    newer = buffers.begin()
    write(newer, 2)
    newer.fill_up()
    buffers.stage(newer, target.take, closed=False)
    assert target.got == [1, 2]
    write(newer, 3)
    buffers.stage(older, target.take, closed=True)
    assert target.got == [1, 2]
    buffers.stage(newer, target.take, closed=True)
    assert target.got == [1, 2, 3]


def test_what_is_still_written_to_goes_out_only_as_far_as_it_is_full() -> None:
    target, buffers = Target(), InOrder[bool]()
    buffer = buffers.begin()
    write(buffer, 1)
    buffer.fill_up()
    write(buffer, 2)
    buffers.stage(buffer, target.take, closed=False)
    assert target.got == [1]


def test_what_failed_goes_out_first_when_it_is_tried_again() -> None:
    target, buffers = Target(), InOrder[bool]()
    older = buffers.begin()
    write(older, 1)
    newer = buffers.begin()
    write(newer, 2)
    target.failures = 1
    with pytest.raises(OSError, match="not now"):
        buffers.stage(older, target.take, closed=True)
    buffers.stage(newer, target.take, closed=True)
    buffers.stage(older, target.take, closed=True)
    assert target.got == [1, 2]
