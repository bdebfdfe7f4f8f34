"""Blocks of a file sink's commit log: few large objects in place of many records.

    <url>/_commits/<job>/<sink>/blocks/<level>/<number, 20 digits>.block

A block of level 1 has 256 records; a block of the next level has 16 blocks, if they take at most 32 MiB. A block is put
once, if absent. The content is the log: whatever a block covers may be deleted (`block_writer`). Design:
docs/design/commit-logs.md.

The first line is JSON, with the sizes of the parts that follow: compressed JSON of 256 records each. `origins` are of
these and all earlier records: a job that starts anew in the same folder skips older records.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from barrier_runtime.connectors.files.sink.commit_record import CommitRecord, Origins, highest_origins
from barrier_runtime.state.errors import UNREADABLE, Corrupt
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore, get_or_none
from barrier_runtime.state.versioned import Format, VersionedDecoder, sha256_hex, stamp_of

BLOCK_VERSION = 1
RECORDS = 256  # a power of two, part of the stored format: milestones of logs are at its multiples
FAN = 16
LEVELS = 3
MOST_BYTES = 32 << 20


class BlockHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    job: str
    sink: str
    level: int
    number: int
    origins: Origins
    sizes: tuple[int, ...]
    check: str = ""


_FORMAT = Format("block of commit records {}", BLOCK_VERSION, damaged="restore it from a backup", refusal=Corrupt)
_HEAD = VersionedDecoder(_FORMAT, msgspec.json.Decoder(BlockHead))
_RECORDS = msgspec.json.Decoder(list[CommitRecord])


def span(level: int) -> int:
    return RECORDS * int(FAN ** (level - 1))


@dataclass(frozen=True)
class CommitBlock:
    head: BlockHead
    data: bytes
    where: str

    @property
    def last(self) -> int:
        return self.head.number * span(self.head.level)

    @property
    def first(self) -> int:
        return self.last - span(self.head.level) + 1

    def parts(self) -> list[bytes]:
        at = self.data.index(b"\n") + 1
        found = []
        for size in self.head.sizes:
            found.append(self.data[at : at + size])
            at += size
        return found

    def records(self, first: int = 0, last: int = 1 << 62) -> list[CommitRecord]:
        """Records `first` to `last` of the log, as far as this block has them."""
        found: list[CommitRecord] = []
        for number, part in enumerate(self.parts()):
            begin = self.first + number * RECORDS
            if begin > last or begin + RECORDS <= first:
                continue
            try:
                records = _RECORDS.decode(zlib.decompress(part))
            except (*UNREADABLE, zlib.error) as error:
                raise _FORMAT.unreadable(error, self.where) from error
            found += records[max(0, first - begin) : last - begin + 1]
        return found


def block_of(job: str, sink: str, number: int, records: Sequence[CommitRecord], before: Origins) -> bytes:
    part = zlib.compress(msgspec.json.encode(records))
    head = BlockHead(BLOCK_VERSION, job, sink, 1, number, highest_origins(before, records), (len(part),))
    return _encoded(head, [part])


def merged(blocks: Sequence[CommitBlock]) -> bytes:
    """Returns the bytes of the block of the next level."""
    last = blocks[-1].head
    parts = [part for block in blocks for part in block.parts()]
    head = msgspec.structs.replace(
        last, level=last.level + 1, number=last.number // FAN, sizes=tuple(map(len, parts)), check=""
    )
    return _encoded(head, parts)


def _encoded(head: BlockHead, parts: Sequence[bytes]) -> bytes:
    body = b"".join([b"\n", *parts])
    check = sha256_hex(msgspec.json.encode(head) + body)
    return msgspec.json.encode(msgspec.structs.replace(head, check=check)) + body


class Blocks:
    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        job: str,
        sink: str,
        record_at: Callable[[int], CommitRecord | None],
    ) -> None:
        self._store = store
        self._record_at = record_at
        self._prefix = prefix
        self._job = job
        self._sink = sink

    def key(self, level: int, number: int) -> str:
        return f"{self._prefix}blocks/{level}/{number:020d}.block"

    def read(self, level: int, number: int) -> CommitBlock | None:
        key = self.key(level, number)
        data = get_or_none(self._store, key)
        if data is None:
            return None
        where = f"{self._store.url}/{key}"
        line, _, body = data.partition(b"\n")
        head = _HEAD.decode(line, where)
        about = head.job, head.sink, head.level, head.number, len(head.sizes)
        expected = self._job, self._sink, level, number, span(level) // RECORDS
        if about != expected or sum(head.sizes) != len(body):
            raise _FORMAT.unreadable(f"it should be {expected} and is {about}", where)
        if head.check != stamp_of(data, head.check):
            raise _FORMAT.unreadable("its bytes have another hash", where)
        block = CommitBlock(head, data, where)
        if block.records(block.last) != [self._record_at(block.last)]:  # this record stays for ever
            raise Corrupt(
                f"block {where} is of another log: a process of a deleted log may have put the block late. Delete the "
                f"block, if the log has records up to {block.last} without this block, or has fewer records; otherwise "
                f"restore record {block.last} from a backup"
            )
        return block

    def exists(self, level: int, number: int) -> bool:
        return is_there(self._store, self.key(level, number))

    def covering(self, position: int) -> CommitBlock | None:
        """The lowest level first: a block is deleted after the block above is put."""
        for level in range(1, LEVELS + 1):
            block = self.read(level, (position - 1) // span(level) + 1)
            if block is not None:
                return block
        return None

    def cover(self, position: int) -> bool:
        return any(self.exists(level, (position - 1) // span(level) + 1) for level in range(1, LEVELS + 1))


def is_there(store: ObjectStore, key: str) -> bool:
    try:
        store.get(key, 0, 1)
    except ObjectNotFound:
        return False
    return True
