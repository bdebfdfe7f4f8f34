"""The first record of a decision log, which gives a log its identity."""

from barrier_runtime.coordinator.log.records import FIRST_POSITION, Lead, encode_record
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.paths import Paths


def begin_log(store: ObjectStore, job: str, name: str) -> str:
    """Begins a different log for each `name`. Returns the record's key. (Real logs begin with a FENCE; sinks do not
    read the first record.)
    """
    key = Paths(job).log_record(FIRST_POSITION)
    record = Lead(put_id=name, parent_sha256="", token=FIRST_POSITION, writer="test", wall_ms=0, leader=name)
    store.put(key, encode_record(record))
    return key
