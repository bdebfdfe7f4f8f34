"""Sinks that a changed program no longer has: what was decided of theirs is made visible before it is forgotten.

`allow_non_restored` drops the state of operators that are gone. A decided transaction is not state: its rows are
counted by everything upstream, and no other sink will ever write them. Blocking; for the driver, before it submits the
job.
"""

from collections.abc import Collection

from barrier_runtime.coordinator.log.records import FIRST_POSITION
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.inspect.pending_transactions import InDoubtResolver, PendingJob, PendingSink, read_pending
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.paths import Paths


def commit_removed_sinks(graph: JobGraph, store: ObjectStore, options: JobOptions) -> None:
    """Commit what the newest checkpoint lists of sinks that `graph` lacks. To commit is idempotent, also beside a run
    that still lives. Raises `InvalidJob`, with the sink and how much it is, when that cannot be done."""
    if not options.allow_non_restored or options.restore == "none":
        return
    if get_or_none(store, Paths(graph.name).log_record(FIRST_POSITION)) is None:
        return
    pending = read_pending(store, graph.name)
    present = {name for chain in graph.chain_specs() for name in chain.operators}
    for sink in pending.sinks:
        if sink.entries and sink.name not in present:
            _settle(store, pending, sink, present)


def _settle(store: ObjectStore, pending: PendingJob, sink: PendingSink, present: Collection[str]) -> None:
    try:
        InDoubtResolver(store, pending, {}, {}).commit(sink, lambda entry: None)
    except Exception as error:  # whatever the target's library raises
        raise InvalidJob(
            f"job {pending.job} no longer has sink {sink.name!r} (it has: {', '.join(sorted(present))}). Checkpoint "
            f"{pending.checkpoint} decided transactions of it which are not known to be visible: {len(sink.entries)}. "
            f"They could not be committed: {error}. Keep the sink in the program, fed by nothing, until one more "
            "checkpoint has completed; then leave it out"
        ) from error
