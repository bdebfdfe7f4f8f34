"""Real slots of a tiny job on one loop, a coordinator played by the test, and a record of each slot's messages.

Slots leave the heap of the tests' process alone, unless a test passes the real `trim_memory`.

The job: a source fed by the test, a row per poll → (rebalance) → an operator chosen by the test.
"""

import asyncio
import json
from dataclasses import dataclass, field

import pyarrow as pa

from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.coordinator.option_types import SlotOptions
from barrier_runtime.coordinator.wire.messages import (
    Ack,
    CheckpointComplete,
    Deploy,
    Peer,
    Register,
    Registered,
    Restored,
    Shutdown,
    Start,
    SubtaskFailed,
    Trigger,
)
from barrier_runtime.graph.job_graph import Chain, Edge, JobGraph, OperatorSpec, SourceSpec
from barrier_runtime.launch.local_links import LocalDataPlane, LocalMesh
from barrier_runtime.operators.base import Capture, Operator
from barrier_runtime.runtime.host.clock import SYSTEM_CLOCK
from barrier_runtime.runtime.host.workers import Workers
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.runtime.sinks.operator import SinkOperator
from barrier_runtime.runtime.slot import Slot, SlotIdentity
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.paths import Paths

SCHEMA = pa.schema([("n", pa.int64())])
SOURCE, TARGET = 0, 1


class Feed:
    """A source to which the test adds rows; each split is a list that can be read again from any position."""

    schema = SCHEMA
    exactly_once = True

    def __init__(self, splits):
        self.rows = [[] for _ in range(splits)]
        self.ended = [False] * splits

    def splits(self, parallelism):
        return [Split(str(index)) for index in range(len(self.rows))]

    def reader(self, split):
        return FeedReader(self, int(split.id))

    def end(self):
        self.ended = [True] * len(self.ended)


class FeedReader:
    def __init__(self, feed, index):
        self.feed, self.index, self.count = feed, index, 0

    @property
    def finished(self):
        return self.feed.ended[self.index] and self.count == len(self.feed.rows[self.index])

    def poll(self, max_rows, now_ns):
        rows = self.feed.rows[self.index][self.count : self.count + 1]
        self.count += len(rows)
        return Polled(pa.record_batch({"n": pa.array(rows, pa.int64())}), now_ns) if rows else None

    def next_due_ns(self):
        return None

    def position(self):
        return str(self.count).encode()

    def seek(self, position):
        self.count = int(position)

    def close(self):
        pass


class Totals(Operator):
    """Counts rows; records lifecycle calls."""

    def __init__(self):
        self.life = []
        self.total = 0

    def open(self, context):
        self.context = context
        self.total = sum(int(s.values["total"]) for s in context.restored if s.subtask == context.subtask)
        self.life.append("opened")

    def process(self, batch, emit, port=0):
        self.total += batch.rows.num_rows

    def snapshot(self, checkpoint):
        return Capture(values={"total": str(self.total).encode()})

    def on_complete(self, checkpoint):
        self.life.append(f"complete {checkpoint}")

    def on_abort(self, checkpoint):
        self.life.append(f"abort {checkpoint}")

    def close(self):
        self.life.append("closed")


@dataclass
class Recorder:
    """The slot's end of a control connection. `up=False`: messages are lost, as on a broken connection."""

    said: list = field(default_factory=list)
    up: bool = True
    last_contact: float = 0.0

    def send(self, message):
        if self.up:
            self.said.append(message)

    def got(self, kind):
        return [message for message in self.said if isinstance(message, kind)]


