"""Cleanup of side-by-side databases: folders of failed checkpoints, and closes while compactions are held.

Compactions are held when the job is about to move."""

import errno
import os
import time
from pathlib import Path

import pytest

from barrier_runtime.state.kv import rocksdb
from barrier_runtime.state.kv.key_ranges import KeyRanges
from barrier_runtime.state.kv.rocksdb import RocksDbKv, SlotMemory
from barrier_runtime.state.kv.side_by_side import Database, SideBySide


def test_a_flush_while_compactions_are_held_leaves_what_is_empty_for_a_later_one(tmp_path: Path) -> None:
    """A close in the last checkpoint would wait for a held compaction, or would start all held compactions."""
    memory = SlotMemory(64 << 20)
    other = RocksDbKv(tmp_path / "1", memory)
    for number in range(rocksdb._RUNS + 5):
        other.write([(b"\1" + number.to_bytes(4, "big"), b"v")])
        other.flush()
    ranges = KeyRanges((b"", b"\1", b"\2"), (0, 1, 0))
    store = SideBySide(RocksDbKv(tmp_path / "0", memory), [Database(1, other, tmp_path / "1")], ranges)
    while store.move(1_000):
        pass
    memory.hold_compactions(True)
    try:
        store.flush()
        assert memory.compactions_held
        assert not store.alone
    finally:
        memory.hold_compactions(False)
    store.flush()
    assert store.alone
    assert not (tmp_path / "1").exists()
    store.close()


class OnAFullDisk(RocksDbKv):
    def checkpoint(self, directory: Path) -> None:
        super().checkpoint(directory)
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_checkpoint_that_fails_leaves_no_folder_that_its_owner_does_not_know(tmp_path: Path) -> None:
    memory = SlotMemory(64 << 20)
    first, other = RocksDbKv(tmp_path / "0", memory), OnAFullDisk(tmp_path / "1", memory)
    ranges = KeyRanges((b"", b"\1", b"\2"), (0, 1, 0))
    store = SideBySide(first, [Database(1, other, tmp_path / "1")], ranges)
    store.write([(b"\0", b"v"), (b"\1", b"v")])
    copies = tmp_path / "copies"
    copies.mkdir()
    with pytest.raises(OSError, match="No space left"):
        store.checkpoint(copies / "checkpoint-1")
    assert [path.name for path in copies.iterdir()] == ["checkpoint-1"], "who asked for it removes it"
    store.close()


@pytest.mark.slow
def test_a_database_is_closed_while_the_compaction_of_another_goes_on(tmp_path: Path) -> None:
    """One thread compacts for all databases: a checkpoint must not wait for the compaction of another database.

    The compaction takes a thousand times as long as the close. On a busy machine it may end first, all the same.
    """
    assert any(closed_meanwhile(tmp_path / str(attempt)) for attempt in range(5))


def closed_meanwhile(folder: Path) -> bool:
    """Whether a small database was closed before the compaction of a large one ended."""
    memory = SlotMemory(64 << 20)
    large, small = RocksDbKv(folder / "large", memory), RocksDbKv(folder / "small", memory)
    memory.hold_compactions(True)
    try:
        for number in range(rocksdb._RUNS + 5):
            large.write(
                [(number.to_bytes(4, "big") + key.to_bytes(2, "big"), os.urandom(8_192)) for key in range(1_500)]
            )
            large.flush()
            small.write([(number.to_bytes(4, "big"), b"v")])
            small.flush()
    finally:
        memory.hold_compactions(False)
    while not large.compacts and len(list((folder / "large").glob("*.sst"))) > rocksdb._RUNS:
        time.sleep(0.001)
    small.close()
    compacts = large.compacts
    large.close()
    return compacts
