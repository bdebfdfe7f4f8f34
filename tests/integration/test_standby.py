"""Two coordinator daemons stand by for each other under a running Spark job: the stream does not stop when one dies."""

import os
import signal
from contextlib import contextmanager

import pytest
from arrival_times import Watched, wait_for_new_rows
from harness import JsonlSink, NumbersUntilEnough, count, enough, verdict
from test_operating import Daemon

from barrier_runtime.api.dataflow import Dataflow
from tests.waiting import until

pytestmark = pytest.mark.spark

LEASE_S = 20.0  # a busy machine alone does not take that long
RATE = 2_000
ROWS = 160_000
NEW = 5_000  # rows of each slot while nobody leads: for seconds
UNSTORED = 20  # history is stored every five seconds or eight records (`history_writer`): the newest may be missing


@contextmanager
def two_daemons(folder):
    started = []
    try:
        for name in ("first", "second"):
            started.append(Daemon(folder, name, ("--lease", str(LEASE_S))))
        yield started
    finally:
        for daemon in started:
            if daemon.running:
                os.kill(daemon.pid, signal.SIGCONT)
            daemon.kill()


def watched_counts(name, out):
    flow = Dataflow(name)
    numbers = flow.source("numbers", NumbersUntilEnough(RATE, ROWS, keys=200, out=str(out)))
    counts = numbers.key_by("key").aggregate("count", n=count())
    counts.map(Watched(out), name="watched").sink("out", JsonlSink(str(out)))
    return flow


def start(flow, spark, daemons):
    options = daemons[0].options() | {"coordinator": [daemon.url for daemon in daemons]}
    return flow.start(spark=spark, parallelism=2, checkpoint_interval=0.3, **options)


def running_with_checkpoints(handle, at_least):
    status = handle.status()
    return status.phase == "running" and status.checkpoints.completed >= at_least


def led_on(handle, before):
    """Another process leads, and checkpoints complete."""
    status = handle.status()
    return status.leader != before.leader and running_with_checkpoints(handle, before.checkpoints.completed + 1)


def check_went_on(before, after):
    """Checks that generation and processes are the same, and history and counters are continuous."""
    assert after.token == before.token
    assert after.generations == before.generations == 1
    assert {slot.uuid for slot in after.slots} == {slot.uuid for slot in before.slots}
    known = {each.checkpoint: each for each in after.checkpoints.history}
    for each in before.checkpoints.history[:-UNSTORED]:
        assert known[each.checkpoint].triggered_ms == each.triggered_ms
    assert after.checkpoints.last_completed.checkpoint > before.checkpoints.last_completed.checkpoint
    assert after.checkpoints.triggered >= after.checkpoints.completed > before.checkpoints.completed


@contextmanager
def no_other_leader(daemon):
    """The daemon does not take over in the meantime, however long that is."""
    os.kill(daemon.pid, signal.SIGSTOP)
    yield
    os.kill(daemon.pid, signal.SIGCONT)


def test_a_killed_leader_is_followed_and_rows_flow_while_nobody_leads(spark, tmp_path):
    """F6, F8, F9: SIGKILL; the stream does not stop; then the standby leads, and slots reconnect."""
    out = tmp_path / "out"
    with two_daemons(tmp_path) as daemons, start(watched_counts("standby-kill", out), spark, daemons) as handle:
        until(lambda: running_with_checkpoints(handle, UNSTORED + 5), "checkpoints completed")
        before = handle.status()
        with no_other_leader(daemons[1]):
            daemons[0].kill()
            wait_for_new_rows(out, [slot.pid for slot in before.slots], NEW)
        until(lambda: led_on(handle, before), "the standby leads")
        after = handle.status()
        enough(out)
        result = handle.wait(180)
    check_went_on(before, after)
    assert result.records == ROWS
    assert verdict(out, ROWS).right, verdict(out, ROWS)


def test_a_stopped_leader_is_followed_and_when_it_wakes_up_the_log_ends_it(spark, tmp_path):
    """F6, Z8: SIGSTOP, takeover, SIGCONT: one log; the old leader names the successor, the job is not affected."""
    out = tmp_path / "out"
    with two_daemons(tmp_path) as daemons, start(watched_counts("standby-stop", out), spark, daemons) as handle:
        until(lambda: running_with_checkpoints(handle, UNSTORED + 5), "checkpoints completed")
        before = handle.status()
        with no_other_leader(daemons[1]):
            os.kill(daemons[0].pid, signal.SIGSTOP)
            wait_for_new_rows(out, [slot.pid for slot in before.slots], NEW)
        until(lambda: led_on(handle, before), "the standby leads")
        after = handle.status()
        os.kill(daemons[0].pid, signal.SIGCONT)
        until(
            lambda: "leads job standby-stop now with generation" in daemons[0].log_path.read_text(), "the zombie stops"
        )
        resumed = handle.status()
        assert resumed.leader == after.leader
        assert resumed.token == before.token
        enough(out)
        handle.wait(180)
    check_went_on(before, after)
    assert verdict(out, ROWS).right, verdict(out, ROWS)
