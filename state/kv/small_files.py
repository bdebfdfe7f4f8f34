"""Places the small, often synced files of a database in /dev/shm, if this machine has enough memory.

Only checkpoints must survive a power cut, but RocksDB syncs MANIFEST, CURRENT and others seven times at an open, and
MANIFEST at each flush, while rocksdict holds the interpreter's lock. The database's own folder keeps the SST files,
RocksDB's event log, and a lock.

Files in memory are removed at the close, or when the slot or the process ends; those of a killed process, when another
process of this user opens a database and finds the lock free.
"""

import atexit
import os
import shutil
import tempfile
import threading
from pathlib import Path

from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.scratch import LOCK, flocked, remove_left

MEMORY = Path("/dev/shm")
_PREFIX = "barrier-runtime-db-"
_ROOM_BYTES = 32 << 20  # minimum free memory
_MOVED = ("CURRENT", "MANIFEST-")


class SmallFiles:
    """The database in `directory` belongs to this process until `close`.

    `place`: the folder; in memory if `wanted` and possible.
    """

    def __init__(self, directory: Path, wanted: bool) -> None:
        self._directory = directory
        self._held: int | None = None
        self.place = directory
        folder = _new_folder() if wanted else None
        if folder is not None:
            small = [path for path in directory.iterdir() if path.name.startswith(_MOVED)]
            try:
                self._held = _locked(directory)
                for path in small:
                    shutil.copyfile(path, folder / path.name)
            except BaseException as error:
                self._release()
                _remove(folder)
                if not isinstance(error, OSError):
                    raise
                return  # no memory left: all files are still on disk
            for path in small:
                path.unlink()
            self.place = folder

    @property
    def apart(self) -> bool:
        return self.place != self._directory

    def close(self) -> None:
        if self.apart:
            _remove(self.place)
            self.place = self._directory
        self._release()

    def _release(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None


class _OfProcess:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=MEMORY))
        self.held = flocked(self.folder / LOCK)
        self.open = 0

    def remove(self) -> None:
        if self.pid == os.getpid():
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self.held)


_guard = threading.Lock()
_process: _OfProcess | None = None


def _new_folder() -> Path | None:
    global _process
    try:
        room = os.statvfs(MEMORY)
        if room.f_bavail * room.f_frsize < _ROOM_BYTES:
            return None
        with _guard:
            if _process is None or _process.pid != os.getpid():  # a forked process has no folder yet
                remove_left(MEMORY, _PREFIX)
                _process = _OfProcess()
            folder = Path(tempfile.mkdtemp(dir=_process.folder))
            _process.open += 1
            return folder
    except OSError:
        return None


def _remove(folder: Path) -> None:
    global _process
    shutil.rmtree(folder, ignore_errors=True)
    with _guard:
        if _process is not None and folder.parent == _process.folder:
            _process.open -= 1
            if _process.open == 0:
                _process.remove()
                _process = None


@atexit.register
def remove_all() -> None:
    global _process
    with _guard:
        ours, _process = _process, None
    if ours is not None:
        ours.remove()


def _locked(directory: Path) -> int:
    try:
        return flocked(directory / LOCK)
    except BlockingIOError:
        raise Unavailable(
            f"cannot open the state database in {directory}: another process still holds it, it is tried in a fresh "
            "folder"
        ) from None
