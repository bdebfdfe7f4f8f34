"""Rows sorted by destination, whose parts are cut only when needed: Arrow takes microseconds per part."""

import pyarrow as pa

from barrier_runtime.data.few_rows import layout_of


class PartedRows:
    """`values`: per column its bytes, and bytes per value; empty if a column has nulls or no values of a fixed size."""

    __slots__ = ("row_bytes", "rows", "sizes", "values")

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows
        self.values: list[tuple[memoryview, int]] = []
        layout = layout_of(rows.schema)
        self.sizes = () if layout is None else layout.sizes
        self.row_bytes = sum(self.sizes)
        if self.sizes and not any(column.null_count for column in rows.columns):
            for column, size in zip(rows.columns, self.sizes, strict=True):
                self.values.append((memoryview(column.buffers()[1])[column.offset * size :], size))


class RowsOfPart:
    __slots__ = ("count", "parted", "start")

    def __init__(self, parted: PartedRows, start: int, count: int) -> None:
        self.parted = parted
        self.start = start
        self.count = count

    def record_batch(self) -> pa.RecordBatch:
        return self.parted.rows.slice(self.start, self.count)
