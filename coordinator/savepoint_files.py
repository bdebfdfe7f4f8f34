"""Savepoints in object stores: written, read, listed, copied, deleted. Blocking; on threads.

Files are written before savepoint.json; another attempt has other names.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from barrier_runtime.coordinator.log.savepoint import (
    CLAIM_FILE,
    DATA_PREFIX,
    SAVEPOINT_FILE,
    Claim,
    Savepoint,
    SavepointCopy,
    decode_claim,
    decode_savepoint,
    encode_claim,
    encode_savepoint,
    files_by_object,
    in_savepoint,
    object_sizes,
)
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.snapshots.snapshot import FileRef
from barrier_runtime.state.snapshots.transfer import verify_parts
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, copy_object, get_or_none
from barrier_runtime.state.store.open import open_existing_store, open_store
from barrier_runtime.state.store.urls import shown
from barrier_runtime.state.texts import counted

COPIES_AT_ONCE = 8
_CREATE_ATTEMPTS = 5


def _never() -> bool:
    return False


def write_savepoint(store: ObjectStore, url: str, copy: SavepointCopy, ended: Callable[[], bool] = _never) -> int:
    """Copies the objects, and completes the savepoint; returns the size in bytes. `ended`: as in `copy_objects`.

    Repeating the same savepoint is no error. Raises `InvalidJob` if the folder has another savepoint, `ObjectNotFound`
    if a file is gone.
    """
    parts = [(store, copy.objects)]
    return make_savepoint(url, copy.savepoint, parts, beside_work=not copy.savepoint.final, ended=ended)


def make_savepoint(
    url: str,
    wanted: Savepoint,
    parts: Sequence[tuple[ObjectStore, Mapping[str, str]]],
    *,
    beside_work: bool = False,
    ended: Callable[[], bool] = _never,
) -> int:
    """Objects may be in several stores. `parts`: store, key there -> key in the folder."""
    target = open_store(url)
    known = _found(target, url)
    if known != wanted:
        if known is not None:
            _check_replaces(known, wanted, url)
        _check_unclaimed(target, url, wanted.taken.job, {store.url for store, _ in parts})
        if known is not None:  # another leader may be copying, so only these files
            target.delete([SAVEPOINT_FILE])
            target.delete(sorted(object_sizes(known.taken)))
        files = files_by_object(wanted.taken)
        for store, objects in parts:
            held = {key: files.get(to, ()) for key, to in objects.items()}
            copy_objects(store, target, objects, held, beside_work=beside_work, ended=ended)
        _create(target, url, wanted)
    return sum(object_sizes(wanted.taken).values()) + len(encode_savepoint(wanted))


def _check_replaces(known: Savepoint, wanted: Savepoint, url: str) -> None:
    """Accepts an earlier attempt to stop with the savepoint, after which the job continued."""
    if known.id != wanted.id:
        raise InvalidJob(_occupied(url, known))
    if known.taken.checkpoint > wanted.taken.checkpoint:  # this process stalled and was deposed
        raise InvalidJob(
            f"{shown(url)} has the savepoint of checkpoint {known.taken.checkpoint}, by a later leader of the job: "
            f"that of checkpoint {wanted.taken.checkpoint} is not needed"
        )


def find_savepoint(url: str) -> Savepoint | None:
    return _found(open_existing_store(url), url)


def read_savepoint(url: str) -> Savepoint:
    """Raises `InvalidJob` if there is no savepoint."""
    savepoint = find_savepoint(url)
    if savepoint is None:
        raise no_savepoint(url)
    return savepoint


def no_savepoint(url: str) -> InvalidJob:
    owner = claimed_by(url)
    if owner is not None:
        return InvalidJob(
            f"there is no savepoint in {shown(url)} any more: {owner} claimed it, and deleted it when it had a "
            f"copy{owner.place}; begin with another one"
        )
    return InvalidJob(
        f"there is no savepoint in {shown(url)}: {SAVEPOINT_FILE} is missing; give the folder that was named when it "
        "was taken, or, for a checkpoint of the job itself, its number"
    )


def claim(url: str, wanted: Claim) -> None:
    """Raises `InvalidJob` if another job, or a job of that name in another store, was faster."""
    store = open_existing_store(url)
    for _ in range(_CREATE_ATTEMPTS):
        if store.put_if_absent(CLAIM_FILE, encode_claim(wanted)) is PutOutcome.CREATED:
            return
        owner = claimed_by(url)
        if owner is not None and owner.job == wanted.job and owner.store in ("", wanted.store):
            return
        if owner is not None:
            raise InvalidJob(
                f"the savepoint {shown(url)} was claimed by {owner}{owner.place}: restore it with "
                "restore_mode='no_claim' while it is there, or take another"
            )
    raise Unavailable(f"whether {shown(url)}/{CLAIM_FILE} was written is not known: start again")


def claimed_by(url: str) -> Claim | None:
    return _owner(open_existing_store(url))


def _owner(store: ObjectStore) -> Claim | None:
    data = get_or_none(store, CLAIM_FILE)
    return None if data is None else decode_claim(data)


def named(url: str, savepoint: Savepoint) -> str:
    return f"the savepoint {shown(url)} (checkpoint {savepoint.taken.checkpoint} of job {savepoint.taken.job})"


def check_whole(url: str, savepoint: Savepoint) -> None:
    missing = missing_objects(url, savepoint)
    if missing:
        raise InvalidJob(
            f"{named(url, savepoint)} lacks {len(missing)} of its "
            f"{counted(len(object_sizes(savepoint.taken)), 'file')}, e.g. "
            f"{missing[0]}: copy the whole folder again from where it is intact"
        )


def missing_objects(url: str, savepoint: Savepoint) -> tuple[str, ...]:
    found = {info.key: info.size for info in open_existing_store(url).list(DATA_PREFIX)}
    return tuple(key for key, size in sorted(object_sizes(savepoint.taken).items()) if found.get(key, -1) < size)


def delete_savepoint(url: str) -> int:
    """Deletes savepoint.json first, so that an interrupted deletion leaves no savepoint. Other objects stay."""
    store = open_existing_store(url)
    store.delete([SAVEPOINT_FILE])
    keys = _data_in(store)
    store.delete([*keys, CLAIM_FILE])
    return len(keys)


def delete_claimed(url: str, savepoint: Savepoint) -> None:
    """As `delete_savepoint`, but keeps the claim, and another savepoint: this process may have stalled since."""
    store = open_existing_store(url)
    keys = _data_in(store)  # before the check, after which another savepoint could begin
    if _found(store, url) == savepoint:
        store.delete([SAVEPOINT_FILE])
        store.delete(keys)


def _data_in(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list(DATA_PREFIX) if in_savepoint(info.key)]


def copy_objects(
    source: ObjectStore,
    target: ObjectStore,
    objects: Mapping[str, str],
    files: Mapping[str, Collection[FileRef]],
    *,
    beside_work: bool = False,
    ended: Callable[[], bool] = _never,
) -> None:
    """`objects`: key of `source` -> key of `target`. Raises `Corrupt` for damaged objects.

    `files`: required content of an object of `source`. Bytes that pass through this process are checked before the
    write. `ended`: asked before each object; if true, `Unavailable` is raised.
    """

    def copy(key: str) -> None:
        if ended():
            raise Unavailable("the process ends: nothing more is copied")
        check = partial(verify_parts, source, files.get(key, ()))
        copy_object(source, key, target, objects[key], check, beside_work=beside_work)

    if COPIES_AT_ONCE == 1:
        for key in objects:
            copy(key)
        return
    with ThreadPoolExecutor(COPIES_AT_ONCE, thread_name_prefix="savepoint-copy") as pool:
        copies = [pool.submit(copy, key) for key in objects]
        try:
            for each in copies:
                each.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _found(store: ObjectStore, url: str) -> Savepoint | None:
    data = get_or_none(store, SAVEPOINT_FILE)
    return None if data is None else decode_savepoint(f"{shown(url)}/{SAVEPOINT_FILE}", data)


def _create(target: ObjectStore, url: str, savepoint: Savepoint) -> None:
    data = encode_savepoint(savepoint)
    for _ in range(_CREATE_ATTEMPTS):
        if target.put_if_absent(SAVEPOINT_FILE, data) is PutOutcome.CREATED:
            return
        known = _found(target, url)
        if known == savepoint:
            return
        if known is not None:
            _check_replaces(known, savepoint, url)
            raise Unavailable(f"an earlier leader of the job has just completed the savepoint {shown(url)}: try again")
    raise Unavailable(f"whether {shown(url)}/{SAVEPOINT_FILE} was written is not known: take the savepoint again")


def _check_unclaimed(target: ObjectStore, url: str, job: str, stores: Collection[str]) -> None:
    """Refuses a claimed folder: a restarted claimer would restore the new savepoint.

    A job whose files are in one of `stores` may use its own folder again.
    """
    owner = _owner(target)
    own = owner is not None and owner.job == job and (not owner.store or owner.store in stores)
    if owner is not None and not own:
        raise InvalidJob(
            f"{shown(url)} had a savepoint that {owner} claimed, and asks for when it is started again{owner.place}: "
            f"choose a folder of its own, or delete {CLAIM_FILE} in this one"
        )


def _occupied(url: str, known: Savepoint) -> str:
    taken = known.taken
    return (
        f"{shown(url)} has another savepoint already, of checkpoint {taken.checkpoint} of job {taken.job}: choose a "
        "folder of its own, or delete that one with `barrier-runtime savepoints delete`"
    )
