"""Two coordinator daemons stand by for each other under a running Spark job: the stream does not stop when one dies."""

import os
import signal
import time
from contextlib import contextmanager

import pytest
from arrival_times import latency_between, stamped
from harness import JsonlSink, NumbersUntilEnough, count, enough, verdict
from test_operating import Daemon

from barrier_runtime.api.dataflow import Dataflow
from tests.waiting import until

pytestmark = pytest.mark.spark

LEASE_S = 20.0  # the stream must not stop for half of the lease, which a busy machine alone does not take
RATE = 2_000
ROWS = 160_000
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


def stamped_counts(name, out):
    flow = Dataflow(name)
    numbers = flow.source("numbers", NumbersUntilEnough(RATE, ROWS, keys=200, out=str(out)))
    numbers.key_by("key").aggregate("count", n=count()).map(stamped).sink("out", JsonlSink(str(out)))
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


def test_a_killed_leader_is_followed_within_its_lease_and_the_stream_does_not_stop(spark, tmp_path):
    """F6, F8, F9: SIGKILL; the standby leads, slots reconnect, and rows keep flowing in between."""
    out = tmp_path / "out"
    with two_daemons(tmp_path) as daemons, start(stamped_counts("standby-kill", out), spark, daemons) as handle:
        until(lambda: running_with_checkpoints(handle, UNSTORED + 5), "checkpoints completed")
        before, began = handle.status(), time.time()
        daemons[0].kill()
        until(lambda: led_on(handle, before), "the standby leads")
        after, ended = handle.status(), time.time()
        enough(out)
        result = handle.wait(180)
    check_went_on(before, after)
    assert result.records == ROWS
    assert verdict(out, ROWS).right, verdict(out, ROWS)
    across = latency_between(out, began, ended)
    print(f"\nleader killed; led again with a completed checkpoint after {ended - began:.1f} s; meanwhile {across}")
    assert ended - began >= LEASE_S / 2, "the lease was not waited for"
    assert across.longest_gap_ms < LEASE_S * 1000 / 2, across


def test_a_stopped_leader_is_followed_and_when_it_wakes_up_the_log_ends_it(spark, tmp_path):
    """F6, Z8: SIGSTOP, takeover, SIGCONT: one log; the old leader names its successor, the job is not affected."""
    out = tmp_path / "out"
    with two_daemons(tmp_path) as daemons, start(stamped_counts("standby-stop", out), spark, daemons) as handle:
        until(lambda: running_with_checkpoints(handle, UNSTORED + 5), "checkpoints completed")
        before, began = handle.status(), time.time()
        os.kill(daemons[0].pid, signal.SIGSTOP)
        until(lambda: led_on(handle, before), "the standby leads")
        after, ended = handle.status(), time.time()
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
    across = latency_between(out, began, ended)
    print(f"\nleader stopped; led again with a completed checkpoint after {ended - began:.1f} s; meanwhile {across}")
    assert across.longest_gap_ms < LEASE_S * 1000 / 2, across
