"""Which checkpoints of a job were decided, for a sink that shows a backlog in several steps.

A manifest lists committables of every checkpoint that closed a transaction, also of such as were given up; only the
decision log tells them apart.
"""

from barrier_runtime.sinks.base import SinkContext
from coordinator.decision_log import complete_of
from coordinator.log_reader import read_log
from state.paths import Paths


def decided_checkpoints(context: SinkContext, after: int) -> list[int]:
    """The decided checkpoints above `after` of the sink's lineage, rising; empty where the store has no log. Reads one
    object per decision. Blocking; raises what the store raises."""
    log = read_log(context.job_store, Paths(context.job).log_record, completes=1, restore=after, run_id="")
    completes = (complete_of(entry) for entry in log.completes)
    return sorted(each.checkpoint for each in completes if each.lineage == context.lineage and each.checkpoint > after)
