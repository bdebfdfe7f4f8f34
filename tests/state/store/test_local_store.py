"""The folder store: durability by names, and keys that cannot leave the folder."""

import errno
import os
import stat
from pathlib import Path

import pytest

from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.local import TEMPORARY, LocalStore
from barrier_runtime.state.store.object_store import ObjectNotFound


def test_a_link_below_the_folder_leads_nowhere_outside(tmp_path: Path) -> None:
    """B1"""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    store = LocalStore(tmp_path / "objects")
    (tmp_path / "objects" / "link").symlink_to(outside)
    (tmp_path / "objects" / "file").symlink_to(outside / "secret")
    for operation in (
        lambda: store.get("link/secret"),
        lambda: store.put("link/new", b"x"),
        lambda: store.put_if_absent("link/new", b"x"),
        lambda: store.delete(["link/secret"]),
        lambda: store.get("file"),
        lambda: store.link_file("file", tmp_path / "linked"),
    ):
        with pytest.raises(InvalidJob):
            operation()
    assert (outside / "secret").read_bytes() == b"secret"
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert list(store.list("")) == []


def test_a_folder_that_was_used_and_became_a_link_leads_nowhere_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    store = LocalStore(tmp_path / "objects")
    store.put("folder/object", b"x")
    store.delete(["folder/object"])
    (tmp_path / "objects" / "folder").symlink_to(outside)
    for _ in range(2):
        with pytest.raises(InvalidJob, match=r"leads out of .* through a link"):
            store.put("folder/object", b"x")
    assert list(outside.iterdir()) == []


def test_half_written_files_are_private_and_never_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "objects")
    temporary = tmp_path / "objects" / TEMPORARY
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700
    (temporary / "leftover").write_bytes(b"half")
    store.put("a", b"x")
    assert [info.key for info in store.list("")] == ["a"]
    with pytest.raises(InvalidJob, match="reserved"):
        store.get(f"{TEMPORARY}/leftover")


def test_only_leftovers_older_than_a_day_are_swept_at_the_next_start(tmp_path: Path) -> None:
    LocalStore(tmp_path)
    old, new = tmp_path / TEMPORARY / "old", tmp_path / TEMPORARY / "new"
    for leftover in (old, new):
        leftover.write_bytes(b"half")
    os.utime(old, (1, 1))
    LocalStore(tmp_path)
    assert not old.exists()
    assert new.exists()


def test_a_failed_put_leaves_the_old_object_and_no_temporary_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"old")
    with pytest.raises(Unavailable, match="put of"):
        store.put_file("a", tmp_path / "nowhere")
    assert store.get("a") == b"old"
    assert list((tmp_path / TEMPORARY).iterdir()) == []


def test_a_location_that_is_a_file_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidJob, match="use another location"):
        LocalStore(tmp_path / "file")
    with pytest.raises(InvalidJob, match="use another location"):
        LocalStore(tmp_path / "file" / "below")


def test_a_key_below_an_object_is_refused_with_the_remedy(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"x")
    with pytest.raises(InvalidJob):
        store.put("a/b", b"x")
    with pytest.raises(InvalidJob):
        store.put_if_absent("a/b", b"x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_refused_with_the_remedy(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidJob, match="writable"):
        LocalStore(tmp_path / "objects")


def test_deleting_the_last_object_of_a_folder_removes_the_folder_which_can_return(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "objects")
    store.put("a/b/c", b"x")
    store.delete(["a/b/c"])
    assert not (tmp_path / "objects" / "a").exists()
    store.put("a/b/c", b"y")
    assert store.get("a/b/c") == b"y"


def test_two_stores_on_one_folder_see_each_others_objects(tmp_path: Path) -> None:
    first, second = LocalStore(tmp_path), LocalStore(tmp_path)
    first.put("a", b"x")
    assert second.get("a") == b"x"


def test_an_object_is_as_old_as_its_put_whatever_the_age_of_the_file_that_it_is(tmp_path: Path) -> None:
    """Retention deletes objects that are older than all uploads of open checkpoints."""
    store = LocalStore(tmp_path / "objects")
    file = tmp_path / "file"
    file.write_bytes(b"bytes")
    os.utime(file, (1_000, 1_000))
    store.put("before", b"")
    assert store.put_link("object", file)
    ages = {info.key: info.modified_ms for info in store.list("")}
    assert ages["object"] >= ages["before"]


def test_a_file_that_is_put_twice_under_one_name_has_no_other_name_in_the_folder(tmp_path: Path) -> None:
    """Such a retry follows a put with an unknown outcome."""
    store = LocalStore(tmp_path / "objects")
    file = tmp_path / "file"
    file.write_bytes(b"bytes")
    for _ in range(2):
        assert store.put_link("object", file)
    assert list((tmp_path / "objects" / TEMPORARY).iterdir()) == []
    assert file.stat().st_nlink == 2


def test_object_gets_another_name_where_possible_and_keeps_its_bytes_on_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "objects")
    store.put("object", b"bytes")
    assert store.link_file("object", tmp_path / "here")
    assert (tmp_path / "here").samefile(tmp_path / "objects" / "object")
    with pytest.raises(ObjectNotFound):
        store.link_file("nothing", tmp_path / "nothing")

    def other_disk(source: object, target: object, *, follow_symlinks: bool) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", other_disk)
        assert not store.link_file("object", tmp_path / "there")
        assert not store.put_link("other", tmp_path / "here")
    assert [info.key for info in store.list("")] == ["object"]
    assert store.put_link("other", tmp_path / "here")
    assert (tmp_path / "here").samefile(tmp_path / "objects" / "other")
    (tmp_path / "here").unlink()
    assert store.get("other") == b"bytes"
    assert list((tmp_path / "objects" / TEMPORARY).iterdir()) == []
    assert store.link_file("other", tmp_path / "here")
    store.delete(["object"])
    assert (tmp_path / "here").read_bytes() == b"bytes"
    assert not (tmp_path / "there").exists()


def test_trouble_with_the_callers_file_is_not_taken_for_a_missing_object(tmp_path: Path) -> None:
    """As when somebody empties the temporary folder of a slot: the object is there, and the slot begins again."""
    store = LocalStore(tmp_path / "store")
    store.put("a", b"x")
    gone = tmp_path / "gone" / "copy"
    assert not store.link_file("a", gone)
    with pytest.raises(Unavailable, match="gone/copy cannot be written: No such file or directory"):
        store.get_file("a", gone)
    with pytest.raises(ObjectNotFound):
        store.get_file("b", gone)
    with pytest.raises(ObjectNotFound):
        store.link_file("b", gone)
