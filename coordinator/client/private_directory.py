"""A temporary directory of one driver for its coordinator's secrets, and the removal of those whose driver was killed.

Mode 0700. A lock in it is held for as long as the driver lives. A driver removes its directory when it ends, the
coordinator does it when only the driver was killed; when both were, at once, the next driver of this user on this host
finds the lock free. A directory without a lock is just being made: it is left alone.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_LIFE = "life.lock"


class PrivateDirectory:
    """Made at once; `remove()` may be called again. `prefix` tells the directories of one kind from all others."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_what_the_killed_left(prefix, parent)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._life = (self.path / _LIFE).open("w")
        fcntl.flock(self._life, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._life.close()


def remove_what_the_killed_left(prefix: str, parent: Path) -> None:
    """Only real directories of this user: in a folder that all may write to, a name proves nothing."""
    for entry in parent.glob(f"{prefix}*"):
        try:
            if entry.is_symlink() or entry.lstat().st_uid != os.getuid():
                continue
            with (entry / _LIFE).open() as life:
                fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry, ignore_errors=True)
        except OSError:  # its driver lives, or it is just being made, or somebody else removes it
            continue
