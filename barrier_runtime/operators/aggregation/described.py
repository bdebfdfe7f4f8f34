"""Descriptions of a step's aggregates for snapshots and for the next job.

Descriptions are compared before a run, when the types of rows may be unknown.
"""

import logging
from collections.abc import Mapping

from barrier_runtime.operators.aggregation.own import AnyAggregate, ColumnAggregate, OwnAggregate, RowAggregate
from barrier_runtime.operators.state.stored_type import StoredType
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.snapshots.continued_state import AGGREGATE, added_aggregates, described_name
from barrier_runtime.state.snapshots.snapshot import StateDescription

log = logging.getLogger("barrier_runtime.state")


def described_aggregates(aggregates: Mapping[str, AnyAggregate]) -> dict[str, StateDescription]:
    found = {}
    for output, aggregate in aggregates.items():
        text = f"{output} (your own)" if isinstance(aggregate, OwnAggregate) else str(aggregate)
        found[described_name(AGGREGATE, text)] = _described(aggregate)
    return found


def describe_aggregates(backend: KeyedBackend, aggregates: Mapping[str, AnyAggregate], where: str, first: bool) -> None:
    """Adds the descriptions to later snapshots. `first`: this subtask logs which aggregates start at zero."""
    described = described_aggregates(aggregates)
    added = added_aggregates(described, backend.restored_descriptions) if first else []
    if added:
        log.warning(
            "%s: %s came since the checkpoint that it goes on from: without the rows before it, keys and open windows "
            "that it knows begin at zero (an aggregate whose state was there for others goes on with that)",
            where,
            ", ".join(added),
        )
    for name, what in described.items():
        backend.describe(name, what)


def _described(aggregate: AnyAggregate) -> StateDescription:
    if isinstance(aggregate, RowAggregate):
        kind = type(aggregate)
        return StoredType(kind.state, "msgpack", f"{kind.__name__}.state = ").declared(StateDescription(AGGREGATE))
    if isinstance(aggregate, ColumnAggregate):
        columns = aggregate.storage().items()
        return StateDescription(AGGREGATE, fields=tuple(f"{column} {dtype}" for column, (dtype, _) in columns))
    return StateDescription(AGGREGATE)
