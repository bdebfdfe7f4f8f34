"""Local copies of snapshots, in folders of the incarnations that made them."""

from pathlib import Path

import pytest

from barrier_runtime.state.snapshots.local_copies import LocalCopies


def test_the_folder_of_an_incarnation_that_has_ended_goes_with_its_last_copy(tmp_path: Path) -> None:
    copies, incarnation = LocalCopies(), tmp_path / "5-count-0"
    for checkpoint in (1, 2):
        folder = copies.new_directory(incarnation, checkpoint)
        folder.mkdir(parents=True)
        copies.add("count", 0, checkpoint, folder, ())
    copies.keep_only(2)
    copies.delete_unwanted()
    copies.closed(incarnation)
    assert len([*incarnation.iterdir()]) == 1, "the next one restores from it"
    copies.keep_only(3)
    assert incarnation.exists()
    copies.delete_unwanted()
    assert not incarnation.exists()


def test_the_folder_of_an_incarnation_that_lives_stays_without_copies(tmp_path: Path) -> None:
    copies, incarnation = LocalCopies(), tmp_path / "5-count-0"
    folder = copies.new_directory(incarnation, 1)
    folder.mkdir(parents=True)
    copies.add("count", 0, 1, folder, ())
    copies.keep_only(2)
    copies.delete_unwanted()
    assert [*incarnation.iterdir()] == []
    copies.closed(incarnation)
    copies.closed(incarnation)
    assert not incarnation.exists()


def test_folder_goes_also_if_another_thread_deletes_the_last_copy_during_its_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, incarnation = LocalCopies(), tmp_path / "5-count-0"
    folder = copies.new_directory(incarnation, 1)
    folder.mkdir(parents=True)
    copies.add("count", 0, 1, folder, ())
    copies.keep_only(2)
    rmdir = Path.rmdir

    def deleted_behind(path: Path) -> None:
        monkeypatch.setattr(Path, "rmdir", rmdir)
        try:
            path.rmdir()
        finally:
            copies.delete_unwanted()

    monkeypatch.setattr(Path, "rmdir", deleted_behind)
    copies.closed(incarnation)
    assert not incarnation.exists()
