"""Commit logs in blocks: records that stay, crashes at each write, stalled writers, and the cost of a long log."""

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sink_harness import Crash, CrashingStore

from barrier_runtime.connectors.files.sink import (
    commit_blocks,
    commit_log,
    commit_reader,
    commit_record,
)
from barrier_runtime.connectors.files.sink.commit_blocks import block_of
from barrier_runtime.connectors.files.sink.commit_log import CommitLog, CommittedFile, read_commit_log
from barrier_runtime.connectors.files.sink.commit_record import CommitRecord, decode_commit_record, encode_commit_record
from barrier_runtime.connectors.sink_bases.file_committable import log_tag, origin_of_name
from barrier_runtime.coordinator.log.records import is_milestone
from barrier_runtime.state.errors import Corrupt, Unavailable
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome
from barrier_runtime.tools.fsck import fsck

PREFIX = "_commits/job/out/"


@pytest.fixture
def small() -> Iterator[None]:
    """Blocks of four records; two blocks make the next."""
    with (
        patch.object(commit_blocks, "RECORDS", 4),
        patch.object(commit_blocks, "FAN", 2),
        patch.object(commit_record, "FIRST_RECORDS", 4),
    ):
        yield


def name(checkpoint: int, token: int = 1, log: str = "a") -> str:
    return f"part-{checkpoint:08d}-0-{token}-{log_tag(log, 'store')}00000000-0.jsonl"


def file(name: str) -> CommittedFile:
    return CommittedFile(name, "00", 1)


def commit(log: CommitLog, token: int, *names: str) -> None:
    origins = {each: found[1] for each in names if (found := origin_of_name(each)) is not None}
    checkpoint = max(origin[1] for origin in origins.values())
    log.append(checkpoint, token, [file(each) for each in names], lambda each: origins[each.name])


def log_on(store: ObjectStore) -> CommitLog:
    return CommitLog(store, "job", "out")


def logged(store: ObjectStore) -> list[str]:
    return [each.name for record in read_commit_log(store, "job", "out") for each in record.files]


def key_of(position: int) -> str:
    return f"{PREFIX}{position:020d}.json"


def keys_in(store: MemoryStore) -> tuple[str, ...]:
    return store.keys()


def positions(store: MemoryStore) -> list[int]:
    found = (key.removeprefix(PREFIX).removesuffix(".json") for key in keys_in(store))
    return [int(each) for each in found if each.isdigit()]


def written(store: ObjectStore, first: int, last: int, token: int = 1) -> CommitLog:
    log = log_on(store)
    for checkpoint in range(first, last + 1):
        commit(log, token, name(checkpoint, token))
    return log


# ---------------------------------------------------------------- records that stay


def test_records_move_into_blocks_and_readers_see_all_of_them(store: MemoryStore, small: None) -> None:
    written(store, 1, 70)
    written(store, 71, 103, token=2)
    names = [*(name(each) for each in range(1, 71)), *(name(each, 2) for each in range(71, 104))]
    for after in range(104):
        assert [each.files[0].name for each in read_commit_log(store, "job", "out", after)] == names[after:]
    stay = positions(store)
    below = [each for each in stay if each <= 96 and not is_milestone(each, 4)]
    assert below == [3, 5, 71], "the first records, the first of version 3, and the first of the second process"
    assert len([key for key in keys_in(store) if "/blocks/" in key]) < 12


def test_records_beyond_the_first_are_refused_by_earlier_releases(store: MemoryStore, small: None) -> None:
    """They read from the first record to a gap, and refuse versions above 2."""
    written(store, 1, 60)
    stay, reached = positions(store), 1
    while reached + 1 in stay:
        reached += 1
    assert reached < 60, "records behind the first ones moved"
    versions = [
        decode_commit_record(store.get(key_of(each)), "", "job", "out").version for each in range(1, reached + 1)
    ]
    assert versions[:5] == [1, 1, 1, 1, 3]


def test_blocks_above_the_limit_are_not_merged(store: MemoryStore, small: None) -> None:
    with patch.object(commit_blocks, "MOST_BYTES", 100):
        written(store, 1, 60)
    assert {key.split("/")[4] for key in keys_in(store) if "/blocks/" in key} == {"1"}
    assert logged(store) == [name(each) for each in range(1, 61)]
    assert 33 not in positions(store)


