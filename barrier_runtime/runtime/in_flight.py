"""In-flight rows of a snapshot: recorded, stored as frames, read back.

At another parallelism, rows of a hash edge are distributed again by key group, rows of a rebalance edge move with their
old subtask, and stored event times are dropped: they would be ahead of rows of other subtasks. Design:
docs/design/unaligned-checkpoints.md.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import TypeAlias

import pyarrow as pa

from barrier_runtime.data.elements import Batch, within
from barrier_runtime.data.keys import hash_partition
from barrier_runtime.graph.job_graph import Edge
from barrier_runtime.operators.aggregation.partial_schema import partial_names
from barrier_runtime.runtime.network.channels import InputChannel
from barrier_runtime.runtime.network.frames import FrameError, FrameReader, FrameWriter, UnknownFrames
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.keys.key_groups import key_group_range
from barrier_runtime.state.snapshots.plan import in_flight_file
from barrier_runtime.state.snapshots.snapshot import FileRef, InFlight, OperatorSnapshot
from barrier_runtime.state.snapshots.transfer import describe, read_verified
from barrier_runtime.state.store.object_store import ObjectStore

InFlightData: TypeAlias = dict[int, list[Batch]]  # port of the first operator -> batches in their order


class InFlightWriter:
    """Recorder for one checkpoint at a time. Copies no batches."""

    def __init__(self, inputs: list[InputChannel]) -> None:
        self._inputs = inputs
        self._checkpoint = 0  # 0: nothing is recorded
        self._left: list[tuple[int, Batch]] = []
        self._channels: list[tuple[int, int, list[Batch]]] = []  # port, limit of event time in ms, batches

    def begin(
        self, checkpoint: int, left: Iterable[tuple[int, Batch]], channels: Iterable[int], others: Callable[[int], int]
    ) -> None:
        """Records `channels` for `checkpoint`, after the (port, batch) pairs `left`.

        `others(index)`: lowest watermark (ms) of all channels but `index`, which limits event time at that channel's
        rows. After a restore the other channels repeat no watermark before these rows.
        """
        self.drop(self._checkpoint)
        self._checkpoint = checkpoint
        self._left = list(left)
        self._channels = [
            (self._inputs[index].port, others(index), self._inputs[index].record(checkpoint)) for index in channels
        ]

    def finish(self, checkpoint: int) -> InFlightData:
        assert checkpoint == self._checkpoint, f"recorded for checkpoint {self._checkpoint}, wanted is {checkpoint}"
        in_flight: InFlightData = {}
        in_turns = zip_longest(
            *([(port, within(batch, others_ms)) for batch in batches] for port, others_ms, batches in self._channels)
        )
        for each in chain(self._left, chain.from_iterable(in_turns)):
            if each is not None:
                in_flight.setdefault(each[0], []).append(each[1])
        self.drop(checkpoint)
        return in_flight

    def drop(self, checkpoint: int) -> None:
        if checkpoint != self._checkpoint:
            return
        self._checkpoint, self._left, self._channels = 0, [], []
        for channel in self._inputs:
            channel.stop_recording()


_ROWS_AT_ONCE = 256  # processed before the slot does anything else


def write_in_flight(
    data: InFlightData, store: ObjectStore, new_key: Callable[[], str], inline_bytes: int, check: Callable[[], None]
) -> tuple[InFlight, ...]:
    """Stores a file per port and schema: in one object, or inside the manifest if tiny. `check` raises for
    an aborted checkpoint.
    """
    encoded = [(port, part) for port, batches in sorted(data.items()) for part in _encoded(batches)]
    inline = sum(len(part) for _, part in encoded) <= inline_bytes
    key = None
    if not inline:
        check()
        key = new_key()
        store.put(key, b"".join(part for _, part in encoded))
    written: list[InFlight] = []
    offset = 0
    for number, (port, part) in enumerate(encoded):
        digest = hashlib.sha256(part).hexdigest()
        name = in_flight_file(number)
        ref = FileRef(name, len(part), digest, key, offset) if key else FileRef(name, len(part), digest, inline=part)
        written.append(InFlight(port, ref))
        offset += len(part)
    return tuple(written)


def read_in_flight(
    snapshots: Sequence[OperatorSnapshot],
    operator: str,
    edges: Mapping[int, Edge],
    subtask: int,
    parallelism: int,
    max_parallelism: int,
    store: ObjectStore,
) -> list[tuple[int, Batch]]:
    """(port, batch) pairs to be processed first. Blocks.

    `edges`: into the operator, by port. Raises `InvalidJob` if the edges changed incompatibly, `Corrupt` for damage.
    """
    replay: list[tuple[int, Batch]] = []
    for snapshot in sorted(snapshots, key=lambda snapshot: snapshot.subtask):
        if snapshot.operator != operator:
            continue
        for each in snapshot.in_flight:
            edge = edges.get(each.port)
            if edge is None or edge.partitioning not in ("hash", "rebalance"):
                raise InvalidJob(
                    f"the checkpoint has rows in flight to input {each.port} of {operator}, which is not an input by "
                    "key or round robin any more: start the old version of the program, let it end with stop(), and "
                    "start the new one from there"
                )
            for batch in _own(each, snapshot, edge, subtask, parallelism, max_parallelism, store):
                replay.append((each.port, _as_sent_now(batch, edge.schema)))
    return replay


def rows_in_flight(store: ObjectStore, ref: FileRef) -> list[pa.RecordBatch]:
    return [batch.rows for batch in _decoded(store, ref)]


def _as_sent_now(batch: Batch, schema: pa.Schema | None) -> Batch:
    """Drops columns that the program reads no more: an edge has a single schema."""
    if schema is None or not schema.names:
        return batch
    names = [*schema.names, *partial_names(batch.rows.schema)]
    return batch.having(batch.rows.select(names)) if set(names) < set(batch.rows.schema.names) else batch


def _own(
    stored: InFlight,
    snapshot: OperatorSnapshot,
    edge: Edge,
    subtask: int,
    parallelism: int,
    max_parallelism: int,
    store: ObjectStore,
) -> Iterator[Batch]:
    if snapshot.parallelism == parallelism:
        if snapshot.subtask == subtask:
            yield from _decoded(store, stored.file)
        return
    if edge.partitioning == "rebalance":
        if snapshot.subtask % parallelism == subtask:
            yield from (batch.reaching(None) for batch in _decoded(store, stored.file))
        return
    first, last = key_group_range(subtask, parallelism, max_parallelism)
    had_first, had_last = key_group_range(snapshot.subtask, snapshot.parallelism, max_parallelism)
    if had_last < first or last < had_first:
        return
    for batch in _decoded(store, stored.file):
        for target, rows in hash_partition(batch, edge.keys, parallelism, max_parallelism):
            if target == subtask:
                yield rows.reaching(None)


def _encoded(batches: Sequence[Batch]) -> list[bytes]:
    """A piece per schema: a frame writer allows a single schema, a local queue several."""
    parts: list[bytes] = []
    writer, chunks, schema = FrameWriter(), [], None
    for batch in batches:
        if schema is not None and not schema.equals(batch.rows.schema):
            parts.append(b"".join(chunks))
            writer, chunks = FrameWriter(), []
        schema = batch.rows.schema
        chunks += writer.encode(Batch(batch.rows, batch.emit_ns, batch.reached))
    if chunks:
        parts.append(b"".join(chunks))
    return parts


def _decoded(store: ObjectStore, ref: FileRef) -> list[Batch]:
    try:
        elements = FrameReader().feed(read_verified(store, ref))
    except UnknownFrames as error:
        raise InvalidJob(f"{describe(store, ref)}: {error}") from error
    except FrameError as error:
        raise Corrupt(
            f"{describe(store, ref)} has the right hash, but holds no rows that can be read ({error}): restore with "
            "the release that wrote it"
        ) from error
    batches = [element for element, _ in elements if isinstance(element, Batch)]
    return [
        batch.slice(start, _ROWS_AT_ONCE) for batch in batches for start in range(0, batch.rows.num_rows, _ROWS_AT_ONCE)
    ]
