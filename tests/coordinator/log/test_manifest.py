"""The manifest: canonical bytes, a version that is never guessed, a hash that is always checked."""

import pickle

import msgspec
import pytest

from barrier_runtime.coordinator.log.manifest import (
    Manifest,
    check_files,
    decode_manifest,
    encode_manifest,
    own_files,
    verified_manifest,
)
from barrier_runtime.coordinator.log.restore_choice import snapshots_for_slot
from barrier_runtime.coordinator.maintenance.fsck import file_refs
from barrier_runtime.coordinator.wire.messages import SubtaskId
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.snapshots.snapshot import OWN, FileRef, InFlight, KeyedSnapshot, OperatorSnapshot
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex

FILES = (
    FileRef("1.sst", 3, "aa", key="flights/data/1/u/x"),
    FileRef("2.sst", 3, "bb", key="flights/savepoints/mine/y"),
    FileRef("CURRENT", 3, "cc", inline=b"\x00\xffz"),
)
MANIFEST = Manifest(
    job="flights",
    lineage="l",
    checkpoint=4,
    token=1,
    created_wall_ms=5,
    parallelism=2,
    max_parallelism=128,
    operators=(
        OperatorSnapshot("numbers", 0, 2, {"position": b"\x80\x04"}),
        OperatorSnapshot("count", 0, 2, keyed=KeyedSnapshot("rocksdb", 128, 0, 63, {"count": 1}, FILES, 9, 3)),
    ),
    ended=(SubtaskId(0, 1),),
    parent_position=3,
    parent_sha256="00",
)


def test_a_manifest_comes_back_as_it_was_and_its_bytes_are_canonical():
    data = encode_manifest(MANIFEST)
    assert decode_manifest("k", data) == MANIFEST
    assert encode_manifest(decode_manifest("k", data)) == data


def test_an_unknown_version_is_refused_never_guessed():
    """B6."""
    data = encode_manifest(msgspec.structs.replace(MANIFEST, version=2))
    with pytest.raises(InvalidJob, match=r"k has version 2, .*: a newer release wrote it: use that release"):
        decode_manifest("k", data)


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"[" * 100_000, pickle.dumps({"version": 1}), b'{"version": 1}'])
def test_what_is_no_manifest_is_refused(data):
    """B4, C15."""
    with pytest.raises(Corrupt, match="manifest k"):
        decode_manifest("k", data)


def test_a_flipped_byte_names_the_object_and_both_hashes():
    """O8, J2."""
    data = encode_manifest(MANIFEST)
    damaged = data.replace(b'"checkpoint":4', b'"checkpoint":5')
    with pytest.raises(Corrupt, match=f"k is damaged: expected sha256 {sha256_hex(data)}, found {sha256_hex(damaged)}"):
        verified_manifest("k", damaged, sha256_hex(data))


def test_only_the_jobs_own_data_files_are_ours():
    """S2: a savepoint's files are never ours to delete."""
    assert own_files(MANIFEST, "flights/data/") == {"flights/data/1/u/x"}


# ---------------------------------------------------------------- rows in flight


def with_in_flight(*files):
    in_flight = tuple(InFlight(0, file) for file in files)
    operators = tuple(OperatorSnapshot("count", subtask, 2, {"v": b"1"}, None, in_flight) for subtask in (0, 1))
    return msgspec.structs.replace(MANIFEST, operators=operators)


STORED = FileRef("in-flight-0.frames", 3, "aa", key="flights/data/1/u/z")
INSIDE = FileRef("in-flight-1.frames", 3, "cc", inline=b"xyz")


def test_files_with_rows_in_flight_are_the_jobs_own_like_all_others():
    """S1: nobody deletes them while the checkpoint is kept, and they are looked at when the store is checked."""
    manifest = with_in_flight(STORED, INSIDE)
    assert decode_manifest("k", encode_manifest(manifest)) == manifest
    check_files("k", manifest, Paths("flights"))
    assert own_files(manifest, "flights/data/") == {STORED.key}
    assert list(file_refs(manifest)) == [STORED, INSIDE] * 2


