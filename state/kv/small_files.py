"""Where a database keeps the small files that it syncs often: in memory, where this machine has room for them.

Nobody asks what a database is after a power cut: checkpoints count alone. RocksDB syncs all the same: MANIFEST,
CURRENT, OPTIONS, IDENTITY and their folder seven times when it is opened, MANIFEST again with each flush. rocksdict
holds the interpreter meanwhile, as long as the disk has other work. So these are in /dev/shm (some 100 kB of each
database), and the database's own folder has its SST files, RocksDB's log of events, and a lock.

| the process that opened it … | what is in memory of it                                                            |
|------------------------------|------------------------------------------------------------------------------------|
| closes it                    | goes: an incarnation opens a database once, and checkpoints have links to its files |
| ends without                 | goes when its slot ends, or the process in peace                                   |
| is killed                    | goes when another process of this user opens a database: nobody holds its lock now |
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
_ROOM_BYTES = 32 << 20  # else they stay on the disk
_MOVED = ("CURRENT", "MANIFEST-")


class SmallFiles:
    """Of the database in `directory`, which this process has for itself until `close`. `place`: where they are; in
    memory if `wanted`."""

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
                return  # others have taken the room meanwhile: they are all still on the disk
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
    """The folder in memory of one process, with one of each open database below."""

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
    """None: there is no room in memory, or no such place."""
    global _process
    try:
        room = os.statvfs(MEMORY)
        if room.f_bavail * room.f_frsize < _ROOM_BYTES:
            return None
        with _guard:
            if _process is None or _process.pid != os.getpid():  # a fork has none of its own yet
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
    """Of this process: it leaves, and nobody uses its databases any more, closed or not."""
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
