"""A connector in a package of its own: its row of the registry, which the entry point of pyproject.toml names.

This module holds data only, because every command that lists sinks imports it.
"""

from barrier_runtime.connectors.registry import Connector, PublicClass, Sinks

CONNECTOR = Connector(
    "webhook",
    sinks=(
        Sinks(
            (PublicClass("sink", "WebhookSink", kind="webhook", package="barrier_runtime_webhook"),),
            "exactly once, if the endpoint keeps idempotency keys",
            "rows wait in the job's storage; after the decision one POST sends them with an idempotency key",
        ),
    ),
)
