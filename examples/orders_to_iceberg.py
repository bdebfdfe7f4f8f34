"""Orders with their customer's city at that time: two PostgreSQL tables into an Iceberg table.

    barrier-runtime run examples/orders_to_iceberg.py:flow --master 'local[4,16]' --checkpoints build/checkpoints

Both tables are read through a single slot: the existing rows, then every change in commit order. The time of a commit
is the event time, so each order is joined with the customers of that moment, however late the job reads the order, and
SQL on the source computes the same (`orders_stage`). Exactly once.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from barrier_runtime import Dataflow, IcebergSink

ORDERS = "shop.orders"
# Commits may get their times shortly before they are in the log, in another order.
MAX_OUT_OF_ORDERNESS = timedelta(milliseconds=200)


def build(database: str, catalog: Mapping[str, str], **reading: Any) -> Dataflow:
    """Flow with the table `shop.orders` of an Iceberg catalog as target.

    `catalog`: properties of the catalog. `reading`: more arguments of `read_postgres_changes`."""
    flow = Dataflow("orders-to-iceberg")
    orders, customers = flow.read_postgres_changes(
        "shop",
        database,
        ["orders", "customers"],
        form="upsert",
        event_time="changed_at",
        max_out_of_orderness=MAX_OUT_OF_ORDERNESS,
        **reading,
    )
    placed = orders.select(["id", "customer", "cents", "changed_at"])  # orders never change
    named = customers.key_by("id")
    joined = placed.key_by("customer").table_join("city", named, event_time="changed_at", deleted="deleted")
    joined.select(["id", "customer", "cents", "city"]).sink("orders", IcebergSink(ORDERS, properties=catalog))
    return flow


def __getattr__(name: str) -> Dataflow:
    """Makes `flow` on first access, for the command line."""
    if name != "flow":
        raise AttributeError(name)
    return build(
        os.environ["POSTGRES"], {"type": "sql", "uri": os.environ["CATALOG"], "warehouse": os.environ["WAREHOUSE"]}
    )
