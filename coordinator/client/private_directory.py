"""Private directories, by which commands find this user's coordinators on this machine.

A driver or daemon has a temporary directory of mode 0700 for secrets, and holds a lock inside while alive. The next
owner of this user on this host removes directories whose lock is free, but none that is being made, without a lock.

The file `address` has a line each for the coordinator's REST address, token file, and given certificate.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from barrier_runtime.coordinator.client.trust import Trust
from barrier_runtime.state.scratch import kept_from_cleaners

PREFIX = "barrier-runtime-coordinator-"
_LIFE, _ADDRESS = "life.lock", "address"


class PrivateDirectory:
    """Temporary directory with a lock. `prefix` marks a kind."""

    def __init__(self, prefix: str = PREFIX, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_what_the_killed_left(prefix, parent)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        new = self.path / f"{_LIFE}.new"
        self._life = new.open("w")
        fcntl.flock(self._life, fcntl.LOCK_EX)
        new.rename(self.path / _LIFE)
        self._kept = contextlib.ExitStack()
        self._kept.enter_context(kept_from_cleaners(self.path))

    def announce(self, url: str, token_file: Path, certificate: Path | None = None) -> None:
        """Commands of this user find the coordinator at `url`, ready now or soon.

        `certificate`: of an https URL, unless the certificate is generated.
        """
        new = self.path / f"{_ADDRESS}.new"
        lines = [url, token_file.resolve(), *([certificate.resolve()] if certificate else [])]
        write_private(new, "".join(f"{line}\n" for line in lines))
        new.rename(self.path / _ADDRESS)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._kept.close()
        self._life.close()


def remove_what_the_killed_left(prefix: str, parent: Path) -> None:
    """Removes only real directories of this user: in a shared folder a name proves nothing."""
    for entry in _of_this_user(prefix, parent):
        with contextlib.suppress(OSError), _lock_of(entry):
            shutil.rmtree(entry, ignore_errors=True)


@dataclass(frozen=True)
class RunningCoordinator:
    url: str
    token_file: Path
    certificate: str = ""

    @property
    def trust(self) -> Trust:
        return Trust(certificate=self.certificate)


def coordinators_here(parent: Path | None = None) -> list[RunningCoordinator]:
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
            url, token_file, *certificate = (entry / _ADDRESS).read_text(encoding="utf-8").splitlines()
            found.append(RunningCoordinator(url, Path(token_file), "".join(certificate[:1])))
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
    """Raises `BlockingIOError` while the owner lives, `OSError` without a lock file."""
    with (directory / _LIFE).open() as life:
        fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
