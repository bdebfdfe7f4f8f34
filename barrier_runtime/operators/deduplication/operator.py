"""`deduplicate`: the first row of each id passes; later rows are dropped until the id is forgotten.

Keyed state holds each id with the watermark at which the id was seen. An id is forgotten once the watermark before a
row has advanced by `within` since. Ids seen before the first watermark count as seen at the first watermark.

Bloom filters in memory, one set per `within / 4` of watermark and rebuilt after a restore, avoid nearly every lookup of
a new id. A row is looked up if a filter says "perhaps" or if the batch has the hash twice.

Entries of forgotten ids stay until the next clean-up: a pass through state once per `within`, in small chunks.
"""

import itertools
import struct
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from barrier_runtime.coordinator.metric_table import DUPLICATES, LOOKUPS, LOOKUPS_SAVED
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.keys import StateKey
from barrier_runtime.data.schemas import no_rows
from barrier_runtime.operators.aggregation.frequent_keys import Numbered
from barrier_runtime.operators.aggregation.partial_schema import is_partial, whole_schema
from barrier_runtime.operators.aggregation.partials import Combiner, combined_said, first_of_keys, rows_of
from barrier_runtime.operators.base import Capture, Emit, OperatorContext
from barrier_runtime.operators.deduplication.bloom import U64, Hashed, Mask, TimeBuckets, hash_rows
from barrier_runtime.operators.keyed.operator import KeyedOperator
from barrier_runtime.state.keys.distinct_ints import distinct_ints
from barrier_runtime.state.snapshots.snapshot import value_format
from barrier_runtime.state.versioned import VersionedDecoder

BEGUN_VALUE = "deduplicate"
_BUCKETS = 4  # per `within`
_ALIVE_AT_ONCE = _BUCKETS + 2  # with the oldest, and that of ids before all watermarks
_FILTERS_SHARE = 0.5  # of the operator's share of the cache
_SCAN_ROWS = 8_192
_FILLED_AT_ONCE = 1 << 20  # ids in memory during a restore
_SWEPT_AT_LEAST = 1_024  # entries that a clean-up visits per call
_SWEPT_PER_ROW = 2

_seen = struct.Struct(">q")  # entry: the watermark (ms) at which the id was seen


class _Begun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    first_ms: int = WATERMARK_MIN
    version: int = 1


_BEGUN = VersionedDecoder(value_format("{}: the time of its begin in its snapshot"), msgspec.msgpack.Decoder(_Begun))


class DuplicatesCombiner(Combiner):
    said = combined_said("")

    def __init__(self, keys: Sequence[str], within_ms: int | None, where: str) -> None:
        super().__init__(keys, {}, where, None if within_ms is None else _by_moment)

    def _combines(self, schema: pa.Schema) -> bool:
        return not is_partial(schema)

    def _partial_rows(self, batch: Batch, keys: Numbered) -> Batch:
        return first_of_keys(batch, keys)


def _by_moment(batch: Batch, keys: list[pa.Array]) -> list[pa.Array]:
    """Separates rows at different times: an id may be forgotten in between."""
    return keys if batch.reached is None else [*keys, pa.array(batch.reached)]


