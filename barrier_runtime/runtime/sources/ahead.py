"""Preparation of splits on threads: the loop waits for no request of remote readers, and no search of ends.

Also logs event times far ahead of this machine's clock, which make later rows late, or like seconds.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias, cast

import msgspec
import numpy as np
import pyarrow as pa

from barrier_runtime.connectors.end_seeking import EndSeekingSource
from barrier_runtime.connectors.source import RemoteReader, Source, SplitReader
from barrier_runtime.connectors.source_bases.ranges import PartFetcher
from barrier_runtime.coordinator.metric_table import FAR_EVENT_TIMES
from barrier_runtime.data.event_time import doubt_of_unit, event_times_ms
from barrier_runtime.operators.base import OperatorContext, SplitPosition
from barrier_runtime.runtime.sources.progress import OpenSplit

_MOST = 64


class Ahead:
    def __init__(self, fetcher: PartFetcher) -> None:
        self._fetcher = fetcher
        self._later: OrderedDict[str, OpenSplit] = OrderedDict()  # not started, roughly in the order of their turns
        self._begun: dict[str, tuple[OpenSplit, Future[None]]] = {}

    def add(self, split: OpenSplit) -> None:
        if split.reader is not None and is_remote(split.reader):
            split.prepared = False
            self._later[split.id] = split
            self._fill()

    def has_come(self, split: OpenSplit) -> bool:
        """Raises the error of the preparation."""
        if split.id in self._later and all(future.done() for _, future in self._begun.values()):
            self._begin(split)  # despite `_MOST`: prepared splits may have later turns
        if split.id not in self._begun or not self._begun[split.id][1].done():
            return False
        future = self._begun.pop(split.id)[1]
        split.prepared, split.position_meanwhile = True, None
        future.result()
        self._fill()
        return True

    def has_begun(self, split: OpenSplit) -> bool:
        return split.id in self._begun

    def close(self) -> None:
        for split, future in self._begun.values():
            reader, split.reader = split.reader, None
            if reader is not None:
                future.add_done_callback(partial(_close, reader))
        self._begun.clear()
        self._later.clear()
        self._fetcher.close()

    def _fill(self) -> None:
        while self._later and len(self._begun) < _MOST and (self._fetcher.has_room or not self._begun):
            self._begin(next(iter(self._later.values())))

    def _begin(self, split: OpenSplit) -> None:
        reader = cast(RemoteReader, split.reader)  # `add` took no other reader
        del self._later[split.id]
        split.position_meanwhile = msgspec.Raw(reader.position())
        self._begun[split.id] = split, self._fetcher.submit(reader.prepare)


def is_remote(reader: SplitReader) -> bool:
    return isinstance(reader, RemoteReader) and reader.remote


def _close(reader: SplitReader, _: Future[None]) -> None:
    reader.close()


log = logging.getLogger(__name__)

DAY_MS = 86_400_000
FAR_MS = DAY_MS  # ahead of the clock


def look_at_unit(where: str, column: str, rows: pa.RecordBatch) -> bool:
    if doubt := doubt_of_unit(rows.column(column), column, where):
        log.warning("%s", doubt)
    return True


def tell_of_far_row(
    context: OperatorContext, where: str, split: OpenSplit, column: str, times: pa.Array, now_ms: int
) -> None:
    known = event_times_ms(times.drop_null())
    first = int(np.argmax(known > now_ms + FAR_MS))
    at = np.flatnonzero(times.is_valid().to_numpy(zero_copy_only=False))[first]
    time_ms = int(known[first])
    context.metrics.count(FAR_EVENT_TIMES)
    log.warning(
        "%s: row %d of split %r (counted from 0) has the event time %d ms in column %r, %d days ahead of this "
        "machine's clock: rows that come after it will be late; filter or correct such rows where they are written",
        where,
        split.rows - len(times) + at,
        split.id,
        time_ms,
        column,
        (time_ms - now_ms) // DAY_MS,
    )


_PLACED = 0  # instead of a checkpoint
# by split: the last known position before a skip; the position of the end, and the number of skipped rows
_Skips: TypeAlias = tuple[Mapping[str, SplitPosition], Mapping[str, tuple[bytes, int]]]


class Ends:
    """Splits that may not be read yet, with `mode="at_most_once"`. Design: docs/design/at-most-once.md.

    Laws, for each generation and split:

    1. No row is read before a decided checkpoint of this generation holds the split's position.
    2. A split with a restored position first skips to its present end, requested after the start of the generation: by
       then every sink has stopped the writers of earlier generations.

    `moved(rows)`: a sink wrote these rows after the checkpoint.
    """

    def __init__(self, context: OperatorContext, source: Source, moved: Callable[[int], None]) -> None:
        self._context = context
        self._source = source
        self._moved = moved
        self._restored: list[OpenSplit] = []
        self._placed: dict[str, tuple[OpenSplit, int]] = {}  # with the first checkpoint that holds the position
        self._requested = False

    def hold(self, split: OpenSplit, *, restored: bool) -> None:
        split.held = True
        if restored:
            self._restored.append(split)
        else:
            self._placed[split.id] = split, _PLACED

    def request(self) -> None:
        """The first call skips to the ends of the restored splits, off the loop."""
        if self._requested:
            return
        self._requested = True
        if self._restored:
            self._context.executor.submit(self._skips, self._skipped)

    def _skips(self) -> _Skips:
        assert isinstance(self._source, EndSeekingSource)
        reached = last_positions(self._restored, self._context.written())
        return reached, self._source.to_end({id: at.position for id, at in reached.items()})

    def _skipped(self, found: _Skips, error: BaseException | None) -> None:
        if error is not None:
            raise error
        reached, ends = found
        for split in self._restored:
            assert split.reader is not None
            position, skipped = ends[split.id]
            split.reader.seek(position)
            self._moved(reached[split.id].rows - split.rows)
            split.rows = reached[split.id].rows
            split.skipped += skipped
            self.hold(split, restored=False)
        self._restored = []

    def snapshotted(self, checkpoint: int) -> None:
        for id, (split, first) in self._placed.items():
            if first == _PLACED:
                self._placed[id] = split, checkpoint

    def completed(self, checkpoint: int) -> bool:
        readable = [split for split, first in self._placed.values() if _PLACED < first <= checkpoint]
        for split in readable:
            split.held = False
            del self._placed[split.id]
        return bool(readable)


def last_positions(splits: list[OpenSplit], written: Mapping[str, SplitPosition]) -> dict[str, SplitPosition]:
    found = {split.id: position_of(split) for split in splits}
    later = {id: at for id, at in written.items() if id in found and at.rows > found[id].rows}
    return {**found, **later}


def position_of(split: OpenSplit) -> SplitPosition:
    assert split.reader is not None
    return SplitPosition(split.rows, split.reader.position())
