"""Generation without slots, to resolve a dead job's transactions by hand. Blocking; for a single thread.

The resolution begins with a FENCE: an unnoticed leader of the job loses the next append; if another process was faster,
nothing is resolved. A later start of the job restores the same checkpoint as before. A death before
FINISH changes only texts.
"""

import time
from collections.abc import Callable

import msgspec

from barrier_runtime.coordinator.log.decision_log import Appended, DecisionLog, Foreign, LogView
from barrier_runtime.coordinator.log.record_builder import Identity, RecordBuilder
from barrier_runtime.coordinator.log.records import Fence, Record
from barrier_runtime.coordinator.log.restore_choice import continue_run
from barrier_runtime.coordinator.store_calls import append_record
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.object_store import ObjectStore


class InDoubtResolution:
    """`view`: the log as read, not empty. `leader`: unique to this process. `host`, `submitter`: for people."""

    def __init__(
        self,
        store: ObjectStore,
        view: LogView,
        *,
        leader: str,
        host: str,
        submitter: str,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        assert view.fence is not None, "a log that has no generation has nothing to settle"
        assert isinstance(view.fence.record, Fence)
        spec = msgspec.structs.replace(view.fence.record.spec, run_id=leader, submitter=submitter)
        self._name = spec.job
        self._records = RecordBuilder(spec, Identity(leader, host))
        self._log = DecisionLog(spec.job, view)
        self._ended = self._log.finish
        self._store = store
        self._sleep = sleep

    def begin(self) -> int:
        """Raises `InvalidJob` if another process has the log's next record, `Unavailable` if that is unknown."""
        log = self._log
        fence = self._records.fence(log, continue_run(log), "its transactions are settled by hand", 0, _now_ms())
        appended = self._append(fence)
        if isinstance(appended, Foreign):
            found = appended.entry.record
            raise InvalidJob(
                f"job {self._name} runs, or was started just now: log record {appended.entry.position} is a "
                f"{type(found).__name__.upper()} of {found.writer}. Nothing was settled: it settles its transactions "
                "itself; stop it first"
            )
        return appended.permit.token

    def finish(self, how: str) -> None:
        """Appends FINISH: the end that the job had before, or the resolution (`how`).

        Does nothing if the job was started.
        """
        if self._ended is not None:
            outcome, reason, visible = self._ended.outcome, self._ended.reason, self._ended.visible or 0
        else:
            outcome, reason, visible = "cancelled", how, 0
        self._append(self._records.finish(self._log, outcome, _now_ms(), reason=reason, visible=visible))

    def _append(self, record: Record) -> Appended | Foreign:
        return append_record(self._store, self._name, self._log, record, self._sleep)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
