"""What side-by-side databases do while compactions are held, because the job is about to move."""

from pathlib import Path

from barrier_runtime.state.kv import rocksdb
from barrier_runtime.state.kv.key_ranges import KeyRanges
from barrier_runtime.state.kv.rocksdb import RocksDbKv, SlotMemory
from barrier_runtime.state.kv.side_by_side import Database, SideBySide


def test_a_flush_while_compactions_are_held_leaves_what_is_empty_for_a_later_one(tmp_path: Path) -> None:
    """Its close would wait for a compaction that does not begin, or let all others begin, in the last checkpoint."""
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
