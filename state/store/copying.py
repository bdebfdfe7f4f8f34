"""Copying an object from one store to another: by the store itself where both are of one kind, else through a file."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from barrier_runtime.state.store.object_store import ObjectStore


@runtime_checkable
class CopiesItself(Protocol):
    """A store that can fetch from another one without this process reading the bytes."""

    def copy_from(self, source: ObjectStore, key: str, to: str, beside_work: bool = False) -> bool:
        """False: not from that one. `beside_work`: others need this machine more."""
        ...


def _unchecked(path: Path) -> None:
    """Nobody knows what it is."""


def copy_object(
    source: ObjectStore,
    key: str,
    target: ObjectStore,
    to: str,
    check: Callable[[Path], None] = _unchecked,
    *,
    beside_work: bool = False,
) -> None:
    """`source`'s object `key` becomes `target`'s object `to`. Raises `ObjectNotFound` if there is none. `check`: raises
    when the bytes that this process has read are not what they should be; they are not written then."""
    if isinstance(target, CopiesItself) and target.copy_from(source, key, to, beside_work):
        return
    with tempfile.TemporaryDirectory(prefix="barrier-copy-") as folder:
        path = Path(folder) / "object"
        source.get_file(key, path)
        check(path)
        target.put_file(to, path)