@pytest.mark.parametrize("change", ["a byte", "other sink", "gone"])
def test_damaged_blocks_stop_readers(change: str, store: MemoryStore, small: None) -> None:
    written(store, 1, 60)
    key = next(key for key in keys_in(store) if "/blocks/3/" in key)
    data = store.get(key)
    if change == "a byte":
        store.damage(key, data[:-1] + bytes([data[-1] ^ 1]))
    elif change == "other sink":
        store.damage(key, data.replace(b'"out"', b'"oux"', 1))
    else:
        store.delete([key])
    with pytest.raises(Corrupt, match="restore it"):
        logged(store)


@pytest.mark.parametrize("level", [1, 2])
def test_a_damaged_block_does_not_stop_commits(
    level: int, tmp_path: Path, small: None, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    store = LocalStore(tmp_path)
    log = written(store, 1, 30)
    key = [info.key for info in store.list(f"{PREFIX}blocks/{level}/")][-1]
    data = store.get(key)
    store.put(key, b"")
    for checkpoint in range(31, 31 + 4 * 8):
        commit(log, 1, name(checkpoint))
    (said,) = [record.getMessage() for record in caplog.records if "no more blocks" in record.getMessage()]
    assert f"{store.url}/{PREFIX}: no more blocks of this commit log" in said
    assert key in said
    assert "restore it from a backup" in said
    assert fsck(str(tmp_path), None, delete=False, min_age_s=0, form="text") == 2
    assert key in capsys.readouterr().out
    store.put(key, data)
    written(store, 63, 80)
    assert logged(store) == [name(each) for each in range(1, 81)]
    assert f"{PREFIX}blocks/1/{20:020d}.block" in [info.key for info in store.list(f"{PREFIX}blocks/1/")]
    assert fsck(str(tmp_path), None, delete=False, min_age_s=0, form="text") == 0


@pytest.mark.parametrize("lost", ["block", "record"])
def test_a_lost_part_of_the_log_stops_a_writer_that_looks_for_a_file(
    lost: str, store: MemoryStore, small: None
) -> None:
    written(store, 1, 61 if lost == "block" else 11)
    blocks = [key for key in keys_in(store) if "/blocks/" in key]
    if lost == "block":
        store.delete([key for key in blocks if "/blocks/3/" in key])
    else:  # before its block was put
        store.delete([key_of(6), *(key for key in blocks if key.endswith(f"/1/{2:020d}.block"))])
    with pytest.raises(Corrupt, match="restore it"):
        log_on(store).names(name(3), 1, 3)


@pytest.mark.parametrize("landed_at", [0, 7, 9])
def test_a_block_of_a_deleted_log_stops_readers_and_deletes_nothing(landed_at: int, small: None) -> None:
    """A process that stalled before the folder was deleted puts block 2 into the next log."""
    old, new = MemoryStore(), MemoryStore()
    written(old, 1, 12, token=2)
    key = f"{PREFIX}blocks/1/{2:020d}.block"
    log = written(new, 1, landed_at)
    new.put(key, old.get(key))
    with contextlib.suppress(Corrupt):
        for checkpoint in range(landed_at + 1, 20):
            commit(log, 1, name(checkpoint))
    assert set(range(1, 9)) <= set(positions(new))
    with pytest.raises(Corrupt, match="another log"):
        logged(new)


# ---------------------------------------------------------------- crashes


def test_a_crash_at_any_write_loses_and_doubles_nothing(small: None) -> None:
    """A successor then compacts the records that the dead process left."""
    last, crash_at, crashed = 40, 0, True
    while crashed:
        store, crashed, done = MemoryStore(), False, 0
        log = log_on(CrashingStore(store, crash_at))
        try:
            for checkpoint in range(1, last + 1):
                commit(log, 1, name(checkpoint))
                done = checkpoint
        except Crash:
            crashed = True
        assert logged(store)[:done] == [name(each) for each in range(1, done + 1)], crash_at
        successor = log_on(store)
        commit(successor, 2, *(name(each) for each in range(max(1, done), last + 1)))
        written(store, last + 1, last + 20, token=2)
        names = logged(store)
        assert sorted(names) == sorted({*(name(each) for each in range(1, last + 1)), *names}), crash_at
        assert len(names) == last + 20, crash_at
        left = [each for each in positions(store) if 5 < each <= 16 and not is_milestone(each, 4)]
        turns = [each for each in left if log_on(store).record(each).turn]  # type: ignore[union-attr]
        assert left == turns, (crash_at, "records that a block has were left over")
        crash_at += 1
    assert crash_at > 60


# ---------------------------------------------------------------- stalled processes


@pytest.mark.parametrize("looked", ["own record", "look ahead", "unknown put"])
@pytest.mark.parametrize("stalled_at", range(1, 14))
def test_a_writer_that_stalled_finds_its_files_in_the_log(looked: str, stalled_at: int, small: None) -> None:
    store = MemoryStore()
    stalled = written(store, 1, stalled_at)
    if looked == "look ahead":
        stalled = log_on(store)
        stalled.look_ahead()
    elif looked == "unknown put":
        unknown = patch.object(store, "put_if_absent", lambda key, data: PutOutcome.UNKNOWN)
        with unknown, pytest.raises(Unavailable):
            commit(stalled, 1, name(stalled_at + 1))
    for token in (2, 3):
        written(store, 100 * token, 100 * token + 30, token)
    assert any(each not in positions(store) for each in range(stalled_at + 1, 40))
    commit(stalled, 1, name(stalled_at + 1))
    commit(stalled, 1, name(stalled_at + 2))
    names = logged(store)
    assert names.count(name(stalled_at + 1)) == names.count(name(stalled_at + 2)) == 1
    assert len(names) == stalled_at + 2 + 62


class Busy(MemoryStore):
    """Store in which other processes act between any two requests, and answers of puts are lost. No threads."""

    requests_at_once = 1

    def __init__(self, seed: int) -> None:
        super().__init__("busy")
        self.chance = random.Random(seed)
        self.act: Callable[[], None] = lambda: None
        self.deep = 0

    def _others(self) -> None:
        if self.deep < 3 and self.chance.random() < 0.1:
            self.deep += 1
            try:
                for _ in range(self.chance.choice((1, 1, 2, 12))):
                    self.act()
            finally:
                self.deep -= 1

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        self._others()
        return super().get(key, offset, size)

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        self._others()
        luck = self.chance.random()
        if luck < 0.03:
            return PutOutcome.UNKNOWN
        outcome = super().put_if_absent(key, data)
        return PutOutcome.UNKNOWN if luck < 0.06 else outcome


class Process:
    """Commits decided files in order. A process of an older token commits only files decided before its successor."""

    def __init__(self, store: ObjectStore, token: int, done: int) -> None:
        self.log, self.token, self.done = log_on(store), token, done
        self.until = 1 << 30
        self.busy = False

    def commit(self, decided: list[str], count: int) -> None:
        due = decided[self.done : min(self.until, self.done + count)]
        if not due or self.busy:
            return
        self.busy = True
        try:
            with contextlib.suppress(Unavailable):
                commit(self.log, self.token, *due)
                self.done += len(due)
        finally:
            self.busy = False


@pytest.mark.parametrize("seed", range(12))
def test_random_interleavings_leave_one_log(seed: int, small: None) -> None:
    """Each file stays in the log once, and no reader sees less than an earlier reader."""
    store = Busy(seed)
    chance, decided, seen = store.chance, list[str](), list[str]()
    living = [Process(store, 1, 0)]

    def act() -> None:
        newest = living[-1]
        luck = chance.random()
        if luck < 0.02:
            newest.until = len(decided)
            living.append(Process(store, newest.token + 1, max(0, newest.done - chance.randrange(3))))
        elif luck < 0.85:
            decided.append(name(len(decided) + 1, newest.token))
            newest.commit(decided, chance.choice((1, 1, 1, 2, 9)))
        else:
            chance.choice(living[-6:]).commit(decided, chance.choice((1, 2)))

    store.act = act
    with (
        patch.object(commit_log, "READS_AT_ONCE", 1),
        patch.object(commit_reader, "READS_AT_ONCE", 1),
    ):
        while len(decided) <= 250:
            act()
            if chance.random() < 0.2:
                names = logged(store)
                assert names[: len(seen)] == seen
                seen = names
        store.act = lambda: None
        for process in living:
            while process.done < min(process.until, len(decided)):
                process.commit(decided, 3)
        names = logged(store)
    assert names[: len(seen)] == seen
    assert sorted(names) == sorted(decided)
    assert len(positions(store)) < len(names)


# ---------------------------------------------------------------- fsck


@pytest.mark.parametrize("lost", ["none", "a block", "a turn", "the end of a block", "a record behind the blocks"])
def test_fsck_reports_what_a_commit_log_lacks(lost: str, tmp_path: Path, small: None, capsys: Any) -> None:
    store = LocalStore(tmp_path)
    written(store, 1, 30)
    written(store, 31, 54, token=2)
    key = {
        "a block": f"{PREFIX}blocks/3/{2:020d}.block",
        "a turn": key_of(31),
        "the end of a block": key_of(40),
        "a record behind the blocks": key_of(53),
    }.get(lost)
    if key is not None:
        assert store.get(key)
        store.delete([key])
    code = fsck(str(tmp_path), None, delete=False, min_age_s=0, form="text")
    printed = capsys.readouterr().out
    assert "commit log of job job, sink out: " in printed
    assert code == (0 if lost == "none" else 2), printed
    assert ("damage" in printed) == (lost != "none")


# ---------------------------------------------------------------- the cost of a long log


class LongLog(MemoryStore):
    """Commit log of `length` records, of which only the end is real. Counts requests."""

    def __init__(self, length: int) -> None:
        super().__init__("long")
        self.reads = 0
        self.length = length
        self.block = length // 256
        records = [self.of(at) for at in range(256 * (self.block - 1) + 1, 256 * self.block + 1)]
        self._set(f"{PREFIX}blocks/1/{self.block:020d}.block", block_of("job", "out", self.block, records, {}))
        for at in range(256 * self.block - 255, length + 1):
            self._set(key_of(at), encode_commit_record(self.of(at)))

    def of(self, at: int) -> CommitRecord:
        return CommitRecord(3, "job", "out", at, 1, at, 1, (file(name(at)),))

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        self.reads += 1
        place = key.removeprefix(PREFIX).split(".")[0]
        if place.isdigit() and int(place) < 256 * self.block and is_milestone(int(place), 256):
            return encode_commit_record(self.of(int(place)))
        if place.startswith("blocks/1/") and int(place.rpartition("/")[2]) < self.block:
            return b"a block"
        return super().get(key, offset, size)


def requests_of_a_start(store: LongLog) -> int:
    log = log_on(store)
    store.reads = 0
    commit(log, 2, name(store.length), name(store.length + 1, 2))
    assert log.record(store.length + 1).files == (file(name(store.length + 1, 2)),)  # type: ignore[union-attr]
    return store.reads


def test_a_first_commit_reads_as_much_after_ten_million_records() -> None:
    lengths = (5_000, 9_999_992)
    for hint in (True, False):
        counts = []
        for length in lengths:
            store = LongLog(length)
            if hint:
                store.put(f"{PREFIX}hint.json", b'{"position":%d}' % (length - 3))
            counts.append(requests_of_a_start(store))
        assert counts[1] <= (counts[0] if hint else 70), counts
        assert counts[0] <= (30 if hint else 50), counts


@pytest.mark.slow
def test_a_hundred_thousand_records_are_read_with_few_requests(store: MemoryStore) -> None:
    bare = (CommitRecord(3, "job", "out", at, 1, at, 1, (file(name(at)),)) for at in range(1, 100_001))
    records = [decode_commit_record(encode_commit_record(each), "", "job", "out") for each in bare]
    with patch.object(commit_blocks, "FAN", 16):
        parts: dict[tuple[int, int], commit_blocks.CommitBlock] = {}
        blocks = commit_blocks.Blocks(store, PREFIX, "job", "out", lambda at: records[at - 1])
        for level in (1, 2, 3):
            span = commit_blocks.span(level)
            for number in range(1, len(records) // span + 1):
                if level == 1:
                    data = block_of("job", "out", number, records[span * (number - 1) : span * number], {})
                else:
                    data = commit_blocks.merged(
                        [parts[level - 1, each] for each in range(16 * number - 15, 16 * number + 1)]
                    )
                store.put(blocks.key(level, number), data)
                found = blocks.read(level, number)
                assert found is not None
                parts[level, number] = found
        for (level, number), _ in parts.items():
            if level < 3 and (level + 1, (number + 15) // 16) in parts:
                store.delete([blocks.key(level, number)])
    for at in [*range(256, 100_000, 256), *range(100_000 // 256 * 256 + 1, 100_001)]:
        store.put(key_of(at), encode_commit_record(records[at - 1]))
    store.calls.clear()
    assert logged(store) == [record.files[0].name for record in records]
    # a block of level 3, eight of level 2, six of level 1, 160 records, and misses
    assert store.calls["get"] < 15 + 160 + 150
