"""Positions before rows: which splits of a source may be read with `mode="at_most_once"`.

Laws, for each generation and split:

1. No row is read before a decided checkpoint of this generation holds the split's position.
2. A split with a restored position first skips to its present end, requested after the start of the generation: by
   then every sink has stopped the writers of earlier generations.

Design: docs/design/at-most-once.md.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from barrier_runtime.connectors.end_seeking import EndSeekingSource
from barrier_runtime.connectors.source import Source
from barrier_runtime.operators.base import OperatorContext, SplitPosition
from barrier_runtime.runtime.sources.split_state import OpenSplit

_PLACED = 0  # instead of a checkpoint
# by split: the last known position before a skip; the position of the end, and the number of skipped rows
_Skips: TypeAlias = tuple[Mapping[str, SplitPosition], Mapping[str, tuple[bytes, int]]]


class Ends:
    """Splits that may not be read yet. `moved(rows)`: a sink wrote these rows after the checkpoint."""

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
