"""Snapshot of an operator subtask at a barrier: files, small values and in-flight rows.

Snapshots have no cycles (`gc=False`).
"""

import msgspec

from barrier_runtime.state.snapshots.state_kinds import StateKind, kind_of
from barrier_runtime.state.snapshots.value_types import ValueType
from barrier_runtime.state.values.expiry import StoredTtl
from barrier_runtime.state.versioned import Format

# Names of values of `OperatorSnapshot`:
DEFINITION = "definition"  # settings that the meaning of the state depends on
KIND = "kind"  # kind of the step, such as "process" or "source: Kafka"
TARGET = "target"  # system or table that a sink writes to
PENDING = "pending"  # transactions of a sink that are not known to be visible
COLUMN_TYPES = "column-types"  # of the columns that the state depends on, with keys: JSON, name -> type
KEYS = "keys"  # with their types
JOIN_KEYS = "join-keys"  # of both sides of a join, whose tables have keys of their own
SHARED = "shared-"  # prefix: at a restore every subtask gets the value
SWITCHES = f"{SHARED}switches"  # the barriers after which broadcast rows became valid
OWN = "own-"  # prefix: at a restore subtask i % P alone gets the value of subtask i


def value_format(subject: str, version: int = 1) -> Format:
    return Format(subject, version, damaged="restore an intact copy of the checkpoint, or another one")


class FileRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """`inline`, or `size` bytes from `offset` of the object `key`."""

    name: str  # never a path
    size: int
    sha256: str  # hex
    key: str | None = None  # relative to the store's root
    offset: int = 0
    inline: bytes | None = None


class StateDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A program that declares another kind is refused."""

    kind: str = "value"  # name of a row of `state_kinds`
    key: str = ""  # type of the keys of a map or broadcast state, such as "str"
    ttl: StoredTtl | None = None
    # Of classes: names of the fields, and current names of fields of earlier versions (None: dropped).
    fields: tuple[str, ...] = ()
    renamed: dict[str, str | None] = {}
    type: ValueType | None = None  # of the values; None: written by an older release
    versions: tuple[dict[str, str | None], ...] = ()  # `renamed` of each earlier version of the values
    # Types of entries of this version with fields that `type` has lost, or with ints that are read as floats.
    earlier: tuple[ValueType, ...] = ()
    layout: int = 1  # of the entries of timers and columns

    @property
    def row(self) -> StateKind:
        return kind_of(self.kind)


ONE_VALUE = StateDescription()  # per key


class KeyedSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    backend: str  # "rocksdb" or "memory"
    max_parallelism: int
    key_group_first: int  # inclusive
    key_group_last: int  # inclusive
    states: dict[str, int]  # state name -> state id (2 bytes in the key)
    files: tuple[FileRef, ...]
    full_bytes: int
    new_bytes: int
    # States without a description have a value per key and no TTL, or are columns. Broadcast states have no id: values
    # of the operator's snapshot hold them.
    described: dict[str, StateDescription] = {}


class InFlight(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Frames of a data connection to input `port`, processed in order before new frames."""

    port: int
    file: FileRef


class OperatorSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    operator: str
    subtask: int
    parallelism: int
    values: dict[str, bytes] = {}  # small: source positions, committables, watermark
    keyed: KeyedSnapshot | None = None
    in_flight: tuple[InFlight, ...] = ()  # of the first operator of a chain; none if the barrier was aligned
    objects: dict[str, FileRef] = {}  # values too large for `values`

    @property
    def is_empty(self) -> bool:
        return not self.values and not self.objects and self.keyed is None and not self.in_flight

    @property
    def files(self) -> tuple[FileRef, ...]:
        keyed = () if self.keyed is None else self.keyed.files
        return (*keyed, *(each.file for each in self.in_flight), *self.objects.values())


def without_own(snapshot: OperatorSnapshot) -> OperatorSnapshot:
    if not any(name.startswith(OWN) for name in (*snapshot.values, *snapshot.objects)):
        return snapshot
    return msgspec.structs.replace(
        snapshot,
        values={name: value for name, value in snapshot.values.items() if not name.startswith(OWN)},
        objects={name: ref for name, ref in snapshot.objects.items() if not name.startswith(OWN)},
    )


class SnapshotTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    start_delay_ms: float = 0.0  # from the trigger to the first barrier
    alignment_ms: float = 0.0
    sync_ms: float = 0.0  # on the loop
    async_ms: float = 0.0  # from `sync_ms` to the acknowledgement
    precommit_ms: float = 0.0  # part of `async_ms`: longest blocking work of an operator
    upload_ms: float = 0.0  # part of `async_ms`: longest write of an operator's state
    slowest: str = ""  # operator with the longer of these two
    read: int = 0  # of a source: rows up to the barrier, without replays
    rows: int = 0  # since the last snapshot, like all fields below
    busy_ms: float = 0.0
    blocked_ms: float = 0.0  # receivers had no credit
    held_ms: float = 0.0  # an operator of the chain took no rows
    step_ms: float = 0.0  # longest turn of any subtask of the slot
    step_chain: int = -1  # chain of that subtask
    starved_ms: float = 0.0  # the slot's loop was ready, and got no processor
    step_reading: bool = False  # a reader or sink of this package needed most of that turn
