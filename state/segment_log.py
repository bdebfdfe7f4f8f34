"""The segments of all dense tables of one backend: files that are written once, linked into snapshots, and merged.

Written and merged by whoever links a checkpoint's files, one at a time. A segment replaces those it was merged from
only when it is complete on disk; what cannot be written stays for the next checkpoint. Number and name of a file are
given once in the life of an incarnation, so that a name says which bytes they are.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from state.dense_segments import FrozenSegment
from state.local_copies import link_or_copy
from state.segment import Header, Segment, decode, decode_header, encode, merged, pieces, within
from state.segment_plan import BOTTOM, Size, merge_from

_NAME = re.compile(r"segment-([0-9]{1,20})\.rows")
_HEADER_BYTES = 1 << 16  # more than any header has
_PIECE_ENTRIES = 1 << 20


def is_segment_file(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class SegmentFile:
    number: int
    path: Path
    header: Header

    @property
    def size(self) -> Size:
        return Size(self.header.entries, self.header.level)


class SegmentLog:
    """In `directory`, which it makes when there is something to write, or takes over with the segments in it."""

    def __init__(self, directory: Path, max_parallelism: int) -> None:
        self._directory = directory
        self._max_parallelism = max_parallelism
        self._live: dict[str, list[SegmentFile]] = {}  # by state, in the order of writing
        self._waiting: list[FrozenSegment] = []
        found = _files(directory, os.listdir(directory)) if directory.exists() else []
        for file in found:
            self._live.setdefault(file.header.state, []).append(file)
        self._next = found[-1].number + 1 if found else 1

    def of(self, state: str) -> Iterator[Segment]:
        """The segments of a state, oldest first."""
        for file in self._live.get(state, ()):
            yield _read(file)

    def write(self, frozen: Iterable[FrozenSegment]) -> None:
        """They are part of what is linked from now on."""
        self._waiting += frozen
        while self._waiting:
            self._append(self._waiting[0].segment())
            self._waiting.pop(0)

    def link(self, directory: Path) -> None:
        """Hard links of all live segments into `directory`."""
        for files in self._live.values():
            for file in files:
                os.link(file.path, directory / file.path.name)

    # ---- inside

    def _append(self, segment: Segment) -> None:
        before = self._live.get(segment.state, [])
        kept = [] if segment.base else before
        level = BOTTOM if segment.base else 0
        start = merge_from([*(file.size for file in kept), Size(segment.entries, level)])
        if start is not None:
            level = BOTTOM if start == 0 else 1 + max(file.header.level for file in kept[start:])
            segment = merged([*map(_read, kept[start:]), segment], self._max_parallelism, base=start == 0)
            kept = kept[:start]
        written = [self._written(piece, level) for piece in pieces(segment, _PIECE_ENTRIES) if piece.entries]
        if kept or written:
            self._live[segment.state] = [*kept, *written]
        else:
            self._live.pop(segment.state, None)
        for file in before[len(kept) :]:
            file.path.unlink(missing_ok=True)

    def _written(self, segment: Segment, level: int) -> SegmentFile:
        number, self._next = self._next, self._next + 1
        return _write(self._directory, number, segment, level)


def _files(directory: Path, names: Iterable[str]) -> list[SegmentFile]:
    """The segments among `names`, in the order of writing."""
    files = []
    for name in names:
        named = _NAME.fullmatch(name)
        if named is not None:
            path = directory / name
            with path.open("rb") as file:
                header, _ = decode_header(file.read(_HEADER_BYTES), str(path))
            files.append(SegmentFile(int(named[1]), path, header))
    return sorted(files, key=lambda file: file.number)


def _read(file: SegmentFile) -> Segment:
    return decode(file.path.read_bytes(), str(file.path))


def _write(directory: Path, number: int, segment: Segment, level: int) -> SegmentFile:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / f"segment-{number:06d}.rows"
    parts = encode(segment, level)
    with path.open("xb") as file:
        file.writelines(parts)
    return SegmentFile(number, path, decode_header(parts[0], str(path))[0])


def link_segments(source: Path, names: Iterable[str], target: Path) -> None:
    """The segments among the files `names` of `source`, which stays as it is, into `target`."""
    for name in filter(is_segment_file, names):
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        link_or_copy(source / name, target / name)


@dataclass(frozen=True)
class SegmentsOf:
    """Those among the files `names` of `directory`, of which the key groups `first` to `last` are wanted."""

    directory: Path
    names: Sequence[str]
    first: int
    last: int


def copy_segments(sources: Iterable[SegmentsOf], target: Path, max_parallelism: int) -> None:
    """What is wanted of all `sources` into `target`, one base per state. No group may be wanted of two."""
    found: dict[str, list[Segment]] = {}
    for source in sources:
        of_state: dict[str, list[SegmentFile]] = {}
        for file in _files(source.directory, source.names):
            of_state.setdefault(file.header.state, []).append(file)
        for state, files in of_state.items():
            whole = merged(list(map(_read, files)), max_parallelism, base=False)
            found.setdefault(state, []).append(within(whole, source.first, source.last, max_parallelism))
    number = 0
    for parts in found.values():
        for piece in pieces(merged(parts, max_parallelism, base=True), _PIECE_ENTRIES):
            if piece.entries:
                number += 1
                _write(target, number, piece, BOTTOM)
