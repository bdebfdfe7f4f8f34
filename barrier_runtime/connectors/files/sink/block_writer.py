"""Moves records of a commit log into blocks. Blocks.

The step of block n, of level 1, is, in this order:

1. delete what the step of n - 1 covered: records of block n - 1, and blocks below those that the step merged;
2. merge blocks up to n - 1, if a group is complete;
3. put block n.

So block n proves that all of this is done up to n - 1. A crash leaves a step that is repeated as a whole.
"""

import logging

from barrier_runtime.connectors.files.sink import commit_blocks, commit_reader, commit_record
from barrier_runtime.connectors.files.sink.commit_blocks import LEVELS, CommitBlock, block_of, merged, span
from barrier_runtime.connectors.files.sink.commit_reader import StoredRecords
from barrier_runtime.connectors.files.sink.commit_record import MAY_GO_FROM, CommitRecord
from barrier_runtime.coordinator.log.reader import find_head
from barrier_runtime.coordinator.log.records import is_milestone
from barrier_runtime.state.errors import Corrupt, Unavailable
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.store.object_store import PutOutcome

_log = logging.getLogger("barrier_runtime.files")
_NEVER = 1 << 62  # number of a block


def may_go(position: int, record: CommitRecord) -> bool:
    """True if the record may be deleted once a block has it.

    The record behind the first ones stays, because earlier releases refuse its version and so read no further.
    """
    if position <= commit_record.FIRST_RECORDS + 1 or record.version < MAY_GO_FROM:
        return False
    return not record.turn and not is_milestone(position, commit_blocks.RECORDS)


class BlockWriter:
    def __init__(self, stored: StoredRecords) -> None:
        self._stored = stored
        self._store = stored.store
        self._blocks = stored.blocks
        self._through = -1  # the newest block; -1: unknown
        self._durable: set[tuple[int, int]] = set()  # level and number of blocks put by this process

    def follow(self, head: int) -> None:
        """Makes a block, if one is due. `head`: a durable record, so a damaged block must not stop its commit."""
        wanted = head // commit_blocks.RECORDS
        if wanted <= max(self._through, 0):
            return
        if self._through < 0:
            self._through = self._found(wanted)
        try:
            if self._through < wanted:
                self._through = self._through + 1 if self._make(self._through + 1) else wanted
        except Corrupt as error:
            self._through = _NEVER
            _log.warning(
                "%s/%s: no more blocks of this commit log are written until the job starts again, commits go on: %s. "
                "`barrier-runtime fsck %s` lists all damage",
                self._store.url,
                self._stored.prefix,
                error,
                self._store.url,
            )

    def _found(self, wanted: int) -> int:
        for number in (wanted, wanted - 1):
            if number == 0 or self._covers(number):
                return number
        return max(0, find_head(self._covers))

    def _covers(self, number: int) -> bool:
        return self._blocks.cover(number * commit_blocks.RECORDS)

    def _make(self, number: int) -> bool:
        before = None
        if number > 1:
            before = self._blocks.covering((number - 1) * commit_blocks.RECORDS)
            if before is None:
                return False
            self._drop(number, before)
            self._merge(number - 1)
        first = (number - 1) * commit_blocks.RECORDS + 1
        found = in_parallel(self._intact, range(first, first + commit_blocks.RECORDS), commit_reader.READS_AT_ONCE)
        records = [record for record in found if record is not None]
        if self._covers(number):  # another process was faster, and may have deleted records that were read
            return True
        if len(records) < commit_blocks.RECORDS:
            return False
        origins = before.head.origins if before else {}
        self._put(1, number, block_of(self._stored.job, self._stored.sink, number, records, origins))
        return True

    def _drop(self, number: int, before: CommitBlock) -> None:
        self._keep(before)
        first = (number - 2) * commit_blocks.RECORDS + 1
        records = before.records(first, first + commit_blocks.RECORDS - 1)
        gone = [self._stored.key(at) for at, record in enumerate(records, first) if may_go(at, record)]
        for level in range(2, LEVELS + 1):
            upper, over = divmod(number - 2, span(level) // commit_blocks.RECORDS)
            block = None if over or not upper else self._blocks.read(level, upper)
            if block is not None:
                self._keep(block)
                last = upper * commit_blocks.FAN
                gone += [self._blocks.key(level - 1, each) for each in range(last - commit_blocks.FAN + 1, last + 1)]
        if gone:
            self._store.delete(gone)

    def _merge(self, number: int) -> None:
        for level in range(2, LEVELS + 1):
            number, over = divmod(number, commit_blocks.FAN)
            if over:
                return
            if self._blocks.exists(level, number):
                continue
            last = number * commit_blocks.FAN
            blocks: list[CommitBlock] = []
            for each in range(last - commit_blocks.FAN + 1, last + 1):
                block = self._blocks.read(level - 1, each)
                if block is None:
                    return
                blocks.append(block)
                if sum(len(block.data) for block in blocks) > commit_blocks.MOST_BYTES:
                    return
            self._put(level, number, merged(blocks))

    def _keep(self, block: CommitBlock) -> None:
        """Puts a block again that was only read: the writer may have died before the block was durable."""
        if (block.head.level, block.head.number) not in self._durable:
            self._put(block.head.level, block.head.number, block.data)

    def _put(self, level: int, number: int, data: bytes) -> None:
        key = self._blocks.key(level, number)
        if self._store.put_if_absent(key, data) is PutOutcome.UNKNOWN:
            raise Unavailable(f"nobody knows whether {self._store.url}/{key} was written: it is tried again")
        self._durable = {each for each in self._durable if each[0] != level} | {(level, number)}

    def _intact(self, sequence: int) -> CommitRecord | None:
        try:
            return self._stored.record(sequence)
        except Corrupt:
            return None
