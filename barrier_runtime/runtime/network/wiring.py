"""Channels of a generation in a slot, and the order of sources of `Stream.followed_by`."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from barrier_runtime.coordinator.wire.messages import Peer
from barrier_runtime.graph.job_graph import Chain, Edge, JobGraph
from barrier_runtime.runtime.network.channels import (
    Broken,
    ChannelId,
    DataPlane,
    InputChannel,
    LocalOutput,
    OutputChannel,
    ResultPartition,
)
from barrier_runtime.runtime.network.input_queues import InputQueues
from barrier_runtime.runtime.sources.assignment import never_has_rows
from barrier_runtime.runtime.subtask import Subtask

_ALIGNED = ("forward", "same", "broadcast", "single")


class Wiring:
    """Makes the inputs of all chains first, so that peers find them, then the outputs."""

    def __init__(
        self,
        graph: JobGraph,
        token: int,
        slot: int,
        plane: DataPlane,
        wake: Callable[[], None],
        window_bytes: int,
        local_output: type[LocalOutput],
        wake_by_input: Callable[[], None] | None = None,
    ) -> None:
        self._graph = graph
        self._token = token
        self._slot = slot
        self._plane = plane
        self._wake = wake
        self._wake_by_input = wake_by_input or wake
        self._window_bytes = window_bytes
        self._local_output = local_output
        self.inputs: dict[int, list[InputChannel]] = {}
        self._channel_of: dict[tuple[int, int], InputChannel] = {}  # (edge, upstream slot) -> input
        self._remote: dict[tuple[int, int], OutputChannel] = {}  # (edge, downstream slot) -> output

    def make_inputs(self) -> None:
        for chain in self._graph.chains:
            channels: list[InputChannel] = []
            for edge in sorted(self._graph.inputs(chain.id), key=lambda edge: edge.id):
                upstream = [self._slot] if edge.partitioning == "forward" else range(self._graph.parallelism)
                for slot in upstream:
                    channel = InputChannel(len(channels), edge.port, self._wake_by_input, self._window_bytes)
                    channel.empty = self._never_has_rows(edge.source_chain, slot)
                    channel.timeless = edge.timeless
                    channel.together = edge.id if self._hear_the_same(edge.source_chain) else None
                    channels.append(channel)
                    self._channel_of[(edge.id, slot)] = channel
            self.inputs[chain.id] = channels

    def _hear_the_same(self, chain: int) -> bool:
        """True if all subtasks learn of idleness from the same subtasks."""
        if self._graph.chains[chain].source is not None:
            return False
        inputs = self._graph.inputs(chain)
        return all(edge.partitioning != "forward" or self._hear_the_same(edge.source_chain) for edge in inputs)

    def _never_has_rows(self, chain: int, slot: int) -> bool:
        source = self._graph.chains[chain].source
        return source is not None and never_has_rows(source.source, source.splits, slot)

    def aligned_only(self, chain: int) -> list[int]:
        """Inputs that are never recorded: rows cannot be redistributed, or must precede the barrier."""
        aligned = [edge.id for edge in self._graph.inputs(chain) if edge.aligned or edge.partitioning in _ALIGNED]
        return [channel.index for (edge, _), channel in self._channel_of.items() if edge in aligned]

    def expect(self, broken: Broken) -> None:
        expected = {
            ChannelId(self._token, edge, upstream, self._slot): channel
            for (edge, upstream), channel in self._channel_of.items()
            if upstream != self._slot
        }
        self._plane.expect(self._token, expected, broken)

    async def connect(self, peers: Iterable[Peer]) -> None:
        """Connects to all slots at the same time: a silent host does not delay the others."""
        edges = [edge.id for edge in self._graph.edges if edge.partitioning != "forward"]
        others = staggered(peers, self._slot) if edges else []
        tasks = [asyncio.ensure_future(self._connect(peer, edges)) for peer in others]
        try:
            await asyncio.gather(*tasks)
        except (Exception, asyncio.CancelledError):
            for task in tasks:
                task.cancel()
            raise

    async def _connect(self, peer: Peer, edges: list[int]) -> None:
        channels = [ChannelId(self._token, edge, self._slot, peer.slot) for edge in edges]
        outputs = await self._plane.connect(peer, channels, self._wake)
        self._remote.update({(edge, peer.slot): output for edge, output in zip(edges, outputs, strict=True)})

    def outputs(self, chain: Chain) -> list[ResultPartition]:
        operator = chain.operators[-1].name if chain.operators or chain.source is None else chain.source.name
        return [self._partition(edge, edge.operator or operator) for edge in self._graph.outputs(chain.id)]

    def _partition(self, edge: Edge, operator: str) -> ResultPartition:
        targets = [self._slot] if edge.partitioning == "forward" else range(self._graph.parallelism)
        channels: list[OutputChannel] = [
            self._local_output(self._channel_of[(edge.id, target)], self._wake)
            if target == self._slot
            else self._remote[(edge.id, target)]
            for target in targets
        ]
        return ResultPartition(edge, channels, self._slot, self._graph.max_parallelism, operator)

    async def all_connected(self) -> None:
        await self._plane.all_connected()

    def adapt_windows(self, elapsed_s: float) -> None:
        for channel in self._channel_of.values():
            channel.adapt(elapsed_s)

    def disconnect(self) -> None:
        self._plane.disconnect()


_EARLIER = 0  # port of the input that is read first


def staggered(peers: Iterable[Peer], slot: int) -> list[Peer]:
    """Other slots, from the next slot on: not all slots connect to slot 0 at once."""
    return sorted((peer for peer in peers if peer.slot != slot), key=lambda peer: (peer.slot < slot, peer.slot))


def connect_followers(subtasks: Sequence[Subtask]) -> None:
    """Connects sources to the steps whose first input ends before these sources are read.

    A step has a channel from every subtask of the earlier source.
    """
    inputs = {name: subtask.queues for subtask in subtasks for name, _ in subtask.chain.operators}
    for subtask in subtasks:
        if subtask.source is not None and (steps := subtask.source[1].follows_in):
            for step in steps:
                inputs[step].read_in_turn(_EARLIER)
            subtask.source[1].follow(partial(_have_ended, [inputs[step] for step in steps]))


def _have_ended(inputs: Sequence[InputQueues]) -> bool:
    return all(queues.has_ended(_EARLIER) for queues in inputs)
