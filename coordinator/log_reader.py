"""Reading a job's log: find the head, then only the records that the facts are derived from.

Positions are contiguous and immutable, so the head is found by galloping and bisecting over `get` (about 2·log2(n)
reads); LIST is never asked. Back links lead to everything else. Blocking; no clock, no retry: trouble is raised.
"""

from collections.abc import Callable

from coordinator.decision_log import LogEntry, LogView
from coordinator.hashing import sha256_hex
from coordinator.log_records import FIRST_POSITION, NO_RECORD, Complete, Fence, Finish, decode_record
from state.errors import Corrupt
from state.object_store import ObjectNotFound, ObjectStore

MAX_RUNS_BACK = 64  # a run that was taken over longer ago than this counts as unknown

ReadPosition = Callable[[int], bytes | None]


def find_head(exists: Callable[[int], bool]) -> int:
    """The highest existing position of a contiguous log, or `NO_RECORD`."""
    if not exists(FIRST_POSITION):
        return NO_RECORD
    low, step = FIRST_POSITION, 1
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
    store: ObjectStore, key_of: Callable[[int], str], *, completes: int, restore: int | None, run_id: str
) -> LogView:
    """The facts of the log: `completes` newest decisions (and back to checkpoint `restore` if it is asked for), and
    the earlier runs' fences back to `run_id`. Raises `Corrupt` for an unreadable or inconsistent log."""
    reader = _Reader(store, key_of)
    head_position = find_head(lambda position: reader.bytes_at(position) is not None)
    if head_position == NO_RECORD:
        return LogView()
    head = reader.entry(head_position)
    if head_position > FIRST_POSITION:
        reader.check_parent(head)
    fence = reader.entry(head.record.token)
    if not isinstance(fence.record, Fence) or fence.record.token != fence.position:
        raise Corrupt(
            f"log record {key_of(fence.position)} should be the FENCE of generation {head.record.token} and is "
            f"{type(fence.record).__name__}: the log was changed by hand; restore it from a backup of the store"
        )
    restored = None
    if fence.record.restored_position != NO_RECORD:
        restored = reader.complete(fence.record.restored_position)
    if isinstance(head.record, Finish) and head.record.discarded:
        return LogView(head, fence, (), None, reader.earlier_runs(fence, run_id))
    return LogView(
        head, fence, reader.completes(head, completes, restore), restored, reader.earlier_runs(fence, run_id)
    )


class _Reader:
    """Reads each position at most once."""

    def __init__(self, store: ObjectStore, key_of: Callable[[int], str]) -> None:
        self._store = store
        self._key_of = key_of
        self._found: dict[int, bytes] = {}

    def bytes_at(self, position: int) -> bytes | None:
        if position not in self._found:
            try:
                self._found[position] = self._store.get(self._key_of(position))
            except ObjectNotFound:
                return None
        return self._found[position]

    def entry(self, position: int) -> LogEntry:
        key = self._key_of(position)
        data = self.bytes_at(position)
        if data is None:
            raise Corrupt(f"log record {key} is missing below the log's head: restore it from a backup of the store")
        return LogEntry(position, decode_record(key, data), sha256_hex(data))

    def complete(self, position: int) -> LogEntry:
        entry = self.entry(position)
        if not isinstance(entry.record, Complete):
            raise Corrupt(
                f"log record {self._key_of(position)} should be a COMPLETE and is {type(entry.record).__name__}: "
                "the log was changed by hand; restore it from a backup of the store"
            )
        return entry

    def check_parent(self, entry: LogEntry) -> None:
        parent = self.entry(entry.position - 1)
        if parent.sha256 != entry.record.parent_sha256:
            raise Corrupt(
                f"log record {self._key_of(parent.position)} is damaged: expected sha256 {entry.record.parent_sha256}, "
                f"found {parent.sha256}: restore it from a backup of the store"
            )

    def completes(self, head: LogEntry, wanted: int, restore: int | None) -> tuple[LogEntry, ...]:
        found: list[LogEntry] = []
        position = head.position if isinstance(head.record, Complete) else head.record.prior_complete
        while position != NO_RECORD:
            entry = self.complete(position)
            assert isinstance(entry.record, Complete)
            if found and entry.position >= found[-1].position:
                raise Corrupt(f"log record {self._key_of(position)} links forward: the log was changed by hand")
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
