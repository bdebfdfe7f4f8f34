"""Reading a job's log: find the head, then read only the records behind the facts. Blocking.

Positions are contiguous and immutable, so galloping and bisecting over `get` finds the head: from a known position,
from the hint, or from the beginning (about 2·log2(n) reads), never by LIST. Back links lead to all other records; FENCE
and COMPLETE also list positions behind several links, for parallel reads. No clock, no retry: errors of the store are
raised.

The hint is an object beside the log: a recent position, and the FENCE of the generation, fetched in parallel. A
missing, old or wrong hint only costs requests. The writer rewrites the hint every few records, off the critical path.

A process that lost a race for the head reads again while the winner continues to append. A `LogReader` therefore
requests only new records: rereading all could never catch up with a fast leader.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable

import msgspec

from barrier_runtime.coordinator.log.decided import is_discarded
from barrier_runtime.coordinator.log.decision_log import LogEntry, LogView
from barrier_runtime.coordinator.log.hashing import sha256_hex
from barrier_runtime.coordinator.log.records import FIRST_POSITION, NO_RECORD, Complete, Fence, decode_record
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none, side_by_side
from barrier_runtime.state.store.paths import Paths

MAX_RUNS_BACK = 64  # a run taken over longer ago counts as unknown
EVERY = 8  # records between two writes of the hint
READ_AHEAD = EVERY + 1  # positions read in parallel, from the hint on


class Hint(msgspec.Struct, frozen=True):
    position: int
    token: int = NO_RECORD  # of the generation; absent in logs other than decision logs


NO_HINT = Hint(NO_RECORD)
_DECODER = msgspec.json.Decoder(Hint)


class HeadHint:
    """Hint of a log, stored under `key`. Blocking."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._written = NO_RECORD

    def read(self) -> int:
        """Returns the position in the hint; `NO_RECORD` if missing or invalid."""
        return max(NO_RECORD, self.found().position)

    def found(self) -> Hint:
        """Returns the stored hint; `NO_HINT` if missing or invalid."""
        try:
            data = get_or_none(self._store, self._key)
            return NO_HINT if data is None else _DECODER.decode(data)
        except (BarrierRuntimeError, OSError, msgspec.MsgspecError):
            return NO_HINT  # reading the log itself reports errors of the store

    def follow(self, position: int, token: int = NO_RECORD) -> None:
        """Stores a record's position, if the hint is `EVERY` records behind. `token`: of the generation."""
        if position < self._written + EVERY:
            return
        self._written = position
        with contextlib.suppress(BarrierRuntimeError, OSError):  # an older hint only costs requests
            self._store.put(self._key, msgspec.json.encode(Hint(position, token)))


def find_head(
    exists: Callable[[int], bool], known: int = NO_RECORD, hint: int = NO_RECORD, at_once: int = READ_AHEAD
) -> int:
    """Returns the highest existing position of a contiguous log, or `NO_RECORD`.

    `known`: certainly exists. `hint`: may exist; from there on `at_once` positions are read in parallel, so that a
    fresh hint costs a single wait.
    """
    if hint > known:
        found = in_parallel(exists, range(hint, hint + READ_AHEAD), at_once)
        if found[0]:
            known = hint + (found.index(False) if False in found else READ_AHEAD) - 1
            if False in found:
                return known
    if known == NO_RECORD and not exists(FIRST_POSITION):
        return NO_RECORD
    low, step = max(known, FIRST_POSITION), 1
    while exists(low + step):
        low, step = low + step, step * 2
    high = low + step  # does not exist
    while high - low > 1:
        middle = (low + high) // 2
        if exists(middle):
            low = middle
        else:
            high = middle
    return low


def read_log(
    store: ObjectStore,
    paths: Paths,
    *,
    completes: int = 1,
    restore: int | None = None,
    run_id: str = "",
    kept: bool = False,
) -> LogView:
    """Reads the log once; see `LogReader.read`."""
    return LogReader(store, paths).read(completes=completes, restore=restore, run_id=run_id, kept=kept)


class LogReader:
    """Reads a job's log, repeatedly if needed. Not thread-safe."""

    def __init__(self, store: ObjectStore, paths: Paths) -> None:
        self._store = store
        self._paths = paths
        self._hint = HeadHint(store, paths.log_hint)
        self._known: dict[int, LogEntry] = {}  # used by the last reading
        self._first_sha256 = ""

    def read(self, *, completes: int = 1, restore: int | None = None, run_id: str = "", kept: bool = False) -> LogView:
        """Returns the facts of the log. Raises `Corrupt` for an unreadable or inconsistent log.

        Reads the `completes` newest decisions (and back to checkpoint `restore`), and earlier runs' fences back to
        `run_id`; with `kept` also every kept decision and the hash of the first record.
        """
        reading = _Reading(self._store, self._paths.log_record, self._known)
        known = max(self._known, default=NO_RECORD)
        self._known = {}  # a failed reading is no basis for the next
        hint = self._hint.found() if known == NO_RECORD else NO_HINT
        if hint.position > known:
            first = hint.position - 1  # the head's predecessor is read, too
            beginning = (FIRST_POSITION,) if kept else ()
            reading.fetch((*beginning, hint.token, *range(first, hint.position + READ_AHEAD)), READ_AHEAD + 3)
        head_position = find_head(reading.exists, known, hint.position, side_by_side(self._store, READ_AHEAD))
        view = _facts(reading, head_position, completes, restore, run_id, kept)
        self._known = reading.used
        self._first_sha256 = reading.first_sha256() or self._first_sha256
        return dataclasses.replace(view, first_sha256=self._first_sha256)


