"""Stored data is verifiable: canonical, versioned, a chain of hashes; damaged data is never opened (J1, J2, J4, B6)."""

import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from doctor import Doctor, files_of
from small_job import NAME, run_small_job, visible

from barrier_runtime.connectors.files.sink.commit_log import CommitRecord
from barrier_runtime.connectors.sink_bases.file_committable import FileCommittable
from barrier_runtime.coordinator.log.manifest import Manifest, decode_manifest, encode_manifest
from barrier_runtime.coordinator.log.records import (
    RECORD_VERSION,
    Complete,
    Fence,
    Record,
    decode_record,
    encode_record,
)
from barrier_runtime.coordinator.wire.messages import JobSpec, ToCoordinator, ToSlot
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.runtime.sinks.pending_set import PendingSet
from barrier_runtime.runtime.sources.progress import SourceProgress
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.kv.rocksdb import CONFIG_FILE, RocksDbKv, SlotMemory
from barrier_runtime.state.kv.side_by_side import link_database

ROWS, KEYS = 12_000, 10_000  # enough state for separate objects besides the manifest


def run(folder: Path) -> None:
    run_small_job(folder, rows=ROWS, keys=KEYS)


@pytest.fixture
def stored(tmp_path: Path, ended_job: Callable[..., None]) -> Doctor:
    ended_job(tmp_path, rows=ROWS, keys=KEYS)
    return Doctor(tmp_path / "checkpoints", NAME)


def refused(folder: Path) -> str:
    before = visible(folder)
    with pytest.raises(JobFailed) as error:
        run(folder)
    assert visible(folder) == before
    return str(error.value)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---------------------------------------------------------------- J1


@pytest.mark.slow
def test_the_log_is_a_chain_of_hashes_down_to_every_file(tmp_path: Path, stored: Doctor) -> None:
    """J1: record → predecessor; COMPLETE → manifest; manifest → parent record and every file."""
    entries = stored.entries()
    for before, after in itertools.pairwise(entries):
        assert after.record.parent_sha256 == before.sha256
    by_position = {entry.position: entry for entry in entries}
    completes = [entry.record for entry in entries if isinstance(entry.record, Complete)]
    assert completes
    last = completes[-1]
    data = stored.manifest_bytes()
    assert hashlib.sha256(data).hexdigest() == last.sha256
    manifest = decode_manifest(last.manifest, data)
    assert (manifest.version, manifest.job, manifest.lineage) == (1, NAME, last.lineage)
    assert (manifest.checkpoint, manifest.token) == (last.checkpoint, last.token)
    assert by_position[manifest.parent_position].sha256 == manifest.parent_sha256
    fence = by_position[last.token].record
    assert isinstance(fence, Fence)
    assert fence.lineage == last.lineage
    files = [ref for snapshot in manifest.operators if snapshot.keyed for ref in snapshot.keyed.files]
    assert any(ref.key for ref in files)
    for ref in files:
        found = ref.inline if ref.key is None else (stored.root / ref.key).read_bytes()[ref.offset :][: ref.size]
        assert found is not None
        assert (len(found), hashlib.sha256(found).hexdigest()) == (ref.size, ref.sha256)


def test_what_is_stored_is_canonical(stored: Doctor) -> None:
    """J1: decoding and encoding gives the same bytes, so that a hash identifies a content."""
    last = stored.last_complete()
    data = stored.manifest_bytes()
    assert encode_manifest(decode_manifest(last.manifest, data)) == data
    for path in stored.log:
        assert encode_record(decode_record(path.name, path.read_bytes())) == path.read_bytes()
        assert json.dumps(json.loads(path.read_bytes()), separators=(",", ":"), ensure_ascii=False).encode() == (
            path.read_bytes()
        )