class DeduplicateOperator(KeyedOperator):
    kind = "deduplicate"

    def __init__(
        self, name: str, keys: Sequence[str], within_ms: int | None = None, schema: pa.Schema | None = None
    ) -> None:
        """`within_ms`: advance of the watermark after which an id is forgotten; None: never."""
        super().__init__(name, keys, keys, schema)
        self._within_ms = within_ms
        self._bucket_ms = max(1, within_ms // _BUCKETS) if within_ms is not None else 0
        self._first_ms = WATERMARK_MIN
        self._filters = TimeBuckets()  # replaced by bounded filters when the columns are known
        self._sweep: Iterator[tuple[StateKey, int]] | None = None
        self._swept_ms = WATERMARK_MIN  # at the start of the last clean-up

    @property
    def forgets(self) -> bool:
        return self._within_ms is not None

    def open(self, context: OperatorContext) -> None:
        where = f"operator {self.name!r}"
        begun = [_BEGUN.decode(snapshot.values[BEGUN_VALUE], where) for snapshot in context.restored]
        self._first_ms = max((each.first_ms for each in begun), default=WATERMARK_MIN)
        super().open(context)

    def bind(self, columns: pa.Schema) -> None:
        filters_bytes = self.backend.lend_cache(_FILTERS_SHARE)
        self._filters = TimeBuckets(filters_bytes // (1 if self._within_ms is None else _ALIVE_AT_ONCE))
        self._table = self.backend.table("seen", _encode, _decode, len(self._key_columns), immutable=True)
        self._plain = [array.type for array in self.codec.arrays(no_rows(columns))]
        self._load()

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        stand_for = rows_of(batch.rows)
        if is_partial(batch.schema):
            batch = batch.having(batch.rows.select(whole_schema(batch.schema).names))
        rows = batch.rows
        self._check(rows.schema)
        arrays = self.codec.arrays(rows)
        ids = Hashed.of(hash_rows(arrays))
        keys = list(zip(*[array.to_pylist() for array in arrays], strict=True))
        looked_up = self._filters.may_have(ids) | _repeated(ids.hashes)
        passes = ~looked_up
        put, get = self._table.put, self._table.get
        watermarks = self._row_watermarks(batch)
        at = [self._watermark_ms] * rows.num_rows if watermarks is None else watermarks.tolist()
        if self._first_ms == WATERMARK_MIN and watermarks is not None:
            self._first(next((each for each in at if each > WATERMARK_MIN), WATERMARK_MIN))
        for row in np.flatnonzero(looked_up).tolist():
            seen = get(keys[row])
            if seen is None or self._forgotten(seen, at[row]):
                passes[row] = True
                put(keys[row], at[row])
        for row in np.flatnonzero(passes & ~looked_up).tolist():
            put(keys[row], at[row])
        if rows.num_rows:  # in the latest bucket: a late drop costs only lookups
            self._filters.add(self._bucket(max(at)), ids.take(passes))
        self._count(int(stand_for.sum()), looked_up, passes)
        if passes.all():
            emit(batch)
        elif passes.any():
            emit(batch.only(rows.filter(pa.array(passes)), passes))
        if batch.reached is not None and rows.num_rows:
            self.on_watermark(int(batch.reached[-1]), emit)
        self._sweep_some(_SWEPT_AT_LEAST + _SWEPT_PER_ROW * rows.num_rows)

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        if watermark_ms <= self._watermark_ms or watermark_ms == WATERMARK_MAX:
            return  # the job may continue after the end of input
        self._watermark_ms = watermark_ms
        if self._first_ms == WATERMARK_MIN:
            self._first(watermark_ms)
        if self._within_ms is None or self._bound is None:
            return
        # earlier buckets hold only ids to be forgotten
        self._filters.drop_below(self._bucket(watermark_ms - self._within_ms + 1))
        if self._sweep is None and watermark_ms - self._swept_ms >= self._within_ms:
            self._sweep = self._table.scan()
            self._swept_ms = watermark_ms
        self._sweep_some(_SWEPT_AT_LEAST)

    def snapshot(self, checkpoint: int) -> Capture:
        capture = super().snapshot(checkpoint)
        capture.values[BEGUN_VALUE] = msgspec.msgpack.encode(_Begun(self._first_ms))
        return capture

    def close(self) -> None:
        self._sweep = None  # the scan reads the database that is about to be closed
        super().close()

    def _first(self, watermark_ms: int) -> None:
        if watermark_ms == WATERMARK_MIN:
            return
        self._first_ms = self._swept_ms = watermark_ms
        self._filters.move(self._bucket(WATERMARK_MIN, WATERMARK_MIN), self._bucket(watermark_ms))

    def _forgotten(self, seen_ms: int, now_ms: int | None = None) -> bool:
        now_ms = self._watermark_ms if now_ms is None else now_ms
        if self._within_ms is None or now_ms == WATERMARK_MIN:
            return False
        return now_ms - (self._first_ms if seen_ms == WATERMARK_MIN else seen_ms) >= self._within_ms

    def _bucket(self, seen_ms: int, first_ms: int | None = None) -> int:
        if self._within_ms is None:
            return 0
        if seen_ms == WATERMARK_MIN:
            seen_ms = self._first_ms if first_ms is None else first_ms
        return seen_ms // self._bucket_ms

    def _count(self, rows: int, looked_up: Mask, passes: Mask) -> None:
        lookups, duplicates = int(np.count_nonzero(looked_up)), rows - int(np.count_nonzero(passes))
        self.metrics.count(LOOKUPS, float(lookups))
        self.metrics.count(LOOKUPS_SAVED, float(rows - lookups))
        self.metrics.count(DUPLICATES, float(duplicates))

    def _load(self) -> None:
        hashes: dict[int, list[U64]] = {}
        held = 0
        entries = self._table.scan()
        while chunk := list(itertools.islice(entries, _SCAN_ROWS)):
            for key in [key for key, seen in chunk if self._forgotten(seen)]:
                self._table.delete(key)
            fields = zip(*[key for key, _ in chunk], strict=True)
            columns = [pa.array(values, kind) for values, kind in zip(fields, self._plain, strict=True)]
            of_chunk = hash_rows(columns)
            buckets = np.array([self._bucket(seen) for _, seen in chunk], np.int64)
            for bucket in distinct_ints(buckets).tolist():
                hashes.setdefault(bucket, []).append(of_chunk[buckets == bucket])
            held += len(chunk)
            if held >= _FILLED_AT_ONCE:
                self._fill(hashes)
                held = 0
        self._fill(hashes)
        self._swept_ms = self._watermark_ms

    def _fill(self, hashes: dict[int, list[U64]]) -> None:
        for bucket, parts in sorted(hashes.items()):
            self._filters.add(bucket, Hashed.of(np.concatenate(parts)))
        hashes.clear()

    def _sweep_some(self, entries: int) -> None:
        if self._sweep is None:
            return
        get, delete = self._table.get, self._table.delete
        looked_at = 0
        for key, seen in itertools.islice(self._sweep, entries):
            looked_at += 1
            if self._forgotten(seen):
                current = get(key)  # possibly seen again since the scan began
                if current is not None and self._forgotten(current):
                    delete(key)
        if looked_at < entries:
            self._sweep = None


def _repeated(hashes: U64) -> Mask:
    encoded = pa.array(hashes).dictionary_encode()
    if len(encoded.dictionary) == len(hashes):
        return np.zeros(len(hashes), np.bool_)
    numbers = encoded.indices.to_numpy()
    repeated: Mask = np.bincount(numbers)[numbers] > 1
    return repeated


def _encode(seen_ms: int) -> bytes:
    return _seen.pack(seen_ms)


def _decode(data: bytes) -> int:
    return int(_seen.unpack(data)[0])
