"""Approximate aggregates by Apache DataSketches: distinct values (HLL), quantiles (t-digest), top-k.

A cell is the version of the layout (1 byte) and the sketch in the library's format. The same rows in the same order
give the same result, however cut into batches; the library's random sketches (KLL, REQ) would not. A write compresses a
t-digest, so values wait in the cell until there are `_CHUNK`.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from barrier_runtime.operators.aggregation.batch_values import BatchValues
from barrier_runtime.operators.aggregation.kinds.cells import EncodedValues
from barrier_runtime.operators.aggregation.state_columns import Values
from barrier_runtime.state.columns.wide_columns import EMPTY
from barrier_runtime.state.errors import missing_extra
from barrier_runtime.state.versioned import Format

_LAYOUT = Format("the state of {}", 1, damaged="restore from another checkpoint")
_VERSION = bytes([_LAYOUT.version])
_LG_REGISTERS = 12
# more would make evictions depend on the storage
_LG_COUNTERS = 10
_COMPRESSION = 200
_CHUNK = 512
_count = struct.Struct("<I")


@cache
def _library() -> Any:
    try:
        import datasketches
    except ImportError as error:
        raise missing_extra("an approximate aggregate", "sketches", error) from None
    return datasketches


def require_sketches() -> None:
    _library()


def _content(cell: bytes, of: str) -> bytes:
    _LAYOUT.check(cell[0], of)
    return cell[1:]


@dataclass(frozen=True)
class DistinctSketch:
    column: str
    encoding: EncodedValues

    @property
    def name(self) -> str:
        return f"hll:{self.column}"

    def values(self, batch: BatchValues) -> tuple[Sequence[str], Values | None]:
        return _as_text(self.encoding, batch, self.column), batch.valid(self.column)

    def opened(self, cell: bytes) -> Any:
        library = _library()
        if not cell:
            return library.hll_sketch(_LG_REGISTERS, library.HLL_8)
        return library.hll_sketch.deserialize(_content(cell, self.name))

    def add(self, state: Any, values: Sequence[str]) -> Any:
        for value in values:
            state.update(value)
        return state

    def closed(self, state: Any) -> bytes:
        return _VERSION + bytes(state.serialize_compact())

    def merged(self, earlier: bytes, later: bytes) -> bytes:
        library = _library()
        union = library.hll_union(_LG_REGISTERS)
        union.update(self.opened(earlier))
        union.update(self.opened(later))
        return self.closed(union.get_result(library.HLL_8))


def distinct_estimate(state: Any) -> int:
    estimate: float = state.get_estimate()
    return round(estimate)


@dataclass(slots=True, eq=False)
class Digest:
    digest: Any
    waiting: list[float]


@dataclass(frozen=True)
class QuantileSketch:
    """Exact while no chunk is full, by t-digest beyond. NaN and null are ignored."""

    column: str

    @property
    def name(self) -> str:
        return f"digest:{self.column}"

    def values(self, batch: BatchValues) -> tuple[Sequence[float], Values | None]:
        values, valid = batch.floats(self.column) + 0.0, batch.valid(self.column)
        numbers = ~np.isnan(values)
        return values.tolist(), numbers if valid is None else numbers & valid

    def opened(self, cell: bytes) -> Digest:
        if not cell:
            return Digest(None, [])
        content = _content(cell, self.name)
        (count,) = _count.unpack_from(content)
        end = _count.size + 8 * count
        waiting = np.frombuffer(content[_count.size : end], "<f8").tolist()
        return Digest(_library().tdigest_double.deserialize(content[end:]) if len(content) > end else None, waiting)

    def add(self, state: Digest, values: Sequence[float]) -> Digest:
        state.waiting += values
        while len(state.waiting) >= _CHUNK:
            if state.digest is None:
                state.digest = _library().tdigest_double(_COMPRESSION)
            state.digest.update(np.array(state.waiting[:_CHUNK]))
            state.digest.compress()
            del state.waiting[:_CHUNK]
        return state

    def closed(self, state: Digest) -> bytes:
        digest = EMPTY if state.digest is None else bytes(state.digest.serialize())
        return _VERSION + _count.pack(len(state.waiting)) + np.array(state.waiting, "<f8").tobytes() + digest

    def merged(self, earlier: bytes, later: bytes) -> bytes:
        ours, theirs = self.opened(earlier), self.opened(later)
        if theirs.digest is not None:
            if ours.digest is None:
                ours.digest = theirs.digest
            else:
                ours.digest.merge(theirs.digest)
                ours.digest.compress()
        return self.closed(self.add(ours, theirs.waiting))


def quantiles_of(state: Digest, ranks: Sequence[float]) -> list[float | None]:
    waiting = sorted(state.waiting)
    if state.digest is None:
        return [waiting[max(0, math.ceil(rank * len(waiting)) - 1)] if waiting else None for rank in ranks]
    digest = state.digest
    if waiting:
        library = _library()
        digest = library.tdigest_double.deserialize(bytes(digest.serialize()))
        digest.update(np.array(waiting))
    return [digest.get_quantile(rank) for rank in ranks]


@dataclass(frozen=True)
class FrequentSketch:
    column: str
    encoding: EncodedValues

    @property
    def name(self) -> str:
        return f"frequent:{self.column}"

    def values(self, batch: BatchValues) -> tuple[Sequence[str], Values | None]:
        return _as_text(self.encoding, batch, self.column), batch.valid(self.column)

    def opened(self, cell: bytes) -> Any:
        library = _library()
        if not cell:
            return library.frequent_strings_sketch(_LG_COUNTERS)
        return library.frequent_strings_sketch.deserialize(_content(cell, self.name))

    def add(self, state: Any, values: Sequence[str]) -> Any:
        for value in values:
            state.update(value)
        return state

    def closed(self, state: Any) -> bytes:
        return _VERSION + bytes(state.serialize())

    def merged(self, earlier: bytes, later: bytes) -> bytes:
        ours = self.opened(earlier)
        ours.merge(self.opened(later))
        return self.closed(ours)


def most_frequent(state: Any, count: int) -> list[tuple[bytes, int]]:
    found = state.get_frequent_items(_library().NO_FALSE_NEGATIVES, 0)
    items = [(item.encode("latin-1"), estimate) for item, estimate, _, _ in found]
    return sorted(items, key=lambda each: (-each[1], each[0]))[:count]


def same_sketches(column: str, one: bytes, other: bytes) -> bool:
    """Returns whether two cells of a column have the same content.
    Bytes may differ in the order of a hash table.
    """
    kind = column.partition(":")[0]
    if kind not in ("hll", "frequent") or not one or not other:
        return one == other
    library = _library()
    if kind == "hll":
        sketches = [library.hll_sketch.deserialize(_content(cell, column)) for cell in (one, other)]
        union = library.hll_union(_LG_REGISTERS)
        for sketch in sketches:
            union.update(sketch)
        return len({each.get_estimate() for each in (*sketches, union.get_result(library.HLL_8))}) == 1
    first, second = (library.frequent_strings_sketch.deserialize(_content(cell, column)) for cell in (one, other))
    return sorted(first.get_frequent_items(library.NO_FALSE_NEGATIVES, 0)) == sorted(
        second.get_frequent_items(library.NO_FALSE_NEGATIVES, 0)
    )


def frequent_lists(encoding: EncodedValues, found: Sequence[list[tuple[bytes, int]]]) -> pa.Array:
    offsets = np.zeros(len(found) + 1, np.int32)
    np.cumsum([len(each) for each in found], out=offsets[1:])
    values = encoding.array([value for each in found for value, _ in each])
    counts = pa.array([count for each in found for _, count in each], pa.int64())
    structs = pa.StructArray.from_arrays([values, counts], fields=list(frequent_type(encoding.kind).value_type))
    return pa.ListArray.from_arrays(pa.array(offsets), structs)


def frequent_type(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct([("value", kind), ("count", pa.int64())]))


def _as_text(encoding: EncodedValues, batch: BatchValues, column: str) -> list[str]:
    return [value.decode("latin-1") for value in encoding.of(batch, column)]
