"""Folders of a process for temporary files, and links to files that never change.

A folder of a killed process is removed when another process of the same user makes a folder with that prefix: a living
process locks the folder, and the kernel releases the lock of a dead process.

Immutable files are shared by hard links, or copies if the file system has no hard links. Defines the names of segments
and of files of side-by-side databases.
"""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "LOCK"
_YOUNG_S = 60.0  # a newer folder may not be locked yet


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """An empty folder among this machine's temporary files.

    `prefix`: used for such folders and nothing else.
    """
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
    """Removes folders that killed processes have left in `parent`."""
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # removed meanwhile, or the process is alive
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
    """A descriptor that holds the file's lock until closed. Raises `BlockingIOError` if the lock is taken."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


SEGMENT_FILE = re.compile(r"segment-([0-9]{1,20})\.rows")
BESIDE = r"beside-[1-9][0-9]{0,5}-"  # prefix of files of side-by-side databases
_OF_DATABASE = re.compile(r"(?:beside-([1-9][0-9]{0,5})-)?(.*)", re.DOTALL)


def link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system; a missing source fails in the copy too
        shutil.copyfile(source, target)


def segment_file(number: int) -> str:
    return f"segment-{number:06d}.rows"


def segment_number(name: str) -> int | None:
    named = SEGMENT_FILE.fullmatch(name)
    return None if named is None else int(named[1])


def beside_name(database: int, name: str) -> str:
    """Name in a snapshot of the file `name` of the database with that number; 0 is the first."""
    return name if database == 0 else f"beside-{database}-{name}"


def database_of(name: str) -> tuple[int, str]:
    """Database number and plain name: inverse of `beside_name`."""
    named = _OF_DATABASE.fullmatch(name)
    assert named is not None, "it matches everything"
    return int(named[1] or 0), named[2]
