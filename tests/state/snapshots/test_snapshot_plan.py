"""Plans of uploads for interleavings of checkpoints, completions, aborts and restores, as lists of files."""

import pytest

from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.snapshots.plan import LocalFile, Thresholds, is_snapshot_file, plan_snapshot
from barrier_runtime.state.snapshots.snapshot import FileRef

BIG = 5 << 20
META = [LocalFile("CURRENT", 16), LocalFile("MANIFEST-000005", 300), LocalFile("OPTIONS-000007", 7_000)]


def ref(name: str, size: int = BIG, key: str = "k", inline: bytes | None = None) -> FileRef:
    return FileRef(name, size, "0" * 64, None if inline is not None else key, inline=inline)


def names(files: tuple[LocalFile, ...] | tuple[FileRef, ...]) -> list[str]:
    return [file.name for file in files]


def test_without_a_completed_checkpoint_everything_is_uploaded() -> None:
    """S6, S7, S8: after an open or a restore the map is empty, so no local name is ever believed"""
    plan = plan_snapshot([*META, LocalFile("000008.sst", BIG)], {})
    assert names(plan.reused) == []
    assert names(plan.alone) == ["000008.sst"]
    assert names(plan.inline) == ["CURRENT", "MANIFEST-000005", "OPTIONS-000007"]


def test_files_of_a_completed_checkpoint_are_reused_and_only_the_new_ones_uploaded() -> None:
    """S3"""
    confirmed = {"000008.sst": ref("000008.sst")}
    plan = plan_snapshot([*META, LocalFile("000008.sst", BIG), LocalFile("000011.sst", BIG)], confirmed)
    assert plan.reused == (confirmed["000008.sst"],)
    assert names(plan.alone) == ["000011.sst"]


def test_two_checkpoints_in_flight_upload_the_same_file_each_for_itself() -> None:
    """S4: neither is completed, so neither may lean on the other"""
    files = [*META, LocalFile("000008.sst", BIG)]
    assert names(plan_snapshot(files, {}).alone) == ["000008.sst"]
    assert names(plan_snapshot(files, {}).alone) == ["000008.sst"]


def test_the_files_that_keep_their_name_and_change_their_bytes_always_go_anew() -> None:
    confirmed = {file.name: ref(file.name, file.size) for file in META}
    plan = plan_snapshot(META, confirmed)
    assert plan.reused == ()
    assert names(plan.inline) == ["CURRENT", "MANIFEST-000005", "OPTIONS-000007"]


def test_the_same_name_with_another_size_is_another_file() -> None:
    """S8"""
    plan = plan_snapshot([LocalFile("000008.sst", BIG + 1)], {"000008.sst": ref("000008.sst")})
    assert plan.reused == ()
    assert names(plan.alone) == ["000008.sst"]


def test_small_files_are_packed_together_unless_all_of_them_are_tiny() -> None:
    files = [*META, LocalFile("000008.sst", 50_000), LocalFile("000009.sst", BIG)]
    plan = plan_snapshot(files, {})
    assert names(plan.packed) == ["000008.sst", "CURRENT", "MANIFEST-000005", "OPTIONS-000007"]
    assert names(plan.alone) == ["000009.sst"]
    assert plan.inline == ()


def test_a_manifest_never_carries_more_inline_bytes_than_the_threshold() -> None:
    limits = Thresholds(inline_bytes=1_000, pack_bytes=10_000)
    confirmed = {"000001.sst": ref("000001.sst", 600, inline=b"x" * 600)}
    fits = plan_snapshot([LocalFile("000001.sst", 600), LocalFile("CURRENT", 400)], confirmed, limits)
    assert (names(fits.reused), names(fits.inline), names(fits.packed)) == (["000001.sst"], ["CURRENT"], [])
    over = plan_snapshot([LocalFile("000001.sst", 600), LocalFile("CURRENT", 401)], confirmed, limits)
    assert (names(over.reused), names(over.inline), names(over.packed)) == (["000001.sst"], [], ["CURRENT"])


def test_nothing_but_the_databases_own_files_is_ever_uploaded() -> None:
    """J4"""
    strangers = [
        "rocksdict-config.json",
        "LOCK",
        "LOG",
        "LOG.old.1",
        "IDENTITY",
        "000004.log",
        "000001.sst.bak",
        "../x.sst",
    ]
    plan = plan_snapshot([LocalFile(name, 0) for name in strangers], {})
    assert plan.alone + plan.packed + plan.inline == ()
    assert not any(is_snapshot_file(name) for name in [*strangers, "a/000001.sst", "", ".", "..", "000001.SST"])


def test_bytes_in_a_write_ahead_log_are_a_broken_law() -> None:
    with pytest.raises(ProtocolViolation, match=r"000004\.log"):
        plan_snapshot([LocalFile("000004.log", 1)], {})
