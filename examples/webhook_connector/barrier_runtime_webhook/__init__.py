"""A connector in a separate package: the registry row that pyproject.toml's entry point names.

This module has data only, because every command that lists sinks imports the module.
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