def _facts(
    reader: "_Reading", head_position: int, completes: int, restore: int | None, run_id: str, all_kept: bool
) -> LogView:
    key_of = reader.key_of
    if head_position == NO_RECORD:
        return LogView()
    head = reader.entry(head_position)
    reader.fetch((head_position - 1, head.record.token, head.record.prior_complete, *_kept(head, all_kept)))
    if head_position > FIRST_POSITION:
        reader.check_parent(head)
    fence = reader.entry(head.record.token)
    if not isinstance(fence.record, Fence) or fence.record.token != fence.position:
        raise Corrupt(
            f"log record {key_of(fence.position)} should be the FENCE of generation {head.record.token} and is "
            f"{type(fence.record).__name__}: the log was changed by hand; restore it from a backup of the store"
        )
    reader.fetch((fence.record.restored_position, *_kept(fence, all_kept), *_earlier(fence, run_id)))
    restored = None
    if fence.record.restored_position != NO_RECORD:
        restored = reader.complete(fence.record.restored_position)
    if is_discarded(head.record):
        return LogView(head, fence, (), None, reader.earlier_runs(fence, run_id))
    view = LogView(
        head, fence, reader.completes(head, completes, restore), restored, reader.earlier_runs(fence, run_id)
    )
    if not all_kept:
        return view
    read = {entry.position for entry in view.completes}
    other_kept = tuple(reader.complete(position) for position in view.kept or () if position not in read)
    return dataclasses.replace(view, other_kept=other_kept)


def _kept(entry: LogEntry, wanted: bool) -> tuple[int, ...]:
    return entry.record.kept if wanted and isinstance(entry.record, Fence | Complete) else ()


def _earlier(fence: LogEntry, run_id: str) -> tuple[int, ...]:
    """Returns the positions of earlier runs' FENCEs to read in search of run `run_id`."""
    record = fence.record
    return record.earlier if isinstance(record, Fence) and record.spec.run_id != run_id else ()


class _Reading:
    """Reads each position at most once, and none in `known`. `used`: the records behind the facts."""

    def __init__(self, store: ObjectStore, key_of: Callable[[int], str], known: dict[int, LogEntry]) -> None:
        self._store = store
        self.key_of = key_of
        self.known = known
        self.used: dict[int, LogEntry] = {}
        self._found: dict[int, bytes] = {}
        self._absent: set[int] = set()  # when read

    def fetch(self, positions: Iterable[int], at_once: int = READ_AHEAD) -> None:
        wanted = {each for each in positions if each >= FIRST_POSITION}
        due = sorted(wanted - self._found.keys() - self.known.keys())
        if due:
            read = in_parallel(self._bytes_at, due, side_by_side(self._store, at_once))
            self._absent |= {position for position, data in zip(due, read, strict=True) if data is None}

    def exists(self, position: int) -> bool:
        if position in self._absent:
            return False
        return position in self.known or self._bytes_at(position) is not None

    def _bytes_at(self, position: int) -> bytes | None:
        if position not in self._found:
            data = get_or_none(self._store, self.key_of(position))
            if data is None:
                return None
            self._found[position] = data
        return self._found[position]

    def first_sha256(self) -> str:
        """Hash of the log's first record; empty if unread or damaged: no fact depends on the record."""
        data = self._found.get(FIRST_POSITION)
        if data is None:
            return ""
        try:
            decode_record(self.key_of(FIRST_POSITION), data)
        except Corrupt:
            return ""
        return sha256_hex(data)

    def entry(self, position: int) -> LogEntry:
        entry = self.used.get(position) or self.known.get(position)
        if entry is None:
            key = self.key_of(position)
            data = self._bytes_at(position)
            if data is None:
                raise Corrupt(
                    f"log record {key} is missing below the log's head: restore it from a backup of the store"
                )
            entry = LogEntry(position, decode_record(key, data), sha256_hex(data))
        self.used[position] = entry
        return entry

    def complete(self, position: int) -> LogEntry:
        entry = self.entry(position)
        if not isinstance(entry.record, Complete):
            raise Corrupt(
                f"log record {self.key_of(position)} should be a COMPLETE and is {type(entry.record).__name__}: "
                "the log was changed by hand; restore it from a backup of the store"
            )
        return entry

    def check_parent(self, entry: LogEntry) -> None:
        parent = self.entry(entry.position - 1)
        if parent.sha256 != entry.record.parent_sha256:
            raise Corrupt(
                f"log record {self.key_of(parent.position)} is damaged: expected sha256 {entry.record.parent_sha256}, "
                f"found {parent.sha256}: restore it from a backup of the store"
            )

    def completes(self, head: LogEntry, wanted: int, restore: int | None) -> tuple[LogEntry, ...]:
        found: list[LogEntry] = []
        position = head.position if isinstance(head.record, Complete) else head.record.prior_complete
        while position != NO_RECORD:
            entry = self.complete(position)
            assert isinstance(entry.record, Complete)
            if found and entry.position >= found[-1].position:
                raise Corrupt(f"log record {self.key_of(position)} links forward: the log was changed by hand")
            found.append(entry)
            if len(found) >= wanted and (restore is None or entry.record.checkpoint <= restore):
                break
            position = entry.record.prior_complete
        return tuple(found)

    def earlier_runs(self, fence: LogEntry, run_id: str) -> tuple[LogEntry, ...]:
        found: list[LogEntry] = []
        record = fence.record
        while isinstance(record, Fence) and len(found) < MAX_RUNS_BACK and record.spec.run_id != run_id:
            if record.prior_run == NO_RECORD:
                break
            entry = self.entry(record.prior_run)
            found.append(entry)
            record = entry.record
        return tuple(found)
