"""The fence of a PostgreSQL sink: a row with the highest token that has opened it. Older generations stop there."""

from typing import Any

from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.errors import Fenced


def fence_lock(context: SinkContext) -> str:
    """Name of the advisory lock that guards a sink's fence: shared while preparing, exclusive to raise it."""
    return f"barrier_runtime fence {context.job} {context.sink} {context.lineage}"


def check_fence(connection: Any, context: SinkContext, where: str, action: str, locking: str = "") -> None:
    """Raise `Fenced` when a newer generation has opened the sink. `action`: what this one may not do then."""
    row = connection.execute(
        "select token from barrier_runtime.fences where job = %s and sink = %s and lineage = %s" + locking,
        (context.job, context.sink, context.lineage),
    ).fetchone()
    if row is None or row[0] > context.token:
        why = "its row in barrier_runtime.fences is gone" if row is None else f"generation {row[0]} has taken over"
        raise Fenced(f"{where}: generation {context.token} may not {action} any more: {why}")