def test_every_stored_and_sent_type_refuses_fields_that_it_does_not_know() -> None:
    """B3, B6: all types below the roots, so that a new type cannot be forgotten."""
    lax: set[str] = set()
    seen: set[type] = set()

    def visit(info: msgspec.inspect.Type) -> None:
        for name in getattr(info, "__struct_fields__", ()):
            value = getattr(info, name)
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, msgspec.inspect.Field):
                    look(part.type)
                elif isinstance(part, msgspec.inspect.Type):
                    look(part)

    def look(info: msgspec.inspect.Type) -> None:
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in seen:
                return
            seen.add(info.cls)
            if not info.forbid_unknown_fields:
                lax.add(info.cls.__qualname__)
        visit(info)

    roots = (
        ToCoordinator,
        ToSlot,
        Record,
        JobSpec,
        Manifest,
        PendingSet,
        FileCommittable,
        CommitRecord,
        SourceProgress,
    )
    for root in roots:
        look(msgspec.inspect.type_info(root))
    assert len(seen) > 30
    assert lax == set()


# ---------------------------------------------------------------- J2


def needed_of(stored: Doctor) -> dict[Path, tuple[int, int]]:
    """Every object of the last checkpoint, with the needed range: a packed object of an older checkpoint holds more
    bytes than that range.
    """
    needed = {stored.manifest_path(): (0, stored.manifest_path().stat().st_size)}
    for file in files_of(json.loads(stored.manifest_path().read_bytes())):
        if file["key"]:
            start, end = file["offset"], file["offset"] + file["size"]
            first, last = needed.get(stored.root / file["key"], (start, end))
            needed[stored.root / file["key"]] = (min(first, start), max(last, end))
    return needed


def damaged(good: bytes, start: int, end: int, how: str) -> bytes:
    if how == "first byte":
        return good[:start] + bytes([good[start] ^ 1]) + good[start + 1 :]
    if how == "last byte":
        return good[: end - 1] + bytes([good[end - 1] ^ 128]) + good[end:]
    return good[: end - 1]


@pytest.mark.parametrize(
    "how",
    [
        "first byte",
        pytest.param("last byte", marks=pytest.mark.slow),
        "truncated",
        pytest.param("gone", marks=pytest.mark.slow),
    ],
)
def test_each_object_of_a_checkpoint_damaged_in_turn_stops_the_restore_by_name(
    tmp_path: Path, stored: Doctor, how: str
) -> None:
    """J2, O8: the message names the object, the expected and the found hash; no object is written."""
    needed = needed_of(stored)
    assert len(needed) >= 3, "the manifest and something of both subtasks"
    for victim, (start, end) in needed.items():
        good = victim.read_bytes()
        if how == "gone":
            victim.unlink()
        else:
            victim.write_bytes(damaged(good, start, end, how))
        said = refused(tmp_path)
        assert victim.name in said
        if how == "gone":
            assert "is gone" in said or "missing" in said
        else:
            assert len(re.findall(r"(?:expected|found|sha256) (?:sha256 )?[0-9a-f]{64}", said)) == 2, said
        victim.parent.mkdir(parents=True, exist_ok=True)
        victim.write_bytes(good)
    run(tmp_path)


