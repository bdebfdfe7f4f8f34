"""Relations among the inputs of a new chain."""

from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, count
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.runtime.network.channels import LocalOutput
from barrier_runtime.runtime.network.wiring import Wiring


def from_source(stream: Any) -> Any:
    return stream.key_by("key").aggregate("last", n=count())


def by_keys(stream: Any) -> Any:
    return stream.key_by("key").aggregate("first", m=count()).key_by("key").aggregate("last", n=count())


def by_an_even_spread(stream: Any) -> Any:
    return stream.key_by("key").aggregate("first", m=count()).rebalance().map_batches(lambda batch: batch, name="last")


@pytest.mark.parametrize(("build", "hear_the_same"), [(from_source, False), (by_keys, True), (by_an_even_spread, True)])
@pytest.mark.filterwarnings("ignore:.*counts every update")
def test_channels_are_idle_together_when_their_subtasks_hear_the_same(build: Any, hear_the_same: bool) -> None:
    """A source's subtasks have their own splits, so each is idle independently."""
    flow = Dataflow("wired")
    build(flow.rate("numbers", 100, keys=3)).sink("out", CollectSink())
    graph = compile_plan(flow.plan, parallelism=2, max_parallelism=16)
    wiring: Any = Wiring(graph, 1, 0, None, lambda: None, 1, LocalOutput)  # type: ignore[arg-type] # connects nothing
    wiring.make_inputs()
    (chain,) = [chain for chain in graph.chains if any("last" in spec.name for spec in chain.operators)]
    channels = wiring.inputs[chain.id]
    assert len(channels) == 2
    assert [channel.together is not None for channel in channels] == [hear_the_same] * 2
    assert channels[0].together == channels[1].together
