"""Writes counted numbers into a PostgreSQL table by Spark's own JDBC writer, which does not know checkpoints."""

import uuid
from typing import Any

import psycopg
from psycopg import sql

from barrier_runtime import BatchCheckpoint, Dataflow, count
from tests.integration.ends.postgres_counts import TABLE

JDBC_DRIVER = "org.postgresql:postgresql:42.7.4"
COLUMNS = ["value", "key", "n"]


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow("batch-counts")
    numbers = flow.rate("numbers", settings["rate"], settings["rows"], keys=50)
    counted = numbers.key_by("key").aggregate("count", n=count()).select(COLUMNS)
    url, jdbc = settings["url"], settings["jdbc"]

    def write(rows: Any, checkpoint: BatchCheckpoint) -> None:
        staging = f"staging_{checkpoint.number}_{uuid.uuid4().hex[:8]}"
        rows.coalesce(1).write.jdbc(jdbc["url"], staging, properties=jdbc["properties"])
        with psycopg.connect(url) as connection:
            new = connection.execute(
                "insert into taken values (%s, %s) on conflict (application) do update set number = excluded.number "
                "where taken.number < excluded.number",
                (checkpoint.application, checkpoint.number),
            ).rowcount
            if new:
                connection.execute(
                    sql.SQL("insert into {} (value, key, n) select value, key, n from {}").format(
                        sql.Identifier(TABLE), sql.Identifier(staging)
                    )
                )
            connection.execute(sql.SQL("drop table {}").format(sql.Identifier(staging)))

    counted.for_each_batch(write, name="out", attempts=1_000)
    return flow
