"""All mutants, in the order of the product's folders."""

from tests.mutants import connected, dataplane, ends, joins, lookups, protocol, slots, stored_state

MUTANTS = (
    *protocol.MUTANTS,
    *stored_state.MUTANTS,
    *dataplane.MUTANTS,
    *connected.MUTANTS,
    *joins.MUTANTS,
    *lookups.MUTANTS,
    *slots.MUTANTS,
    *ends.MUTANTS,
)
