"""A recent position of a log, stored beside the log: where the search for the log's end begins.

The hint decides nothing. A missing, old or wrong hint costs requests: `find_head` reads the log itself from the hint
upwards until a record is absent, and the next put-if-absent decides. The hint also names the FENCE of the generation,
which is then read beside those records; another FENCE is read later. The writer of a log rewrites the hint now and
then, after the record and off its path; a failed write is harmless.
"""

import contextlib

import msgspec

from barrier_runtime.coordinator.log.records import NO_RECORD
from barrier_runtime.state.errors import BarrierRuntimeError
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none

EVERY = 8  # records between two writes of the hint
READ_AHEAD = EVERY + 1  # positions from the hint on that are read side by side


class Hint(msgspec.Struct, frozen=True):
    position: int
    token: int = NO_RECORD  # of the generation; a log of something else than decisions has none


NO_HINT = Hint(NO_RECORD)
_DECODER = msgspec.json.Decoder(Hint)


class HeadHint:
    """The hint of one log, under `key`. Blocking."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._written = NO_RECORD

    def read(self) -> int:
        """The position that the hint names; `NO_RECORD` if there is no hint, or nothing that is one."""
        return max(NO_RECORD, self.found().position)

    def found(self) -> Hint:
        """The hint as it is stored; `NO_HINT` if there is none, or nothing that is one."""
        try:
            data = get_or_none(self._store, self._key)
            return NO_HINT if data is None else _DECODER.decode(data)
        except (BarrierRuntimeError, OSError, msgspec.MsgspecError):
            return NO_HINT  # trouble of the store shows in the reading of the log itself

    def follow(self, position: int, token: int = NO_RECORD) -> None:
        """The record at `position` is there, of generation `token`: store that, if the hint is `EVERY` records
        behind."""
        if position < self._written + EVERY:
            return
        self._written = position
        with contextlib.suppress(BarrierRuntimeError, OSError):  # an older hint costs requests, and nothing else
            self._store.put(self._key, msgspec.json.encode(Hint(position, token)))
