"""Files without a name, mapped into memory; the kernel caches pages as memory allows.
Files vanish with the last reader, however the process ends.
"""

import mmap
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from barrier_runtime.state.errors import Unavailable


def mapped_file(directory: Path, write: Callable[[IO[bytes]], None], where: str) -> mmap.mmap:
    """`write` writes at least a byte. `where`: the operator, for errors."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            write(file)
            file.flush()
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except OSError as error:
        raise Unavailable(
            f"{where}: rows that do not fit in memory could not be written to {directory} ({error}): "
            "free some space there, or give the job more state_memory_mb"
        ) from error
