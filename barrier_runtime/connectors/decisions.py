"""What a sink may have to know of its job's decision log: which log it is, and which checkpoints it decided.

A manifest lists committables of every checkpoint that closed a transaction, also of such as were given up; only the log
tells them apart. Fencing tokens are positions in one log: those of another say nothing about ours, and a job whose
checkpoints were deleted has another log under the same URL.
"""

from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.hashing import sha256_hex
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.records import FIRST_POSITION, decode_record
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.store.object_store import get_or_none
from barrier_runtime.state.store.paths import Paths

_READS = 3  # of a record that is damaged


def log_id(context: SinkContext) -> str:
    """The log within which `context.token` only rises: what no other log has. Where the store has none (a sink that is
    driven by hand), the lineage, within which it rises as well. Blocking; raises what the store raises, and `Corrupt`
    for a first record that is not what was written: a subtask with the identity of no log would write as nobody."""
    if context.log_sha256:
        return f"log {context.log_sha256[:32]}"
    key = Paths(context.job).log_record(FIRST_POSITION)
    for left in reversed(range(_READS)):
        first = get_or_none(context.job_store, key)
        if first is None:
            break
        try:
            decode_record(key, first)
        except Corrupt:  # stored so, or read so this once
            if not left:
                raise
        else:
            return f"log {sha256_hex(first)[:32]}"
    return f"lineage {context.lineage}"


def decided_checkpoints(context: SinkContext, after: int) -> list[int]:
    """The decided checkpoints above `after` of the sink's lineage, rising; empty where the store has no log. Reads one
    object per decision. Blocking; raises what the store raises."""
    log = read_log(context.job_store, Paths(context.job), restore=after)
    completes = (complete_of(entry) for entry in log.completes)
    return sorted(each.checkpoint for each in completes if each.lineage == context.lineage and each.checkpoint > after)
