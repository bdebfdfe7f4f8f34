"""A disk that keeps, at a power cut, only what was synced.

Below `root` every fsync is noted: of a file, the bytes at that time; of a folder, the names at that time and their
inodes. A cut keeps the files that are reachable from `root` through noted names; a file that was never synced survives
empty if the name was synced. `kept(names="all")` models another file system: it writes names at once, and bytes only at
a sync. No fsync is passed on: a cut of the model's power does not depend on the real disk.

Inodes are reused after a deletion, so noted files are held open: no later file can be mistaken for a noted file.
"""

import errno
import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

Names = Literal["synced", "all"]
_CHANGES = ("link", "replace", "rename", "unlink", "mkdir", "rmdir", "fsync")


class Disk:
    """`moment` is called before each change of names and each sync, with a description; `moment` may copy the kept
    files or raise. `fail_sync`: numbers of the syncs that fail (from 1), as a disk's error does.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.moment: Callable[[str], None] = lambda what: None
        self.fail_sync: set[int] = set()
        self.syncs = 0
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, int]] = {}
        self._modes: dict[int, bool] = {}  # inode -> is a folder
        self._held: dict[int, int] = {}  # inode -> descriptor
        self._lock = threading.RLock()

    @contextmanager
    def plugged_in(self) -> Iterator["Disk"]:
        """While this lasts, the process writes to this disk."""
        self._note_folder(os.open(self.root, os.O_RDONLY | os.O_DIRECTORY))
        with pytest.MonkeyPatch.context() as patch:
            for name in _CHANGES:
                patch.setattr(os, name, self._watched(name, getattr(os, name)))
            try:
                yield self
            finally:
                patch.undo()
                for descriptor in self._held.values():
                    os.close(descriptor)
                self._held.clear()

    def at_moment(self, number: int, act: Callable[[], object]) -> None:
        """`act` once, at moment `number` from now on, counted from 0."""
        passed = itertools.count()

        def moment(what: str) -> None:
            if next(passed) == number:
                act()

        self.moment = moment

    def kept(self, into: Path, names: Names = "synced") -> Path:
        """The files that a cut leaves now, in a fresh folder."""
        with self._lock:
            self._restore(os.stat(self.root).st_ino, self.root, into, names)
        return into

    # ---- inside

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            with self._lock:
                if name == "fsync":
                    return self._sync(arguments[0])
                if self._is_below(arguments[0]):
                    self.moment(f"{name} {arguments[0]}")
                return real(*arguments, **keywords)

        return call

    def _sync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not self._is_below(path):
            return
        self.moment(f"fsync {path}")
        self.syncs += 1
        if self.syncs in self.fail_sync:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._note_folder(os.dup(descriptor))
        else:
            self._hold(os.dup(descriptor))
            inode = os.fstat(descriptor).st_ino
            self._files[inode] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    def _note_folder(self, descriptor: int) -> None:
        inode = self._hold(descriptor)
        names = {}
        for entry in os.scandir(f"/proc/self/fd/{self._held[inode]}"):
            if not entry.is_symlink():
                # Held open from now on: no other file may reuse the inode before the name is looked up at the cut.
                names[entry.name] = self._hold(os.open(entry.path, os.O_RDONLY))
        self._folders[inode] = names

    def _hold(self, descriptor: int) -> int:
        status = os.fstat(descriptor)
        if status.st_ino in self._held:
            os.close(descriptor)
        else:
            self._held[status.st_ino] = descriptor
            self._modes[status.st_ino] = stat.S_ISDIR(status.st_mode)
        return status.st_ino

    def _restore(self, inode: int, living: Path, into: Path, names: Names) -> None:
        into.mkdir()
        found = (
            {entry.name: entry.inode() for entry in os.scandir(living)} if names == "all" else self._folders.get(inode)
        )
        for name, child in (found or {}).items():
            is_folder = (living / name).is_dir() if names == "all" else self._modes[child]
            if is_folder:
                self._restore(child, living / name, into / name, names)
            else:
                (into / name).write_bytes(self._files.get(child, b""))

    def _is_below(self, path: Any) -> bool:
        return f"{os.fspath(path)}/".startswith(f"{self.root}/")
