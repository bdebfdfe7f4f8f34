"""Folders of a process for temporary files, and links to files that never change.

A living process holds the folder's lock. Another process of the same user removes a killed process's folder.
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
    """`prefix`: used for such folders and nothing else."""
    remove_left(Path(tempfile.gettempdir()), prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    held = None
    try:
        held = flocked(folder / LOCK)
        place = folder / "work"
        place.mkdir()
        with kept_from_cleaners(folder):
            yield place
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if held is not None:
            os.close(held)


@contextmanager
def kept_from_cleaners(folder: Path) -> Iterator[None]:
    """systemd-tmpfiles deletes old files of temporary folders, but nothing below a locked folder."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)


def remove_left(parent: Path, prefix: str) -> None:
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
    """The descriptor holds the lock until closed. Raises `BlockingIOError` if the lock is taken."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


SEGMENT_FILE = re.compile(r"segment-([0-9]{1,20})\.rows")
BESIDE = r"beside-[1-9][0-9]{0,5}-"  # of files of side-by-side databases
_OF_DATABASE = re.compile(r"(?:beside-([1-9][0-9]{0,5})-)?(.*)", re.DOTALL)


def link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system; a missing source fails again
        shutil.copyfile(source, target)


def segment_file(number: int) -> str:
    return f"segment-{number:06d}.rows"


def segment_number(name: str) -> int | None:
    named = SEGMENT_FILE.fullmatch(name)
    return None if named is None else int(named[1])


def beside_name(database: int, name: str) -> str:
    """Names a file of a database in a snapshot; database 0 is the first."""
    return name if database == 0 else f"beside-{database}-{name}"


def database_of(name: str) -> tuple[int, str]:
    """Inverse of `beside_name`."""
    named = _OF_DATABASE.fullmatch(name)
    assert named is not None, "it matches everything"
    return int(named[1] or 0), named[2]
