"""Compact set of names of files that were read, with a size and a mark per name: 19 bytes each.

Design: docs/design/splits-and-discovery.md. New names go into a table, which sometimes becomes a *run*: sorted
records in immutable `bytes`, the stored form.
"""

import hashlib
import itertools
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

UNKNOWN_SIZE = (1 << 40) - 1  # also stands for larger sizes
UNMARKED = 0
_HASH_BYTES = 11
_SIZE_BYTES = 5
_MARK_BYTES = 3
_VALUE_BYTES = _SIZE_BYTES + _MARK_BYTES
RECORD_BYTES = _HASH_BYTES + _VALUE_BYTES
_FORMER_HASH_BYTES = 12
FORMER_RECORD_BYTES = _FORMER_HASH_BYTES + _SIZE_BYTES  # without a mark
_SMALL = 1_024  # records of a run of the lowest level
_MERGED_TOGETHER = 4
_PER_BUCKET = 8  # records that a lookup searches


def hash_of(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_FORMER_HASH_BYTES).digest()[:_HASH_BYTES]


def value_of(size: int | None, mark: int = UNMARKED) -> bytes:
    size = UNKNOWN_SIZE if size is None else min(size, UNKNOWN_SIZE)
    return size.to_bytes(_SIZE_BYTES, "big") + mark.to_bytes(_MARK_BYTES, "big")


def of_former(data: bytes) -> bytes:
    """Converts records of releases without marks."""
    former = np.frombuffer(data, np.uint8).reshape(-1, FORMER_RECORD_BYTES)
    records = np.zeros((len(former), RECORD_BYTES), np.uint8)
    records[:, :_HASH_BYTES] = former[:, :_HASH_BYTES]
    records[:, _HASH_BYTES : _HASH_BYTES + _SIZE_BYTES] = former[:, _FORMER_HASH_BYTES:]
    return records.tobytes()


class SortedRun:
    """Sorted records, each hash once. `name`: a hash of `data`, the records."""

    __slots__ = ("_bits", "_index", "data", "name")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.name = hashlib.blake2b(data, digest_size=16).hexdigest()
        self._bits = max(0, (len(self) // _PER_BUCKET).bit_length() - 1)
        starts = np.arange(1, 1 << self._bits, dtype=np.uint64) << np.uint64(64 - self._bits if self._bits else 0)
        places = np.searchsorted(_high(_records(data)), starts)
        self._index = array("I", [0, *places.tolist(), len(self)])

    def __len__(self) -> int:
        return len(self.data) // RECORD_BYTES

    @property
    def level(self) -> int:
        """Size class; neighbouring runs of the same level are merged."""
        return max(0, (len(self) // _SMALL).bit_length() - 1) // 2

    def find(self, hash: bytes) -> bytes | None:
        bucket = int.from_bytes(hash[:4], "big") >> (32 - self._bits)
        end = self._index[bucket + 1] * RECORD_BYTES
        at = self.data.find(hash, self._index[bucket] * RECORD_BYTES, end)
        while at >= 0 and at % RECORD_BYTES:
            at = self.data.find(hash, at + 1, end)
        return self.data[at + _HASH_BYTES : at + RECORD_BYTES] if at >= 0 else None

    def share(self, part: int, of: int) -> tuple["SortedRun", "SortedRun"]:
        """Part `part` of `of` parts with about equally many records, and the remaining records."""
        if of == 1:
            return self, SortedRun(b"")
        records = _records(self.data)
        mine = _high(records) % np.uint64(of) == part
        return SortedRun(records[mine].tobytes()), SortedRun(records[~mine].tobytes())


def merged(chunks: Iterable[bytes]) -> SortedRun:
    """Merges records in any order; the later record of an equal hash wins."""
    records = _records(b"".join(chunks))
    high, low = _high(records), _low(records)
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    last = np.ones(len(order), bool)
    last[:-1] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return SortedRun(records[order[last]].tobytes())


def _records(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8).reshape(-1, RECORD_BYTES)


def _high(records: np.ndarray) -> np.ndarray:
    numbers: np.ndarray = records[:, :8].copy().view(">u8").ravel().astype(np.uint64)
    return numbers


def _low(records: np.ndarray) -> np.ndarray:
    rest = np.zeros((len(records), 4), np.uint8)
    rest[:, 1:] = records[:, 8:_HASH_BYTES]
    return rest.view(">u4").ravel()


class Known(NamedTuple):
    size: int  # UNKNOWN_SIZE if not known
    mark: int


class NameSet:
    """Names with sizes and marks of 24 bits. `others`: runs that another set stores."""

    def __init__(self, runs: Iterable[SortedRun] = (), others: Iterable[SortedRun] = ()) -> None:
        self.runs = [run for run in runs if len(run)]  # oldest first
        self._others = [run for run in others if len(run)]
        self._added: dict[bytes, bytes] = {}  # by hash

    def __len__(self) -> int:
        """Omits `others`; a name that was added twice may count twice."""
        return len(self._added) + sum(map(len, self.runs))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.size_of(name) is not None

    def copy(self) -> "NameSet":
        made = NameSet(self.runs, self._others)
        made._added = dict(self._added)
        return made

    def size_of(self, name: str) -> int | None:
        value = self._value(name)
        return int.from_bytes(value[:_SIZE_BYTES], "big") if value is not None else None

    def find(self, name: str) -> Known | None:
        value = self._value(name)
        if value is None:
            return None
        return Known(int.from_bytes(value[:_SIZE_BYTES], "big"), int.from_bytes(value[_SIZE_BYTES:], "big"))

    def _value(self, name: str) -> bytes | None:
        hash = hash_of(name)
        value = self._added.get(hash)
        if value is not None:
            return value
        for run in (*reversed(self.runs), *self._others):
            value = run.find(hash)
            if value is not None:
                return value
        return None

    def add(self, name: str, size: int | None = None, mark: int = UNMARKED) -> None:
        self._added[hash_of(name)] = value_of(size, mark)

    def added(self) -> bytes:
        return b"".join([hash + value for hash, value in self._added.items()])

    def freeze(self, at_least: int = _SMALL) -> bool:
        if len(self._added) < at_least:
            return False
        self.runs.append(merged([self.added()]))
        self._added = {}
        return True

    def to_merge(self) -> Sequence[SortedRun]:
        """Neighbouring runs of a level to merge, so that levels fall from older to newer runs."""
        for _, group in itertools.groupby(self.runs, lambda run: run.level):
            window = list(group)
            if len(window) >= _MERGED_TOGETHER:
                return window
        return ()

    def replace(self, window: Sequence[SortedRun], run: SortedRun) -> None:
        at = self.runs.index(window[0])
        self.runs[at : at + len(window)] = [run]

    def absorb(self) -> None:
        """Merges all runs and names once a sixteenth of the names is in no run. For sets that are not stored."""
        runs = [*self._others, *self.runs]
        if len(self._added) >= max(_SMALL, sum(map(len, runs)) // 16):
            self.runs = [merged([*(run.data for run in runs), self.added()])]
            self._others, self._added = [], {}
