"""Which login links were used, in the store: each opens once in all, whichever daemons are asked or were killed.

| the store says of the note | the link |
|---|---|
| created | logs in: it was not used before |
| exists | opens nothing |
| unknown, or does not answer | opens nothing: it may be used now; the next try tells, or another link |

Only links that we signed get here, so strangers write nothing. Notes of links that are over long ago are deleted with
each new one: a job's storage keeps the notes of two hours at most, a few bytes each.
"""

import logging

from barrier_runtime.coordinator.server.web.sessions import LINK_MS
from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome

log = logging.getLogger("coordinator.page")

PREFIX = "_logins/"


def use(store: ObjectStore, mark: str, now_ms: int) -> bool:
    """False: it was used before. Blocks. Raises `Unavailable` when the store does not say."""
    try:
        outcome = store.put_if_absent(f"{PREFIX}{mark}", b"used")
    except OSError as error:
        raise Unavailable(f"the storage does not answer: {error}") from error
    if outcome is PutOutcome.UNKNOWN:
        raise Unavailable("the storage does not say whether this link was used")
    if outcome is PutOutcome.CREATED:
        _forget(store, now_ms)
    return outcome is PutOutcome.CREATED


def _forget(store: ObjectStore, now_ms: int) -> None:
    """Notes of links that were over an hour ago: no clock of a daemon is so far behind."""
    try:
        over = [info.key for info in store.list(PREFIX) if _ends_ms(info.key) + LINK_MS < now_ms]
        if over:
            store.delete(over)
    except (BarrierRuntimeError, OSError) as error:  # the next login tries again
        log.info("notes of old login links stay for now: %s", error)


def _ends_ms(key: str) -> int:
    ends = key.removeprefix(PREFIX).partition("-")[0]
    return int(ends) if ends.isdecimal() else 0
