"""What the simulated stores have seen, read once for all checkers: the log, its decisions, and what each decision
names.

Fed by the stores with every effect in the order in which it happened, whoever caused it. Believes nothing that a
process says: only what is in the object store.
"""

from dataclasses import dataclass, field

import msgspec

from barrier_runtime.sinks.pending_set import PENDING_VALUE, PendingSet
from barrier_runtime.sources.source_progress import SPLITS_VALUE, SourceProgress
from coordinator.log_records import Complete, Fence, Finish, Record, decode_record
from coordinator.manifest import Manifest, decode_manifest
from state.paths import Paths


@dataclass(frozen=True)
class Decision:
    """A COMPLETE record and the manifest it names."""

    position: int
    record: Complete
    manifest: Manifest
    positions: dict[tuple[str, int], int]  # (source, split) -> records read before the barrier
    committables: frozenset[bytes]  # of all sinks, whole committables as the manifest lists them
    files: frozenset[str]  # keys of snapshot files


@dataclass
class Facts:
    paths: Paths
    records: list[Record] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    committables: set[bytes] = field(default_factory=set)  # of all decisions
    final_names: set[str] = field(default_factory=set)  # target files that a decision names
    files: set[str] = field(default_factory=set)  # snapshot files that any decision named

    @property
    def token(self) -> int:
        """Of the highest FENCE."""
        return self.records[-1].token if self.records else 0

    @property
    def fence(self) -> Fence | None:
        return next((record for record in reversed(self.records) if isinstance(record, Fence)), None)

    @property
    def finish(self) -> Finish | None:
        last = self.records[-1] if self.records else None
        return last if isinstance(last, Finish) else None

    def position_of(self, key: str) -> int | None:
        """The log position that `key` is, if it is one."""
        if not key.startswith(self.paths.log_prefix):
            return None
        return int(key.removeprefix(self.paths.log_prefix).removesuffix(".json"))

    def appended(self, key: str, data: bytes) -> Record:
        record = decode_record(key, data)
        self.records.append(record)
        return record

    def decided(self, position: int, record: Complete, data: bytes) -> Decision:
        """The record's manifest is `data`."""
        manifest = decode_manifest(record.manifest, data)
        positions: dict[tuple[str, int], int] = {}
        committables: set[bytes] = set()
        files: set[str] = set()
        for snapshot in manifest.operators:
            if SPLITS_VALUE in snapshot.values:
                progress = msgspec.json.decode(snapshot.values[SPLITS_VALUE], type=SourceProgress)
                for split, reached in progress.splits.items():
                    source, _, index = split.rpartition("-")
                    before = positions.get((source, int(index)), 0)
                    positions[source, int(index)] = max(before, reached.rows)
            if PENDING_VALUE in snapshot.values:
                pending = msgspec.json.decode(snapshot.values[PENDING_VALUE], type=PendingSet)
                committables.update(entry.committable for entry in pending.entries)
            if snapshot.keyed is not None:
                files.update(ref.key for ref in snapshot.keyed.files if ref.key is not None)
        decision = Decision(position, record, manifest, positions, frozenset(committables), frozenset(files))
        self.decisions.append(decision)
        self.committables |= committables
        self.files |= files
        for committable in committables:
            self.final_names.update(_final_names(committable))
        return decision

    def retained(self) -> list[Decision]:
        """What a restore may still want: as many of the newest decisions as the job retains, and what the present
        generation has restored."""
        fence = self.fence
        if fence is None:
            return []
        newest = self.decisions[-fence.spec.checkpoints.retained :]
        restored = [each for each in self.decisions if each.position == fence.restored_position]
        grown = [each for each in newest if each.position > fence.token]
        return newest if grown else [*restored, *newest]


def _final_names(committable: bytes) -> list[str]:
    """Of a file sink's committable; none for other sinks'."""
    found = msgspec.json.decode(committable)
    return [file["final"] for file in found.get("files", ())]
