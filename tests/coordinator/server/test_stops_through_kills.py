"""Stops with a savepoint while the coordinator, a real process, is killed at each request to the store.

The kill happens before the request is executed, or before the answer. The stop is not requested again."""

import contextlib
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator

import pytest
from coordinator_world import options, spec
from tcp_slot import TcpSlot

from barrier_runtime.coordinator.client import embedded
from barrier_runtime.coordinator.client.client import UnknownJob
from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from barrier_runtime.coordinator.client.rest_types import SavepointAsked
from barrier_runtime.coordinator.log.records import FIRST_POSITION, Complete, Record, decode_record
from barrier_runtime.coordinator.savepoint_files import find_savepoint, missing_objects
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.messages import CheckpointComplete, EndSources, Shutdown, Start, Trigger
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.snapshots.snapshot import FileRef
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex
from barrier_runtime.tools.savepoints import stop_with
from tests.integration.chaos.store_proxy import Fault, ProxyControl, store_proxy
from tests.waiting import until

pytestmark = pytest.mark.slow

CONTENT = b"what the job knows"

POINTS = {  # requests, as the proxy tells them apart
    "the wish": {"path": "/log/", "body": '"STOP"'},
    "the last decision": {"path": "/log/", "body": '"COMPLETE"'},
    "a file of the savepoint": {"path": "/savepoints/", "body": ""},
    "savepoint.json": {"path": "/savepoint.json"},
    "the end": {"path": "/log/", "body": '"FINISH"'},
}
DRAINED = ("the wish", "the last decision", "savepoint.json")
BUCKET = "stops-through-kills"


@pytest.fixture(scope="module")
def proxy(s3_endpoint: str, make_bucket: Callable[[str], None]) -> Iterator[ProxyControl]:
    make_bucket(BUCKET)
    with store_proxy(int(s3_endpoint.rpartition(":")[2])) as control:
        yield control


@pytest.fixture(scope="module")
def coordinator(proxy: ProxyControl) -> Iterator[EmbeddedCoordinator]:
    """One coordinator for all jobs: each job kills the process once, and the next job uses the new process."""
    url = f"s3://{BUCKET}/{uuid.uuid4().hex}/jobs?endpoint={proxy.endpoint}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "_QUICK_DEATH_S", 0.0)  # no number of quick deaths ends the restarts
        with contextlib.closing(EmbeddedCoordinator(url)) as coordinator:
            yield coordinator


class RealSlot(threading.Thread):
    """Slot that executes requests of any coordinator until the job has ended."""

    def __init__(self, slot: TcpSlot, address: tuple[str, int], store: ObjectStore) -> None:
        super().__init__(daemon=True)
        self._slot, self._address, self._store = slot, address, store
        self.running = threading.Event()
        self.outcome = ""
        self.start()

    def run(self) -> None:
        while not self.outcome:
            try:
                self._slot.connect(self._address)
                if self._slot.drained:
                    self._slot.end()
                while not self.outcome:
                    self._answer(self._slot.receive())
            except OSError:
                self._slot.close()
        self._slot.close()

    def _answer(self, message: object) -> None:
        slot = self._slot
        if isinstance(message, Start):
            self.running.set()
        elif isinstance(message, EndSources):
            slot.end()
        elif isinstance(message, Trigger):
            key = Paths(slot.job).data_file(slot.token, slot.uuid, str(message.checkpoint))
            self._store.put(key, CONTENT)
            slot.ack(message.checkpoint, state=FileRef("state", len(CONTENT), sha256_hex(CONTENT), key))
        elif isinstance(message, CheckpointComplete):
            slot.commit(message.checkpoint)
        elif isinstance(message, Shutdown):
            self.outcome = message.outcome


