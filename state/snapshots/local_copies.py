"""Local copies of snapshots: hard links that outlive the upload, for restores without the network.

Each copy is next to the incarnation's database, so that files can be linked. Losing a copy costs a download, never
state.
"""

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from barrier_runtime.state.snapshots.snapshot import FileRef


@dataclass(frozen=True)
class LocalCopy:
    operator: str
    subtask: int
    checkpoint: int
    directory: Path
    content: frozenset[tuple[str, int, str]] = field(repr=False)  # name, size, sha256 of each file

    @cached_property
    def names(self) -> dict[tuple[int, str], str]:
        return {(size, sha256): name for name, size, sha256 in self.content}


class LocalCopies:
    """Copies of a slot, across generations. `wait` blocks a worker thread until the event is set."""

    def __init__(self, wait: Callable[[threading.Event], object] = threading.Event.wait) -> None:
        self._wait = wait
        self._lock = threading.Lock()
        self._copies: dict[tuple[str, int, int], LocalCopy] = {}
        self._fetched: dict[tuple[int, str], Path] = {}  # by size and sha256: fetched ahead of a restore
        self._under_way: dict[tuple[int, str], threading.Event] = {}  # being fetched
        self._unwanted: list[Path] = []
        self._closed: set[Path] = set()  # folders of ended incarnations that still contain copies
        self._made = 0

    def new_directory(self, incarnation: Path, checkpoint: int) -> Path:
        """Returns an unused path. The caller makes the folder, then calls `add` or `discard`."""
        with self._lock:
            self._made += 1
            return incarnation / f"checkpoint-{checkpoint}-{self._made}"

    def add(self, operator: str, subtask: int, checkpoint: int, directory: Path, files: Sequence[FileRef]) -> None:
        copy = LocalCopy(operator, subtask, checkpoint, directory, _content(files))
        with self._lock:
            replaced = self._copies.get((operator, subtask, checkpoint))
            if replaced is not None:
                self._unwanted.append(replaced.directory)
            self._copies[operator, subtask, checkpoint] = copy

    def find(self, operator: str, subtask: int, files: Sequence[FileRef]) -> LocalCopy | None:
        wanted = _content(files)
        with self._lock:
            for copy in self._copies.values():
                if (copy.operator, copy.subtask, copy.content) == (operator, subtask, wanted):
                    present = all((copy.directory / ref.name).is_file() for ref in files)
                    return copy if present else None
        return None

    def place_of(self, ref: FileRef) -> Path | None:
        content = ref.size, ref.sha256
        with self._lock:
            places = [self._fetched[content]] if content in self._fetched else []
            places += [copy.directory / copy.names[content] for copy in self._copies.values() if content in copy.names]
        return next((place for place in places if place.is_file()), None)

    def fetched(self, ref: FileRef, path: Path) -> None:
        """Takes over `path`, a verified file."""
        with self._lock:
            before = self._fetched.get((ref.size, ref.sha256))
            self._fetched[ref.size, ref.sha256] = path
            if before is not None and before != path:
                self._unwanted.append(before)

    @contextmanager
    def fetching(self, ref: FileRef) -> Iterator[None]:
        """Makes other users of these bytes wait (`wait_for`)."""
        came = threading.Event()
        with self._lock:
            self._under_way[ref.size, ref.sha256] = came
        try:
            yield
        finally:
            with self._lock:
                del self._under_way[ref.size, ref.sha256]
            came.set()

    def wait_for(self, ref: FileRef) -> None:
        with self._lock:
            came = self._under_way.get((ref.size, ref.sha256))
        if came is not None:
            self._wait(came)

    def keep_fetched(self, wanted: Sequence[FileRef] = ()) -> None:
        kept = {(ref.size, ref.sha256) for ref in wanted}
        with self._lock:
            for key in [key for key in self._fetched if key not in kept]:
                self._unwanted.append(self._fetched.pop(key))

    def completed(self, operator: str, subtask: int, checkpoint: int) -> None:
        with self._lock:
            for key in [key for key in self._copies if key[:2] == (operator, subtask) and key[2] < checkpoint]:
                self._unwanted.append(self._copies.pop(key).directory)

    def aborted(self, operator: str, subtask: int, checkpoint: int) -> None:
        with self._lock:
            copy = self._copies.pop((operator, subtask, checkpoint), None)
            if copy is not None:
                self._unwanted.append(copy.directory)

    def discard(self, directory: Path) -> None:
        with self._lock:
            self._unwanted.append(directory)

    def delete_unwanted(self) -> None:
        """Called off the loop."""
        with self._lock:
            unwanted, self._unwanted = self._unwanted, []
        for path in unwanted:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            if path.parent in self._closed:
                self.closed(path.parent)

    def closed(self, incarnation: Path) -> None:
        """Deletes the folder of an ended incarnation, now or with the last copy; called off the loop."""
        self._closed.add(incarnation)  # before rmdir: another thread may delete the last copy
        try:
            incarnation.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return
        self._closed.discard(incarnation)

    def keep_only(self, checkpoint: int) -> None:
        with self._lock:
            for key in [key for key in self._copies if key[2] != checkpoint]:
                self._unwanted.append(self._copies.pop(key).directory)

    def drop_all(self) -> None:
        with self._lock:
            self._unwanted += [copy.directory for copy in self._copies.values()]
            self._copies = {}
            self._unwanted += self._fetched.values()
            self._fetched = {}
        self.delete_unwanted()

    def checkpoints(self, operator: str, subtask: int) -> tuple[int, ...]:
        with self._lock:
            return tuple(sorted(key[2] for key in self._copies if key[:2] == (operator, subtask)))


def _content(files: Sequence[FileRef]) -> frozenset[tuple[str, int, str]]:
    return frozenset((ref.name, ref.size, ref.sha256) for ref in files)
