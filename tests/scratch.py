"""The folder for files of tests: in memory, where the machine has a file system in memory with room. Unit tests mostly
wait for the disk otherwise: each checkpoint, segment and RocksDB is written durably. A killed process loses no more
in memory than on a disk, and `tests/power_cut.py` models the losses of a power cut, not the disk.
"""

import os
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
_PREFIX = "tests-"  # and the id of the owning process; short, as sockets are below the folder
_ROOM = 4 << 30  # bytes; the largest step of `make test` needs a quarter


def begin() -> Path | None:
    """Makes the folder and names the folder to this process and its children. None if TMPDIR is set (by a person, or by
    the parent process), or if there is no room: then tests write to the usual place.
    """
    if "TMPDIR" in os.environ or not _MEMORY.is_dir() or not os.access(_MEMORY, os.W_OK):
        return None
    for old in _MEMORY.glob(f"{_PREFIX}[0-9]*"):  # of runs that failed or were killed
        if not Path("/proc", old.name.removeprefix(_PREFIX)).exists():
            shutil.rmtree(old, ignore_errors=True)
    if shutil.disk_usage(_MEMORY).free < _ROOM:
        return None
    folder = _MEMORY / f"{_PREFIX}{os.getpid()}"
    folder.mkdir(mode=0o711, exist_ok=True)  # servers of other users have folders there
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # may be cached from an earlier call
    return folder


def end(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.environ.pop("TMPDIR", None)
    tempfile.tempdir = None
