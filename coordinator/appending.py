"""Append of a record to a job's log by a process that is no coordinator. Blocking; used by one thread.

The put is repeated until the outcome is known.
"""

from collections.abc import Callable

from barrier_runtime.coordinator.backoff import backoff_s
from barrier_runtime.coordinator.log.decision_log import Appended, DecisionLog, Foreign, ReadBack, Repeat
from barrier_runtime.coordinator.log.records import Record
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, get_or_none
from barrier_runtime.state.store.paths import Paths

_ATTEMPTS = 12  # while the store does not answer: about six seconds


def append_record(
    store: ObjectStore, job: str, log: DecisionLog, record: Record, sleep: Callable[[float], None]
) -> Appended | Foreign:
    """Appends `record` to `log`, that of `job`. Raises `Unavailable` if the outcome stays unknown."""
    step = log.propose(record)
    key = Paths(job).log_record(step.position)
    for attempt in range(1, _ATTEMPTS + 1):
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
