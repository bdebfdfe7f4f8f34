"""The folder store after a power cut at any moment: acknowledged objects exist, complete."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.object_store import PutOutcome
from tests.power_cut import Disk, Names

ROWS, OTHER = b"rows" * 5_000, b"other"
SHA256 = hashlib.sha256(ROWS).hexdigest()
Act = Callable[[LocalStore], str]  # sends one request until acknowledged; returns the key that must exist


class Killed(BaseException):
    """Death of the process; no `except Exception` catches a BaseException."""


def put(store: LocalStore) -> str:
    store.put("one/put", ROWS)
    return "one/put"


def put_over(store: LocalStore) -> str:
    store.put("over", OTHER)
    store.put("over", ROWS)
    return "over"


def put_if_absent(store: LocalStore) -> str:
    outcome = store.put_if_absent("log/1/record", ROWS)
    if outcome is PutOutcome.UNKNOWN:
        raise Unavailable("asked again")
    return "log/1/record"


def publish(store: LocalStore) -> str:
    if not list(store.list("out/")):
        store.put("_staging/1/part", ROWS)
    store.publish("_staging/1/part", "out/part", SHA256)
    return "out/part"


@pytest.fixture(params=["put", "put_over", "put_file", "put_link", "copy_beside_work", "put_if_absent", "publish"])
def act(request: pytest.FixtureRequest, tmp_path: Path) -> Act:
    if request.param not in ("put_file", "put_link", "copy_beside_work"):
        return {"put": put, "put_over": put_over, "put_if_absent": put_if_absent, "publish": publish}[request.param]
    source = tmp_path / "elsewhere"
    source.write_bytes(ROWS)

    def put_file(store: LocalStore) -> str:
        store.put_file("data/1/file", source)
        return "data/1/file"

    def put_link(store: LocalStore) -> str:
        again = tmp_path / os.urandom(8).hex()  # never synced
        again.write_bytes(ROWS)
        assert store.put_link("data/1/file", again)
        return "data/1/file"

    def copy_beside_work(store: LocalStore) -> str:
        assert store.copy_from(LocalStore.existing(tmp_path), "elsewhere", "data/1/file", beside_work=True)
        return "data/1/file"

    return {"put_file": put_file, "put_link": put_link, "copy_beside_work": copy_beside_work}[request.param]


def moments(act: Act, folder: Path) -> list[str]:
    """Returns the operations of the disk during `act`, in a fresh store."""
    folder.mkdir()
    seen: list[str] = []
    disk = Disk(folder)
    disk.moment = seen.append
    with disk.plugged_in():
        act(LocalStore(folder / "store"))
    return seen


@pytest.mark.parametrize("names", ["synced", "all"])
def test_what_was_acknowledged_is_there_after_a_cut_and_nothing_is_there_in_part(
    act: Act, names: Names, tmp_path: Path
) -> None:
    """O12: includes the names of all parent folders, and the store's own folder."""
    count = len(moments(act, tmp_path / "count"))
    assert count > 4
    for cut in range(count):
        _, found = cut_at(act, cut, tmp_path / f"{cut}", names)
        assert set(found.values()) <= {ROWS, OTHER}, f"cut at {cut}"
    key, found = cut_at(act, None, tmp_path / "end", names)
    assert found[key] == ROWS


def cut_at(act: Act, moment: int | None, folder: Path, names: Names) -> tuple[str, dict[str, bytes]]:
    """Returns the acknowledged key, and the objects left by a cut at `moment`; None cuts after the acknowledgement."""
    (folder / "disk").mkdir(parents=True)
    disk, kept = Disk(folder / "disk"), folder / "kept"
    with disk.plugged_in():
        if moment is not None:
            disk.at_moment(moment, lambda: disk.kept(kept, names))
        key = act(LocalStore(folder / "disk" / "store"))
        if moment is None:
            disk.kept(kept, names)
    store = LocalStore(kept / "store")
    return key, {info.key: store.get(info.key) for info in store.list("")}


def test_request_repeated_after_a_failed_sync_is_durable_once_acknowledged(act: Act, tmp_path: Path) -> None:
    """O12: the first attempt has written the name, but the name may not be durable."""
    failing = 0
    while True:
        failing += 1
        root = tmp_path / f"{failing}"
        root.mkdir()
        disk = Disk(root)
        with disk.plugged_in():
            store = LocalStore(root / "store")
            disk.fail_sync = {disk.syncs + failing}
            key, attempts = _repeated(act, store)
            disk.kept(tmp_path / f"{failing}-kept")
        assert LocalStore(tmp_path / f"{failing}-kept" / "store").get(key) == ROWS, f"sync {failing} failed"
        if attempts == 1:
            break
    assert failing > 2


def test_process_that_dies_anytime_leaves_nothing_a_repeat_mistakes_for_durable(act: Act, tmp_path: Path) -> None:
    """O12: a dead process may leave a folder or a name that was never synced."""
    count = len(moments(act, tmp_path / "count"))
    for death in range(count):
        folder = tmp_path / f"{death}"
        folder.mkdir()
        disk = Disk(folder)
        with disk.plugged_in():
            disk.at_moment(death, die)
            with pytest.raises(Killed):
                act(LocalStore(folder / "store"))
            key, _ = _repeated(act, LocalStore(folder / "store"))
            disk.kept(tmp_path / f"{death}-kept")
        assert LocalStore(tmp_path / f"{death}-kept" / "store").get(key) == ROWS, f"death at {death}"


def die() -> None:
    raise Killed


def test_who_hears_that_an_object_exists_may_rely_on_it(tmp_path: Path) -> None:
    """O12: the writer died between writing the object's name and syncing the folder."""
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    with disk.plugged_in():
        writer, reader = LocalStore(tmp_path / "disk"), LocalStore(tmp_path / "disk")
        writer.put("log/0", b"")
        disk.fail_sync = {disk.syncs + 2}  # the folder's sync
        assert writer.put_if_absent("log/1", ROWS) is PutOutcome.UNKNOWN
        assert reader.put_if_absent("log/1", OTHER) is PutOutcome.EXISTS
        disk.kept(tmp_path / "kept")
    assert LocalStore(tmp_path / "kept").get("log/1") == ROWS


def test_a_folder_costs_its_syncs_once(tmp_path: Path) -> None:
    """Each further object in a folder costs two syncs: its bytes and its name."""
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk")
    with disk.plugged_in():
        store = LocalStore(tmp_path / "disk")
        store.put("a/b/c/first", ROWS)
        before = disk.syncs
        for number in range(20):
            store.put(f"a/b/c/{number}", ROWS)
        assert disk.syncs - before == 40


def _repeated(act: Act, store: LocalStore) -> tuple[str, int]:
    for attempt in range(1, 10):
        try:
            return act(store), attempt
        except Unavailable:
            continue
    raise AssertionError("nine attempts failed, though only one sync does")
