"""Reads only the head of a job's log, and records behind facts. Blocking.

`get` calls find the head by galloping and bisecting from a known position, the hint, or the beginning (about 2·log2(n)
reads). Below the base only milestones are certain (`records`).

The hint is an object with a recent position and the FENCE. A missing, old or wrong hint only costs requests.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import msgspec

from barrier_runtime.coordinator.log import records
from barrier_runtime.coordinator.log.decision_log import LogEntry, LogView, complete_of
from barrier_runtime.coordinator.log.manifest import is_discarded, kept_after
from barrier_runtime.coordinator.log.records import (
    FIRST_POSITION,
    NO_RECORD,
    Complete,
    Fence,
    Finish,
    base_of,
    decode_record,
    milestone_after,
)
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none, side_by_side
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex

MAX_RUNS_BACK = 64  # a run taken over longer ago counts as unknown
EVERY = 8  # records between two writes of the hint
READ_AHEAD = EVERY + 1  # positions read in parallel, from the hint on
_READINGS = 4  # attempts, if records in reach are deleted between two reads
_FOLLOWING = 16  # records after the newest decision, read after a failure


class Hint(msgspec.Struct, frozen=True):
    position: int
    token: int = NO_RECORD  # of the generation; absent in logs other than decision logs


NO_HINT = Hint(NO_RECORD)
_DECODER = msgspec.json.Decoder(Hint)


class HeadHint:
    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._written = NO_RECORD

    def read(self) -> int:
        return max(NO_RECORD, self.found().position)

    def found(self) -> Hint:
        try:
            data = get_or_none(self._store, self._key)
            return NO_HINT if data is None else _DECODER.decode(data)
        except (BarrierRuntimeError, OSError, msgspec.MsgspecError):
            return NO_HINT  # reading the log reports errors of the store

    def follow(self, position: int, token: int = NO_RECORD) -> None:
        if position < self._written + EVERY:
            return
        self._written = position
        with contextlib.suppress(BarrierRuntimeError, OSError):  # an older hint only costs requests
            self._store.put(self._key, msgspec.json.encode(Hint(position, token)))


def find_head(
    exists: Callable[[int], bool],
    known: int = NO_RECORD,
    hint: int = NO_RECORD,
    at_once: int = READ_AHEAD,
    exists_now: Callable[[int], bool] | None = None,
    step: int = 0,
) -> int:
    """Highest existing position, or `NO_RECORD`.

    `known`: certainly existed. `hint`: may exist; the positions from there on are read, at most `at_once` in parallel.
    `exists_now`: a new read of the next milestone; if missing, the position after the head was never written (else
    perhaps compacted). `step`: between milestones of another log.
    """
    step, head = step or records.MILESTONE_STEP, known
    if hint > known:
        found = in_parallel(exists, range(hint, hint + READ_AHEAD), at_once)
        if found[0]:
            head = hint + (found.index(False) if False in found else READ_AHEAD) - 1
    if head == NO_RECORD:
        if not exists(FIRST_POSITION):
            return NO_RECORD
        head = _from_the_beginning(exists, step)
    elif head == known or head - hint == READ_AHEAD - 1:
        head = _gallop(exists, head)
    while (exists_now or exists)(milestone := milestone_after(head, step)):
        head = _gallop(exists, _gallop(exists, milestone, step))
    return head


def _from_the_beginning(exists: Callable[[int], bool], step: int) -> int:
    low = FIRST_POSITION
    while exists(2 * low):
        low *= 2
    high = 2 * low
    if low >= step:
        low = _bisect(exists, low, high, step)
        high = min(high, low + step)
    return _bisect(exists, low, high)


def _gallop(exists: Callable[[int], bool], low: int, unit: int = 1) -> int:
    """Highest existing position in steps of `unit` from `low`, as long as all exist."""
    step = unit
    while exists(low + step):
        low, step = low + step, step * 2
    return _bisect(exists, low, low + step, unit)


def _bisect(exists: Callable[[int], bool], low: int, high: int, unit: int = 1) -> int:
    while high - low > unit:
        middle = low + (high - low) // unit // 2 * unit
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
    dropped: bool = False,
) -> LogView:
    reader = LogReader(store, paths)
    return reader.read(completes=completes, restore=restore, run_id=run_id, kept=kept, dropped=dropped)


class LogReader:
    """Not thread-safe."""

    def __init__(self, store: ObjectStore, paths: Paths) -> None:
        self._store = store
        self._paths = paths
        self._hint = HeadHint(store, paths.log_hint)
        self._known: dict[int, LogEntry] = {}
        self._first_sha256 = ""

    def read(
        self,
        *,
        completes: int = 1,
        restore: int | None = None,
        run_id: str = "",
        kept: bool = False,
        dropped: bool = False,
    ) -> LogView:
        """Reads the `completes` newest decisions, checkpoint `restore` if kept (with `dropped` also if dropped), and
        earlier runs' fences back to `run_id`; with `kept` also every kept decision and the hash of the first record.
        """
        wanted = _Wanted(completes, restore, dropped)
        for _ in range(_READINGS - 1):
            with contextlib.suppress(RecordGone):  # perhaps compacted meanwhile
                return self._read(wanted, run_id, kept)
        return self._read(wanted, run_id, kept)

    def _read(self, wanted: "_Wanted", run_id: str, kept: bool) -> LogView:
        reading = _Reading(self._store, self._paths.log_record, self._known)
        known = max(self._known, default=NO_RECORD)
        self._known = {}  # a failed reading is no basis for the next
        hint = self._hint.found() if known == NO_RECORD else NO_HINT
        if hint.position > known:
            first = hint.position - 1
            beginning = (FIRST_POSITION,) if kept else ()
            reading.fetch((*beginning, hint.token, *range(first, hint.position + READ_AHEAD)), READ_AHEAD + 3)
        at_once = side_by_side(self._store, READ_AHEAD)
        head_position = find_head(reading.exists, known, hint.position, at_once, reading.exists_now)
        view = _facts(reading, head_position, wanted, run_id, kept)
        self._known = reading.used
        self._first_sha256 = reading.first_sha256() or self._first_sha256
        return dataclasses.replace(view, first_sha256=self._first_sha256)


@dataclasses.dataclass(frozen=True)
class _Wanted:
    newest: int
    restore: int | None
    dropped: bool


class RecordGone(Corrupt):
    """A record that the log's head needs is missing."""


