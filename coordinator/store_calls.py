"""Calls of the store that are retried: an append to a log, and deletions in order. Blocking."""

import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial

from barrier_runtime.coordinator.log.decision_log import Appended, DecisionLog, Foreign, Permit, ReadBack, Repeat
from barrier_runtime.coordinator.log.reader import is_behind
from barrier_runtime.coordinator.log.records import (
    FIRST_POSITION,
    NO_RECORD,
    Fence,
    Lead,
    Record,
    decode_record,
    is_milestone,
    may_go,
)
from barrier_runtime.state.errors import Corrupt, Fenced, Unavailable
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, get_or_none, side_by_side
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex

_APPENDS = 12  # about six seconds without an answer of the store
_DELETIONS = 5
_AT_ONCE = 500
_READ_AT_ONCE = 128
_PARALLEL = 8
_FIRST_S = 0.02
_LONGEST_S = 1.0


def backoff_s(attempt: int) -> float:
    return min(_LONGEST_S, _FIRST_S * 2.0 ** min(attempt, 16))


def append_record(
    store: ObjectStore, job: str, log: DecisionLog, record: Record, sleep: Callable[[float], None]
) -> Appended | Foreign:
    """Appends a record, in a process that is no coordinator.

    Raises `Unavailable` if the outcome stays unknown. The log must have been read a moment ago.
    """
    step = log.propose(record)
    key = Paths(job).log_record(step.position)
    takes_over = isinstance(record, Fence | Lead)  # before, another process may have written and compacted
    answer: Appended | Foreign | Repeat | ReadBack | None = None
    failure: Exception | None = None
    for attempt in range(1, _APPENDS + 1):
        try:
            if not isinstance(answer, Appended | Foreign):
                answer = log.on_put(step.position, _put(store, key, step.data))
            if isinstance(answer, ReadBack):
                answer = log.on_read_back(step.position, key, get_or_none(store, key))
            if isinstance(answer, Appended | Foreign):
                overtaken = is_behind(store, Paths(job), step.position) if takes_over else None
                return answer if overtaken is None else Foreign(overtaken)
        except (Unavailable, OSError) as error:
            failure = error
        sleep(backoff_s(attempt))
    raise Unavailable(
        f"job {job}: nobody knows whether {type(record).__name__.upper()} was appended at log position "
        f"{step.position} of {store.url}, which does not answer: do the same again when it does"
    ) from failure


def _put(store: ObjectStore, key: str, data: bytes) -> PutOutcome:
    try:
        return store.put_if_absent(key, data)
    except (Unavailable, OSError):
        return PutOutcome.UNKNOWN


def delete_in_order(
    store: ObjectStore,
    paths: Paths,
    keys: Sequence[str],
    check: Callable[[], None],
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Deletes `keys` in order: manifests singly, files in large requests, never both together.

    `check` raises before a request if nothing more may be deleted. Returns why some objects are left, if so. Retryable
    errors are retried a few times; others are raised.
    """
    left = len(keys)
    for chunk in _chunks(paths, keys):
        for attempt in range(1, _DELETIONS + 1):
            try:
                check()
                store.delete(chunk)
                break
            except (Unavailable, OSError) as error:
                if attempt == _DELETIONS:
                    return f"{left} objects were left undeleted: {error}"
                sleep(backoff_s(attempt))
        left -= len(chunk)
    return ""


def check_permit(store: ObjectStore, paths: Paths, permit: Permit, answered: int = NO_RECORD) -> None:
    """Raises `Fenced` if the log shows that the permit's holder leads no more (I7). Call before each deletion.

    A race within a request is harmless: nothing kept here reaches these objects, whose names are never used again.

    `answered`: highest position where a put of this process was answered; if a record up to there is missing, the log
    was compacted, and this process may be deposed.
    """
    position = permit.position + 1
    while (data := get_or_none(store, paths.log_record(position))) is not None:
        record = decode_record(paths.log_record(position), data)
        if isinstance(record, Fence | Lead):
            raise Fenced(
                f"job {paths.job}: {record.writer} leads it now with generation {record.token}; generation "
                f"{permit.token} deletes nothing more, what is left is swept by its successor"
            )
        position += 1
    if position <= answered:
        raise Fenced(
            f"job {paths.job}: log record {position} was compacted away since generation {permit.token} wrote it: "
            "nothing is deleted by this permit, what is left is swept later"
        )


def compact_log(
    store: ObjectStore,
    paths: Paths,
    base: int,
    kept: Container[int],
    first_sha256: str,
    known: set[int],
    ended: Callable[[], bool] = lambda: False,
) -> str:
    """Deletes records below `base` that nobody needs (`log/records`), perhaps for minutes.

    `kept`: positions that the record with that base, or a later one, lists as kept. `first_sha256`: of the log's first
    record; raises `Fenced` if the store has another, because a new log reuses positions. `known`: records that stay
    (FENCE, LEAD, unreadable) and are not read again; new ones are added. `ended`: asked before each request for
    records, ends the work. Returns why new unreadable records stay, if any.
    """
    found = (paths.log_position(each.key) for each in store.list(paths.log_prefix))
    due = sorted(each for each in found if each is not None and each < base and not is_milestone(each))
    due = [each for each in due if each not in known]
    read = partial(get_or_none, store)
    unreadable = []
    for start in range(0, len(due), _READ_AT_ONCE):
        if ended():
            break
        positions = due[start : start + _READ_AT_ONCE]
        keys = [paths.log_record(each) for each in positions]
        gone = []
        stored = in_parallel(read, keys, side_by_side(store, _PARALLEL))
        for position, key, data in zip(positions, keys, stored, strict=True):
            if data is None:
                continue
            try:
                record = decode_record(key, data)
            except Corrupt as error:  # perhaps a FENCE
                unreadable.append(str(error))
                known.add(position)
                continue
            if isinstance(record, Fence | Lead):
                known.add(position)
            if may_go(position, record, base, kept):
                gone.append(key)
        if gone:
            _check_same_log(store, paths, first_sha256)
            store.delete(gone)
    return f"{len(unreadable)} records stay: {unreadable[0]}" if unreadable else ""


def _check_same_log(store: ObjectStore, paths: Paths, first_sha256: str) -> None:
    key = paths.log_record(FIRST_POSITION)
    data = get_or_none(store, key)
    if data is None or sha256_hex(data) != first_sha256:
        raise Fenced(
            f"job {paths.job}: log record {key} is {'missing' if data is None else 'not the first record read'}: the "
            "job's folder was deleted meanwhile, or the record is damaged (restore it from a backup); compaction stops"
        )


def _chunks(paths: Paths, keys: Iterable[str]) -> Iterator[list[str]]:
    files: list[str] = []
    for key in keys:
        is_file = paths.checkpoint_of(key) is None
        if files and (not is_file or len(files) == _AT_ONCE):
            yield files
            files = []
        if is_file:
            files.append(key)
        else:
            yield [key]
    if files:
        yield files
