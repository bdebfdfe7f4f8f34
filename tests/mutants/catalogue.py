"""All mutants, in the order of the product's folders."""

from tests.mutants import connected, dataplane, ends, protocol, slots, stored_state

MUTANTS = (
    *protocol.MUTANTS,
    *stored_state.MUTANTS,
    *dataplane.MUTANTS,
    *connected.MUTANTS,
    *slots.MUTANTS,
    *ends.MUTANTS,
)
