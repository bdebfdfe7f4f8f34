"""The local disk of the slots: a small separate file system that a test can fill and free.

Mounting needs root. Without root the folder is an ordinary folder that cannot be filled, and the run reports this.
"""

import errno
import os
import subprocess
from pathlib import Path

_CHUNK = 1 << 20


class SmallDisk:
    def __init__(self, folder: Path, megabytes: int = 256) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._filler = folder / "filler"
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "tmpfs", str(folder)]
        try:
            mounted = subprocess.run(command, capture_output=True, text=True, check=False)
            self.why_not = mounted.stderr.strip() if mounted.returncode else ""
        except FileNotFoundError as error:
            self.why_not = str(error)

    @property
    def mounted(self) -> bool:
        return not self.why_not

    def fill(self) -> int:
        """Takes all free space. Returns the bytes taken."""
        assert self.mounted, "this is a folder of the real disk, it is not ours to fill"
        taken = 0
        with self._filler.open("ab", buffering=0) as filler:
            for chunk in (_CHUNK, 4096):
                try:
                    while True:
                        taken += os.write(filler.fileno(), bytes(chunk))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        return taken

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
