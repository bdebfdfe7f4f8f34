"""Object storage in a local or mounted folder: `file://`. Writes are durable when the call returns.

Bytes go to a temporary file, are synced, and get their name by `link` (which fails if the name is taken: the
linearizable create) or `rename`. Keys cannot leave the folder, not even through symbolic links.

After a power cut, an object is whole and under the name if `put`, `put_file` or `publish` returned, or if
`put_if_absent` returned CREATED *or EXISTS*: the process that wrote an existing object may have died before syncing.
Such calls therefore sync the file, the folder, and each folder above whose own name may be new. Reading gives no such
guarantee. A power cut may undo a deletion.
"""

import contextlib
import errno
import hashlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO, TypeVar

from barrier_runtime.state.errors import NOT_ALLOWED, WRONG_PATH, BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import (
    ObjectInfo,
    ObjectNotFound,
    ObjectStore,
    PutOutcome,
    check_published,
)
from barrier_runtime.state.store.paths import check_key, check_prefix
from barrier_runtime.state.store.use import StoreUse

TEMPORARY = ".barrier-tmp"  # half-written files, directly below the root; never listed
_STALE_TEMPORARY_S = 24 * 3_600.0
_LONGEST_REST_S = 1.0
_CHUNK = 1 << 20
_REMEMBERED_FOLDERS = 1_024
_PAGE = 1_000  # objects that S3 lists per request
_PERSON_MUST_FIX = NOT_ALLOWED | WRONG_PATH
_NO_HARD_LINKS = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EMLINK}

K = TypeVar("K")
V = TypeVar("V")


