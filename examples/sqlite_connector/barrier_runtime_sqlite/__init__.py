"""A connector in a package of its own: its row of the registry, which the entry point of pyproject.toml names.

This module holds data only, because every command that lists sinks imports it.
"""

from barrier_runtime.connectors.registry import Connector, PublicClass, Sinks

CONNECTOR = Connector(
    "sqlite",
    sinks=(
        Sinks(
            (PublicClass("sink", "SqliteSink", kind="sqlite", package="barrier_runtime_sqlite"),),
            "exactly once",
            "rows wait in the job's storage; after the decision one SQL transaction writes them and a token",
        ),
    ),
)
