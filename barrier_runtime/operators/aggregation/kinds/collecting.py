"""`collect_list`, `collect_set` and the exact `count_distinct`: values of a key, as they came.

A cell is the number of values (4 bytes, little endian) and the values (`encoded_values`).
"""

import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from barrier_runtime.operators.aggregation.batch_values import BatchValues
from barrier_runtime.operators.aggregation.kinds.cells import EncodedValues, Full
from barrier_runtime.operators.aggregation.state_columns import Values
from barrier_runtime.state.columns.wide_columns import EMPTY

COUNT = struct.Struct("<I")
REMEMBERED = 200_000  # values in sets that are kept besides their bytes

Collected: TypeAlias = tuple[int, bytes]


def _opened(cell: bytes) -> Collected:
    return (COUNT.unpack_from(cell)[0], cell[COUNT.size :]) if cell else (0, EMPTY)


def number_of(cell: bytes) -> int:
    return int(COUNT.unpack_from(cell)[0]) if cell else 0


def _closed(count: int, data: bytes) -> bytes:
    return COUNT.pack(count) + data


@dataclass(frozen=True)
class ListCell:
    column: str
    encoding: EncodedValues
    limit: int

    @property
    def name(self) -> str:
        return f"collect_list {self.limit}:{self.column}"

    def values(self, batch: BatchValues) -> tuple[Sequence[bytes], Values | None]:
        return self.encoding.of(batch, self.column), batch.valid(self.column)

    def opened(self, cell: bytes) -> Collected:
        return _opened(cell)

    def add(self, state: Collected, values: Sequence[bytes]) -> Collected:
        count, data = state
        taken = values[: self.limit - count]
        return (count + len(taken), data + b"".join(taken)) if taken else state

    def closed(self, state: Collected) -> bytes:
        return _closed(*state)

    def merged(self, earlier: bytes, later: bytes) -> bytes:
        return self.closed(self.add(self.opened(earlier), self.encoding.split(self.opened(later)[1])))


@dataclass(slots=True, eq=False)
class KnownValues:
    known: set[bytes]
    data: bytes

    def __len__(self) -> int:
        return len(self.known)

    @property
    def collected(self) -> Collected:
        return len(self.known), self.data

    def unknown(self, values: Sequence[bytes]) -> list[int]:
        """Returns indices of unknown values; among equal values the first."""
        known = self.known
        found = [index for index, value in enumerate(values) if value not in known]
        if len(found) < 2:
            return found
        return sorted({values[index]: index for index in reversed(found)}.values())

    def learn(self, values: Sequence[bytes]) -> None:
        self.known.update(values)
        self.data += b"".join(values)


class Recent:
    """Sets of recently written cells, not to be built again.
    The last set stays, however large.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[bytes, KnownValues]] = OrderedDict()
        self._values = 0

    def take(self, cell: bytes) -> KnownValues | None:
        kept = self._kept.pop(id(cell), None)
        if kept is None:
            return None
        self._values -= len(kept[1])
        return kept[1]

    def keep(self, cell: bytes, values: KnownValues) -> None:
        self._kept[id(cell)] = cell, values  # keeps the id unique
        self._values += len(values)
        while self._values > REMEMBERED and len(self._kept) > 1:
            _, (_, oldest) = self._kept.popitem(last=False)
            self._values -= len(oldest)


@dataclass(frozen=True)
class SetCell:
    """`exact`: a value beyond `limit` raises `Full`; otherwise the value is left out."""

    column: str
    encoding: EncodedValues
    limit: int
    exact: bool
    _recent: Recent = field(default_factory=Recent, compare=False)

    @property
    def name(self) -> str:
        """Exact counts share state between limits; sets do not, since a set lacks values."""
        return f"count_distinct:{self.column}" if self.exact else f"collect_set {self.limit}:{self.column}"

    def __str__(self) -> str:
        return "count_distinct"

    def values(self, batch: BatchValues) -> tuple[Sequence[bytes], Values | None]:
        return self.encoding.of(batch, self.column), batch.valid(self.column)

    def opened(self, cell: bytes) -> KnownValues:
        kept = self._recent.take(cell)
        if kept is not None:
            return kept
        _, data = _opened(cell)
        return KnownValues(set(self.encoding.split(data)), data)

    def add(self, state: KnownValues, values: Sequence[bytes]) -> KnownValues:
        known, new = state.known, []
        for value in values:
            if value not in known:
                if len(known) >= self.limit:
                    if self.exact:
                        raise Full
                    break
                known.add(value)
                new.append(value)
        if new:
            state.data += b"".join(new)
        return state

    def closed(self, state: KnownValues) -> bytes:
        cell = _closed(*state.collected)
        self._recent.keep(cell, state)
        return cell

    def remember(self, cell: bytes, state: KnownValues) -> None:
        self._recent.keep(cell, state)

    def merged(self, earlier: bytes, later: bytes) -> bytes:
        return self.closed(self.add(self.opened(earlier), self.encoding.split(_opened(later)[1])))


def lists(encoding: EncodedValues, collected: Sequence[Collected]) -> pa.Array:
    offsets = np.zeros(len(collected) + 1, np.int32)
    np.cumsum([count for count, _ in collected], out=offsets[1:])
    values = encoding.array([data for _, data in collected])
    return pa.ListArray.from_arrays(pa.array(offsets), values)
