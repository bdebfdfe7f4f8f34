"""What a snapshot is: files, small values and in-flight rows of one operator subtask at one barrier, as in a manifest.

Pure data (`msgspec` structs, validated on decode, never pickle). A snapshot is enough to restore the operator subtask
from any process at any later time; nothing else about it is remembered anywhere.

There may be very many: they are trees, never circles, so Python's collector leaves them out (`gc=False`).
"""

import msgspec

from barrier_runtime.state.snapshots.state_kinds import StateKind, kind_of
from barrier_runtime.state.snapshots.value_types import ValueType
from barrier_runtime.state.values.expiry import StoredTtl
from barrier_runtime.state.versioned import Format

# Names of values of `OperatorSnapshot`, which are text:
DEFINITION = "definition"  # what its state is a state of
KIND = "kind"  # the kind of step whose state it is, such as "process" or "source: Kafka"
TARGET = "target"  # what a sink writes to, by its name there
PENDING = "pending"  # of a sink: the transactions that are not known to be visible
COLUMN_TYPES = "column-types"  # of the columns that the state depends on, keys included: JSON, name -> type
KEYS = "keys"  # the columns of its keys, with their types
JOIN_KEYS = "join-keys"  # the same of both sides of a join, whose tables have keys of their own
SHARED = "shared-"  # names of values begin so that every subtask is given at a restore, whoever has written them
SWITCHES = f"{SHARED}switches"  # name of the value that says behind which barriers broadcast rows became valid
OWN = "own-"  # names of values begin so that one subtask alone is given: with subtask i of P go on those of i % P


def value_format(subject: str, version: int = 1) -> Format:
    """Of a small named value of a snapshot."""
    return Format(subject, version, damaged="restore an intact copy of the checkpoint, or another one")


class FileRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Bytes of one snapshot file. Exactly one of `key` (an object, from `offset`, `size` bytes) or `inline` is set."""

    name: str  # local file name, e.g. "000012.sst"; never a path
    size: int  # bytes
    sha256: str  # hex, of exactly these bytes
    key: str | None = None  # object key relative to the store's root
    offset: int = 0
    inline: bytes | None = None


class StateDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """What one state of a snapshot is, so that a program which declares another kind under its name is refused."""

    kind: str = "value"  # name of a row of `state_kinds`
    key: str = ""  # of a map or broadcast state: the type of its keys, such as "str"
    ttl: StoredTtl | None = None
    # Of values that are classes: the names of their fields, and what became of those that entries of earlier versions
    # may still have (None: dropped).
    fields: tuple[str, ...] = ()
    renamed: dict[str, str | None] = {}
    type: ValueType | None = None  # of its values; None: an older release wrote it
    versions: tuple[dict[str, str | None], ...] = ()  # `renamed` of each version of its values before this one
    earlier: tuple[ValueType, ...] = ()  # types that entries of this version may have, of which `type` has lost fields
    layout: int = 1  # of timers: how they are stored (`values/timer_table`)

    @property
    def row(self) -> StateKind:
        return kind_of(self.kind)


ONE_VALUE = StateDescription()  # per key


class KeyedSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Keyed state of one operator subtask: one key-value store's files, and the names behind its state ids."""

    backend: str  # "rocksdb" or "memory"
    max_parallelism: int
    key_group_first: int  # inclusive
    key_group_last: int  # inclusive
    states: dict[str, int]  # state name -> state id (2 bytes in the key)
    files: tuple[FileRef, ...]
    full_bytes: int  # size of all files
    new_bytes: int  # bytes uploaded for this snapshot
    # State name -> what it is. One that is missing is the runtime's own, or an older release wrote it: one value per
    # key, without TTL, or columns. Broadcast state is described here, but has no id: its content are values of the
    # operator's snapshot.
    described: dict[str, StateDescription] = {}


class InFlight(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Rows that were on their way to input `port` of an operator subtask when its snapshot was taken: frames of a data
    connection, to be processed in this order before anything new."""

    port: int
    file: FileRef


class OperatorSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """All that operator `operator`, subtask `subtask`, remembers at one barrier."""

    operator: str
    subtask: int
    parallelism: int
    values: dict[str, bytes] = {}  # small named values: source positions, committables, watermark
    keyed: KeyedSnapshot | None = None
    in_flight: tuple[InFlight, ...] = ()  # of the first operator of a chain; none if the barrier was aligned
    objects: dict[str, FileRef] = {}  # values too large to stand here, by name; a name is in one of the two

    @property
    def is_empty(self) -> bool:
        return not self.values and not self.objects and self.keyed is None and not self.in_flight

    @property
    def files(self) -> tuple[FileRef, ...]:
        """Every file that a restore of it needs."""
        keyed = () if self.keyed is None else self.keyed.files
        return (*keyed, *(each.file for each in self.in_flight), *self.objects.values())


def without_own(snapshot: OperatorSnapshot) -> OperatorSnapshot:
    """The same for others than the subtask that goes on with it."""
    if not any(name.startswith(OWN) for name in (*snapshot.values, *snapshot.objects)):
        return snapshot
    return msgspec.structs.replace(
        snapshot,
        values={name: value for name, value in snapshot.values.items() if not name.startswith(OWN)},
        objects={name: ref for name, ref in snapshot.objects.items() if not name.startswith(OWN)},
    )


class SnapshotTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one subtask's part of a checkpoint spent its time, and what it did since its last one. Milliseconds."""

    start_delay_ms: float = 0.0  # trigger -> first barrier seen
    alignment_ms: float = 0.0
    sync_ms: float = 0.0  # on the loop
    async_ms: float = 0.0  # everything after, until the ack
    precommit_ms: float = 0.0  # of `async_ms`: the longest that an operator's own blocking work took (a pre-commit)
    upload_ms: float = 0.0  # of `async_ms`: the longest that writing an operator's state took
    slowest: str = ""  # the operator that one of these two, the longer, is of
    rows: int = 0  # taken since the last snapshot, as all that follows
    busy_ms: float = 0.0  # work on rows
    blocked_ms: float = 0.0  # receivers had no room
    held_ms: float = 0.0  # an operator of its own had no room
    step_ms: float = 0.0  # the longest step of any subtask of the slot
    step_chain: int = -1  # whose that was
    starved_ms: float = 0.0  # the slot's loop was ready to run and got no processor
