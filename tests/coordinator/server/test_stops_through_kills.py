"""A job is to stop with a savepoint, and its coordinator, a real process, is killed at each request to the store that
this takes: before the request is carried out, or before its answer. Nobody asks again."""

import contextlib
import os
import signal
import threading
import uuid
from collections.abc import Iterator

import pytest
from coordinator_world import options, spec
from tcp_slot import TcpSlot

from barrier_runtime.coordinator.client.client import UnknownJob
from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from barrier_runtime.coordinator.client.rest_types import SavepointAsked
from barrier_runtime.coordinator.log.hashing import sha256_hex
from barrier_runtime.coordinator.log.records import FIRST_POSITION, Complete, Record, decode_record
from barrier_runtime.coordinator.savepoints.files import find_savepoint, missing_objects
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.messages import CheckpointComplete, EndSources, Shutdown, Start, Trigger
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.snapshots.snapshot import FileRef
from barrier_runtime.state.store.object_store import get_or_none
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.tools.savepoints import stop_with
from examples.servers.s3 import S3Server, known_to_clients
from tests.integration.chaos.store_proxy import Fault, ProxyControl, store_proxy
from tests.waiting import until

pytestmark = pytest.mark.slow

JOB = spec(
    checkpoints=options(interval_ms=3_600_000),
    slot_timeout_ms=300_000,
    reconnect_grace_ms=300_000,
    resume_timeout_ms=300_000,
)
PATHS = Paths(JOB.job)
CONTENT = b"what the job knows"

POINTS = {  # requests, as the proxy tells them apart
    "the wish": {"path": "/log/", "body": '"STOP"'},
    "the last manifest": {"path": "/checkpoints/"},
    "the last decision": {"path": "/log/", "body": '"COMPLETE"'},
    "a file of the savepoint": {"path": "/savepoints/", "body": ""},
    "savepoint.json": {"path": "/savepoint.json"},
    "the end": {"path": "/log/", "body": '"FINISH"'},
}
DRAINED = ("the wish", "the last decision", "savepoint.json")


@pytest.fixture(scope="module")
def proxy() -> Iterator[ProxyControl]:
    with contextlib.closing(S3Server()) as server:
        server.start()
        with known_to_clients(server), store_proxy(server.port) as control:
            yield control


class RealSlot(threading.Thread):
    """Does what it is asked for, whoever coordinates, until the job has ended."""

    def __init__(self, slot: TcpSlot, address: tuple[str, int], url: str) -> None:
        super().__init__(daemon=True)
        self._slot, self._address, self._store = slot, address, open_store(url)
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
            key = PATHS.data_file(slot.token, slot.uuid, str(message.checkpoint))
            self._store.put(key, CONTENT)
            slot.ack(message.checkpoint, state=FileRef("state", len(CONTENT), sha256_hex(CONTENT), key))
        elif isinstance(message, CheckpointComplete):
            slot.commit(message.checkpoint)
        elif isinstance(message, Shutdown):
            self.outcome = message.outcome


class Job:
    """One job with a store of its own, and a folder for its savepoint."""

    def __init__(self, proxy: ProxyControl, name: str) -> None:
        self.proxy = proxy
        at = f"s3://{S3Server.bucket}/{name}/%s?endpoint={proxy.endpoint}"
        self.url, self.savepoint = at % "jobs", at % "savepoints/last"
        self.coordinator = EmbeddedCoordinator(self.url)
        secret = bytes.fromhex(self.coordinator.submit(JOB).secret)
        slots = [TcpSlot(JOB.job, JOB.run_id, secret, index) for index in (0, 1)]
        self.slots = [RealSlot(each, self.coordinator.control_address, self.url) for each in slots]
        for each in self.slots:
            assert each.running.wait(120)
        self.client = self.coordinator.client
        self.client.trigger(JOB.job)
        self.until(lambda status: status.checkpoints.completed == 1 and not status.commits.troubles)

    def until(self, holds) -> JobStatus:
        def look() -> JobStatus | None:
            try:
                status = self.client.status(JOB.job)
            except (Unavailable, UnknownJob):  # the next process is starting
                return None
            return status if holds(status) else None

        return until(look, "what the job is to become", 120)

    def stop_and_kill(self, fault: str, point: str, mode: str) -> str:
        """When the request has come, or was carried out, the process that made it dies. The id of the wish."""
        asked = SavepointAsked(uuid.uuid4().hex, self.savepoint)
        before = getattr(self.proxy.counts(), fault)
        self.proxy.set(Fault(fault, method="PUT", **POINTS[point]))
        pid = self.coordinator.pid
        self.client.stop(JOB.job, mode, JOB.run_id, asked)
        until(lambda: getattr(self.proxy.counts(), fault) > before, "the request")
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.coordinator.pid != pid, "another process")
        self.proxy.set(Fault())
        return asked.id

    @property
    def log(self) -> list[Record]:
        store, records = open_store(self.url), []
        while (data := get_or_none(store, PATHS.log_record(FIRST_POSITION + len(records)))) is not None:
            records.append(decode_record("it", data))
        return records

    def close(self) -> None:
        self.proxy.set(Fault())
        self.coordinator.close()
        for each in self.slots:
            each.outcome = each.outcome or "closed"
            each.join(120)


@pytest.fixture
def job(proxy: ProxyControl) -> Iterator[Job]:
    with contextlib.closing(Job(proxy, uuid.uuid4().hex)) as job:
        yield job


_CASES = [(fault, point, "checkpoint") for point in POINTS for fault in ("hang", "hold")]
_CASES += [("hold", point, "drain") for point in DRAINED]


@pytest.mark.parametrize(("fault", "point", "mode"), [each for each in _CASES if each[:2] != ("hang", "the wish")])
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
    again = stop_with(job.client, JOB.job, job.savepoint, mode == "drain")
    assert (again.checkpoint, again.bytes) == (last.checkpoint, told.bytes)
    assert job.coordinator.restarts == 1


def test_a_wish_that_was_not_written_is_gone_and_the_job_runs(job: Job) -> None:
    job.stop_and_kill("hang", "the wish", "checkpoint")
    status = job.until(lambda status: status.phase == "running")
    assert (status.savepoints, find_savepoint(job.savepoint)) == ((), None)
    job.client.trigger(JOB.job)
    job.until(lambda status: status.checkpoints.completed == 2)
    job.client.stop(JOB.job, "now")
    job.until(lambda status: status.outcome == "cancelled")
