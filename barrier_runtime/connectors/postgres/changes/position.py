"""Where a reader of changes is: in the rows of the snapshot, or in the log. Pure; stored in checkpoints as JSON.

In the log a position is the end of the last transaction that was given whole (`lsn`), and how many rows of the next one
(`commit_lsn`, where its commit stands) were given besides (`skip`). The server repeats a transaction with the same
changes in the same order, so skipping that many rows yields the very next one.

| read so far                                  | lsn                 | commit_lsn | skip |
|----------------------------------------------|---------------------|------------|------|
| nothing but the snapshot                     | the slot's start    | 0          | 0    |
| n rows of a transaction                      | end of the one before | its commit | n    |
| a whole transaction                          | its end             | 0          | 0    |
| nothing, and the log has nothing up to there | up to there         | 0          | 0    |

Only `lsn` may be confirmed to the server: what is behind it, it may forget.
"""

from typing import Final

import msgspec

from barrier_runtime.state.versioned import Format, VersionedDecoder

POSITION_VERSION: Final = 1


class ChangePosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`chunk`: of the snapshot, in which `row` rows were given; None: the snapshot has been given, or there is none."""

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
    """`16/B374D848`, as the server writes it."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def shown_lsn(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFF_FFFF:X}"