def is_behind(store: ObjectStore, paths: Paths, position: int) -> LogEntry | None:
    """Returns the next milestone, if any: the log then goes on beyond `position`.

    Call after the read or put of `position`: with a milestone, an empty position was compacted.
    """
    milestone = milestone_after(position)
    key = paths.log_record(milestone)
    data = get_or_none(store, key)
    return None if data is None else LogEntry(milestone, decode_record(key, data), sha256_hex(data))


def _facts(reader: "_Reading", head_position: int, wanted: _Wanted, run_id: str, all_kept: bool) -> LogView:
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
    restored_position, listed = fence.record.restored_position, _kept(fence, all_kept)
    if isinstance(head.record, Complete) or head.record.prior_complete > fence.position:
        listed = ()  # that decision lists what is kept, and the restored decision may be gone
        restored_position = restored_position if restored_position >= base_of(head.record) else NO_RECORD
    reader.fetch((restored_position, *listed, *_earlier(fence, run_id)))
    restored = None
    if restored_position != NO_RECORD:
        restored = reader.complete(restored_position)
    if is_discarded(head.record):
        return LogView(head, fence, (), None, reader.earlier_runs(fence, run_id))
    completes = reader.completes(head, fence, wanted)
    view = LogView(head, fence, completes, restored, reader.earlier_runs(fence, run_id))
    view = dataclasses.replace(view, visible=reader.visible(head, fence, completes))
    if not all_kept:
        return view
    read = {entry.position for entry in view.completes}
    other_kept = tuple(reader.complete(position) for position in view.kept or () if position not in read)
    return dataclasses.replace(view, other_kept=other_kept)


