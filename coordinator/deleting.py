"""Deletion of objects in order, only while the permit is valid. Blocking; runs on a thread.

A permit proves a moment. Between that moment and the request there may be a queue, a stalled process, and a successor
that keeps more checkpoints. So the log is read again before each request: a FENCE or LEAD after the permit's position
means that another process leads, and nothing more is deleted (I7). A race within one request remains; the objects of
that request are out of reach of all checkpoints that this process keeps, and their names are never used again.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from barrier_runtime.coordinator.backoff import backoff_s
from barrier_runtime.coordinator.log.decision_log import Permit
from barrier_runtime.coordinator.log.records import Fence, Lead, decode_record
from barrier_runtime.state.errors import Fenced, Unavailable
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.paths import Paths

_AT_ONCE = 500
_TRIES = 5


def delete_in_order(
    store: ObjectStore,
    paths: Paths,
    keys: Sequence[str],
    check: Callable[[], None],
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Deletes `keys` in order: manifests one by one, files in large requests, never both in one.

    `check` is called before each request and raises if nothing more may be deleted. Returns why some objects are left,
    if so: leaks are allowed, the next sweep finds them. Retryable errors are retried a few times; others are raised.
    """
    left = len(keys)
    for chunk in _chunks(paths, keys):
        for attempt in range(1, _TRIES + 1):
            try:
                check()
                store.delete(chunk)
                break
            except (Unavailable, OSError) as error:
                if attempt == _TRIES:
                    return f"{left} objects were left undeleted: {error}"
                sleep(backoff_s(attempt))
        left -= len(chunk)
    return ""


def check_permit(store: ObjectStore, paths: Paths, permit: Permit) -> None:
    """Raises `Fenced` if the log shows that the permit's holder does not lead any more."""
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
