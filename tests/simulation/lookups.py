"""The system in which legs look up their account's owner: replies are late, missing, or errors.

The owner is a function of the account. A leg with a wrong owner gets a leg number that no source has, so checkers
report the row.
"""

import datetime
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime import Cache, Retry
from barrier_runtime.testing.simulation.loop import Simulation

OWNER = {"owner": pa.int64()}
_RETRY = Retry(1_000, datetime.timedelta(milliseconds=5), (ConnectionError, TimeoutError))
_TIMEOUT = datetime.timedelta(milliseconds=300)
_STRANGE_LEG = 9


@dataclass(frozen=True)
class Owners:
    """Client of the owners' system. `fetch_many` blocks for up to `slowest_ms`, in 5 % of the calls for up to 900 ms,
    past the timeout of 300 ms."""

    ordered: bool
    cached: bool
    capacity: int
    slowest_ms: int
    simulation: Simulation = field(repr=False)

    def __deepcopy__(self, memo: Any) -> "Owners":
        return self  # one external system for all slots

    def fetch_many(self, accounts: list[int]) -> Any:
        simulation = self.simulation
        longest_us = 900_000 if simulation.chance(0.05) else self.slowest_ms * 1_000
        simulation.jobs.block(simulation.between_us(200, longest_us))
        if simulation.chance(0.05):
            raise ConnectionError("the owners' server was restarted")
        return {account: {"owner": owner_of(account)} for account in accounts}

    def completed(self, legs: Any) -> Any:
        """Returns the same legs, after a lookup that checks each leg's owner."""
        looked_up = legs.lookup(
            "owners",
            self,
            key="account",
            schema=OWNER,
            capacity=self.capacity,
            timeout=_TIMEOUT,
            ordered=self.ordered,
            retry=_RETRY,
            cache=Cache(3, datetime.timedelta(seconds=1)) if self.cached else None,
            max_batch=3,
            max_requests=4,
        )
        return looked_up.map_batches(of_their_owners, schema=legs.schema)


def owner_of(account: int) -> int:
    return 100 + account


def of_their_owners(rows: pa.RecordBatch) -> pa.RecordBatch:
    right = pc.equal(rows.column("owner"), pc.add(rows.column("account").cast(pa.int64()), 100))
    strange = pa.scalar(_STRANGE_LEG, pa.int32())
    legs = rows.drop_columns(["owner"])
    at = legs.schema.get_field_index("leg")
    return legs.set_column(
        at, legs.schema.field(at), pc.if_else(pc.fill_null(right, False), legs.column("leg"), strange)
    )
