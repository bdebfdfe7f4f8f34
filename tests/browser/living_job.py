"""A job for the pages of a browser: a real coordinator process, and slots played over real TCP.

Slots acknowledge every trigger and commit complete checkpoints, until a test changes that (`decline`, `hold_commits`).
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from coordinator_world import options, spec
from tcp_slot import TcpSlot

from barrier_runtime.coordinator.client.client import UnknownJob
from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from barrier_runtime.coordinator.status.history import History, decode_history
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.messages import (
    AskSlot,
    CheckpointComplete,
    CommitFailing,
    Decline,
    Heartbeat,
    HeldBack,
    JobSpec,
    Shutdown,
    SlotAnswer,
    SubtaskId,
    ToCoordinator,
    Trigger,
)
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.paths import Paths
from tests.waiting import until

JOB = spec(
    checkpoints=options(interval_ms=400, tolerable_failures=1_000),
    resume_timeout_ms=20_000,
    slot_timeout_ms=20_000,
)


ANSWERS = {
    "log": ("2026-01-01 00:00:00.000Z WARNING app: <b>older</b>", "2026-01-01 00:00:01.000Z ERROR app: newer\n  at x"),
    "rows": ('{"n": 7, "name": "<i>row</i>"}',),
    "stacks": ('MainThread: 10 of 10 samples\n  File "app.py", line 3, in f',),
}


class _Slot(TcpSlot):
    """A slot with two sending threads: the first answers, the second reports figures."""

    answers = True

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._speaking = threading.RLock()

    def say(self, message: ToCoordinator) -> None:
        with self._speaking:
            super().say(message)

    def _try_connect(self, address: tuple[str, int]) -> None:
        with self._speaking:
            super()._try_connect(address)


class LivingJob:
    def __init__(self, coordinator: EmbeddedCoordinator, folder: Path, job: JobSpec = JOB) -> None:
        self._folder = folder
        self.coordinator = coordinator
        self.spec = job
        secret = bytes.fromhex(coordinator.submit(job).secret)
        self.decline = ""  # why slot 1 refuses checkpoints
        self.hold_commits = False
        self.commit_error = ""  # of slot 0, which reports the failure once and stops committing
        self._told_commit_error = False
        self.records = 1_000
        self.answers = dict(ANSWERS)  # to questions; a slot is silent without one
        self.sources: dict[str, HeldBack] = {}  # event time, as slots report it
        self.ended = threading.Event()
        self._slots = [_Slot(JOB.job, JOB.run_id, secret, index) for index in (0, 1)]
        self._threads = [threading.Thread(target=self._answer, args=(slot,), daemon=True) for slot in self._slots]
        self._threads.append(threading.Thread(target=self._tell, daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def status(self) -> JobStatus:
        return self.coordinator.client.status(JOB.job)

    def stored_history(self) -> History:
        data = LocalStore.existing(self._folder / "store").get(Paths(JOB.job).history)
        return decode_history("history", data)

    def until_completed(self, count: int) -> JobStatus:
        def completed() -> JobStatus | None:
            try:
                now = self.status
            except (UnknownJob, Unavailable):  # a restarted coordinator is starting, or has not heard of a slot yet
                return None
            return now if now.checkpoints.completed >= count else None

        return until(completed, f"{count} checkpoints")

    def close(self) -> None:
        self.ended.set()
        for slot in self._slots:
            slot.close()
        for thread in self._threads:
            thread.join(30)

    def _answer(self, slot: _Slot) -> None:
        with contextlib.suppress(OSError):  # closed by the test that ends
            slot.connect(self.coordinator.control_address)
            while not self.ended.is_set():
                try:
                    message = slot.receive()
                except OSError:
                    if not self.ended.wait(0.02):
                        slot.connect(self.coordinator.control_address)
                    continue
                if isinstance(message, Shutdown):
                    return
                if isinstance(message, Trigger):
                    self._on_trigger(slot, message.checkpoint)
                elif isinstance(message, CheckpointComplete):
                    self._on_complete(slot, message.checkpoint)
                elif isinstance(message, AskSlot) and message.subject in self.answers:
                    slot.say(SlotAnswer(message.number, self.answers[message.subject]))

    def _on_trigger(self, slot: _Slot, checkpoint: int) -> None:
        if self.decline and slot.index == 1:
            slot.say(Decline(slot.token, checkpoint, SubtaskId(1, 1), self.decline))
        else:
            slot.ack(checkpoint)

    def _on_complete(self, slot: _Slot, checkpoint: int) -> None:
        if self.commit_error and slot.index == 0:
            if not self._told_commit_error:
                slot.say(CommitFailing(slot.token, checkpoint, "out", 0, 1, self.commit_error))
            self._told_commit_error = True
        elif not self.hold_commits:
            slot.commit(checkpoint)

    def _tell(self) -> None:
        while not self.ended.wait(0.1):
            for slot in self._slots:
                if slot.phase == "running":
                    with contextlib.suppress(OSError):  # closed: the next slot reports
                        figures = {"records": float(self.records), "rss_bytes": 2e8}
                        slot.say(Heartbeat(slot.token, figures, sources=self.sources))


@contextlib.contextmanager
def living_job(folder: Path, job: JobSpec = JOB) -> Iterator[LivingJob]:
    with EmbeddedCoordinator(str(folder / "store")) as coordinator:
        running = LivingJob(coordinator, folder, job)
        try:
            running.until_completed(3)
            yield running
        finally:
            running.close()
