"""Folders that a process has for itself while it works: gone when it is done, and those of a process that was killed
when another one of its user makes one of that name. Who lives holds the lock in its folder; the kernel lets go of it.

Files that never change, shared between folders: hard links where the file system has them; the names of segments,
and of files of databases that are side by side.

A local checkpoint, a restore and a survivor's copy take such files from each other without copying their bytes.
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


SEGMENT_FILE = re.compile(r"segment-([0-9]{1,20})\.rows")
BESIDE = r"beside-[1-9][0-9]{0,5}-"  # before the name of a file of another database than the first
_OF_DATABASE = re.compile(r"(?:beside-([1-9][0-9]{0,5})-)?(.*)", re.DOTALL)


def link_or_copy(source: Path, target: Path) -> None:
    """For files that never change."""
    try:
        os.link(source, target)
    except OSError:  # another file system: costs time, nothing else; a missing source fails in the copy too
        shutil.copyfile(source, target)


def segment_file(number: int) -> str:
    """Name of the segment with that number."""
    return f"segment-{number:06d}.rows"


def segment_number(name: str) -> int | None:
    """None for a file that is not a segment."""
    named = SEGMENT_FILE.fullmatch(name)
    return None if named is None else int(named[1])


def beside_name(database: int, name: str) -> str:
    """What a snapshot calls the file `name` of its database with that number; 0 is the first."""
    return name if database == 0 else f"beside-{database}-{name}"


def database_of(name: str) -> tuple[int, str]:
    """The opposite of `beside_name`."""
    named = _OF_DATABASE.fullmatch(name)
    assert named is not None, "it matches everything"
    return int(named[1] or 0), named[2]
