"""Writer of a job's history and of the log's hint; the job never waits for a write.

Only the leader writes, without concurrent puts. To save requests (docs/design/store-requests.md), stored figures may be
five seconds old, or as many log records as the hint. Slots are stored at once: a successor has tasks of hanging slots
killed.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from barrier_runtime.coordinator.job.effects import JobEnded
from barrier_runtime.coordinator.job.events import HistoryTrouble
from barrier_runtime.coordinator.job.protocol import JobProtocol
from barrier_runtime.coordinator.log.reader import EVERY, HeadHint
from barrier_runtime.coordinator.log.records import NO_RECORD
from barrier_runtime.coordinator.server.store_effects import StoreThreads
from barrier_runtime.coordinator.status.history import KnownSlot, RunOutcome, encode_history
from barrier_runtime.coordinator.store_calls import backoff_s
from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.paths import Paths

log = logging.getLogger("coordinator.job")

_BETWEEN_S = 5.0
_LOOK_S = 0.5  # interval of checks whether the hint is due earlier
_TRIES = 3  # of a read, and of the last write: figures delay neither start nor end of a job


class HistoryWriter:
    def __init__(
        self,
        protocol: JobProtocol,
        store: ObjectStore,
        threads: StoreThreads,
        leads: Callable[[], bool],
        tell: Callable[[HistoryTrouble], None],
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        clock: Callable[[], int],
    ) -> None:
        """`leads`: whether this process leads the live job. `spawn` starts a task that ends with the job."""
        self._protocol = protocol
        self._store = store
        self._paths = Paths(protocol.spec.job)
        self._hint = HeadHint(store, self._paths.log_hint)
        self._threads = threads
        self._leads = leads
        self._tell = tell
        self._spawn = spawn
        self._clock = clock
        self._saving: asyncio.Task[None] | None = None
        self._saved_revision: object = None
        self._saved_slots: tuple[KnownSlot, ...] = ()
        self._rest: asyncio.Future[None] | None = None  # until the next put may begin

    async def read(self) -> tuple[bytes | None, str]:
        attempt = 0
        while True:
            try:
                return await self._threads.run(lambda: get_or_none(self._store, self._paths.history)), ""
            except (BarrierRuntimeError, OSError) as error:
                attempt += 1
                if attempt == _TRIES:
                    return None, f"history {self._paths.history} could not be read: {error}"
                await asyncio.sleep(backoff_s(attempt))

    def save(self) -> None:
        if not self._unsaved():
            return
        if self._saving is None:
            self._saving = self._spawn(self._write())
        elif self._rest is not None and self._protocol.known_slots != self._saved_slots:
            self._end_rest()

    async def close(self, end: JobEnded) -> None:
        if not self._protocol.has_led or end.outcome == "fenced" or end.outcome == "replaced":
            return
        if self._saving is not None:
            self._end_rest()
            await asyncio.wait([self._saving])
        for attempt in range(1, _TRIES + 1):
            head = self._protocol.next_position - (0 if self._protocol.undecided else 1)
            try:
                await self._put(RunOutcome(self._protocol.spec.run_id, end.outcome, end.reason, self._clock(), head))
                return
            except (BarrierRuntimeError, OSError) as error:
                log.warning("job %s: how it ended could not be written down: %s", self._protocol.spec.job, error)
                await asyncio.sleep(backoff_s(attempt))

    def _unsaved(self) -> bool:
        return self._saved_revision != self._protocol.history_revision and self._leads()

    async def _write(self) -> None:
        try:
            attempt = 0
            while self._unsaved():
                revision, slots = self._protocol.history_revision, self._protocol.known_slots
                try:
                    await self._put(None)
                    self._saved_revision, self._saved_slots, attempt = revision, slots, 0
                    await self._pause()
                except (Unavailable, OSError) as error:
                    attempt += 1
                    self._in_trouble(error, attempt)
                    await asyncio.sleep(backoff_s(attempt))
                except BarrierRuntimeError as error:  # a permanent error: the next change tries again
                    self._saved_revision = revision
                    self._in_trouble(error, 1)
        finally:
            self._saving = None

    async def _pause(self) -> None:
        if self._protocol.known_slots != self._saved_slots or not self._leads():
            return
        self._rest = asyncio.get_running_loop().create_future()
        position = self._protocol.next_position
        try:
            for _ in range(round(_BETWEEN_S / _LOOK_S)):
                await asyncio.wait([self._rest], timeout=_LOOK_S)
                if self._rest.done() or self._protocol.next_position >= position + EVERY or not self._leads():
                    return
        finally:
            self._rest = None

    def _end_rest(self) -> None:
        if self._rest is not None and not self._rest.done():
            self._rest.set_result(None)

    def _in_trouble(self, error: Exception, attempt: int) -> None:
        if attempt == 1:
            log.warning("job %s: its history could not be written: %s", self._protocol.spec.job, error)
            self._tell(HistoryTrouble(f"history could not be written ({type(error).__name__})"))

    async def _put(self, ended: RunOutcome | None) -> None:
        """Writes the history, unless the log's next record shows a successor, whose figures must stay."""
        following = self._protocol.next_position
        ours = self._protocol.undecided  # the record there may be this process's own
        token = self._protocol.token or NO_RECORD
        data = encode_history(self._protocol.history(ended))

        def put() -> None:
            if ours or get_or_none(self._store, self._paths.log_record(following)) is None:
                self._store.put(self._paths.history, data)
                self._hint.follow(following - 1, token)

        await self._threads.run(put)