class Bench:
    """`make_operator` is called once per generation and slot; `operators` keeps them in that order."""

    def __init__(
        self,
        directory,
        parallelism=1,
        make_operator=Totals,
        splits=None,
        plane=LocalDataPlane,
        feed=None,
        clock=SYSTEM_CLOCK,
        trim_memory=lambda dropped: None,
        max_drift_ms=None,
        **source_options,
    ):
        self.loop = asyncio.get_running_loop()
        self.parallelism = parallelism
        self.feed = feed or Feed(splits or parallelism)
        self.clock = clock
        self._trim_memory = trim_memory
        self._options = SlotOptions(
            state_backend="memory", max_drift=None if max_drift_ms is None else max_drift_ms / 1000
        )
        self._source_options = source_options
        self.store, self.output = MemoryStore(), MemoryStore()
        self.operators = []
        self._make_operator = make_operator
        self.workers = Workers(self.loop)
        graph = self._graph()
        mesh = LocalMesh()
        self.links = [Recorder() for _ in range(parallelism)]
        self.slots = [self._slot(graph, index, directory / str(index), plane(mesh)) for index in range(parallelism)]
        for slot in self.slots:
            slot.connected()

    def _graph(self):
        source = SourceSpec("numbers", self.feed, tuple(self.feed.splits(self.parallelism)), **self._source_options)
        target = OperatorSpec("target", "test", self._make, stateful=True)
        chains = (Chain(SOURCE, (), source), Chain(TARGET, (target,)))
        return JobGraph("job", self.parallelism, 128, chains, (Edge(0, SOURCE, TARGET, "rebalance"),))

    def _make(self):
        operator = self._make_operator()
        self.operators.append(operator)
        return operator

    def _slot(self, graph, index, directory, plane):
        resources = SlotResources(
            loop=self.loop,
            workers=self.workers,
            store=self.store,
            make_store=lambda url: self.output,
            paths=Paths("job"),
            slot=index,
            uuid=f"uuid-{index}",
            local_dir=directory,
            copies=LocalCopies(),
            memory=SlotMemory(8 << 20),
            options=self._options,
            new_uuid=iter(map(str, range(1_000_000))).__next__,
            clock=self.clock,
            trim_memory=self._trim_memory,
        )
        identity = SlotIdentity(index, f"uuid-{index}", 1, "h", 0, "local", 0)
        slot = Slot(graph, "exactly_once", identity, resources, plane)
        slot.link = self.links[index]
        return slot

    # ---- the coordinator's part

    def tell(self, *messages):
        for message in messages:
            for slot in self.slots:
                slot.handle(message)

    def deployment(self, token, checkpoint=0, operators=()):
        peers = tuple(Peer(index, f"uuid-{index}", "local", 0) for index in range(self.parallelism))
        return Deploy(token, checkpoint, peers, tuple(operators))

    def deploy(self, token, checkpoint=0, operators=()):
        self.tell(self.deployment(token, checkpoint, operators))

    async def running(self, token, checkpoint=0, operators=()):
        self.deploy(token, checkpoint, operators)
        await self.until(lambda: all(any(m.token == token for m in link.got(Restored)) for link in self.links))
        self.tell(Start(token))

    async def acks(self, checkpoint, token):
        """Waits until every subtask has acknowledged; returns the acks in the order of subtasks."""

        def found():
            acks = [a for link in self.links for a in link.got(Ack) if (a.token, a.checkpoint) == (token, checkpoint)]
            return {ack.subtask: ack for ack in acks}

        await self.until(lambda: len(found()) == 2 * self.parallelism)
        return [found()[subtask] for subtask in sorted(found())]

    async def checkpoint(self, checkpoint, token):
        """Takes and decides a checkpoint. Returns the snapshots as in the manifest."""
        self.tell(Trigger(token, checkpoint, 0))
        acks = await self.acks(checkpoint, token)
        self.tell(CheckpointComplete(token, checkpoint))
        return [snapshot for ack in acks for snapshot in ack.operators]

    def reconnect(self, index=0, last_completed=0):
        """Restores the connection; returns the slot's messages after the answer to the Register."""
        link, slot = self.links[index], self.slots[index]
        link.up, link.said = True, []
        slot.connected()
        slot.handle(Registered(slot.token, last_completed, 0))
        assert isinstance(link.said[0], Register)
        return link.said[1:]

    # ---- looking

    async def until(self, condition):
        while not condition():
            failures = [m for link in self.links for m in link.got(SubtaskFailed)]
            assert not failures, failures
            await asyncio.sleep(0.001)

    async def failure(self, index=0):
        while not self.links[index].got(SubtaskFailed):
            await asyncio.sleep(0.001)
        return self.links[index].got(SubtaskFailed)[-1]

    def visible(self):
        """Returns the numbers that a reader of the output sees."""
        keys = [info.key for info in self.output.list("") if not info.key.startswith("_")]
        return sorted(json.loads(line)["n"] for key in keys for line in self.output.get(key).splitlines())

    async def close(self):
        self.tell(Shutdown("cancelled", "the test ends"))
        for slot in self.slots:
            await slot.closed()
        self.workers.close()


def sink_operator():
    return SinkOperator("target", lambda: JsonlSink("memory"))
