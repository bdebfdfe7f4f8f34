"""Recent position of a log, stored beside the log: the search for the log's end begins there.

The hint decides nothing. A missing, old or wrong hint costs requests: `find_head` reads the log itself from the hint
upwards until a record is absent, and the next put-if-absent decides. The hint also names the FENCE of the generation;
readers fetch that FENCE together with those records, and another FENCE later. The writer of a log rewrites the hint
every few records, after the record and off the critical path; a failed write is harmless.
"""

import contextlib

import msgspec

from barrier_runtime.coordinator.log.records import NO_RECORD
from barrier_runtime.state.errors import BarrierRuntimeError
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none

EVERY = 8  # records between two writes of the hint
READ_AHEAD = EVERY + 1  # positions from the hint on that are read in parallel


class Hint(msgspec.Struct, frozen=True):
    position: int
    token: int = NO_RECORD  # of the generation; absent in logs other than decision logs


NO_HINT = Hint(NO_RECORD)
_DECODER = msgspec.json.Decoder(Hint)


class HeadHint:
    """Hint of a log, stored under `key`. Blocking."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._written = NO_RECORD

    def read(self) -> int:
        """Returns the position that the hint names; `NO_RECORD` if the hint is missing or invalid."""
        return max(NO_RECORD, self.found().position)

    def found(self) -> Hint:
        """Returns the stored hint; `NO_HINT` if the hint is missing or invalid."""
        try:
            data = get_or_none(self._store, self._key)
            return NO_HINT if data is None else _DECODER.decode(data)
        except (BarrierRuntimeError, OSError, msgspec.MsgspecError):
            return NO_HINT  # reading the log itself reports errors of the store

    def follow(self, position: int, token: int = NO_RECORD) -> None:
        """Stores that generation `token` has a record at `position`, if the hint is `EVERY` records behind."""
        if position < self._written + EVERY:
            return
        self._written = position
        with contextlib.suppress(BarrierRuntimeError, OSError):  # an older hint only costs requests
            self._store.put(self._key, msgspec.json.encode(Hint(position, token)))
