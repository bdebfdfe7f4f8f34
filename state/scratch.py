"""Folders that a process has for itself while it works: gone when it is done, and those of a process that was killed
when another one of its user makes one of that name. Who lives holds the lock in its folder; the kernel lets go of it.
"""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "LOCK"
_YOUNG_S = 60.0  # a folder that was just made may not be locked yet


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """An empty one where this machine has its temporary files. `prefix`: of what has such folders, and of nothing
    else."""
    remove_left(Path(tempfile.gettempdir()), prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    held = None
    try:
        held = flocked(folder / LOCK)
        place = folder / "work"
        place.mkdir()
        yield place
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if held is not None:
            os.close(held)


def remove_left(parent: Path, prefix: str) -> None:
    """What killed processes have left in `parent`."""
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # it went just now, or its process lives
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            if time.time() - found.st_mtime < _YOUNG_S:
                continue
            held = flocked(folder / LOCK)
            try:
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)


def flocked(path: Path) -> int:
    """A descriptor that holds the file's lock until it is closed. Raises `BlockingIOError` when another has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
