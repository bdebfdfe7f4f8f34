"""The segments of all columnar tables of one backend: files that are written once, linked into snapshots, and merged.

`write` and `link` are for whoever links a checkpoint's files, one at a time. `merge` takes longer, and may run beside
them: it works on files that do not change, and what it made takes their place only if they are all still wanted. A file
is listed when it is complete on disk; what could not be written waits for the next checkpoint. Number and name of a
file are given once in the life of an incarnation, so that a name says which bytes they are; a restore reads them in the
order of their numbers.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from barrier_runtime.state.columns.frozen_rows import FrozenSegment
from barrier_runtime.state.columns.segment import (
    FIXED_BYTES,
    Header,
    Segment,
    chunks,
    decode,
    decode_header,
    encode,
    header_bytes,
    joined,
    merged,
    within,
)
from barrier_runtime.state.columns.segment_plan import BOTTOM, Size, merge_from
from barrier_runtime.state.scratch import link_or_copy, segment_file, segment_number

_CHUNK_ENTRIES = 1 << 20
_SLICE_ENTRIES = 1 << 19  # of a state that is only read


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
    """The last files of a state, which shall become one; its files get numbers from `number` on."""

    state: str
    files: tuple[SegmentFile, ...]
    base: bool
    number: int


class SegmentLog:
    """In `directory`, which it makes when there is something to write, or takes over with the segments in it."""

    def __init__(self, directory: Path, max_parallelism: int) -> None:
        self._directory = directory
        self._max_parallelism = max_parallelism
        self._lock = threading.Lock()  # guards the three below; held while files are linked, not while they are written
        self._writing = False
        found = _files(directory, os.listdir(directory)) if directory.exists() else []
        self._live = _by_state(found)  # in the order of writing
        self._next = found[-1].number + 1 if found else 1
        self._waiting: list[FrozenSegment] = []  # replaced, never changed, by whoever writes

    def has(self, state: str) -> bool:
        return state in self._live

    def of(self, state: str) -> Iterator[Segment]:
        """The segments of a state, oldest first."""
        for file in self._live.get(state, ()):
            yield _read(file)

    @property
    def waiting_bytes(self) -> int:
        """Held in memory since it could not be written."""
        return sum(segment.nbytes for segment in self._waiting)

    def write(self, frozen: Iterable[FrozenSegment]) -> None:
        """They are part of what is linked from now on."""
        self._waiting = _since_the_last_bases([*self._waiting, *frozen])
        while self._waiting:
            self._append(self._waiting[0].segment())
            self._waiting = self._waiting[1:]

    def link(self, directory: Path) -> None:
        """All live segments into `directory`, as hard links where the file system has them."""
        with self._lock:
            for files in self._live.values():
                for file in files:
                    link_or_copy(file.path, directory / file.path.name)

    def merge(self, wanted: Callable[[], bool]) -> None:
        """What has gathered, as `segment_plan` says; given up when it is not `wanted` any more."""
        for state in list(self._live):
            with self._lock:
                plan = self._planned(state)
            if plan is not None and wanted():
                self._carry_out(plan, wanted)

    # ---- inside

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
        """With the lock held. Not while a segment is being written: what is merged would get a higher number, and come
        after it in a restore."""
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
            return  # a new base came meanwhile
        with self._lock:
            start = self._place_of(plan)
            if start is not None:
                live = self._live[plan.state]
                self._replace(plan.state, [*live[:start], *written, *live[start + len(plan.files) :]])
        if start is None:
            _remove(written)

    def _place_of(self, plan: _Merge) -> int | None:
        """Where the files of `plan` are in the list; None when they are not wanted any more."""
        live = self._live.get(plan.state, [])
        start = next((at for at, file in enumerate(live) if file is plan.files[0]), None)
        return start if start is not None and tuple(live[start : start + len(plan.files)]) == plan.files else None

    def _replace(self, state: str, files: list[SegmentFile]) -> None:
        """With the lock held."""
        before = self._live.get(state, [])
        if files:
            self._live[state] = files
        else:
            self._live.pop(state, None)
        kept = {file.number for file in files}
        _remove([file for file in before if file.number not in kept])


def _numbers(entries: int) -> int:
    """How many files that many entries may take."""
    return 1 + entries // _CHUNK_ENTRIES


def _since_the_last_bases(frozen: Sequence[FrozenSegment]) -> list[FrozenSegment]:
    """Without those before a base of the same state: they do not count any more."""
    last = {segment.state: at for at, segment in enumerate(frozen) if segment.base}
    return [segment for at, segment in enumerate(frozen) if at >= last.get(segment.state, 0)]


def _remove(files: Iterable[SegmentFile]) -> None:
    for file in files:
        file.path.unlink(missing_ok=True)


def _files(directory: Path, names: Iterable[str]) -> list[SegmentFile]:
    """The segments among `names`, in the order of writing."""
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
    """In files with numbers from `number` on; all of them or, when one cannot be written, none."""
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
    """The segments among the files `names` of `source`, which stays as it is, into `target`."""
    for name in names:
        if segment_number(name) is not None:
            target.mkdir(parents=True, exist_ok=True, mode=0o700)
            link_or_copy(source / name, target / name)


def rows_by_headers(headers: Sequence[Header]) -> int | None:
    """How many rows the segments of one state, in the order of writing, have together; None where deltas may have
    changed or removed some of them."""
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
    """`state` among the segments of a snapshot, whose files `names` are in `directory`, in key groups `first` to
    `last`: bases, and no key in two of them; of `columns` alone, if they are given. A large one comes in slices by key
    group, so that memory stays bounded; each slice reads all files, one at a time."""
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
    """Those among the files `names` of `directory`, of which the key groups `first` to `last` are wanted."""

    directory: Path
    names: Sequence[str]
    first: int
    last: int


def copy_segments(sources: Iterable[SegmentsOf], target: Path, max_parallelism: int) -> None:
    """What is wanted of all `sources` into `target`: per state one base, and the deltas of all behind it. Nothing is
    merged: that would take most of the time of a restore, and is done beside the work. No group may be wanted of two.
    """
    bases: dict[str, list[Segment]] = {}
    deltas: dict[str, list[tuple[int, Segment]]] = {}  # with their levels
    for source in sources:
        for state, files in _by_state(_files(source.directory, source.names)).items():
            first = next((at for at in range(len(files) - 1, -1, -1) if files[at].header.base), 0)
            for at, file in enumerate(files[first:]):
                own = within(_read(file), source.first, source.last, max_parallelism)
                if at == 0 or file.header.level == BOTTOM:  # a large base is in several files
                    bases.setdefault(state, []).append(own)
                elif own.entries:
                    deltas.setdefault(state, []).append((file.header.level, own))
    number = 1
    for state, parts in bases.items():
        number += len(_written(target, number, joined(parts, max_parallelism), BOTTOM))
        for level, delta in deltas.get(state, ()):
            number += len(_written(target, number, delta, level))


class SegmentsWritten:
    """Bases written into the fresh folder `directory`, one per state."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._next = 1

    def add(self, segment: Segment) -> None:
        self._next += len(_written(self._directory, self._next, segment, BOTTOM))
