"""Where tests write: in memory, where the machine has a file system there with room. Most of what a unit test waits
for is otherwise the disk: each checkpoint, segment and RocksDB is written durably. A killed process loses no more there
than on a disk, and what a power cut takes is decided by `tests/power_cut.py`, not by the disk."""

import os
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
_PREFIX = "tests-"  # and the process that owns the folder; short, sockets are below it
_ROOM = 4 << 30  # bytes; the largest step of `make test` needs a quarter


def begin() -> Path | None:
    """Makes the folder and names it to this process and those it starts. None: TMPDIR is somebody's choice (or the
    folder of the process that started this one), or there is no room: then everything is as it always was."""
    if "TMPDIR" in os.environ or not _MEMORY.is_dir() or not os.access(_MEMORY, os.W_OK):
        return None
    for old in _MEMORY.glob(f"{_PREFIX}[0-9]*"):  # of runs that failed or were killed
        if not Path("/proc", old.name.removeprefix(_PREFIX)).exists():
            shutil.rmtree(old, ignore_errors=True)
    if shutil.disk_usage(_MEMORY).free < _ROOM:
        return None
    folder = _MEMORY / f"{_PREFIX}{os.getpid()}"
    folder.mkdir(mode=0o711, exist_ok=True)  # servers of other users have folders in it
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # it may have been looked up
    return folder


def end(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.environ.pop("TMPDIR", None)
    tempfile.tempdir = None
