"""Check of a sink's commit log, for `fsck`: each record, each block, and proofs that the log goes on. Writes nothing.

Files of rows are not checked: users may move or delete them.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec

from barrier_runtime.connectors.files.sink import commit_blocks
from barrier_runtime.connectors.files.sink.block_writer import may_go
from barrier_runtime.connectors.files.sink.commit_log import jobs_and_sinks
from barrier_runtime.connectors.files.sink.commit_reader import READS_AT_ONCE, Reading, StoredRecords
from barrier_runtime.coordinator.maintenance.fsck import BACKUP, Damage
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.store.object_store import ObjectStore


class CommitLogReport(msgspec.Struct, frozen=True):
    job: str
    sink: str
    records: int
    blocks: int
    damage: tuple[Damage, ...]


def check_commit_logs(store: ObjectStore, job: str | None) -> list[CommitLogReport]:
    return [_checked(StoredRecords(store, *each)) for each in jobs_and_sinks(store) if job in (None, each[0])]


def _checked(stored: StoredRecords) -> CommitLogReport:
    keys = [info.key.removeprefix(stored.prefix) for info in stored.store.list(stored.prefix)]
    listed = {int(name) for key in keys if (name := key.removesuffix(".json")).isdigit()}
    blocks = sum(key.startswith("blocks/") for key in keys)
    with ThreadPoolExecutor(READS_AT_ONCE) as reading:
        must_stay: list[int] = []
        damage: list[Damage] = []
        head = 0
        try:
            for record in Reading(stored, reading, 0).all():
                head += 1
                if not may_go(head, record):
                    must_stay.append(head)
        except Corrupt as error:
            damage.append(Damage(f"{stored.prefix}, after record {head}", "a readable log", str(error), BACKUP))
        else:
            damage += _behind(stored, head, listed)
        in_blocks = head // commit_blocks.RECORDS * commit_blocks.RECORDS
        due = [each for each in must_stay if each <= in_blocks]
        damage += [each for found in reading.map(lambda at: _kept(stored, at), due) for each in found]
    return CommitLogReport(stored.job, stored.sink, head, blocks, tuple(damage))


def _behind(stored: StoredRecords, head: int, listed: set[int]) -> Iterator[Damage]:
    """Records that were listed before the log was read, behind the end that readers see."""
    later = sorted(each for each in listed if each > head)
    if later:
        found = f"nothing, but record {later[0]} is there"
        yield Damage(stored.key(head + 1), "a commit record", found, BACKUP)


def _kept(stored: StoredRecords, position: int) -> list[Damage]:
    """Writers look for these records, although blocks have them."""
    try:
        record = stored.record(position)
    except Corrupt as error:
        return [Damage(stored.key(position), "a readable commit record", str(error), BACKUP)]
    if record is None:
        return [Damage(stored.key(position), "a commit record, which shows that the log goes on", "nothing", BACKUP)]
    return []
