"""RocksDB behind `RocksDbKv`: raw mode for any folder content, one owner per folder, bounded memory."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.kv import rocksdb
from barrier_runtime.state.kv.rocksdb import CONFIG_FILE, RocksDbKv, SlotMemory
from barrier_runtime.state.kv.rocksdb_files import FOOTER_BYTES, index_of, whole_index
from barrier_runtime.state.kv.side_by_side import link_database

MEMORY = SlotMemory(16 << 20)


def test_bytes_go_in_and_come_out_as_they_are(tmp_path: Path) -> None:
    """J4: the canary"""
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    canary = bytes(range(256))
    kv.write([(b"\0\xff", canary), (b"gone", b"x"), (b"empty", b""), (b"gone", None)])
    assert (kv.get(b"\0\xff"), kv.get(b"gone"), kv.get(b"empty")) == (canary, None, b"")
    kv.close()


@pytest.mark.parametrize("config", [json.dumps({"raw_mode": False, "prefix_extractors": {}}), "garbage", ""])
def test_a_configuration_found_in_the_folder_is_not_believed(tmp_path: Path, config: str) -> None:
    """J4"""
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    kv.write([(b"k", b"v")])
    kv.flush()
    kv.close()
    (tmp_path / "db" / CONFIG_FILE).write_text(config)
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    assert kv.get(b"k") == b"v"
    kv.close()


def test_a_configuration_that_is_a_link_does_not_lead_our_pen(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("keep")
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / CONFIG_FILE).symlink_to(outside)
    RocksDbKv(tmp_path / "db", MEMORY).close()
    assert outside.read_text() == "keep"


def test_a_range_is_deleted_whole_and_stays_so_in_files_and_when_it_is_opened_again(tmp_path: Path) -> None:
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    kv.write([(number.to_bytes(2, "big") + b"k", b"v") for number in range(100)])
    kv.flush()
    kv.write([((20).to_bytes(2, "big") + b"unflushed", b"v")])
    kv.delete_range((10).to_bytes(2, "big"), (30).to_bytes(2, "big"))
    kv.write([((15).to_bytes(2, "big") + b"later", b"v")])
    for _ in range(2):
        found = [int.from_bytes(key[:2], "big") for key, _ in kv.scan(b"", b"\xff")]
        assert found == [*range(10), 15, *range(30, 100)]
        kv.flush()
        kv.close()
        kv = RocksDbKv(tmp_path / "db", MEMORY)
    kv.close()


def test_a_scan_gives_the_range_in_order_also_when_much_is_written_meanwhile(tmp_path: Path) -> None:
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    kv.write([(number.to_bytes(4, "big"), b"v") for number in range(5_000)])
    start, end = (100).to_bytes(4, "big"), (4_100).to_bytes(4, "big")
    found = []
    for key, _ in kv.scan(start, end):
        found.append(int.from_bytes(key, "big"))
        if len(found) == 10:
            kv.write([(bytes(3) + bytes([n]) + b"x", b"v") for n in range(100)])
    assert [number for number in found if number < 2**31] == list(range(100, 4_100))
    kv.close()


@pytest.mark.slow
def test_memory_heavy_filters_are_written_in_parts_beside_files_with_whole_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked with older files, after reopening, and after a merge of all files."""
    monkeypatch.setattr(rocksdb, "_WHOLE_FILTERS", (16 << 20) // 10_000)  # 8,000 keys

    def in_parts() -> list[bool]:
        found = []
        for path in sorted((tmp_path / "db").glob("*.sst")):
            data = path.read_bytes()
            top = index_of(data[-FOOTER_BYTES:])
            found.append(whole_index(data[top.offset : top.end], top) != top)
        return found

    def key(number: int) -> bytes:
        return number.to_bytes(4, "big")

    kv = RocksDbKv(tmp_path / "db", SlotMemory(16 << 20))
    for run, expected in enumerate([[False], [False] * 2, [False] * 3, [False] * 3 + [True]]):
        kv.write([(key(5 * number + run), key(run)) for number in range(3_000)])
        kv.flush()
        assert in_parts() == expected
    kv.close()
    kv = RocksDbKv(tmp_path / "db", SlotMemory(16 << 20))
    for _ in range(2):
        values = kv.get_many([key(number) for number in range(15_000)])
        assert values == [None if number % 5 == 4 else key(number % 5) for number in range(15_000)]
        assert len(list(kv.scan(b"", b"\xff"))) == 12_000
        kv.write([(key(0), key(0))])
        kv.flush()
        kv.compact()
    assert in_parts() == [True]
    kv.close()


@pytest.mark.slow
def test_a_scan_that_is_not_read_to_its_end_keeps_no_file_that_was_replaced(tmp_path: Path) -> None:
    """`deduplicate` reads its state in small parts for as long as ids are remembered, while the state is rewritten."""
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    keys = [number.to_bytes(4, "big") for number in range(40_000)]

    def rewrite() -> None:
        kv.write([(key, os.urandom(50)) for key in keys])
        kv.flush()
        kv._db.compact_range(None, None)

    def on_disk() -> int:
        return sum(file.stat().st_size for file in (tmp_path / "db").glob("*.sst"))

    rewrite()
    one = on_disk()
    sweeps = []
    for _ in range(5):
        sweep = kv.scan(keys[0], keys[-1])
        assert [next(sweep)[0] for _ in range(2_000)] == keys[:2_000]
        sweeps.append(sweep)
        rewrite()
    assert on_disk() < 1.5 * one
    assert [key for key, _ in sweeps[0]] == keys[2_000:-1]
    kv.close()


def test_a_folder_has_one_owner_and_the_second_is_told(tmp_path: Path) -> None:
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    with pytest.raises(Unavailable, match=r"cannot open the state database.*another process still holds it"):
        RocksDbKv(tmp_path / "db", MEMORY)
    kv.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB; like Spark's folders, its folder has "lock" in the name."""
    disk = tmp_path / "blockmgr-1"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small file system")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.slow
def test_on_a_full_disk_the_remedy_is_named_and_closing_is_still_possible(small_disk: Path) -> None:
    kv = RocksDbKv(small_disk / "db", MEMORY)
    kv.write([(number.to_bytes(4, "big"), os.urandom(100)) for number in range(20_000)])
    with (small_disk / "filler").open("wb", buffering=0) as filler:
        while shutil.disk_usage(small_disk).free:
            filler.write(bytes(4096))
    with pytest.raises(Unavailable, match=r"cannot flush .*; free some disk space, it is tried again"):
        kv.flush()
    kv.close()
    (small_disk / "filler").unlink()
    again = RocksDbKv(small_disk / "db", MEMORY)  # the folder has no owner
    again.write([(b"k", b"v")])
    again.flush()  # waits for the process's flushing thread, which pauses for a second after an error
    again.close()


def test_a_damaged_database_is_corrupt_and_named(tmp_path: Path) -> None:
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    kv.write([(b"k", b"v")])
    kv.flush()
    kv.close()
    for manifest in (tmp_path / "db").glob("MANIFEST-*"):
        manifest.write_bytes(b"\x80\x04garbage")
    with pytest.raises(Corrupt, match=str(tmp_path)):
        RocksDbKv(tmp_path / "db", MEMORY)


def test_a_scan_does_not_end_at_a_damaged_block_as_if_that_were_all(tmp_path: Path) -> None:
    """rocksdict ends an iteration at a damaged block without an error."""
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    kv.write([(number.to_bytes(4, "big"), number.to_bytes(8, "big") * 100) for number in range(5_000)])
    kv.flush()
    kv.close()
    (table,) = (tmp_path / "db").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    found: list[tuple[bytes, bytes]] = []
    with pytest.raises(Corrupt, match=r"cannot read the state database .* checksum mismatch"):
        found.extend(kv.scan(b"", b"\xff"))
    assert 0 < len(found) < 5_000
    assert [key for key, _ in kv.scan((4_990).to_bytes(4, "big"), b"\xff")][-1] == (4_999).to_bytes(4, "big")
    kv.close()


def test_a_checkpoint_is_unaffected_by_what_is_written_later(tmp_path: Path) -> None:
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    kv.write([(b"k", b"one")])
    kv.flush()
    kv.checkpoint(tmp_path / "copy")
    kv.write([(b"k", b"two")])
    kv.flush()
    names = [path.name for path in (tmp_path / "copy").iterdir()]
    link_database(tmp_path / "copy", [name for name in names if name != CONFIG_FILE], tmp_path / "opened")
    other = RocksDbKv(tmp_path / "opened", MEMORY)
    assert (kv.get(b"k"), other.get(b"k")) == (b"two", b"one")
    assert sorted(names) == sorted(path.name for path in (tmp_path / "copy").iterdir())
    with pytest.raises(Unavailable, match="cannot link"):
        kv.checkpoint(tmp_path / "copy")
    kv.close()
    other.close()


def reopened(directory: Path, fresh: Path) -> RocksDbKv:
    link_database(directory, os.listdir(directory), fresh)
    return RocksDbKv(fresh, MEMORY)


def test_without_a_write_the_next_checkpoint_is_the_last_one_linked_again(tmp_path: Path) -> None:
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    kv.write([(b"k", b"v")])
    kv.flush()
    kv.checkpoint(tmp_path / "1")
    (tmp_path / "1" / "segments").write_text("another's file, which joined the checkpoint")
    kv.flush()
    kv.checkpoint(tmp_path / "2")
    first, second = ({path.name: path.stat().st_ino for path in (tmp_path / n).iterdir()} for n in ("1", "2"))
    del first["segments"]
    assert first == second
    shutil.rmtree(tmp_path / "1")
    kv.checkpoint(tmp_path / "3")
    kv.close()
    again = reopened(tmp_path / "3", tmp_path / "fresh")
    assert again.get(b"k") == b"v"
    again.close()


@pytest.mark.parametrize("gone", ["directory", "file"])
def test_a_last_checkpoint_that_is_gone_is_made_anew(tmp_path: Path, gone: str) -> None:
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    kv.write([(b"k", b"v")])
    kv.flush()
    kv.checkpoint(tmp_path / "1")
    if gone == "directory":
        shutil.rmtree(tmp_path / "1")
    else:
        next((tmp_path / "1").glob("*.sst")).unlink()
    kv.checkpoint(tmp_path / "2")
    kv.close()
    again = reopened(tmp_path / "2", tmp_path / "fresh")
    assert again.get(b"k") == b"v"
    again.close()


def test_a_write_between_two_checkpoints_is_in_the_second(tmp_path: Path) -> None:
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    for number in (1, 2, 3):
        kv.write([(b"k", b"%d" % number)])
        kv.flush()
        kv.checkpoint(tmp_path / str(number))
    kv.close()
    for number in (1, 2, 3):
        again = reopened(tmp_path / str(number), tmp_path / f"fresh-{number}")
        assert again.get(b"k") == b"%d" % number
        again.close()


@pytest.mark.slow
def test_all_databases_of_a_slot_share_one_bound(tmp_path: Path) -> None:
    memory = SlotMemory(8 << 20)
    cache, _ = memory.shared()
    stores = [RocksDbKv(tmp_path / str(number), memory) for number in range(3)]
    for kv in stores:
        for start in range(0, 40_000, 1_000):
            kv.write([((start + number).to_bytes(4, "big"), bytes(200)) for number in range(1_000)])
    assert cache.get_usage() > 0
    for kv in stores:
        assert kv.memory_bytes() > 0
    # Memtables over the bound are flushed in the background: after few more writes, memory is within the bound.
    deadline = time.monotonic() + 60
    while cache.get_usage() > memory.total_bytes and time.monotonic() < deadline:
        for number, kv in enumerate(stores):
            kv.write([(number.to_bytes(4, "big"), b"more")])
    assert cache.get_usage() <= memory.total_bytes
    for kv in stores:
        kv.close()
    with pytest.raises(InvalidJob, match="8 MiB or more"):
        SlotMemory(1_000)


_SIDE_BY_SIDE = """
import threading
from barrier_runtime.state.kv.rocksdb import SlotMemory

memory, begin, found = SlotMemory(8 << 20), threading.Barrier(4), []
def open_chain():
    begin.wait()
    found.append(memory.shared())
threads = [threading.Thread(target=open_chain) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(found), len(set(map(id, found))))
"""


@pytest.mark.slow
def test_databases_of_chains_that_are_opened_side_by_side_share_that_bound() -> None:
    """Runs in a process without rocksdict: the first caller waits for the import while other callers arrive."""
    root = Path(__file__).resolve().parents[3]
    said = subprocess.run([sys.executable, "-c", _SIDE_BY_SIDE], cwd=root, capture_output=True, text=True, timeout=300)
    assert said.stdout == "4 1\n", said.stderr


def test_no_compaction_begins_while_they_are_held_and_what_waits_begins_then(tmp_path: Path) -> None:
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    MEMORY.hold_compactions(True)
    try:
        for number in range(rocksdb._RUNS + 5):
            kv.write([(number.to_bytes(4, "big"), b"v" * 1_000)])
            kv.flush()
        assert len(list((tmp_path / "db").glob("*.sst"))) == rocksdb._RUNS + 5
        assert not kv.compacts
    finally:
        MEMORY.hold_compactions(False)
    while len(list((tmp_path / "db").glob("*.sst"))) >= rocksdb._RUNS:
        time.sleep(0.01)
    MEMORY.hold_compactions(True)
    RocksDbKv(tmp_path / "other", MEMORY).close()
    kv.compact()  # compactions are permitted since the open
    kv.close()


def test_a_database_is_closed_also_while_a_compaction_of_it_is_held(tmp_path: Path) -> None:
    """RocksDB's close waits for the compaction, so a checkpoint that closes merged databases would take minutes."""
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    MEMORY.hold_compactions(True)
    try:
        for number in range(rocksdb._RUNS + 5):
            kv.write([(number.to_bytes(4, "big"), b"v" * 1_000)])
            kv.flush()
        assert not kv.closes_soon
        closing = threading.Thread(target=kv.close)
        closing.start()
        closing.join(timeout=120)
        assert not closing.is_alive()
    finally:
        MEMORY.hold_compactions(False)
    assert kv.closes_soon


@pytest.mark.slow
def test_neither_writes_nor_flushes_wait_for_compactions_however_many_runs_exist(tmp_path: Path) -> None:
    """By default RocksDB slows writers down above some number of runs, and delays flushes to avoid that.

    A checkpoint of large state would then take minutes, and would never end while compactions are held."""
    kv = RocksDbKv(tmp_path / "db", MEMORY)
    MEMORY.hold_compactions(True)

    def fill() -> None:
        for number in range(10 * rocksdb._RUNS):
            kv.write([(number.to_bytes(4, "big"), b"v" * 1_000)])
            kv.flush()

    try:
        filling = threading.Thread(target=fill)
        filling.start()
        filling.join(timeout=120)
        assert not filling.is_alive()
        assert len(list((tmp_path / "db").glob("*.sst"))) == 10 * rocksdb._RUNS
    finally:
        MEMORY.hold_compactions(False)
    before = time.monotonic()
    kv.write([(b"k", b"v")])
    assert time.monotonic() - before >= rocksdb._REST_S, "there are many: it leaves time to compactions"
    while kv._is_behind:  # ends when they have been merged
        time.sleep(0.05)
        kv.flush()
    kv.close()
