"""Calls of the store that are retried: an append to a log, and deletions in order. Blocking; on threads."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from barrier_runtime.coordinator.log.decision_log import Appended, DecisionLog, Foreign, Permit, ReadBack, Repeat
from barrier_runtime.coordinator.log.records import Fence, Lead, Record, decode_record
from barrier_runtime.state.errors import Fenced, Unavailable
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, get_or_none
from barrier_runtime.state.store.paths import Paths

_APPENDS = 12  # while the store does not answer: about six seconds
_DELETIONS = 5
_AT_ONCE = 500
_FIRST_S = 0.02
_LONGEST_S = 1.0


def backoff_s(attempt: int) -> float:
    """Returns seconds to wait after failed attempt number `attempt`: doubling, at most a second."""
    return min(_LONGEST_S, _FIRST_S * 2.0 ** min(attempt, 16))


def append_record(
    store: ObjectStore, job: str, log: DecisionLog, record: Record, sleep: Callable[[float], None]
) -> Appended | Foreign:
    """Appends `record` to `log`, that of `job`, in a process that is no coordinator.

    Raises `Unavailable` if the outcome stays unknown.
    """
    step = log.propose(record)
    key = Paths(job).log_record(step.position)
    for attempt in range(1, _APPENDS + 1):
        answer: Appended | Foreign | Repeat | ReadBack | None
        answer = log.on_put(step.position, _put(store, key, step.data))
        if isinstance(answer, ReadBack):
            answer = log.on_read_back(step.position, key, get_or_none(store, key))
        if isinstance(answer, Appended | Foreign):
            return answer
        sleep(backoff_s(attempt))
    raise Unavailable(
        f"job {job}: nobody knows whether {type(record).__name__.upper()} was appended at log position "
        f"{step.position} of {store.url}, which does not answer: do the same again when it does"
    )


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

    `check` raises before a request if nothing more may be deleted. Returns why some objects are left, if so: the next
    sweep finds them. Retryable errors are retried a few times; others are raised.
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


def check_permit(store: ObjectStore, paths: Paths, permit: Permit) -> None:
    """Raises `Fenced` if the log shows that the permit's holder leads no more (I7). Call before each deletion.

    A permit proves a moment; a queue or a stalled process may follow, and a successor that keeps more checkpoints. A
    race within a request remains: no checkpoint that this process keeps reaches these objects, and their names are
    never used again.
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


def _chunks(paths: Paths, keys: Iterable[str]) -> Iterator[list[str]]:
    """Yields the keys of each request, inside which the store chooses the order."""
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
