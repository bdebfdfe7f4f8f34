"""Stores large values of a snapshot as objects, because manifests and messages must stay small.

Runs on worker threads only; deletes nothing.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.snapshots.plan import is_value_name
from barrier_runtime.state.snapshots.snapshot import FileRef, OperatorSnapshot
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.snapshots.verified import read_verified
from barrier_runtime.state.store.object_store import ObjectStore


def store_values(
    values: Mapping[str, bytes],
    stored: Mapping[str, FileRef],
    store: ObjectStore,
    new_key: Callable[[], str],
    limit_bytes: int,
    check: Callable[[], None],
) -> tuple[dict[str, bytes], dict[str, FileRef]]:
    """`stored`: values that are objects already. `check`, called before each upload, raises if the
    snapshot is no longer wanted.
    """
    small: dict[str, bytes] = {}
    objects: dict[str, FileRef] = {}
    for name, ref in stored.items():
        _check_name(name)
        objects[name] = msgspec.structs.replace(ref, name=name)
    for name, value in values.items():
        if name in stored:
            raise ProtocolViolation(f"the value {name!r} is handed over both as bytes and as stored: file a bug")
        if len(value) <= limit_bytes:
            small[name] = value
            continue
        _check_name(name)
        check()
        key = new_key()
        store.put(key, value)
        objects[name] = FileRef(name, len(value), hashlib.sha256(value).hexdigest(), key)
    return small, objects


def _check_name(name: str) -> None:
    if not is_value_name(name):
        raise ProtocolViolation(f"{name[:200]!r} is not a name for a large value: use letters, digits and . _ -")


def with_values(store: ObjectStore, snapshots: Sequence[OperatorSnapshot], at_once: int) -> list[OperatorSnapshot]:
    """Moves all `objects` into `values`.

    Raises `Corrupt` for a missing or changed object, `Unavailable` if an object cannot be read now.
    """
    wanted = [(number, name, ref) for number, each in enumerate(snapshots) for name, ref in each.objects.items()]
    if not wanted:
        return list(snapshots)
    read: list[dict[str, bytes]] = [dict(each.values) for each in snapshots]
    found = in_parallel(lambda item: read_verified(store, item[2]), wanted, at_once)
    for (number, name, _), value in zip(wanted, found, strict=True):
        read[number][name] = value
    return [
        msgspec.structs.replace(each, values=values, objects={}) for each, values in zip(snapshots, read, strict=True)
    ]
