"""All mutants, in the order of the product's folders."""

from tests.mutants import dataplane, ends, lookups, protocol, slots, stored_state

MUTANTS = (
    *protocol.MUTANTS,
    *stored_state.MUTANTS,
    *dataplane.MUTANTS,
    *slots.MUTANTS,
    *lookups.MUTANTS,
    *ends.MUTANTS,
)
