"""Position of a reader of changes, in the snapshot's rows or in the log; JSON in checkpoints. Pure.

| read so far                                  | lsn                             | commit_lsn | skip |
|----------------------------------------------|---------------------------------|------------|------|
| only the snapshot                            | start of the slot               | 0          | 0    |
| n rows of a transaction                      | end of the previous transaction | its commit | n    |
| a whole transaction                          | its end                         | 0          | 0    |
| nothing, and the log has no rows up to there | up to there                     | 0          | 0    |

The server repeats a transaction in the same order. Only `lsn` may be confirmed to the server.
"""

from typing import Final

import msgspec

from barrier_runtime.state.versioned import Format, VersionedDecoder

POSITION_VERSION: Final = 1


class ChangePosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Position after `row` rows of the snapshot's `chunk` (None: the snapshot is read)."""

    lsn: int
    commit_lsn: int = 0
    skip: int = 0
    chunk: int | None = None
    row: int = 0
    version: int = POSITION_VERSION


_FORMAT = Format("position of {}", POSITION_VERSION, damaged="restore an older checkpoint, or start without state")
_DECODER = VersionedDecoder(_FORMAT, msgspec.json.Decoder(ChangePosition))


def encode_position(position: ChangePosition) -> bytes:
    return msgspec.json.encode(position)


def decode_position(data: bytes, where: str) -> ChangePosition:
    return _DECODER.decode(data, where)


def parsed_lsn(text: str) -> int:
    """Parses `16/B374D848`, the server's text."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def shown_lsn(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFF_FFFF:X}"
