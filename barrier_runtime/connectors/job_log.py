"""Identity and decided checkpoints of the job's decision log, for sinks.

A manifest also lists committables of aborted checkpoints; only the log distinguishes them.
"""

from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.coordinator.log.decision_log import complete_of
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.records import FIRST_POSITION, decode_record
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.store.object_store import get_or_none
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex

_READS = 3


def log_id(context: SinkContext) -> str:
    """Returns an identity of the log within which `context.token` only rises; without a log, the lineage.

    Blocks. Raises errors of the store, and `Corrupt` for a damaged first record.
    """
    if context.log_sha256:
        return f"log {context.log_sha256[:32]}"
    key = Paths(context.job).log_record(FIRST_POSITION)
    for left in reversed(range(_READS)):
        first = get_or_none(context.job_store, key)
        if first is None:
            break
        try:
            decode_record(key, first)
        except Corrupt:  # perhaps only this read is damaged
            if not left:
                raise
        else:
            return f"log {sha256_hex(first)[:32]}"
    return f"lineage {context.lineage}"


def decided_checkpoints(context: SinkContext, after: int) -> list[int]:
    """Decided checkpoints above `after`, ascending; empty without a log.

    Reads one object per decision. Blocks; raises errors of the store.
    """
    log = read_log(context.job_store, Paths(context.job), restore=after)
    completes = (complete_of(entry) for entry in log.completes)
    return sorted(each.checkpoint for each in completes if each.lineage == context.lineage and each.checkpoint > after)
