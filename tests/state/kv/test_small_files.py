"""Often synced files of a database are in memory, are removed from there, and are on disk if memory is full."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from barrier_runtime.state import scratch
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.kv import rocksdb_files
from barrier_runtime.state.kv.rocksdb import RocksDbKv, SlotMemory
from barrier_runtime.state.kv.rocksdb_files import LiveFiles
from barrier_runtime.state.kv.side_by_side import link_database

MEMORY = SlotMemory(16 << 20)
_OPENS_ONE = """
import signal, sys
from pathlib import Path
from barrier_runtime.state.kv import rocksdb_files
from barrier_runtime.state.kv.rocksdb import RocksDbKv, SlotMemory
rocksdb_files.MEMORY = Path(sys.argv[1])
kv = RocksDbKv(Path(sys.argv[2]), SlotMemory(16 << 20), once=True)
print("open", flush=True)
signal.pause()
"""


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that replaces /dev/shm in one test."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setattr(rocksdb_files, "MEMORY", folder)
    monkeypatch.setattr(rocksdb_files, "_process", None)
    return folder


def test_the_folder_has_tables_alone_and_a_checkpoint_has_all(tmp_path: Path, memory: Path) -> None:
    kv = RocksDbKv(tmp_path / "db", MEMORY, once=True)
    kv.write([(b"1", b"v")])
    kv.flush()
    assert {path.suffix for path in (tmp_path / "db").iterdir()} <= {".sst", ""}
    assert not [*(tmp_path / "db").glob("[CMO]*")]
    assert [*memory.rglob("CURRENT")]
    assert not [*memory.rglob("*.sst")]
    kv.checkpoint(tmp_path / "copy")
    kv.close()
    assert [*memory.iterdir()] == []
    names = os.listdir(tmp_path / "copy")
    for number in range(2):
        link_database(tmp_path / "copy", names, tmp_path / f"opened-{number}")
    others = [RocksDbKv(tmp_path / f"opened-{number}", MEMORY, once=number == 0) for number in range(2)]
    assert [list(other.scan(b"", b"9")) for other in others] == [[(b"1", b"v")]] * 2
    for other in others:
        other.close()
    assert [*memory.iterdir()] == []


def test_checkpoint_waits_while_files_in_two_folders_change(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB itself cannot checkpoint a database with files in two folders."""
    kv, read, attempts = RocksDbKv(tmp_path / "db", MEMORY, once=True), LiveFiles.read, []
    kv.write([(b"1", b"v")])

    def changing(files: LiveFiles, content: bytes) -> bool:
        attempts.append(read(files, content))
        return len(attempts) > 30

    monkeypatch.setattr(LiveFiles, "read", changing)
    kv.checkpoint(tmp_path / "copy")
    kv.close()
    other = RocksDbKv(tmp_path / "copy", MEMORY)
    assert list(other.scan(b"", b"9")) == [(b"1", b"v")]
    other.close()


@pytest.mark.parametrize("why", ["no such folder", "no room"])
def test_without_room_in_memory_they_are_on_the_disk(
    why: str, tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "no room":
        monkeypatch.setattr(rocksdb_files, "_ROOM_BYTES", 1 << 62)
    else:
        shutil.rmtree(memory)
    kv = RocksDbKv(tmp_path / "db", MEMORY, once=True)
    assert (tmp_path / "db" / "CURRENT").is_file()
    kv.close()


def test_where_memory_is_full_when_they_are_copied_they_stay_on_the_disk(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = RocksDbKv(tmp_path / "db", MEMORY)
    first.write([(b"1", b"v")])
    first.checkpoint(tmp_path / "copy")
    first.close()
    copied = shutil.copyfile
    link_database(tmp_path / "copy", os.listdir(tmp_path / "copy"), tmp_path / "opened")

    def full(source: Path, target: Path) -> None:
        if target.is_relative_to(memory) and len(os.listdir(target.parent)) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        copied(source, target)

    monkeypatch.setattr(shutil, "copyfile", full)
    kv = RocksDbKv(tmp_path / "opened", MEMORY, once=True)
    assert (tmp_path / "opened" / "CURRENT").is_file()
    assert [*memory.iterdir()] == []
    assert list(kv.scan(b"", b"9")) == [(b"1", b"v")]
    kv.close()


def test_a_link_among_the_folders_in_memory_leads_nowhere(tmp_path: Path, memory: Path) -> None:
    """Every user may write to the folder in memory."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.utime(elsewhere, (1_000, 1_000))
    link = memory / "barrier-runtime-db-link"
    link.symlink_to(elsewhere)
    os.utime(link, (1_000, 1_000), follow_symlinks=False)
    RocksDbKv(tmp_path / "db", MEMORY, once=True).close()
    assert [*elsewhere.iterdir()] == []


def test_a_folder_is_one_process_s_alone(tmp_path: Path, memory: Path) -> None:
    kv = RocksDbKv(tmp_path / "db", MEMORY, once=True)
    with pytest.raises(Unavailable, match="another process still holds it"):
        RocksDbKv(tmp_path / "db", MEMORY, once=True)
    kv.write([(b"1", b"v")])
    kv.close()
    assert [*memory.iterdir()] == []


@pytest.mark.slow
def test_what_a_killed_process_leaves_goes_when_another_opens_a_database(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "_YOUNG_S", -1.0)
    command = [sys.executable, "-c", _OPENS_ONE, str(memory), str(tmp_path / "killed")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            (theirs,) = memory.iterdir()
            kv = RocksDbKv(tmp_path / "db", MEMORY, once=True)
            assert theirs.is_dir(), "it lives"
            kv.close()
        finally:
            process.send_signal(signal.SIGKILL)
    assert [*memory.iterdir()] == [theirs]
    kv = RocksDbKv(tmp_path / "db", MEMORY, once=True)
    assert not theirs.exists()
    kv.close()


def test_nothing_is_left_of_a_slot_that_ends_without_closing_its_databases(tmp_path: Path, memory: Path) -> None:
    kv = RocksDbKv(tmp_path / "db", MEMORY, once=True)
    assert [*memory.iterdir()]
    rocksdb_files.remove_all()
    assert [*memory.iterdir()] == []
    rocksdb_files.remove_all()
    other = RocksDbKv(tmp_path / "other", MEMORY, once=True)
    kv.close()
    assert [*memory.rglob("CURRENT")], "of the other one"
    other.close()
    assert [*memory.iterdir()] == []
