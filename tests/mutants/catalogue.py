"""All mutants, in the order of the product's folders."""

from tests.mutants import (
    connected,
    dataplane,
    ends,
    event_time,
    joins,
    lookups,
    object_stores,
    observing,
    page,
    protocol,
    reading,
    slots,
    stored_state,
    windows,
)

MUTANTS = (
    *protocol.MUTANTS,
    *stored_state.MUTANTS,
    *object_stores.MUTANTS,
    *dataplane.MUTANTS,
    *connected.MUTANTS,
    *windows.MUTANTS,
    *joins.MUTANTS,
    *lookups.MUTANTS,
    *page.MUTANTS,
    *slots.MUTANTS,
    *observing.MUTANTS,
    *ends.MUTANTS,
    *reading.MUTANTS,
    *event_time.MUTANTS,
)