def test_a_snapshot_file_is_refused_before_rocksdb_opens_anything(
    tmp_path: Path, stored: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J2: the database folder of the damaged subtask is never made."""
    import rocksdict

    opened: list[str] = []
    really = rocksdict.Rdict

    def noted(path: str, *arguments: object, **keywords: object) -> object:
        opened.append(path)
        return really(path, *arguments, **keywords)

    monkeypatch.setattr(rocksdict, "Rdict", noted)
    for victim in list(needed_of(stored))[1:]:
        victim.write_bytes(bytes(victim.stat().st_size))
    assert "is not what was written" in refused(tmp_path)
    assert [path for path in opened if "-count-" in path] == []


def test_a_log_with_a_changed_record_before_its_head_is_refused(tmp_path: Path, stored: Doctor) -> None:
    """J1: the last record proves the predecessor."""
    path = stored.log[-2]
    changed = msgspec.structs.replace(decode_record(path.name, path.read_bytes()), wall_ms=1)
    path.write_bytes(encode_record(changed))
    said = refused(tmp_path)
    assert path.name in said
    assert "is damaged: expected sha256" in said


@pytest.mark.slow
def test_a_log_with_a_hole_is_refused(tmp_path: Path, stored: Doctor) -> None:
    """J1: the record after the hole proves that a record is missing."""
    stored.log[-2].unlink()
    said = refused(tmp_path)
    assert "a record is gone" in said or "is missing below the log's head" in said  # seen from behind, or from above
    assert "restore it from a backup of the store" in said


# ---------------------------------------------------------------- J4


def test_rocksdicts_own_settings_are_never_stored(tmp_path: Path, stored: Doctor) -> None:
    """J4: neither as an object nor inside a manifest or a packed file."""
    assert [path for path in stored.root.rglob("*") if path.name == CONFIG_FILE] == []
    for path in stored.root.rglob("*"):
        if path.is_file():
            assert CONFIG_FILE.encode() not in path.read_bytes()


def test_planted_rocksdict_settings_beside_a_snapshot_are_not_taken_over(tmp_path: Path) -> None:
    """J4: planted settings could enable the mode that unpickles values; our settings are written before every open."""
    memory = SlotMemory(8 << 20)
    first = RocksDbKv(tmp_path / "first", memory)
    first.write([(b"k", b"\x80\x04K\x01.")])  # the pickle of 1
    first.flush()
    first.checkpoint(tmp_path / "snapshot")
    first.close()
    planted = '{"raw_mode":false,"prefix_extractors":{}}'
    (tmp_path / "snapshot" / CONFIG_FILE).write_text(planted)
    names = [path.name for path in (tmp_path / "snapshot").iterdir() if path.name != CONFIG_FILE]
    link_database(tmp_path / "snapshot", names, tmp_path / "second")
    (tmp_path / "second" / CONFIG_FILE).symlink_to(tmp_path / "snapshot" / CONFIG_FILE)
    second = RocksDbKv(tmp_path / "second", memory)
    assert second.get(b"k") == b"\x80\x04K\x01.", "bytes in, bytes out"
    second.close()
    assert (tmp_path / "snapshot" / CONFIG_FILE).read_text() == planted, "nothing is written through a planted link"
    assert not os.path.islink(tmp_path / "second" / CONFIG_FILE)


# ---------------------------------------------------------------- B6


def test_an_unknown_manifest_version_is_refused_before_the_fence(tmp_path: Path, stored: Doctor) -> None:
    """B6: also if all other fields are understood."""
    stored.change_manifest(lambda manifest: manifest.update(version=2))
    records = len(stored.log)
    assert "has version 2, this release reads 1: a newer release wrote it: use that release" in refused(tmp_path)
    assert len(stored.log) == records


def test_an_unknown_record_version_is_refused(tmp_path: Path, stored: Doctor) -> None:
    """B6: the log is never skipped or guessed."""
    stored.change_records(lambda record: msgspec.structs.replace(record, version=RECORD_VERSION + 1))
    assert f"has version {RECORD_VERSION + 1}, this release reads 1 to {RECORD_VERSION}" in refused(tmp_path)


@pytest.mark.parametrize("extra", ["manifest", "snapshot", "file"])
def test_a_manifest_with_a_field_of_a_later_release_is_refused(tmp_path: Path, stored: Doctor, extra: str) -> None:
    """B6: the field's meaning might matter."""

    def change(manifest: dict) -> None:
        place = {"manifest": manifest, "snapshot": manifest["operators"][0], "file": files_of(manifest)[0]}[extra]
        place["unaligned"] = True

    stored.change_manifest(change)
    assert "unknown field `unaligned`" in refused(tmp_path)


def test_a_backend_of_a_later_release_is_refused(tmp_path: Path, stored: Doctor) -> None:
    """B6"""

    def change(manifest: dict) -> None:
        for snapshot in manifest["operators"]:
            if snapshot["keyed"]:
                snapshot["keyed"]["backend"] = "lsm2"

    stored.change_manifest(change)
    assert "was written by a backend 'lsm2' that this version does not know" in refused(tmp_path)


def test_a_changed_manifest_whose_hash_was_not_changed_is_refused(tmp_path: Path, stored: Doctor) -> None:
    """J2: proves that the refusals above are about the content, and this refusal is about the hash."""
    data = stored.manifest_path().read_bytes()
    stored.manifest_path().write_bytes(data.replace(b'"version":1', b'"version":2', 1))
    said = refused(tmp_path)
    assert hashlib.sha256(data).hexdigest() in said
    with pytest.raises(InvalidJob, match="version 2"):
        decode_manifest("m", stored.manifest_path().read_bytes())
