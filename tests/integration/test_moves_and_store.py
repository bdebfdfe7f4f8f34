"""A job on Spark that is rescaled and replaced while the object store returns errors or does not answer.

The test triggers each checkpoint, so each fault meets exactly the intended requests.
"""

import contextlib
import threading

import pytest
from harness import noisy_flow, verdict

from barrier_runtime.launch.requests import RescaleFailed
from examples.servers.s3 import S3Server, known_to_clients
from tests.integration.chaos.store_proxy import Fault, ProxyControl, store_proxy
from tests.waiting import until

pytestmark = pytest.mark.spark

RATE, KEYS = 2_000, 20_000
FILES = 40_000  # bytes of state that are stored as files, and not in the manifest
NEVER_S = 3_600.0
PATIENT = {"timeout": 600.0}  # limit of successful steps, even where a slot takes a minute to start
FETCH = {"method": "GET", "path": "/data/"}
DECISION = {"method": "PUT", "path": "/log/", "body": '"COMPLETE"'}
FENCE = {"method": "PUT", "path": "/log/", "body": '"FENCE"'}


@pytest.fixture
def proxy(spark, monkeypatch):
    """Between the job and an S3 server. Slots find their credentials in the environment of Python workers, which Spark
    takes from the JVM; the JVM is older than this server.
    """
    with contextlib.closing(S3Server()) as server:
        server.start()
        with known_to_clients(server), store_proxy(server.port) as control:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                monkeypatch.setitem(spark.sparkContext.environment, name, "test")
            yield control


class Asked(threading.Thread):
    """A change of the job, and the result."""

    def __init__(self, change, *given, **more):
        super().__init__(daemon=True)
        self._change = lambda: change(*given, **more)
        self.error = None
        self.start()

    def run(self):
        try:
            self._change()
        except Exception as error:
            self.error = error

    def done(self):
        self.join(700)
        assert not self.is_alive(), "neither done nor refused"
        if self.error is not None:
            raise self.error


class Troubled:
    """A job with a faulty store."""

    def __init__(self, handle, proxy: ProxyControl):
        self.handle, self.proxy = handle, proxy

    @property
    def hits(self):
        """Requests that were answered with an error, or not at all."""
        counts = self.proxy.counts()
        return counts.error + counts.hang

    def checkpoint(self):
        done = self.completed
        self.handle.trigger_checkpoint()
        until(lambda: self.completed > done, "a checkpoint completed")
        return self.handle.status().checkpoints.last_completed

    @property
    def completed(self):
        return self.handle.status().checkpoints.completed

    @contextlib.contextmanager
    def trouble(self, kind, where):
        """Spoils requests until three have got an error, or one has got no answer."""
        enough = self.hits + (3 if kind == "error" else 1)
        self.proxy.set(Fault(kind, **where))
        try:
            yield
            until(lambda: self.hits >= enough, f"{kind} of {where}")
        finally:
            self.proxy.set(Fault())

    def waits_for(self, what):
        def seen():
            status = self.handle.status()
            return status.condition == "WAITING_STORE" and what in status.condition_reason

        until(seen, f"the status tells of {what}")


@contextlib.contextmanager
def troubled(spark, proxy, out):
    """A job of one slot whose state is large enough to be fetched from the store."""
    where = f"s3://{S3Server.bucket}/jobs?endpoint={proxy.endpoint}"
    options = {"parallelism": 1, "checkpoint_interval": NEVER_S}
    with noisy_flow("troubled", out, RATE, KEYS).start(spark=spark, checkpoints=where, **options) as handle:
        job = Troubled(handle, proxy)
        until(lambda: handle.status().phase == "running", "the job runs")
        until(lambda: job.checkpoint().state_bytes["count"] > FILES, "there are files to fetch")
        yield job


@pytest.mark.long(40)
@pytest.mark.timeout(1800)
def test_a_job_moves_or_stays_though_its_store_answers_errors_or_nothing(spark, proxy, tmp_path):
    """1.15: faults at the fetch of the new slots, the decision for the last checkpoint, FENCE, and the next checkpoint.
    The change is given up if new slots cannot fetch; the job waits out the other faults, and reports them.
    """
    out = tmp_path / "out"
    again = noisy_flow("troubled", out, RATE, KEYS)
    with troubled(spark, proxy, out) as job:
        token = job.handle.status().token
        states, timeout = [], 4
        with job.trouble("hang", FETCH):
            hits = job.hits
            while job.hits == hits:  # a slow machine needs longer than that to start a slot at all
                with pytest.raises(RescaleFailed, match="goes on with 1 slot and not with 2"):
                    job.handle.rescale(2, timeout=timeout)
                states, timeout = [*states, "failed"], timeout * 4
            assert "did not fetch their key groups" in job.handle.status().rescales[-1].error
        assert job.checkpoint().token == token, "the job has not noticed"
        with job.trouble("error", FETCH):
            moves = Asked(job.handle.rescale, 2, **PATIENT)
        moves.done()
        with job.trouble("error", DECISION):
            first = Asked(job.checkpoint)
        first.done()
        with job.trouble("hang", FENCE):
            moves = Asked(job.handle.rescale, 1, **PATIENT)
            job.waits_for("append troubled/log/")
        moves.done()
        with job.trouble("hang", DECISION):
            first = Asked(job.checkpoint)
            job.waits_for("append troubled/log/")
        first.done()
        with job.trouble("error", FENCE):
            moves = Asked(job.handle.replace, again, **PATIENT)
            job.waits_for("append troubled/log/")
        moves.done()
        with job.trouble("hang", DECISION):
            moves = Asked(job.handle.rescale, 2, **PATIENT)
            job.waits_for("append troubled/log/")
        moves.done()
        with job.trouble("error", DECISION):
            moves = Asked(job.handle.rescale, 1, **PATIENT)
        moves.done()
        job.handle.stop()
        status = job.handle.wait(180).status
    assert verdict(out).right, verdict(out)
    states += ["done"] * 5
    assert [each.state for each in status.rescales] == states
    assert status.generations == 1 + states.count("done"), "none began but by the moves that were done"
