"""Time to live of one keyed state: what is stored beside a value, and how it is judged. Pure.

An entry of a state with TTL is stored as

    C1 · 45 ('E') or 50 ('P') · write time, 8 bytes, ms · value      clock "event" or "processing"

and that of one without as the value alone, to the byte as if there were no TTL. No MessagePack and no pickle begins
with C1, a number of entries (`entry_table`) goes on with 00 behind it and a value of a later version with 56 ('V'), so
each entry says for itself what it is. An entry is expired once `write time + ttl <= now`.

What becomes of old entries, by what the checkpoint says of the state and what the program declares (a ttl may also be
shorter or longer than it was):

    checkpoint \\ program    no ttl       ttl by the clock of before                ttl by another clock
    no times                 as ever      all count from the restore                the same
    a ttl                    times go     judged by their times                     all count from the restore
    times left behind        times go     by their times, others from the restore   all count from the restore

"Times go": each entry that is written again is written without; until then its time is skipped when it is read, and
the description in snapshots says that there are times left behind. "Count from the restore": such entries have no time
that this clock can judge, so for all of them it is `since_ms`, which snapshots keep, so that a second restore does not
begin anew: the wall clock, or event time at the restore, that is the subtask's watermark; where there was none yet, the
first time at which a value is judged. Not always the latter, as a row is ahead of the watermark by chance.
"""

import struct
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import msgspec

Stamped: TypeAlias = tuple[int | None, Any]  # write time, ms, and value; None: no time that the state's clock can judge

_MARKS = {"event": b"\xc1E", "processing": b"\xc1P"}
_time = struct.Struct(">q")
_HEAD = 2 + _time.size


class StoredTtl(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Entries of a state have the time at which they were written; part of `StateDescription`."""

    ms: int  # 0: there is no time to live now, but entries may still have times of an earlier one
    refresh: str = "on_write"  # or "on_read"
    clock: str = "event"  # or "processing"
    since_ms: int | None = None  # entries without a time count from here; None: there are none, or none was judged yet


class StateClock(Protocol):
    """What time it is to a state with TTL, ms."""

    def now_ms(self) -> int:
        """To the row or timer at hand."""
        ...

    def passed_ms(self) -> int:
        """No row and no timer of its key to come is judged earlier."""
        ...

    def reached_ms(self) -> int:
        """No row and no timer of the subtask to come is."""
        ...

    def opened_ms(self) -> int | None:
        """When the state was restored, if that is known."""
        ...


class Expiry:
    """How the entries of one state expire. `stored.ms` 0: not at all, and what is written has no time."""

    def __init__(self, stored: StoredTtl, clock: StateClock, tell: Callable[[StoredTtl], None]) -> None:
        """`tell`: hears of it when `since_ms` becomes known."""
        self.stored = stored
        self.ttl_ms = stored.ms or None
        self.on_read = stored.refresh == "on_read"
        self.keeps_latest = stored.clock == "event"  # rows come out of order: an earlier one takes no time away
        self.now_ms = clock.now_ms
        self.passed_ms = clock.passed_ms
        self.reached_ms = clock.reached_ms
        self.mark = _MARKS[stored.clock]
        self._tell = tell

    def since_ms(self, now_ms: int) -> int:
        """The time of entries without."""
        since_ms = self.stored.since_ms
        if since_ms is None:
            since_ms = now_ms
            self.stored = msgspec.structs.replace(self.stored, since_ms=now_ms)
            self._tell(self.stored)
        return since_ms

    def time_in(self, data: bytes) -> int | None:
        """The time of an encoded entry."""
        return _time.unpack_from(data, 2)[0] if data[:2] == self.mark else None

    def encoder(self, encode: Callable[[Any], bytes]) -> Callable[[Stamped], bytes]:
        mark, pack = self.mark, _time.pack

        def encoded(stamped: Stamped) -> bytes:
            ms, value = stamped
            return encode(value) if ms is None else mark + pack(ms) + encode(value)

        return encoded

    def decoder(self, decode: Callable[[bytes], Any]) -> Callable[[bytes], Stamped]:
        mark, read = self.mark, _time.unpack_from

        def decoded(data: bytes) -> Stamped:
            if not is_timed(data):
                return None, decode(data)
            return read(data, 2)[0] if data[:2] == mark else None, decode(data[_HEAD:])

        return decoded


def without_time(data: bytes) -> tuple[int | None, bytes]:
    """The time of an encoded entry, of either clock (None: it has none), and its value."""
    return (_time.unpack_from(data, 2)[0], data[_HEAD:]) if is_timed(data) else (None, data)


def is_timed(data: bytes) -> bool:
    """Whether an encoded entry has a time of either clock."""
    return data[:2] in (b"\xc1E", b"\xc1P")


def continued(
    declared: StoredTtl | None, before: StoredTtl | None, restored: bool, opened_ms: int | None
) -> StoredTtl | None:
    """What becomes of a state that the checkpoint describes with `before` and the program with `declared`: the table
    above. None: it has no times. `restored`: the checkpoint has the state."""
    if declared is None:
        return None if before is None else StoredTtl(0, clock=before.clock)
    if not restored:
        return declared
    if before is None or before.clock != declared.clock or not before.ms:
        return msgspec.structs.replace(declared, since_ms=opened_ms)
    return msgspec.structs.replace(declared, since_ms=before.since_ms)
