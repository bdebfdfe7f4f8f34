"""Facts from the simulated stores, decoded once for all checkers: the log, the decisions, and their content.

The stores report every effect in order, whoever caused it. Facts come only from the object store, never from the
messages of a process.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
from workload import RULES, transfer

from barrier_runtime.connectors.files.sink.open_files import restored
from barrier_runtime.connectors.name_set import NameSet, merged
from barrier_runtime.coordinator.log.manifest import Manifest, decode_manifest
from barrier_runtime.coordinator.log.records import Complete, Fence, Finish, Record, decode_record
from barrier_runtime.data.elements import WATERMARK_MIN, Batch
from barrier_runtime.operators.aggregation.partial_schema import is_partial
from barrier_runtime.operators.aggregation.partials import rows_of
from barrier_runtime.operators.keyed.progress import VALUE as PROGRESS_VALUE
from barrier_runtime.operators.keyed.progress import Progress
from barrier_runtime.operators.lookups.held_rows import HELD_VALUE, decode_held
from barrier_runtime.runtime.network.frames import FrameReader
from barrier_runtime.runtime.sinks.pending_set import KEPT, PENDING_VALUE, decode_pending
from barrier_runtime.runtime.sources.progress import FINISHED_VALUE, RUN_VALUE, SPLITS_VALUE, SourceProgress
from barrier_runtime.state.snapshots.snapshot import FileRef, OperatorSnapshot
from barrier_runtime.state.store.paths import Paths


@dataclass(frozen=True)
class Decision:
    """A COMPLETE record and the manifest it names."""

    position: int
    record: Complete
    manifest: Manifest
    positions: dict[tuple[str, int], int]  # (source, split) -> records read before the barrier
    committables: frozenset[bytes]  # of all sinks, whole committables as the manifest lists them
    files: frozenset[str]  # keys of snapshot files
    in_flight: frozenset[tuple[str, int, int, int]]  # (source, split, seq, leg) of rows in flight
    kept: frozenset[tuple[str, int, int, int]]  # the same, of rows in open files of the sink "out"
    apart_ms: int  # largest difference between the event times of an operator's subtasks

    def not_shown(self, sink: str) -> frozenset[tuple[str, int, int, int]]:
        """Returns the rows that `sink` shows only later."""
        return self.in_flight | self.kept if sink == "out" else self.in_flight


@dataclass
class Facts:
    paths: Paths
    records: list[Record] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    committables: set[bytes] = field(default_factory=set)  # of all decisions
    final_names: set[str] = field(default_factory=set)  # target files that a decision names
    files: set[str] = field(default_factory=set)  # snapshot files that any decision named
    manifests: set[str] = field(default_factory=set)  # of all decisions
    fence: Fence | None = None  # the highest
    _at: dict[int, Decision] = field(default_factory=dict)  # log position -> decision
    counts: dict[tuple[str, int], int] = field(default_factory=dict)  # records of each split that ends

    @property
    def token(self) -> int:
        return self.records[-1].token if self.records else 0

    @property
    def finish(self) -> Finish | None:
        last = self.records[-1] if self.records else None
        return last if isinstance(last, Finish) else None

    def position_of(self, key: str) -> int | None:
        return self.paths.log_position(key)

    def appended(self, key: str, data: bytes) -> Record:
        record = decode_record(key, data)
        self.records.append(record)
        if isinstance(record, Fence):
            self.fence = record
        return record

    def decided(self, position: int, record: Complete, data: bytes, read: Callable[[str], bytes | None]) -> Decision:
        """Adds the decision of a record with manifest `data`. `read` returns the current content of the store."""
        manifest = decode_manifest(record.manifest, data)
        positions: dict[tuple[str, int], int] = {}
        committables: set[bytes] = set()
        files: set[str] = set()
        in_flight: set[tuple[str, int, int, int]] = set()
        kept: set[tuple[str, int, int, int]] = set()
        reached: dict[str, list[int]] = {}
        for snapshot in manifest.operators:
            values = _values_of(snapshot, read)
            if SPLITS_VALUE in values and snapshot.operator != RULES:
                progress = msgspec.json.decode(values[SPLITS_VALUE], type=SourceProgress)
                for split, at in progress.splits.items():
                    source, _, index = split.rpartition("-")
                    before = positions.get((source, int(index)), 0)
                    positions[source, int(index)] = max(before, at.rows)
                ended = NameSet(
                    [merged([d for n, d in values.items() if n == FINISHED_VALUE or n.startswith(RUN_VALUE)])]
                )
                positions.update(
                    ((source, index), count)
                    for (source, index), count in self.counts.items()
                    if f"{source}-{index}" in ended
                )
            if PENDING_VALUE in values:
                pending = decode_pending(values[PENDING_VALUE], snapshot.operator)
                committables.update(entry.committable for entry in pending.entries)
            if PROGRESS_VALUE in values:
                keyed = msgspec.msgpack.decode(values[PROGRESS_VALUE], type=Progress)
                if keyed.watermark_ms > WATERMARK_MIN:
                    reached.setdefault(snapshot.operator, []).append(keyed.watermark_ms)
            files.update(ref.key for ref in snapshot.files if ref.key is not None)
            for each in snapshot.in_flight:
                in_flight.update(_legs_in(each.file, read))
            open_files = {n.removeprefix(KEPT): value for n, value in values.items() if n.startswith(KEPT)}
            if open_files:
                for _, table in restored("", [open_files], snapshot.operator).grown({}, 0, None)[1]:
                    kept.update(leg for batch in table.to_batches() for leg in _legs_of(batch))
            if HELD_VALUE in values:
                for _, rows in decode_held(values[HELD_VALUE], snapshot.operator):
                    in_flight.update(_legs_of(rows))
        apart_ms = max((max(times) - min(times) for times in reached.values()), default=0)
        decision = Decision(
            position,
            record,
            manifest,
            positions,
            frozenset(committables),
            frozenset(files),
            frozenset(in_flight),
            frozenset(kept),
            apart_ms,
        )
        self.decisions.append(decision)
        self._at[position] = decision
        self.manifests.add(record.manifest)
        self.committables |= committables
        self.files |= files
        for committable in committables:
            self.final_names.update(_final_names(committable))
        return decision

    def retained(self) -> list[Decision]:
        """Returns the decisions that a restore may need: the retained ones and that of the present generation."""
        fence = self.fence
        if fence is None:
            return []
        last = self.decisions[-1].record if self.decisions and self.decisions[-1].position > fence.token else fence
        if last.version >= 3:  # the log lists the kept decisions
            own = [self.decisions[-1]] if isinstance(last, Complete) else []
            return [*(each for each in map(self._at.get, last.kept) if each is not None), *own]
        newest = self.decisions[-fence.spec.checkpoints.retained :]
        if newest and newest[-1].position > fence.token:
            return newest
        restored = self._at.get(fence.restored_position or 0)
        return newest if restored is None else [restored, *newest]


def _values_of(snapshot: OperatorSnapshot, read: Callable[[str], bytes | None]) -> dict[str, bytes]:
    """Returns all values, also those in objects. `WholeManifests` reports missing objects."""
    found = {name: read(ref.key or "") for name, ref in snapshot.objects.items()}
    return {**snapshot.values, **{name: value for name, value in found.items() if value is not None}}


def _legs_in(ref: FileRef, read: Callable[[str], bytes | None]) -> list[tuple[str, int, int, int]]:
    """Returns the legs in a file of in-flight data. `WholeManifests` reports a missing file."""
    stored = ref.inline if ref.key is None else read(ref.key)
    elements = FrameReader().feed((stored or b"")[ref.offset : ref.offset + ref.size])
    batches = [element.rows for element, _ in elements if isinstance(element, Batch)]
    return [leg for batch in batches for leg in _legs_of(batch)]


def _legs_of(batch: pa.RecordBatch) -> list[tuple[str, int, int, int]]:
    if "leg" not in batch.schema.names:  # messages of a queue have no legs yet
        return []
    rows = batch.select(["source", "split", "seq", "leg"]).to_pylist()
    lasts = [(row["source"], row["split"], row["seq"], row["leg"]) for row in rows]
    if not is_partial(batch.schema):
        return lasts
    return [leg for last, count in zip(lasts, rows_of(batch).tolist(), strict=True) for leg in _legs_up_to(last, count)]


def _legs_up_to(last: tuple[str, int, int, int], count: int) -> list[tuple[str, int, int, int]]:
    """Returns the last `count` legs of an account, for which a partial row stands."""
    source, split, seq, leg = last
    account, found = transfer(source, split, seq)[leg], []
    while len(found) < count and seq >= 0:
        if transfer(source, split, seq)[leg] == account:
            found.append((source, split, seq, leg))
        seq, leg = (seq, 0) if leg else (seq - 1, 1)
    return found


def _final_names(committable: bytes) -> list[str]:
    """Returns the final names in a committable of a file sink; empty for other sinks."""
    found = msgspec.json.decode(committable)
    return [file["final"] for file in found.get("files", ())]