def _kept(entry: LogEntry, wanted: bool) -> tuple[int, ...]:
    return entry.record.kept if wanted and isinstance(entry.record, Fence | Complete) else ()


def _earlier(fence: LogEntry, run_id: str) -> tuple[int, ...]:
    record = fence.record
    return record.earlier if isinstance(record, Fence) and record.spec.run_id != run_id else ()


def _listed(fence: LogEntry, newest: LogEntry) -> tuple[int, ...] | None:
    listing = max(fence, newest, key=lambda each: each.position)
    return kept_after(listing.position, listing.record)


def _replaces(record: Fence, before: Fence) -> bool:
    return record.spec.run_id == before.spec.run_id and record.spec.program != before.spec.program


class _Reading:
    """Reads each position at most once. `used`: the records that the result needs."""

    def __init__(self, store: ObjectStore, key_of: Callable[[int], str], known: dict[int, LogEntry]) -> None:
        self._store = store
        self.key_of = key_of
        self.known = known
        self.used: dict[int, LogEntry] = {}
        self._found: dict[int, bytes] = {}
        self._absent: set[int] = set()

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

    def exists_now(self, position: int) -> bool:
        self._absent.discard(position)
        return self._bytes_at(position) is not None

    def _bytes_at(self, position: int) -> bytes | None:
        if position not in self._found:
            data = get_or_none(self._store, self.key_of(position))
            if data is None:
                return None
            self._found[position] = data
        return self._found[position]

    def first_sha256(self) -> str:
        """Hash of the log's first record; empty if unread or damaged."""
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
                raise RecordGone(
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

    def completes(self, head: LogEntry, fence: LogEntry, wanted: _Wanted) -> tuple[LogEntry, ...]:
        """Newest first. A list of kept decisions limits the search for `restore`."""
        decisions = self._backwards(head, fence)
        found = list(islice(decisions, wanted.newest))
        restore = wanted.restore
        if restore is None or not found or complete_of(found[-1]).checkpoint <= restore:
            return tuple(found)
        listed = _listed(fence, found[0])
        for position in sorted((each for each in listed or () if each < found[-1].position), reverse=True):
            entry = self.complete(position)
            if complete_of(entry).checkpoint == restore:
                return (*found, entry)
        if listed is None or wanted.dropped:
            for entry in decisions:
                found.append(entry)
                if complete_of(entry).checkpoint <= restore:
                    break
        return tuple(found)

    def _backwards(self, head: LogEntry, fence: LogEntry) -> Iterator[LogEntry]:
        """From the base on all decisions, below only kept decisions."""
        newest: LogEntry | None = None
        above = head.position + 1
        position = head.position if isinstance(head.record, Complete) else head.record.prior_complete
        base = base_of(head.record)
        while position != NO_RECORD:
            entry = self.complete(position)
            if entry.position >= above:
                raise Corrupt(f"log record {self.key_of(position)} links forward: the log was changed by hand")
            newest, above = newest or entry, entry.position
            yield entry
            position = entry.record.prior_complete
            if NO_RECORD < position < base:
                kept = _listed(fence, newest) or ()
                position = max((each for each in kept if each < entry.position), default=NO_RECORD)

    def visible(self, head: LogEntry, fence: LogEntry, completes: tuple[LogEntry, ...]) -> int:
        """Position of the newest decision, if a later record shows that all rows are visible.

        FINISH may say so, and a replace of the program begins so; a crash before the next decision would lose the fact.
        """
        now = fence.record
        if not completes or not isinstance(now, Fence) or now.restored_position != completes[0].position:
            return NO_RECORD
        newest, decided = completes[0], complete_of(completes[0])
        following = range(newest.position + 1, min(newest.position + _FOLLOWING, head.position) + 1)
        self.fetch((decided.token, *following))
        with contextlib.suppress(Corrupt):  # `fsck` reports the damage
            before = self.entry(decided.token).record
            for position in following:
                record = self.entry(position).record
                ends = isinstance(record, Finish) and record.shows(decided.checkpoint)
                if ends or (isinstance(record, Fence) and isinstance(before, Fence) and _replaces(record, before)):
                    return newest.position
        return NO_RECORD

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
