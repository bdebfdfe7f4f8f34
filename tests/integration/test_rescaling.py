"""A job on Spark whose parallelism changes while the job runs: cores, tasks, kills, and the output."""

import contextlib
import itertools
import threading

import psutil
import pytest
from harness import counting_flow, enough, kill, verdict

from barrier_runtime.launch.requests import RescaleFailed
from barrier_runtime.tools.rescaling import rescale
from tests.waiting import until

pytestmark = pytest.mark.spark

RATE = 250  # two minutes for the strikes; then all remaining rows come at once


def start(spark, out, tmp_path, rows, **options):
    flow = counting_flow("rescaled", out, rows, RATE)
    options = {"parallelism": 2, "checkpoints": str(tmp_path / "checkpoints"), "checkpoint_interval": 0.3, **options}
    return flow.start(spark=spark, **options)


def runs(handle, checkpoints=1):
    status = handle.status()
    return status.phase == "running" and status.checkpoints.completed >= checkpoints


# Half of the kills hit a rescale, the others a replace; the simulation strikes into both at any moment.
KILLS = list(itertools.product(["starting", "stopping", "moving"], ["old slot", "new slot", "coordinator"]))


def tasks_of(spark):
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def by_command(client, parallelism):
    return rescale(client, "rescaled", parallelism, 60.0)


def test_slots_come_and_go_and_cores_with_them(spark, tmp_path):
    out, rows = tmp_path / "out", 30_000
    with start(spark, out, tmp_path, rows) as handle:
        until(lambda: runs(handle), "the first checkpoint completed")
        for parallelism in (4, 3, 2, 4):
            rescaled = handle.rescale(parallelism) if parallelism != 3 else by_command(handle._coordinator.client, 3)
            assert rescaled.parallelism == parallelism
            assert len(handle.status().slots) == parallelism
            until(lambda parallelism=parallelism: tasks_of(spark) == parallelism, "Spark has the other cores back")
        with pytest.raises(RescaleFailed, match="goes on with 4 slots and not with 6: slots 4, 5 did not come within"):
            handle.rescale(6, timeout=2)
        token = handle.status().token
        done = handle.status().checkpoints.completed
        until(lambda: runs(handle, done + 2) or handle.status().outcome, "the job goes on")
        assert handle.status().token == token, "the same generation as before"
        until(lambda: tasks_of(spark) <= 4, "what waited for cores is gone")
        enough(out)
        status = handle.wait(180).status
    assert verdict(out, rows).right, verdict(out, rows)
    assert [each.state for each in status.rescales] == ["done"] * 4 + ["failed"]
    assert status.generations == 5, "one for each rescale, and none by trouble"


class Strike(threading.Thread):
    """Kills a process when the rescale has reached or passed `state`."""

    def __init__(self, handle, victim, state):
        super().__init__(daemon=True)
        self.handle, self.victim, self.state = handle, victim, state
        self.struck = False

    def run(self):
        order = ["starting", "stopping", "committing", "moving", "done", "failed"]
        until(lambda: self.handle.status().rescales, "it was asked for")
        until(lambda: order.index(self.handle.status().rescales[-1].state) >= order.index(self.state), self.state)
        with contextlib.suppress(ProcessLookupError):
            kill(self.pid())
        self.struck = True

    def pid(self):
        if self.victim == "coordinator":
            return self.handle.coordinator_pid
        if self.victim == "new slot":
            return max(psutil.Process().children(recursive=True), key=lambda each: (is_worker(each), each.pid)).pid
        return self.handle.status().slots[0].pid


def is_worker(process):
    """A slot's process: a fork of Spark's daemon of workers."""
    try:
        return "worker_daemon" in " ".join(process.cmdline()) and "worker_daemon" in " ".join(
            process.parent().cmdline()
        )
    except psutil.Error:
        return False


def check_a_kill_in_the_middle(spark, tmp_path, victim, state, change):
    """`change(handle, out, rows)` requests the change, and raises if the job continues unchanged."""
    out, rows = tmp_path / "out", 25_000
    with start(spark, out, tmp_path, rows) as handle:
        until(lambda: runs(handle), "the first checkpoint completed")
        strike = Strike(handle, victim, state)
        strike.start()
        change(handle, out, rows)
        strike.join()
        done = handle.status().checkpoints.completed  # two more: one checkpoint began after the kill
        until(lambda: runs(handle, done + 2) or handle.status().outcome, "the job goes on")
        enough(out)
        handle.wait(180)
    assert strike.struck, "nothing was killed"
    assert verdict(out, rows).right, verdict(out, rows)


@pytest.mark.parametrize(("state", "victim"), KILLS[::2])
def test_a_kill_in_the_middle_leaves_the_old_slots_or_the_new_ones(spark, tmp_path, victim, state):
    def change(handle, out, rows):
        try:
            handle.rescale(3, timeout=120)
        except RescaleFailed:
            assert handle.status().parallelism == 2 or handle.status().outcome

    check_a_kill_in_the_middle(spark, tmp_path, victim, state, change)