class LocalStore:
    """Opens or creates the folder. Raises `InvalidJob`."""

    def __init__(self, root: Path) -> None:
        try:
            _make_root(root)
            self._begin(root)
            self._temporary.mkdir(mode=0o700, exist_ok=True)
            self._sweep_temporary()
        except OSError as error:
            raise self._trouble("open", "", error, root) from error

    @classmethod
    def existing(cls, root: Path) -> "LocalStore":
        """Opens a folder for reading. Raises `InvalidJob` if the folder is absent."""
        if not root.is_dir():
            raise InvalidJob(f"there is no folder {root}: give the one that holds the objects")
        store = cls.__new__(cls)
        store._begin(root)
        return store

    def _begin(self, root: Path) -> None:
        self.use = StoreUse()
        self._root = root.resolve(strict=True)
        self._durable: dict[Path, int] = {}  # folder -> inode: the folder's name is synced
        self._inside: dict[str, tuple[int, int]] = {}  # folder -> device, inode: no link leads out
        self._beside_work = threading.Lock()
        self._temporary = self._root / TEMPORARY

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def put(self, key: str, data: bytes) -> None:
        target = self._target(key)
        with self._named_trouble("put", key), self._temporary_file() as temporary:
            _write_durably(temporary, data)
            self._rename(temporary, target)
        self._wrote(len(data))

    def put_file(self, key: str, path: Path) -> None:
        self._put_file(key, path, _copy_durably)

    def _put_file(self, key: str, path: Path, copy: Callable[[Path, Path], None]) -> None:
        target = self._target(key)
        with self._named_trouble("put", key), self._temporary_file() as temporary:
            copy(path, temporary)
            self._rename(temporary, target)
        self._wrote(path.stat().st_size)

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        target = self._target(key)
        linked, outcome = False, PutOutcome.CREATED
        self._wrote(len(data))
        try:
            with self._temporary_file() as temporary:
                _write_durably(temporary, data)
                try:
                    self._link(temporary, target)
                    linked = True
                except FileExistsError:
                    outcome = PutOutcome.EXISTS
                self._sync_name(target)
                temporary.unlink(missing_ok=True)  # linked, not moved
        except OSError as error:
            trouble = self._trouble("put_if_absent", key, error)
            if isinstance(trouble, InvalidJob) and not linked:
                raise trouble from error
            return PutOutcome.UNKNOWN
        return outcome

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        target = self._target(key)
        with self._named_trouble("get", key), _open_object(target) as file:
            if offset:
                file.seek(offset)
            data = file.read() if size is None else file.read(size)
        self._read(len(data))
        return data

    def get_file(self, key: str, path: Path) -> None:
        target = self._target(key)
        if path.exists():
            raise FileExistsError(f"{path} is there already: download to a fresh file")
        with self._named_trouble("get", key):
            source = _open_object(target)
        with source, _writing(path) as copy:
            while chunk := self._next_chunk(key, source):
                copy.write(chunk)
        self._read(path.stat().st_size)

    def _next_chunk(self, key: str, source: BinaryIO) -> bytes:
        with self._named_trouble("get", key):
            return source.read(_CHUNK)

    def link_file(self, key: str, path: Path) -> bool:
        target = self._target(key)
        with self._named_trouble("get", key):
            with _open_object(target):
                pass  # exists, and is no link to elsewhere
            try:
                os.link(target, path, follow_symlinks=False)
            except OSError as error:  # another disk, a folder without hard links, or no folder of `path`
                if isinstance(error, FileNotFoundError) and not target.exists():
                    raise
                return False
        self._read(path.stat().st_size)
        return True

    def put_link(self, key: str, path: Path) -> bool:
        target = self._target(key)
        with self._named_trouble("put", key), self._temporary_file() as temporary:
            try:
                os.link(path, temporary, follow_symlinks=False)
                os.utime(temporary)  # as old as the put: retention keeps new files
            except FileNotFoundError:
                raise
            except OSError:
                temporary.unlink(missing_ok=True)
                return False
            _sync(temporary, os.O_RDONLY)
            self._rename(temporary, target)
            temporary.unlink(missing_ok=True)  # if `target` was this file already, both names stay
        self._wrote(path.stat().st_size)
        return True

    def copy_from(self, source: ObjectStore, key: str, to: str, beside_work: bool = False) -> bool:
        """`beside_work`: copies slowly, one object at a time."""
        if not isinstance(source, LocalStore):
            return False
        with source._named_trouble("get", key), _open_object(source._target(key)):
            pass  # exists: from here on errors concern the target
        with self._beside_work if beside_work else contextlib.nullcontext():
            self._put_file(to, source._target(key), _copy_beside_work if beside_work else _copy_durably)
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        folder = prefix.rpartition("/")[0]
        with self._named_trouble("list", prefix):
            infos = sorted(self._walk(self._root / folder if folder else self._root, prefix), key=lambda info: info.key)
        self.use.request("list", 1 + len(infos) // _PAGE)
        return iter(infos)

    def folders(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        with self._named_trouble("list", prefix):
            try:
                entries = list(os.scandir(self._root / prefix))
            except (FileNotFoundError, NotADirectoryError):
                return iter(())
            return iter([entry.name for entry in entries if entry.is_dir(follow_symlinks=False)])

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            target = self._checked(key)
            with self._named_trouble("delete", key):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(target)
                self._prune(os.path.dirname(target))

    def publish(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        source, target = self._target(staged), self._target(final)
        with self._named_trouble("publish", final):
            try:
                self._link(source, target)
            except (FileExistsError, FileNotFoundError):
                check_published(self, staged, final, sha256, _sha256_of(target) if target.exists() else None)
            self._sync_name(target)
            source.unlink(missing_ok=True)
            self._prune(str(source.parent))

    def _wrote(self, size: int) -> None:
        self.use.request("put")
        self.use.sent(size)

    def _read(self, size: int) -> None:
        self.use.request("get")
        self.use.received(size)

    def _target(self, key: str) -> Path:
        return Path(self._checked(key))

    def _checked(self, key: str) -> str:
        check_key(key)
        if key.split("/", 1)[0] == TEMPORARY:
            raise InvalidJob(f"object key {key!r} is reserved for temporary files: use another name")
        target = os.path.join(self._root, key)
        folder = os.path.dirname(target)
        identity = _identity(folder)
        if identity is None or self._inside.get(folder) != identity:
            parent = os.path.realpath(folder)  # a system call per folder
            if parent != str(self._root) and not parent.startswith(str(self._root) + os.sep):
                raise InvalidJob(f"object key {key!r} leads out of {self.url} through a link: remove that link")
            if identity is not None and identity == _identity(parent):
                _remember(self._inside, folder, identity)
        return target

    def _rename(self, source: Path, target: Path) -> None:
        self._into_folder(target, lambda: os.replace(source, target))
        self._sync_name(target)

    def _link(self, source: Path, target: Path) -> None:
        if not source.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
        try:
            self._into_folder(target, lambda: os.link(source, target, follow_symlinks=False))
        except OSError as error:
            if error.errno in _NO_HARD_LINKS and os.access(target.parent, os.W_OK):
                raise InvalidJob(
                    f"{self.url} is on a file system without hard links ({error.strerror}), so creating an object only "
                    "if it is absent is not possible there: use a local disk, NFS or S3 for checkpoints"
                ) from error
            raise

    def _into_folder(self, target: Path, move: Callable[[], object]) -> None:
        """Repeats `move`, because a concurrent `delete` may remove the new folder."""
        for _ in range(8):
            try:
                move()
                return
            except FileNotFoundError:
                with contextlib.suppress(FileNotFoundError, FileExistsError):  # removed, or made by another process
                    target.parent.mkdir(parents=True, exist_ok=True)
        move()

    def _sync_name(self, target: Path) -> None:
        folder = target.parent
        _sync_directory(folder)
        while folder != self._root:
            inode = folder.stat().st_ino
            if self._durable.get(folder) != inode:
                _sync_directory(folder.parent)
                _remember(self._durable, folder, inode)
            folder = folder.parent

    def _prune(self, folder: str) -> None:
        while folder != str(self._root):
            try:
                os.rmdir(folder)
            except OSError:  # not empty, or gone already
                return
            folder = os.path.dirname(folder)

    def _walk(self, folder: Path, prefix: str) -> Iterator[ObjectInfo]:
        try:
            entries = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        root = str(self._root)
        for entry in entries:
            key = entry.path.removeprefix(root).lstrip("/")
            if key == TEMPORARY or entry.is_symlink():
                continue
            if entry.is_dir():
                if key.startswith(prefix) or prefix.startswith(key + "/"):
                    yield from self._walk(Path(entry.path), prefix)
            elif key.startswith(prefix):
                with contextlib.suppress(FileNotFoundError):  # deleted during the listing
                    status = entry.stat()
                    yield ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)

    @contextlib.contextmanager
    def _temporary_file(self) -> Iterator[Path]:
        """Yields a path for the caller to move; removes the file if the caller fails."""
        path = self._temporary / uuid.uuid4().hex
        try:
            yield path
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def _sweep_temporary(self) -> None:
        """Deletes temporary files of crashed writers; no put takes a day."""
        before = time.time() - _STALE_TEMPORARY_S
        for entry in os.scandir(self._temporary):
            with contextlib.suppress(FileNotFoundError):
                if entry.stat().st_mtime < before:
                    os.unlink(entry.path)

    @contextlib.contextmanager
    def _named_trouble(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._trouble(operation, key, error) from error

    def _trouble(self, operation: str, key: str, error: OSError, root: Path | None = None) -> BarrierRuntimeError:
        place = str(root) if root is not None else f"{self.url}/{key}"
        if error.errno == errno.ENOENT and operation == "get":
            return ObjectNotFound(f"no object {place}")
        what = f"{operation} of {place} failed: {error.strerror or error}"
        if operation == "open" and error.errno in (errno.EEXIST, errno.ENOTDIR):
            return InvalidJob(f"{what}: a file is there, or above it, and a folder is wanted: use another location")
        if error.errno in _PERSON_MUST_FIX or (error.errno == errno.ENOENT and operation == "open"):
            return InvalidJob(f"{what}; make the folder readable and writable for this user, or use another location")
        if error.errno == errno.ENAMETOOLONG:
            return InvalidJob(f"{what}: shorten the name, such as the value of a partition column")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Unavailable(f"{what}; free some disk space, it is tried again")
        return Unavailable(f"{what}; it is tried again")


def _open_object(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[BinaryIO]:
    """A new file of the caller, whose disk is not the store's."""
    try:
        with path.open("xb") as file:
            yield file
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror or error}; it is tried again") from error


def _write_durably(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        _write_all(file, data)
        os.fsync(descriptor)


def _copy_durably(source: Path, target: Path) -> None:
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(_CHUNK):
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())


def _copy_beside_work(source: Path, target: Path) -> None:
    """Pauses after each chunk as long as the write took, at most a second: others wait briefly."""
    with source.open("rb") as reader, target.open("xb", buffering=0) as writer:
        at, began_s = 0, time.monotonic()
        while chunk := reader.read(_CHUNK):
            at += _write_all(writer, chunk)
            if hasattr(os, "posix_fadvise"):  # starts writing pages that memory need not keep
                os.posix_fadvise(writer.fileno(), at - len(chunk), len(chunk), os.POSIX_FADV_DONTNEED)
            time.sleep(min(time.monotonic() - began_s, _LONGEST_REST_S))
            began_s = time.monotonic()
        os.fsync(writer.fileno())


def _write_all(file: BinaryIO | FileIO, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
    return len(data)


def _remember(folders: dict[K, V], folder: K, identity: V) -> None:
    if len(folders) >= _REMEMBERED_FOLDERS:
        folders.clear()
    folders[folder] = identity


def _identity(folder: str) -> tuple[int, int] | None:
    try:
        found = os.stat(folder)
    except OSError:  # the call that uses the folder reports the error
        return None
    return found.st_dev, found.st_ino


def _sync_directory(path: Path) -> None:
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, how: int) -> None:
    descriptor = os.open(path, how | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_root(root: Path) -> None:
    """Makes folders, and syncs each new name, and the last name even if not new."""
    root = root.absolute()
    new = [folder for folder in (root, *root.parents) if not folder.exists()]
    root.mkdir(parents=True, exist_ok=True)
    for folder in new or ([] if root.is_mount() else [root]):
        with contextlib.suppress(PermissionError):  # an unreadable folder cannot be synced
            _sync_directory(folder.parent)


def _sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with _open_object(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
