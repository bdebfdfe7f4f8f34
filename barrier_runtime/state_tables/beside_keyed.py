"""State beside keyed state, as tables (docs/state-as-tables.md), and pending transactions.

Broadcast state has one part, because all copies are equal.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from barrier_runtime.operators.joins.stored_runs import VALUE as RUNS_VALUE
from barrier_runtime.operators.joins.stored_runs import restored_runs
from barrier_runtime.operators.lookups.held_rows import HELD_VALUE, decode_held
from barrier_runtime.operators.state.broadcast_copy import KEY_TYPES, contents_of, entries_of
from barrier_runtime.runtime.in_flight import rows_in_flight
from barrier_runtime.runtime.sinks.pending_set import PENDING_VALUE, decode_pending
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot, StateDescription
from barrier_runtime.state.snapshots.state_kinds import BROADCAST
from barrier_runtime.state.snapshots.transfer import with_values
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state_tables.arrow_columns import column_of, decoded, without_marks

_SIDES = ("left", "right")
_LOOKED_UP = "looked_up"
_READS_AT_ONCE = 8
_PENDING_SCHEMA = pa.schema(
    [("sink", pa.string()), ("checkpoint", pa.int64()), ("subtask", pa.int64()), ("committable", pa.binary())]
)


@dataclass(frozen=True)
class Beside:
    """State of one subtask."""

    kind: str  # in flight, join, lookup, broadcast
    what: StateDescription  # of broadcast state


def beside_of(snapshot: OperatorSnapshot) -> dict[str, Beside]:
    """States of one subtask by name, without reading files."""
    names = {*snapshot.values, *snapshot.objects}
    none = StateDescription()
    found = {f"in_flight_{each.port}": Beside("in flight", none) for each in snapshot.in_flight}
    if RUNS_VALUE in names:
        found.update({side: Beside("join", none) for side in _SIDES})
    if HELD_VALUE in names:
        found[_LOOKED_UP] = Beside("lookup", none)
    if snapshot.keyed is not None and snapshot.subtask == 0:
        described = snapshot.keyed.described.items()
        found.update({name: Beside("broadcast", what) for name, what in described if what.row is BROADCAST})
    return found


def beside_batches(
    store: ObjectStore, snapshot: OperatorSnapshot, name: str, everyone: Sequence[OperatorSnapshot]
) -> Iterator[pa.RecordBatch]:
    """Rows of state `name` in batches of one schema.

    `everyone`: the operator's snapshots, whose copies of broadcast state must be equal. Raises `Corrupt` for damage.
    """
    found = beside_of(snapshot)[name]
    if found.kind == "in flight":
        port = int(name.rpartition("_")[2])
        for each in snapshot.in_flight:
            if each.port == port:
                yield from rows_in_flight(store, each.file)
        return
    if found.kind == "broadcast":
        yield _broadcast(with_values(store, list(everyone), _READS_AT_ONCE), name, found.what)
        return
    (whole,) = with_values(store, [snapshot], _READS_AT_ONCE)
    where = f"operator {snapshot.operator!r}, subtask {snapshot.subtask}"
    if found.kind == "join":
        for side, rows, alive, matched in restored_runs([whole]):
            if _SIDES[side] == name:
                told = rows if "matched" in rows.schema.names else rows.append_column("matched", pa.array(matched))
                yield told.filter(pa.array(alive))
    else:
        for _, rows in decode_held(whole.values[HELD_VALUE], where):
            yield rows


def pending_of(store: ObjectStore, snapshots: Sequence[OperatorSnapshot]) -> pa.Table:
    """Transactions not known to be visible."""
    listing = [each for each in snapshots if PENDING_VALUE in {*each.values, *each.objects}]
    rows = []
    for each in with_values(store, listing, _READS_AT_ONCE):
        where = f"sink {each.operator!r}, subtask {each.subtask}"
        for entry in decode_pending(each.values[PENDING_VALUE], where).entries:
            rows.append((each.operator, entry.checkpoint, entry.subtask, entry.committable))
    columns = list(zip(*rows, strict=True)) or [()] * len(_PENDING_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _PENDING_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=_PENDING_SCHEMA)


def _broadcast(everyone: Sequence[OperatorSnapshot], name: str, what: StateDescription) -> pa.RecordBatch:
    where = f"broadcast state {name!r}"
    content = contents_of(everyone, where).get(name, b"")
    column = column_of(what.type)
    entries = entries_of(content, KEY_TYPES[what.key], name)
    values = [decoded(without_marks(data)[1], what.type, where) for data in entries.values()]
    keys = pa.array(list(entries)) if entries else pa.array([], pa.string())
    return pa.RecordBatch.from_arrays(
        [keys, pa.array([column.of(value) for value in values], column.type)], ["entry", "value"]
    )
