"""Rows as consecutive bytes, for a few rows of each of very many keys.

size of the row                   4 bytes, little endian, as all numbers
which columns have a value        a bit for each, the first column's the highest; 0: null
length of each wide column        4 bytes; those of text, bytes, lists and whatever has no fixed width
columns of fixed width            as Arrow has them; a bool is a byte
wide columns                      text or bytes; of other types a record batch of one row
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints: TypeAlias = npt.NDArray[np.int64]

_WIDE = pa.large_binary()
_BATCH_BYTES = 96


class RowBytes:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._widths = [_width(field.type) for field in schema]
        self._wide = [at for at, width in enumerate(self._widths) if width is None]
        self._fixed = [at for at, width in enumerate(self._widths) if width is not None]
        self._head = np.dtype(
            [
                ("size", "<u4"),
                ("valid", "u1", (-(-len(schema) // 8),)),
                *[(str(at), "<u4") for at in self._wide],
                *[(str(at), _number(self._widths[at] or 0)) for at in self._fixed],
            ]
        )

    @property
    def least_bytes(self) -> int:
        batches = sum(not _is_bytes(self._schema.field(at).type) for at in self._wide)
        return self._head.itemsize + _BATCH_BYTES * batches

    def encode(self, rows: pa.RecordBatch) -> tuple[Ints, bytes]:
        """Returns the beginning of each row, with the end of the last, and the bytes of all rows."""
        heads = np.zeros(len(rows), self._head)
        valid = np.ones((len(rows), rows.num_columns), np.bool_)
        for at, column in enumerate(rows.columns):
            if column.null_count:
                valid[:, at] = column.is_valid().to_numpy(zero_copy_only=False)
        heads["valid"] = np.packbits(valid, axis=1)
        for at in self._fixed:
            heads[str(at)] = _numbers(rows.column(at), heads.dtype[str(at)])
        sizes, parts = np.full(len(rows), self._head.itemsize), []
        for at in self._wide:
            parts.append(_as_bytes(rows.column(at)))
            lengths = pc.binary_length(parts[-1]).to_numpy()
            heads[str(at)] = lengths
            sizes += lengths
        heads["size"] = sizes
        starts = np.concatenate([[0], np.cumsum(sizes)])
        if not parts:
            return starts, heads.tobytes()
        offsets = np.arange(len(rows) + 1) * self._head.itemsize
        whole = pc.binary_join_element_wise(_binary(offsets, heads.tobytes()), *parts, pa.scalar(b"", _WIDE))
        return starts, whole.buffers()[2].slice(0, starts[-1]).to_pybytes()

    def decode(self, cells: Sequence[bytes]) -> tuple[pa.RecordBatch, Ints]:
        """Returns the rows of all `cells`, and their number per cell. Raises `ValueError` for other bytes."""
        data = b"".join(cells)
        ends = np.cumsum(np.fromiter(map(len, cells), np.int64, len(cells)))
        starts = self._starts(np.frombuffer(data, np.uint8), ends)
        counts = np.diff(np.searchsorted(starts, ends), prepend=0)
        if not len(starts):
            return pa.RecordBatch.from_pylist([], self._schema), counts
        parts = [starts, starts + self._head.itemsize]
        heads = np.frombuffer(_chosen(data, parts, 0).buffers()[2], self._head, len(starts))
        parts.extend(starts + ends for ends in self._ends_of_wide(heads))
        if (parts.pop() != np.append(starts[1:], len(data))).any():
            raise ValueError("columns that do not fill their row")
        valid = np.unpackbits(heads["valid"], axis=1, count=len(self._schema)).astype(np.bool_)
        columns = []
        for at, field in enumerate(self._schema):
            if self._widths[at] is None:
                wide = _chosen(data, parts, 1 + self._wide.index(at))
                columns.append(_of_bytes(wide, valid[:, at], field.type))
            else:
                columns.append(_of_numbers(heads[str(at)], valid[:, at], field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema), counts

    def _ends_of_wide(self, heads: npt.NDArray[np.void]) -> Iterator[Ints]:
        ends = np.full(len(heads), self._head.itemsize)
        for at in self._wide:
            ends = ends + heads[str(at)]
            yield ends

    def _starts(self, data: npt.NDArray[np.uint8], ends: Ints) -> Ints:
        """Finds the first row of all cells, then the second row of longer cells, and so on."""
        found, at = [np.zeros(0, np.int64)], np.concatenate([[0], ends])[:-1]
        while len(at := at[left := at < ends]):
            ends = ends[left]
            sizes = sum(data[np.minimum(at + byte, len(data) - 1)].astype(np.int64) << 8 * byte for byte in range(4))
            if (sizes < self._head.itemsize).any() or (at + sizes > ends).any():
                raise ValueError("a row that ends elsewhere than its bytes")
            found.append(at)
            at = at + sizes
        return np.sort(np.concatenate(found))


def _width(kind: pa.DataType) -> int | None:
    if pa.types.is_boolean(kind):
        return 1
    fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)
    return kind.bit_width // 8 or None if fixed else None


def _number(width: int) -> str:
    return f"<u{width}" if width in (1, 2, 4, 8) else f"V{width}"


def _numbers(column: pa.Array, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    if pa.types.is_boolean(column.type):
        return column.fill_null(False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    return np.frombuffer(column.buffers()[1], kind, column.offset + len(column))[column.offset :]


def _of_numbers(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    flags = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    bits = np.packbits(values, bitorder="little") if pa.types.is_boolean(kind) else values
    return pa.Array.from_buffers(kind, len(values), [flags, pa.py_buffer(bits.tobytes())])


def _as_bytes(column: pa.Array) -> pa.LargeBinaryArray:
    if _is_bytes(column.type):
        return column.cast(_WIDE).fill_null(b"")
    name = pa.schema([("", column.type)])
    rows = [pa.RecordBatch.from_arrays([column.slice(at, 1)], schema=name) for at in range(len(column))]
    return pa.array([row.serialize().to_pybytes() for row in rows], _WIDE)


def _of_bytes(wide: pa.LargeBinaryArray, valid: npt.NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    if _is_bytes(kind):
        column = wide.cast(kind)
        return column if valid.all() else pc.if_else(pa.array(valid), column, pa.scalar(None, kind))
    name = pa.schema([("", kind)])
    return pa.concat_arrays([pa.ipc.read_record_batch(each.as_buffer(), name).column(0) for each in wide])


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return any(each(kind) for each in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary))


def _binary(offsets: Ints, data: bytes) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(_WIDE, len(offsets) - 1, buffers)


def _chosen(data: bytes, parts: Sequence[Ints], which: int) -> pa.LargeBinaryArray:
    offsets = np.append(np.stack(parts, 1).reshape(-1), len(data))
    return _binary(offsets, data).take(pa.array(np.arange(which, len(offsets) - 1, len(parts))))
