"""Changed bytes are never returned; the error names the object and both hashes."""

import hashlib
from pathlib import Path

import pytest

from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots import transfer
from barrier_runtime.state.snapshots.snapshot import FileRef
from barrier_runtime.state.snapshots.transfer import download_verified, read_verified
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.memory import Fault, MemoryStore

DATA = b"0123456789" * 100


def reference(data: bytes = DATA, key: str = "job/data/1/slot/file", offset: int = 0) -> FileRef:
    return FileRef("000001.sst", len(data), hashlib.sha256(data).hexdigest(), key, offset)


def test_right_bytes_come_back_from_objects_parts_of_objects_and_the_manifest(
    tmp_path: Path, store: MemoryStore
) -> None:
    store.put("job/data/1/slot/file", b"before" + DATA + b"after")
    inline = FileRef("CURRENT", len(DATA), hashlib.sha256(DATA).hexdigest(), inline=DATA)
    for ref in (reference(offset=6), inline):
        assert read_verified(store, ref) == DATA
        download_verified(store, ref, tmp_path / ref.name)
        assert (tmp_path / ref.name).read_bytes() == DATA


@pytest.mark.parametrize("fault", [Fault.FLIPPED_BYTE, Fault.TRUNCATED_READ])
def test_a_flipped_bit_or_a_truncated_read_is_named_with_object_expected_and_found(
    fault: Fault, tmp_path: Path, store: MemoryStore
) -> None:
    """O4, O8, J2"""
    store.put("job/data/1/slot/file", DATA)
    store.inject(fault, "get", times=None)
    found = hashlib.sha256(store.get("job/data/1/slot/file")).hexdigest()
    for read in (
        lambda: read_verified(store, reference()),
        lambda: download_verified(store, reference(), tmp_path / "x"),
    ):
        with pytest.raises(Corrupt) as raised:
            read()
        message = str(raised.value)
        for part in (
            "memory://memory/job/data/1/slot/file",
            "000001.sst",
            reference().sha256,
            found,
            "restore the object",
        ):
            assert part in message
    assert not (tmp_path / "x").exists()


def test_a_large_file_that_was_changed_is_removed_again_after_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: MemoryStore
) -> None:
    """O8"""
    monkeypatch.setattr("barrier_runtime.state.snapshots.transfer._WHOLE_IN_MEMORY", 10)
    store.put("job/data/1/slot/file", DATA)
    download_verified(store, reference(), tmp_path / "right")
    assert (tmp_path / "right").read_bytes() == DATA
    store.damage("job/data/1/slot/file", DATA[:-1] + b"!")
    with pytest.raises(Corrupt):
        download_verified(store, reference(), tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_a_missing_snapshot_file_is_a_matter_for_a_person(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="is gone"):
        read_verified(MemoryStore(), reference())


def test_inline_bytes_are_checked_too() -> None:
    """O8"""
    wrong = FileRef("CURRENT", 3, hashlib.sha256(b"abc").hexdigest(), inline=b"abd")
    with pytest.raises(Corrupt, match="inside the manifest"):
        read_verified(MemoryStore(), wrong)


def test_large_file_of_a_folder_is_the_object_and_only_loses_its_name_on_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_WHOLE_IN_MEMORY", 10)
    store = LocalStore(tmp_path / "objects")
    key = reference().key or ""
    store.put(key, DATA)
    download_verified(store, reference(), tmp_path / "x")
    assert (tmp_path / "x").samefile(tmp_path / "objects" / key)
    store.put(key, DATA[:-1] + b"x")
    with pytest.raises(Corrupt):
        download_verified(store, reference(), tmp_path / "y")
    assert not (tmp_path / "y").exists()
    assert store.get(key) == DATA[:-1] + b"x"
