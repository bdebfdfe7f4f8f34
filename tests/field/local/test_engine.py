"""The engine: errors that a person must mend, stops, options and figures of a running job."""

import pytest

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.coordinator.option_table import OPTIONS
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.kv.rocksdb import SlotMemory


# Source: our own trial
def test_the_least_memory_for_state_that_an_option_takes_is_enough_for_a_slot() -> None:
    least = int(OPTIONS["state_memory_mb"].low or 0)
    assert SlotMemory(least << 20).total_bytes == least << 20
    flow = Dataflow("little")
    flow.from_iterator("rows", lambda index, of: iter(()), schema={"x": int}).sink("out", CollectSink())
    with pytest.raises(InvalidJob, match="state_memory_mb"):
        flow.run_local(state_memory_mb=least - 1)
