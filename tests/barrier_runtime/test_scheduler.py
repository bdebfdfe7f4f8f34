"""The scheduler sleeps and wakes by itself: nothing else may be needed to keep a paced source going."""

import subprocess
import sys

_PROGRAM = """
import asyncio, sys
import uvloop
from barrier_runtime import Dataflow, JsonlSink

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
flow = Dataflow("paced")
flow.rate("numbers", 700, 1_000).sink("out", JsonlSink(sys.argv[1]))
print(flow.run_local(parallelism=1, checkpoint_interval=3_600.0).records)
"""


def test_a_source_goes_on_although_nothing_but_its_own_timer_ever_wakes_the_slot(tmp_path):
    """uvloop, which slots on Spark use, fires timers a little early. With no checkpoint for an hour nobody else would
    wake the slot; while a coordinator is away nobody does."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1000"
