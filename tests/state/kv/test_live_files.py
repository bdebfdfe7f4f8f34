"""Files named by a MANIFEST of RocksDB: equal to RocksDB's own list, for any size of reads."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime.state.kv import rocksdb
from barrier_runtime.state.kv.rocksdb import RocksDbKv, SlotMemory
from barrier_runtime.state.kv.rocksdb_files import LiveFiles, UnknownLayout
from barrier_runtime.state.kv.side_by_side import link_database
from barrier_runtime.state.scratch import link_or_copy

MEMORY = SlotMemory(16 << 20)
BLOCK = 32 << 10


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def text(data: bytes) -> bytes:
    return varint(len(data)) + data


def added(number: int, level: int = 0) -> bytes:
    told = varint(9) + text(b"x") + varint(1)
    return b"\x67" + varint(level) + varint(number) + varint(1 << 20) + text(b"a") + text(b"z") + b"\x05\x07" + told


def deleted(number: int, level: int = 0) -> bytes:
    return b"\x06" + varint(level) + varint(number)


ENTRIES = [
    (b"\x01" + text(b"leveldb.BytewiseComparator"), set()),
    (b"\x02\x04\x03\x20\x04\x00" + added(8) + added(300), {8, 300}),
    (varint(1 << 13 | 1) + text(bytes(70_000)) + deleted(300) + added(300, 5), {8, 300}),  # in three parts
    (deleted(8) + b"\x05\x01" + text(b"key") + added(301), {300, 301}),
    (varint(1 << 13 | 1) + text(bytes(28_128)), {300, 301}),  # to 3 bytes before the end of a block
    (deleted(301) + added(302), {300, 302}),
]


def log_of(entries: list[bytes]) -> tuple[bytes, list[int]]:
    """Returns the log of the entries, and the end of each entry."""
    log, ends = b"", []
    for entry in entries:
        begun = False
        while entry or not begun:
            room = BLOCK - len(log) % BLOCK
            if room < 7:
                log += bytes(room)
                continue
            part, entry = entry[: room - 7], entry[room - 7 :]
            kind = (3 if entry else 4) if begun else 2 if entry else 1
            log += bytes(4) + len(part).to_bytes(2, "little") + bytes([kind]) + part
            begun = True
        ends.append(len(log))
    return log, ends


def test_entries_are_followed_wherever_the_log_is_cut() -> None:
    log, ends = log_of([entry for entry, _ in ENTRIES])
    assert any(end % BLOCK > BLOCK - 7 for end in ends), "nothing fits behind one of them"
    known = dict(zip(ends, (live for _, live in ENTRIES), strict=True))
    growing = LiveFiles()
    for cut in sorted({*ends, *(end + more for end in ends for more in (-1, 1, 5, 8)), BLOCK, BLOCK + 3}):
        whole = growing.read(log[:cut])
        assert whole is (cut in known)
        at_once = LiveFiles()
        assert at_once.read(log[:cut]) is whole
        assert at_once.numbers == growing.numbers == known[max((end for end in ends if end <= cut), default=ends[0])]
        if cut >= len(log):
            break


@pytest.mark.parametrize("entry", [b"\x08\x01", b"\x67\x00\x09", b"\x01\x50short", b"\x64\x00\x09"])
def test_what_is_not_known_is_told(entry: bytes) -> None:
    with pytest.raises(UnknownLayout):
        LiveFiles().read(log_of([added(7), entry])[0])


def test_parts_in_another_order_are_told() -> None:
    with pytest.raises(UnknownLayout):
        LiveFiles().read(bytes(4) + b"\x01\x00\x03x")


@pytest.mark.slow
def test_checkpoints_are_linked_without_rocksdb_and_hold_what_its_own_hold(tmp_path: Path) -> None:
    kv, model = RocksDbKv(tmp_path / "db", MEMORY), {}

    def never(*arguments: Any) -> Any:
        raise AssertionError("RocksDB holds the interpreter while it links")

    kv._checkpoint, theirs = never, kv._checkpoint
    for number in range(12):
        model |= {bytes([number, at]): bytes([number]) * 50 for at in range(200)}
        kv.write([*model.items()])
        kv.checkpoint(tmp_path / str(number))
    kv.write([(b"later", b"x")])
    kv.flush()
    link_database(tmp_path / "11", [path.name for path in (tmp_path / "11").iterdir()], tmp_path / "opened")
    other = RocksDbKv(tmp_path / "opened", MEMORY)
    assert dict(other.scan(b"", b"\xff" * 9)) == model
    other.close()
    kv.checkpoint(tmp_path / "ours")
    theirs(kv._db).create_checkpoint(str(tmp_path / "theirs"))
    content = {path.name: path.read_bytes() for path in (tmp_path / "theirs").iterdir()}
    ours = {path.name: path.read_bytes() for path in (tmp_path / "ours").iterdir()}
    assert ours == {name: data for name, data in content.items() if name.startswith(("CURRENT", "MANIFEST", "0"))
                    and not name.endswith(".log")}  # fmt: skip
    kv.close()


@pytest.mark.parametrize("before", [True, False])
def test_what_compaction_replaces_meanwhile_is_in_the_checkpoint(
    before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv, linked = RocksDbKv(tmp_path / "db", MEMORY), []
    for at in range(3):
        kv.write([(bytes([at]), b"v")])
        kv.flush()

    def link(source: Path, target: Path) -> None:
        if before and not linked:
            kv.compact()
        linked.append(source.name)
        link_or_copy(source, target)
        if not before and len(linked) == 4:
            kv.compact()

    monkeypatch.setattr(rocksdb, "link_or_copy", link)
    kv.write([(b"9", b"v")])
    kv.checkpoint(tmp_path / "copy")
    assert len(linked) == (2 if before else 4), "all are linked again where one is gone"
    monkeypatch.undo()
    link_database(tmp_path / "copy", [path.name for path in (tmp_path / "copy").iterdir()], tmp_path / "opened")
    other = RocksDbKv(tmp_path / "opened", MEMORY)
    assert [key for key, _ in other.scan(b"", b"\xff" * 9)] == [b"\x00", b"\x01", b"\x02", b"9"]
    other.close()
    kv.close()


@pytest.mark.parametrize("why", ["another format", "about to change"])
def test_what_cannot_be_told_from_the_manifest_rocksdb_links(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(files: LiveFiles, content: bytes) -> bool:
        if why == "another format":
            raise UnknownLayout(why)
        return False

    kv = RocksDbKv(tmp_path / "db", MEMORY)
    kv.write([(b"1", b"v")])
    monkeypatch.setattr(LiveFiles, "read", read)
    kv.checkpoint(tmp_path / "copy")
    other = RocksDbKv(tmp_path / "copy", MEMORY)
    assert list(other.scan(b"", b"9")) == [(b"1", b"v")]
    other.close()
    kv.close()


@pytest.mark.slow
def test_every_checkpoint_beside_compaction_is_whole(tmp_path: Path) -> None:
    kv, model = RocksDbKv(tmp_path / "db", MEMORY), {}
    for number in range(120):
        model |= {(at * 7919 + number).to_bytes(4, "big"): bytes([number]) * 100 for at in range(40)}
        kv.write([*model.items()][-60:])
        folder, opened = tmp_path / "checkpoint", tmp_path / "opened"
        kv.checkpoint(folder)
        if number % 4 == 0:
            link_database(folder, [path.name for path in folder.iterdir()], opened)
            other = RocksDbKv(opened, MEMORY)
            assert dict(other.scan(b"", b"\xff" * 9)) == model
            other.close()
            shutil.rmtree(opened)
        shutil.rmtree(folder)
    kv.close()
