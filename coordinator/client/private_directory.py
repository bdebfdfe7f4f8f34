"""Private directories of coordinators, by which commands find the coordinators of this user on this machine.

A driver or daemon has a temporary directory of mode 0700 for secrets, and holds a lock inside while alive. The owner
removes the directory at the end. A coordinator that outlives a killed driver removes the driver's; if both were killed
at once, the next owner of this user on this host finds the lock free. The lock file gets its name when it is locked: a
directory without one is just being made, and stays.

The file `address` in a directory names the coordinator's REST address and token file.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PREFIX = "barrier-runtime-coordinator-"
_LIFE, _ADDRESS = "life.lock", "address"


class PrivateDirectory:
    """Temporary directory with a lock, made at once; `remove()` may be repeated. `prefix` marks a kind."""

    def __init__(self, prefix: str = PREFIX, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_what_the_killed_left(prefix, parent)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        new = self.path / f"{_LIFE}.new"
        self._life = new.open("w")
        fcntl.flock(self._life, fcntl.LOCK_EX)
        new.rename(self.path / _LIFE)

    def announce(self, url: str, token_file: Path) -> None:
        """Lets commands of this user find the coordinator at `url`, which is ready or soon will be."""
        new = self.path / f"{_ADDRESS}.new"
        write_private(new, f"{url}\n{token_file.resolve()}\n")
        new.rename(self.path / _ADDRESS)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._life.close()


def remove_what_the_killed_left(prefix: str, parent: Path) -> None:
    """Removes real directories of this user only: in a shared folder a name proves nothing."""
    for entry in _of_this_user(prefix, parent):
        with contextlib.suppress(OSError), _lock_of(entry):
            shutil.rmtree(entry, ignore_errors=True)


@dataclass(frozen=True)
class RunningCoordinator:
    """Coordinator that another process of this user runs on this machine."""

    url: str
    token_file: Path


def coordinators_here(parent: Path | None = None) -> list[RunningCoordinator]:
    """Coordinators of this user whose owner lives, in the order of their addresses."""
    found = []
    for entry in _of_this_user(PREFIX, parent or Path(tempfile.gettempdir())):
        try:
            with _lock_of(entry):
                continue  # nobody holds the lock: the owner was killed
        except BlockingIOError:
            pass
        except OSError:  # the owner is making or removing the directory
            continue
        with contextlib.suppress(OSError, ValueError):
            url, token_file = (entry / _ADDRESS).read_text(encoding="utf-8").splitlines()
            found.append(RunningCoordinator(url, Path(token_file)))
    return sorted(found, key=lambda each: each.url)


def write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _of_this_user(prefix: str, parent: Path) -> Iterator[Path]:
    for entry in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if not entry.is_symlink() and entry.lstat().st_uid == os.getuid():
                yield entry


@contextlib.contextmanager
def _lock_of(directory: Path) -> Iterator[None]:
    """Holds the directory's lock. Raises `BlockingIOError` while the owner lives, `OSError` without a lock file."""
    with (directory / _LIFE).open() as life:
        fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
