"""Segment files of all columnar tables of a backend.

The thread that links a checkpoint's files calls `write` and `link`. `merge` may run meanwhile: the result replaces
files only if all are still in use. A file is listed once complete; segments that could not be written wait for the next
checkpoint. An incarnation never reuses a file's number, and a restore reads files by number.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from barrier_runtime.state.columns.frozen_rows import FrozenSegment
from barrier_runtime.state.columns.segment import (
    BOTTOM,
    FIXED_BYTES,
    Header,
    Segment,
    Size,
    chunks,
    decode,
    decode_header,
    encode,
    header_bytes,
    joined,
    merge_from,
    merged,
    within,
)
from barrier_runtime.state.scratch import link_or_copy, segment_file, segment_number

_CHUNK_ENTRIES = 1 << 20
_SLICE_ENTRIES = 1 << 19  # per slice of a state that is only read


@dataclass(frozen=True)
class SegmentFile:
    number: int
    path: Path
    header: Header

    @property
    def size(self) -> Size:
        return Size(self.header.entries, self.header.level)


@dataclass(frozen=True)
class _Merge:
    state: str
    files: tuple[SegmentFile, ...]
    base: bool
    number: int


class SegmentLog:
    """Takes over the segments in `directory`."""

    def __init__(self, directory: Path, max_parallelism: int) -> None:
        self._directory = directory
        self._max_parallelism = max_parallelism
        self._lock = threading.Lock()  # guards the next three; held while files are linked, not written
        self._writing = False
        found = _files(directory, os.listdir(directory)) if directory.exists() else []
        self._live = _by_state(found)  # in the order of writing
        self._next = found[-1].number + 1 if found else 1
        self._waiting: list[FrozenSegment] = []  # replaced by the writing thread, never changed

    def has(self, state: str) -> bool:
        return state in self._live

    def of(self, state: str) -> Iterator[Segment]:
        for file in self._live.get(state, ()):
            yield _read(file)

    @property
    def waiting_bytes(self) -> int:
        return sum(segment.nbytes for segment in self._waiting)

    def write(self, frozen: Iterable[FrozenSegment]) -> None:
        self._waiting = _since_the_last_bases([*self._waiting, *frozen])
        while self._waiting:
            self._append(self._waiting[0].segment())
            self._waiting = self._waiting[1:]

    def link(self, directory: Path) -> None:
        with self._lock:
            for files in self._live.values():
                for file in files:
                    link_or_copy(file.path, directory / file.path.name)

    def merge(self, wanted: Callable[[], bool]) -> None:
        for state in list(self._live):
            with self._lock:
                plan = self._planned(state)
            if plan is not None and wanted():
                self._carry_out(plan, wanted)

    def _append(self, segment: Segment) -> None:
        with self._lock:
            level = 0 if self._live.get(segment.state) and not segment.base else BOTTOM
            number, self._next = self._next, self._next + _numbers(segment.entries)
            self._writing = True
        try:
            written = _written(self._directory, number, segment, level)
            with self._lock:
                kept = [] if segment.base else self._live.get(segment.state, [])
                self._replace(segment.state, [*kept, *written])
        finally:
            self._writing = False

    def _planned(self, state: str) -> _Merge | None:
        """Needs the lock. None while a segment is being written, because a restore would read the merged
        segment after that segment.
        """
        files = self._live.get(state, [])
        start = merge_from([file.size for file in files])
        if start is None or self._writing:
            return None
        number = self._next
        self._next += _numbers(sum(file.header.entries for file in files[start:]))
        return _Merge(state, tuple(files[start:]), start == 0, number)

    def _carry_out(self, plan: _Merge, wanted: Callable[[], bool]) -> None:
        level = BOTTOM if plan.base else 1 + max(file.header.level for file in plan.files)
        try:
            segments = [_read(file) for file in plan.files if wanted()]
            if not wanted():
                return
            segment = merged(segments, self._max_parallelism, plan.base)
            written = _written(self._directory, plan.number, segment, level)
        except FileNotFoundError:
            if self._place_of(plan) is not None:
                raise
            return  # a new base has replaced the files
        with self._lock:
            start = self._place_of(plan)
            if start is not None:
                live = self._live[plan.state]
                self._replace(plan.state, [*live[:start], *written, *live[start + len(plan.files) :]])
        if start is None:
            _remove(written)

    def _place_of(self, plan: _Merge) -> int | None:
        live = self._live.get(plan.state, [])
        start = next((at for at, file in enumerate(live) if file is plan.files[0]), None)
        return start if start is not None and tuple(live[start : start + len(plan.files)]) == plan.files else None

    def _replace(self, state: str, files: list[SegmentFile]) -> None:
        """Needs the lock."""
        before = self._live.get(state, [])
        if files:
            self._live[state] = files
        else:
            self._live.pop(state, None)
        kept = {file.number for file in files}
        _remove([file for file in before if file.number not in kept])


def _numbers(entries: int) -> int:
    return 1 + entries // _CHUNK_ENTRIES


def _since_the_last_bases(frozen: Sequence[FrozenSegment]) -> list[FrozenSegment]:
    last = {segment.state: at for at, segment in enumerate(frozen) if segment.base}
    return [segment for at, segment in enumerate(frozen) if at >= last.get(segment.state, 0)]


def _remove(files: Iterable[SegmentFile]) -> None:
    for file in files:
        file.path.unlink(missing_ok=True)


def _files(directory: Path, names: Iterable[str]) -> list[SegmentFile]:
    files = []
    for name in names:
        number = segment_number(name)
        if number is not None:
            path = directory / name
            with path.open("rb") as file:
                fixed = file.read(FIXED_BYTES)
                header, _ = decode_header(fixed + file.read(header_bytes(fixed, str(path))), str(path))
            files.append(SegmentFile(number, path, header))
    return sorted(files, key=lambda file: file.number)


def _read(file: SegmentFile, columns: Collection[str] | None = None) -> Segment:
    return decode(file.path.read_bytes(), str(file.path), columns)


def _by_state(files: Iterable[SegmentFile]) -> dict[str, list[SegmentFile]]:
    listed: dict[str, list[SegmentFile]] = {}
    for file in files:
        listed.setdefault(file.header.state, []).append(file)
    return listed


def _written(directory: Path, number: int, segment: Segment, level: int) -> list[SegmentFile]:
    """Writes all files or, after an error, none."""
    written: list[SegmentFile] = []
    try:
        for chunk in chunks(segment, _CHUNK_ENTRIES):
            if chunk.entries:
                written.append(_write(directory, number + len(written), chunk, level))
    except BaseException:
        _remove(written)
        raise
    return written


def _write(directory: Path, number: int, segment: Segment, level: int) -> SegmentFile:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / segment_file(number)
    parts = encode(segment, level)
    with path.open("xb") as file:
        try:
            file.writelines(parts)
            file.flush()
        except BaseException:
            path.unlink()
            raise
    return SegmentFile(number, path, decode_header(parts[0], str(path))[0])


def link_segments(source: Path, names: Iterable[str], target: Path) -> None:
    for name in names:
        if segment_number(name) is not None:
            target.mkdir(parents=True, exist_ok=True, mode=0o700)
            link_or_copy(source / name, target / name)


def rows_by_headers(headers: Sequence[Header]) -> int | None:
    """Number of rows, by headers in the order of writing; None if deltas may have changed rows."""
    first = next((at for at in range(len(headers) - 1, -1, -1) if headers[at].base), 0)
    whole = [each for at, each in enumerate(headers[first:]) if at == 0 or each.level == BOTTOM]
    return sum(each.keys for each in whole) if len(whole) == len(headers) - first else None


def segments_in(
    directory: Path,
    names: Iterable[str],
    state: str,
    max_parallelism: int,
    first: int,
    last: int,
    columns: Collection[str] | None = None,
) -> Iterator[Segment]:
    """Yields bases without common keys of the key groups `first` to `last`.

    A large state is yielded in slices by key group, to bound memory.
    """
    files = _by_state(_files(directory, names)).get(state)
    if not files:
        return
    slices = min(last - first + 1, -(-sum(file.header.entries for file in files) // _SLICE_ENTRIES))
    for start in range(first, last + 1, width := -(-(last - first + 1) // slices)):
        end = min(last, start + width - 1)
        parts = [within(_read(file, columns), start, end, max_parallelism) for file in files]
        yield merged(parts, max_parallelism, base=True)


@dataclass(frozen=True)
class SegmentsOf:
    directory: Path
    names: Sequence[str]
    first: int
    last: int


def copy_segments(sources: Iterable[SegmentsOf], target: Path, max_parallelism: int) -> None:
    """Copies wanted key groups of disjoint `sources` into `target`: per state a base, then all deltas."""
    bases: dict[str, list[Segment]] = {}
    deltas: dict[str, list[tuple[int, Segment]]] = {}
    for source in sources:
        for state, files in _by_state(_files(source.directory, source.names)).items():
            first = next((at for at in range(len(files) - 1, -1, -1) if files[at].header.base), 0)
            for at, file in enumerate(files[first:]):
                own = within(_read(file), source.first, source.last, max_parallelism)
                if at == 0 or file.header.level == BOTTOM:  # a large base has several files
                    bases.setdefault(state, []).append(own)
                elif own.entries:
                    deltas.setdefault(state, []).append((file.header.level, own))
    number = 1
    for state, parts in bases.items():
        number += len(_written(target, number, joined(parts, max_parallelism), BOTTOM))
        for level, delta in deltas.get(state, ()):
            number += len(_written(target, number, delta, level))


class SegmentsWritten:
    """A base per state, in the new folder `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._next = 1

    def add(self, segment: Segment) -> None:
        self._next += len(_written(self._directory, self._next, segment, BOTTOM))
