"""The state that a replay begins with: a stored checkpoint, of which the operator looked at gets one key alone."""

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.log.savepoint import Savepoint
from barrier_runtime.coordinator.savepoints.importing import import_savepoint
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.backend.stored_part import StoredPart
from barrier_runtime.state.backend.written_part import WrittenPart
from barrier_runtime.state.columns.segment import Segment, as_binary, chosen
from barrier_runtime.state.keys.key_codec import decode_key
from barrier_runtime.state.keys.key_groups import key_group
from barrier_runtime.state.kv.shard import PREFIX_BYTES
from barrier_runtime.state.scratch import scratch_folder
from barrier_runtime.state.snapshots.snapshot import KEYS, ONE_VALUE, KeyedSnapshot, OperatorSnapshot
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.read_only import LinkedStore
from barrier_runtime.state_tables.finding import StoredCheckpoint
from barrier_runtime.state_tables.wanted_keys import as_stored, key_fields

SCRATCH = "barrier-runtime-replay-"
_GROUP_BYTES = 2


@dataclass(frozen=True)
class OneKey:
    """Of the operator `operator` only the entries of one key are wanted: `key`, as state has it."""

    operator: str
    key: tuple[Any, ...]


def state_key(
    manifest: Manifest | None, operator: str, values: Mapping[str, Any], rows: pa.Schema | None
) -> tuple[Any, ...] | None:
    """The key as state has it, whose columns have `values`, in their order. `rows`: what the flow tells of the
    operator's input, for checkpoints of releases that did not tell keys. None: types of the key are not known."""
    snapshots = () if manifest is None else manifest.operators
    told = next((each.values[KEYS] for each in snapshots if each.operator == operator and KEYS in each.values), b"")
    fields = key_fields(told.decode()) if told else []
    if not told and rows is not None and set(values) <= set(rows.names):
        fields = [(name, rows.field(name).type) for name in values]
    if len(fields) != len(values) or any(kind is None for _, kind in fields):
        return None
    where = f"operator {operator!r}"
    given = zip(values.values(), fields, strict=True)
    return tuple(as_stored(value, kind, name, where) for value, (name, kind) in given)


def begin(store: LinkedStore, at: StoredCheckpoint, spec: JobSpec, sinks: Collection[str], only: OneKey | None) -> None:
    """Make `at` the newest checkpoint of the job that replays, whose log and files are in `store`. Of `sinks` only rows
    in flight to them are restored."""
    operators = tuple(
        each if each.operator not in sinks else msgspec.structs.replace(each, values={}, objects={}, keyed=None)
        for each in at.manifest.operators
    )
    if only is not None:
        operators = tuple(_of_one_key(at, each, only) if each.operator == only.operator else each for each in operators)
    present = {name for chain in spec.chains for name in chain.operators}
    operators = tuple(each for each in operators if each.operator in present)
    taken = msgspec.structs.replace(at.manifest, operators=operators, drained=msgspec.UNSET)
    import_savepoint(store, spec, Savepoint(id=uuid.uuid4().hex, taken=taken), store.link)


def _of_one_key(at: StoredCheckpoint, snapshot: OperatorSnapshot, only: OneKey) -> OperatorSnapshot:
    if snapshot.keyed is None:
        return snapshot
    return msgspec.structs.replace(snapshot, keyed=_reduced(at.store, snapshot.keyed, only.key))


def _reduced(store: ObjectStore, keyed: KeyedSnapshot, key: tuple[Any, ...]) -> KeyedSnapshot:
    """The entries of one key, inside the manifest."""
    group, width = key_group(key, keyed.max_parallelism), len(key)
    groups = keyed.key_group_first, keyed.key_group_last
    with (
        scratch_folder(SCRATCH) as folder,
        WrittenPart(folder / "new", "memory", keyed.max_parallelism, groups, keyed.states, keyed.described) as made,
    ):
        if groups[0] <= group <= groups[1]:
            with StoredPart(keyed, store, folder / "old") as stored:
                for state in keyed.states:
                    made.write(_entries_of(stored, keyed, state, group, key))
                    for segment in stored.segments(state, group, group):
                        made.add(_rows_of(segment, key, width, keyed.max_parallelism))
        return made.inline()


def _entries_of(
    stored: StoredPart, keyed: KeyedSnapshot, state: str, group: int, key: tuple[Any, ...]
) -> list[tuple[bytes, bytes | None]]:
    what = keyed.described.get(state, ONE_VALUE)
    timers = what.kind == "timers"
    found: list[tuple[bytes, bytes | None]] = []
    for whole, data in stored.entries(state, group, group):
        fields = decode_key(whole, PREFIX_BYTES)
        own = fields[1:] if timers else fields[: len(key)]
        if own == key:
            found.append((whole, data))
    return found


def _rows_of(segment: Segment, key: tuple[Any, ...], width: int, max_parallelism: int) -> Segment:
    if isinstance(segment.keys, np.ndarray):
        same = np.ones(segment.keys.shape[1], np.bool_)
        for field, value in zip(segment.keys[:width], key, strict=False):
            same &= field == value
        at = np.flatnonzero(same)
    else:
        whole = as_binary(segment.keys, segment.key_width, max_parallelism)
        group = key_group(key, max_parallelism).to_bytes(_GROUP_BYTES, "big")
        at = np.array(
            [
                place
                for place, each in enumerate(whole.to_pylist())
                if each[:_GROUP_BYTES] == group and decode_key(each, _GROUP_BYTES)[:width] == key
            ],
            np.intp,
        )
    columns = {name: column[at] for name, column in segment.columns.items()}
    removed = chosen(segment.removed, np.empty(0, np.intp))
    return Segment(segment.state, segment.key_width, True, chosen(segment.keys, at), columns, removed)
