"""Real Spark, a sink that cannot keep up, kills: unaligned checkpoints complete, rows in flight keep their order."""

import pytest
from harness import counting_flow, enough, kill, verdict
from slow_sink import SlowSink

from tests.waiting import until

pytestmark = pytest.mark.spark

ROWS = 200_000  # most of a minute for the kills; then the sink is fast


def test_full_queues_before_a_slow_sink_and_kills_lose_double_and_reorder_nothing(spark, tmp_path):
    """U10, U1: every restore replays rows that were in flight."""
    out = tmp_path / "out"
    flow = counting_flow("slow-sink", out, ROWS, 1e6, sink=SlowSink(str(out), 0.0005))
    options = {"checkpoints": str(tmp_path / "checkpoints"), "checkpoint_interval": 0.3, "unaligned": True}
    with flow.start(spark=spark, parallelism=2, **options) as handle:
        for victim in (0, 1, 0):
            before = handle.status()
            until(lambda before=before: in_flight_since(handle, before), "a checkpoint held rows in flight")
            status = handle.status()
            assert status.outcome is None, "the rows were to last longer"
            kill(status.slots[victim].pid)
            until(lambda token=status.token: handle.status().token > token, "a new generation began")
        enough(out)
        result = handle.wait(180)
    assert verdict(out, ROWS).right, verdict(out, ROWS)
    assert result.records == ROWS


def in_flight_since(handle, before):
    """The last completed checkpoint of the present generation holds rows in flight, and is newer than `before`'s."""
    status = handle.status()
    last, known = status.checkpoints.last_completed, before.checkpoints.last_completed
    newer = last is not None and (known is None or last.checkpoint > known.checkpoint) and last.token == status.token
    return status.phase == "running" and newer and last.in_flight_bytes > 0
