"""Cleanup of side-by-side databases: folders of failed checkpoints, and closes while compactions are held.

Compactions are held when the job is about to move."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime.state.kv import rocksdb
from barrier_runtime.state.kv.key_ranges import KeyRanges
from barrier_runtime.state.kv.rocksdb import RocksDbKv, SlotMemory
from barrier_runtime.state.kv.side_by_side import Database, SideBySide
from tests.waiting import until


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


SLOWLY = 1_000_000  # bytes that a compaction of `Slow` writes in a second


class Slow(RocksDbKv):
    """A database whose files are opened with a limit of written bytes: compactions take most of a minute."""

    def __init__(self, directory: Path, memory: SlotMemory, monkeypatch: pytest.MonkeyPatch) -> None:
        options = rocksdb._options

        def limited(*arguments: Any) -> Any:
            made = options(*arguments)
            made.set_ratelimiter(SLOWLY, 100_000, 10)
            return made

        with monkeypatch.context() as patched:
            patched.setattr(rocksdb, "_options", limited)
            super().__init__(directory, memory)


def fill(database: RocksDbKv, rows: int) -> None:
    """Writes more sorted runs of files than a database keeps, each of `rows` rows of a kilobyte."""
    for number in range(rocksdb._RUNS + 5):
        database.write([(number.to_bytes(4, "big") + row.to_bytes(2, "big"), os.urandom(1_000)) for row in range(rows)])
        database.flush()


@pytest.mark.slow
def test_a_database_is_closed_while_the_compaction_of_another_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread compacts for all databases: a checkpoint must not wait for the compaction of another database."""
    memory = SlotMemory(64 << 20)
    filled = RocksDbKv(tmp_path / "large", memory)
    memory.hold_compactions(True)
    fill(filled, 2_000)
    filled.close()
    small = RocksDbKv(tmp_path / "small", memory)
    large = Slow(tmp_path / "large", memory, monkeypatch)
    until(lambda: large.compacts, "the single thread compacts the large database")
    fill(small, 1)
    assert len(list((tmp_path / "small").glob("*.sst"))) > rocksdb._RUNS, "compactions of the other database wait"
    small.close()
    assert large.compacts
    large.close()
