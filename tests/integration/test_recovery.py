"""Real Spark, real processes, SIGKILL at the worst moments: the output is always the truth."""

import contextlib
import random
import signal

import psutil
import pytest
from harness import Fault, FaultySink, check_clocked, counting_flow, enough, gone, kill, verdict

from tests.waiting import until

pytestmark = pytest.mark.spark

RATE = 800
ROWS = 24_000  # half a minute for the strikes; then all remaining rows come at once


def start(flow, spark, tmp_path, **options):
    return flow.start(
        spark=spark, parallelism=2, checkpoints=str(tmp_path / "checkpoints"), checkpoint_interval=0.3, **options
    )


def running_with_checkpoints(handle, at_least):
    status = handle.status()
    return status.phase == "running" and status.checkpoints.completed >= at_least


def went_on(handle, at_least):
    """True if the job runs with checkpoints or has ended: on a slow machine the overdue rows after a fault may be its
    last.
    """
    return handle.status().outcome is not None or running_with_checkpoints(handle, at_least)


@pytest.mark.parametrize("victim", ["slot", "coordinator"])
def test_a_kill_at_an_exact_point_of_a_checkpoint_loses_and_doubles_nothing(spark, tmp_path, victim):
    """T3, F1, F3, F4, Z9: synchronous part, asynchronous part, between decision and commit, after commit."""
    fault, out, rows = Fault(victim, str(tmp_path)), tmp_path / "out", 2 * ROWS
    flow = counting_flow("exact-point", out, rows, RATE / 5, sink=FaultySink(str(out), fault))
    with start(flow, spark, tmp_path) as handle:
        for point in ("sync", "async", "before commit", "after commit"):
            assert handle.coordinator_pid is not None
            fault.order(point, handle.coordinator_pid)
            until(lambda point=point: fault.happened(point), f"the fault happened: {point}")
            seen = handle.status().checkpoints.completed
            until(lambda seen=seen: running_with_checkpoints(handle, seen + 2), f"checkpoints completed again: {point}")
        enough(out)
        result = handle.wait(180)
    assert verdict(out, rows).right, verdict(out, rows)
    assert result.records == rows


@pytest.mark.parametrize("seed", [2])
def test_kills_at_random_moments_lose_and_double_nothing(spark, tmp_path, seed):
    """R3: slots and the coordinator, in any order, also during a recovery. The same holds for windows by the wall
    clock, whichever rows they contain after a replay.
    """
    choose = random.Random(seed)
    rows = 2 * ROWS
    out, clocked = tmp_path / "out", tmp_path / "clocked"
    kills = {"slot": 0, "coordinator": 0}
    with start(counting_flow("random-kills", out, rows, RATE, clocked=clocked), spark, tmp_path) as handle:
        until(lambda: running_with_checkpoints(handle, 1), "the first checkpoint completed")
        while sum(kills.values()) < 6:
            status = handle.status()
            if status.outcome is not None:
                break
            victim = choose.choice(["slot", "slot", "coordinator"])
            if victim == "coordinator":
                kill_if_there(until(lambda: handle.coordinator_pid, "there is a coordinator"))
            elif status.slots:
                kill_if_there(choose.choice(status.slots).pid)
            kills[victim] += 1
            if choose.random() < 0.7:  # else the next kill hits the recovery
                seen = handle.status().checkpoints.completed
                until(
                    lambda seen=seen: went_on(handle, seen + 1),
                    "checkpoints completed again",
                )
        enough(out)
        handle.wait(240)
    assert verdict(out, rows).right, (verdict(out, rows), kills)
    check_clocked(clocked, rows)


def kill_if_there(pid):
    with contextlib.suppress(ProcessLookupError):  # an earlier kill's victim that is still shown
        kill(pid)


def test_a_killed_coordinator_is_back_without_a_new_generation(spark, tmp_path):
    """F9: all slots survived, so the stream never stopped; checkpoints continue with higher numbers."""
    out = tmp_path / "out"
    with start(counting_flow("coordinator-kill", out, ROWS, RATE), spark, tmp_path) as handle:
        until(lambda: running_with_checkpoints(handle, 2), "two checkpoints completed")
        before = handle.status()
        pid = handle.coordinator_pid
        kill(pid)
        more = before.checkpoints.completed + 1  # the history continues
        until(lambda: handle.coordinator_pid != pid and went_on(handle, more), "checkpoints resumed")
        after = handle.status()
        enough(out)
        handle.wait(180)
    assert after.token == before.token
    assert after.checkpoints.last_completed.checkpoint > before.checkpoints.last_completed.checkpoint
    assert {slot.uuid for slot in after.slots} == {slot.uuid for slot in before.slots}
    assert verdict(out, ROWS).right


def test_a_killed_slot_is_replaced_and_the_survivor_keeps_its_process(spark, tmp_path):
    out = tmp_path / "out"
    with start(counting_flow("slot-kill", out, ROWS, RATE), spark, tmp_path) as handle:
        until(lambda: running_with_checkpoints(handle, 2), "two checkpoints completed")
        before = handle.status()
        victim, survivor = before.slots
        kill(victim.pid)
        until(lambda: handle.status().token > before.token and went_on(handle, 3), "a new generation ran")
        after = handle.status()
        enough(out)
        handle.wait(180)
    uuids = {slot.slot: slot.uuid for slot in after.slots}
    assert uuids[survivor.slot] == survivor.uuid
    assert uuids[victim.slot] != victim.uuid
    assert after.recoveries
    assert verdict(out, ROWS).right


def test_slot_stalled_past_its_lease_is_replaced_and_the_zombie_changes_nothing(spark, tmp_path):
    """Z8: SIGSTOP, a new generation, SIGCONT: the zombie leaves (or Spark ended it), the output is right."""
    out = tmp_path / "out"
    with start(counting_flow("stalled-slot", out, ROWS, RATE), spark, tmp_path, slot_timeout=4.0) as handle:
        until(lambda: running_with_checkpoints(handle, 2), "two checkpoints completed")
        before = handle.status()
        zombie = psutil.Process(before.slots[0].pid)
        kill(zombie.pid, signal.SIGSTOP)
        try:
            until(
                lambda: handle.status().token > before.token and went_on(handle, 3),
                "a new generation ran without the stalled slot",
            )
        finally:
            if not gone(zombie):
                kill(zombie.pid, signal.SIGCONT)
        until(lambda: gone(zombie), "the zombie left")
        enough(out)
        handle.wait(180)
    assert verdict(out, ROWS).right


def test_a_slot_that_hangs_while_the_coordinator_is_killed_is_replaced_all_the_same(spark, tmp_path):
    """Z8, Z9: the successor has received no message of the slot, and knows the slot's Spark task from the job's
    history.
    """
    out = tmp_path / "out"
    with start(counting_flow("hanging-slot", out, ROWS, RATE), spark, tmp_path, slot_timeout=3.0) as handle:
        until(lambda: running_with_checkpoints(handle, 2), "two checkpoints completed")
        before = handle.status()
        hanging, pid = psutil.Process(before.slots[0].pid), handle.coordinator_pid
        kill(hanging.pid, signal.SIGSTOP)
        kill(pid)
        try:
            more = before.checkpoints.completed + 1
            until(
                lambda: (handle.status().token or 0) > before.token and went_on(handle, more),
                "a generation ran without the hanging slot",
            )
        finally:
            if not gone(hanging):
                kill(hanging.pid, signal.SIGCONT)
        enough(out)
        handle.wait(180)
    assert verdict(out, ROWS).right, verdict(out, ROWS)