@pytest.mark.parametrize(
    "changes", [{"name": "1.sst"}, {"name": "../in-flight-0.frames"}, {"key": "other/data/1/u/z"}, {"offset": -1}]
)
def test_files_with_rows_in_flight_that_are_none_of_ours_are_refused(changes):
    """B1"""
    manifest = with_in_flight(msgspec.structs.replace(STORED, **changes))
    with pytest.raises(Corrupt, match="which no snapshot of job flights can be"):
        check_files("k", manifest, Paths("flights"))


def test_rows_in_flight_go_to_their_own_slot_and_to_all_at_another_parallelism():
    snapshots = with_in_flight(STORED).operators
    own, other = snapshots_for_slot(snapshots, 0, 2)
    assert (own.in_flight, other.in_flight) == ((InFlight(0, STORED),), ())
    assert other.values == {"v": b"1"}
    assert snapshots_for_slot(snapshots, 0, 3) == snapshots


def test_what_subtasks_share_goes_to_every_slot_without_their_own_state():
    keyed = KeyedSnapshot("memory", 2, 0, 0, {}, (), 0, 0)
    shared = {"shared-a": b"1", "progress": b"2"}
    objects = {"shared-b": STORED, "run": STORED}
    first = OperatorSnapshot("count", 0, 2, shared, keyed, (InFlight(0, STORED),), objects)
    second = OperatorSnapshot("count", 1, 2, {"progress": b"3"}, msgspec.structs.replace(keyed, key_group_first=1))
    given = OperatorSnapshot("count", 0, 2, {"shared-a": b"1"}, objects={"shared-b": STORED})
    assert snapshots_for_slot((first, second), 1, 2) == (given, second)
    assert snapshots_for_slot((first, second), 0, 2) == (first,), "the other one has nothing to share"


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4, 6])
def test_what_a_subtask_keeps_for_itself_goes_to_exactly_one_slot(parallelism: int):
    """Rows that a sink keeps are never written by two subtasks, with fewer or more slots than before."""
    files = {f"{OWN}rows": STORED}
    snapshots = tuple(OperatorSnapshot("out", n, 4, {"sink": b"1", f"{OWN}a": b"2"}, objects=files) for n in range(4))
    of_slots = [snapshots_for_slot(snapshots, slot, parallelism) for slot in range(parallelism)]
    assert all(len(given) == 4 and all("sink" in each.values for each in given) for given in of_slots)
    for kept in (lambda each: f"{OWN}a" in each.values, lambda each: f"{OWN}rows" in each.objects):
        owners = [(each.subtask, slot) for slot, given in enumerate(of_slots) for each in given if kept(each)]
        assert sorted(owners) == [(subtask, subtask % parallelism) for subtask in range(4)]


# ---------------------------------------------------------------- values that are objects


def with_objects(objects, values=None):
    operators = (OperatorSnapshot("count", 0, 2, values or {}, objects=objects),)
    return msgspec.structs.replace(MANIFEST, operators=operators)


VALUE = FileRef("splits", 3, "aa", key="flights/data/1/u/v")


def test_values_that_are_objects_are_the_jobs_own_files_like_all_others():
    """S1: nobody deletes them while the checkpoint is kept, and they are looked at when the store is checked."""
    manifest = with_objects({"splits": VALUE})
    assert decode_manifest("k", encode_manifest(manifest)) == manifest
    check_files("k", manifest, Paths("flights"))
    assert own_files(manifest, "flights/data/") == {VALUE.key}
    assert list(file_refs(manifest)) == [VALUE]
    assert not manifest.operators[0].is_empty
    own, other = with_objects({"splits": VALUE}).operators[0], snapshots_for_slot(manifest.operators, 1, 2)
    assert other == (own,), "of small state every slot gets all"


@pytest.mark.parametrize(
    ("name", "changes", "values"),
    [
        ("splits", {"name": "../splits"}, {}),
        ("../splits", {"name": "../splits"}, {}),
        ("splits", {"name": "other"}, {}),
        ("splits", {"key": "other/data/1/u/z"}, {}),
        ("splits", {}, {"splits": b"twice"}),
    ],
)
def test_values_that_no_operator_can_have_stored_are_refused(name, changes, values):
    """B1"""
    manifest = with_objects({name: msgspec.structs.replace(VALUE, **changes)}, values)
    with pytest.raises(Corrupt, match="which no snapshot of job flights can be"):
        check_files("k", manifest, Paths("flights"))
