"""Carries out a delete: in order, and only while the permit still holds. Blocking; runs on a thread.

A permit is proof of a moment. Between that moment and the request lie a queue, perhaps a stalled process, and perhaps
a successor that keeps more than we did. So the log is asked once more before each request: a FENCE or LEAD behind the
permit's position means that somebody else leads, and nothing more is deleted (I7). That leaves the length of one
request; in it only objects go that no checkpoint kept by us can reach, under names that are never used again.
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
    """Delete `keys` in order: manifests one by one, files in large requests, never both in one. `check` is called
    before each request and raises when nothing more may be deleted.

    Returns why some are left, if so: leaks are allowed, the next sweep finds them. Trouble that may pass is borne for
    a few attempts; every other error is raised.
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
    """Raise `Fenced` if the log shows that the permit's holder leads no more."""
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
    """What goes with one request: inside it the order is the store's."""
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
