"""A job on Spark whose program is replaced while it runs: cores, tasks, kills, and what comes out."""

import pytest
from harness import counting_flow, until, verdict
from test_rescaling import RATE, Strike, runs, start, tasks_of

from barrier_runtime.launch.replacing import ReplaceFailed

pytestmark = pytest.mark.spark


def test_programs_take_over_from_each_other_and_leave_their_cores(spark, tmp_path):
    out, rows = tmp_path / "out", 120_000
    with start(spark, out, tmp_path, rows) as handle:
        until(lambda: runs(handle), "the first checkpoint completed")
        for parallelism in (2, 1):
            if parallelism == 1:
                handle.rescale(1)
            before = handle.status()
            replaced = handle.replace(counting_flow("rescaled", out, rows, RATE))
            after = handle.status()
            assert after.program != before.program
            assert {each.pid for each in after.slots}.isdisjoint({each.pid for each in before.slots})
            assert len(after.slots) == parallelism
            assert replaced.checkpoint is not None
            until(lambda p=parallelism: tasks_of(spark) == p, "Spark has the other cores back")
        with pytest.raises(ReplaceFailed, match=r"goes on with the program that it had: .*has state of operators"):
            handle.replace(counting_flow("rescaled", out, rows, RATE, operator="another"))
        until(lambda: tasks_of(spark) == 1, "what stood by is gone")
        status = handle.wait(180).status
    assert verdict(out, rows).right, verdict(out, rows)
    assert [(each.kind, each.state) for each in status.rescales] == [
        ("replace", "done"),
        ("rescale", "done"),
        ("replace", "done"),
        ("replace", "failed"),
    ]
    assert status.generations == 4, "one for each change, and none by trouble"


@pytest.mark.parametrize("victim", ["old slot", "new slot", "coordinator"])
@pytest.mark.parametrize("state", ["starting", "stopping", "moving"])
def test_a_kill_in_the_middle_leaves_the_old_program_or_the_new_one(spark, tmp_path, victim, state):
    out, rows = tmp_path / "out", 100_000
    with start(spark, out, tmp_path, rows) as handle:
        until(lambda: runs(handle), "the first checkpoint completed")
        strike = Strike(handle, victim, state)
        strike.start()
        try:
            handle.replace(counting_flow("rescaled", out, rows, RATE), timeout=20)
        except ReplaceFailed:
            assert handle.status().program == "" or handle.status().outcome
        strike.join()
        handle.wait(180)
    assert strike.struck, "nothing was killed"
    assert verdict(out, rows).right, verdict(out, rows)
