"""Writes FINISH (failed) to the log of a broken job, so that no other daemon adopts the job. Blocking.

Nothing is written if another FENCE or LEAD follows this process's record: that writer owns the job. Each attempt reads
the log anew, because the facts of the broken job may be wrong; so FINISH takes the position of an append without an
answer, or the next, and a FINISH whose answer was lost is found. If all attempts fail, the log is damaged, or the
process dies, the next daemon breaks again, and writes then.
"""

from collections.abc import Callable

from barrier_runtime.coordinator.log.compaction import base_of
from barrier_runtime.coordinator.log.decision_log import DecisionLog, LogView
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.record_builder import Identity, RecordBuilder
from barrier_runtime.coordinator.log.records import Fence, Finish, Lead, decode_record
from barrier_runtime.coordinator.store_calls import backoff_s
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, Unavailable
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, get_or_none
from barrier_runtime.state.store.paths import Paths

_ATTEMPTS = 6  # about three seconds
_MAX_REASON = 20_000  # characters


def write_end(
    store: ObjectStore,
    spec: JobSpec,
    identity: Identity,
    led_at: int,
    reason: str,
    wall_ms: int,
    sleep: Callable[[float], None],
) -> str:
    """Returns why the log lacks FINISH, or "". `led_at`: position of a record by which this process led."""
    why = ""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            why = _attempt(store, spec, identity, led_at, reason, wall_ms)
            if why is not _AGAIN:
                return why
        except (Unavailable, OSError) as error:
            why = str(error)
        except BarrierRuntimeError as error:  # the log itself is damaged
            return str(error)
        sleep(backoff_s(attempt))
    return why


_AGAIN = "the log's head moved on each time"


def _attempt(store: ObjectStore, spec: JobSpec, identity: Identity, led_at: int, reason: str, wall_ms: int) -> str:
    paths = Paths(spec.job)
    view = read_log(store, paths, run_id=spec.run_id)
    other = _other_leader(store, paths, view, identity, led_at)
    if other:
        return other
    assert view.head is not None, "who led has written a record"
    if isinstance(view.head.record, Finish):
        return ""
    log = DecisionLog(spec.job, view)
    records = RecordBuilder(spec, Identity(f"{identity.leader}-end", identity.host))
    step = log.propose(records.finish(log, "failed", wall_ms, reason=reason[-_MAX_REASON:]))
    outcome = store.put_if_absent(paths.log_record(step.position), step.data)
    return "" if outcome is PutOutcome.CREATED else _AGAIN


def _other_leader(store: ObjectStore, paths: Paths, view: LogView, identity: Identity, led_at: int) -> str:
    if view.head is None or view.head.position < led_at:
        raise Corrupt(f"log record {paths.log_record(led_at)} is gone: restore it from a backup of the store")
    for position in range(led_at + 1, view.head.position + 1):
        key = paths.log_record(position)
        data = get_or_none(store, key)
        if data is None and position < base_of(view.head.record):
            continue  # compacted away, so neither FENCE nor LEAD
        record = decode_record(key, data or b"")
        if isinstance(record, Fence | Lead) and not record.put_id.startswith(f"{identity.leader}-"):
            return f"{record.writer} leads it now with generation {record.token}"
    return ""