class Job:
    def __init__(self, proxy: ProxyControl, coordinator: EmbeddedCoordinator) -> None:
        self.proxy, self.coordinator, self.client = proxy, coordinator, coordinator.client
        self.name = f"job-{uuid.uuid4().hex}"
        self.store = open_store(coordinator._storage_url)
        self.savepoint = f"s3://{BUCKET}/{self.name}/savepoints/last?endpoint={proxy.endpoint}"
        self.restarts = coordinator.restarts
        job = spec(
            job=self.name,
            checkpoints=options(interval_ms=3_600_000),
            slot_timeout_ms=300_000,
            reconnect_grace_ms=300_000,
            resume_timeout_ms=300_000,
        )
        self.run_id = job.run_id
        secret = bytes.fromhex(coordinator.submit(job).secret)
        slots = [TcpSlot(job.job, job.run_id, secret, index) for index in (0, 1)]
        self.slots = [RealSlot(each, coordinator.control_address, self.store) for each in slots]
        for each in self.slots:
            assert each.running.wait(120)
        self.client.trigger(self.name)
        self.until(lambda status: status.checkpoints.completed == 1 and not status.commits.troubles)

    def until(self, holds) -> JobStatus:
        def look() -> JobStatus | None:
            try:
                status = self.client.status(self.name)
            except (Unavailable, UnknownJob):  # the next process is starting
                return None
            return status if holds(status) else None

        return until(look, "what the job is to become", 120)

    def stop_and_kill(self, fault: str, point: str, mode: str) -> str:
        """Kills the coordinator when the request has arrived, or was executed; returns the savepoint's id."""
        asked = SavepointAsked(uuid.uuid4().hex, self.savepoint)
        before = getattr(self.proxy.counts(), fault)
        self.proxy.set(Fault(fault, method="PUT", **POINTS[point]))
        pid = self.coordinator.pid
        self.client.stop(self.name, mode, self.run_id, asked)
        until(lambda: getattr(self.proxy.counts(), fault) > before, "the request")
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.coordinator.pid != pid, "another process")
        self.proxy.set(Fault())
        return asked.id

    @property
    def log(self) -> list[Record]:
        records: list[Record] = []
        at = Paths(self.name).log_record
        while (data := get_or_none(self.store, at(FIRST_POSITION + len(records)))) is not None:
            records.append(decode_record("it", data))
        return records

    def close(self) -> None:
        self.proxy.set(Fault())
        self.coordinator._specs.clear()  # the next process serves the next job only
        for each in self.slots:
            each.outcome = each.outcome or "closed"
            each.join(120)


@pytest.fixture
def job(proxy: ProxyControl, coordinator: EmbeddedCoordinator) -> Iterator[Job]:
    with contextlib.closing(Job(proxy, coordinator)) as job:
        yield job


_CASES = [(fault, point, "checkpoint") for point in POINTS for fault in ("hang", "hold")]
_CASES += [("hold", point, "drain") for point in DRAINED]
_LEFT_OUT = [
    ("hang", "the wish"),  # the test below
]


@pytest.mark.parametrize(("fault", "point", "mode"), [each for each in _CASES if each[:2] not in _LEFT_OUT])
def test_the_job_ends_with_that_savepoint(job: Job, fault: str, point: str, mode: str) -> None:
    wish = job.stop_and_kill(fault, point, mode)
    status = job.until(lambda status: status.outcome is not None)
    assert (status.outcome, status.error) == ("finished" if mode == "drain" else "cancelled", None)
    savepoint = find_savepoint(job.savepoint)
    assert savepoint is not None
    last = [record for record in job.log if isinstance(record, Complete)][-1]
    assert (savepoint.id, savepoint.final, savepoint.taken.checkpoint) == (wish, True, last.checkpoint)
    assert missing_objects(job.savepoint, savepoint) == ()
    told = status.savepoints[-1]
    assert (told.id, told.state, told.checkpoint) == (wish, "done", last.checkpoint)
    again = stop_with(job.client, job.name, job.savepoint, mode == "drain")
    assert (again.checkpoint, again.bytes) == (last.checkpoint, told.bytes)
    assert job.coordinator.restarts == job.restarts + 1


def test_a_wish_that_was_not_written_is_gone_and_the_job_runs(job: Job) -> None:
    job.stop_and_kill("hang", "the wish", "checkpoint")
    status = job.until(lambda status: status.phase == "running")
    assert (status.savepoints, find_savepoint(job.savepoint)) == ((), None)
    job.client.trigger(job.name)
    job.until(lambda status: status.checkpoints.completed == 2)
    job.client.stop(job.name, "now")
    job.until(lambda status: status.outcome == "cancelled")
