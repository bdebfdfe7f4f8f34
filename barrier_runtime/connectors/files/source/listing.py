"""Finding and opening input files: local paths, folders, globs, and the same in clouds (`remote`)."""

import contextlib
import fnmatch
import glob
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.files.hive import folders_of
from barrier_runtime.connectors.files.source.remote import is_remote, list_remote, open_remote, remote_url
from barrier_runtime.connectors.source import Split
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.urls import shown, without_credentials


class FoundFile(msgspec.Struct, frozen=True):
    """One input file. `id` is stable when the folder it was found in moves; `size` in bytes shows a changed file.
    `folders`: those above it that name columns, `day=2026-01-01`; below the folder that was listed, if one was."""

    id: str
    url: str
    size: int
    modified_ns: int = 0  # wall clock of the store; a hint for the order
    folders: str = ""

    def split(self) -> Split:
        return Split(self.id, msgspec.json.encode(self), self.size)

    @staticmethod
    def of(split: Split) -> "FoundFile":
        return _FOUND.decode(split.payload)


_FOUND = msgspec.json.Decoder(FoundFile)


ANY_NAME = ("",)  # in place of suffixes
_ENDS_BYTES = 64 << 10


def fingerprint(opened: Any, size: int, where: str) -> str:
    """Of the first `size` bytes of a file: a hash of the first and the last 64 kB of them."""
    last = max(_ENDS_BYTES, size - _ENDS_BYTES)
    try:
        ends = [opened.read_at(min(size, _ENDS_BYTES), 0)]
        if last < size:
            ends.append(opened.read_at(size - last, last))
    except OSError as error:
        raise Unavailable(f"{where}: it cannot be read now: {error}") from error
    return hashlib.blake2b(b"".join(ends), digest_size=8).hexdigest()


def find_files(paths: str | Sequence[str], suffixes: tuple[str, ...], where: str) -> list[FoundFile]:
    """All files of `paths`, sorted by id. Files in folders count if their name ends in one of `suffixes` and no part of
    it begins with `.` or `_`. Raises `InvalidJob` when a path is missing or holds nothing."""
    found: list[FoundFile] = []
    for path in _listed(paths, where):
        try:
            files = _files_of(path, suffixes, where)
        except Unavailable as error:
            raise InvalidJob(str(error)) from error
        if not files:
            raise InvalidJob(f"{where}: {shown(path)} holds no file{_ending_in(suffixes)}: check the path")
        found += files
    return sorted(_distinct(found, where), key=lambda file: file.id)


def _ending_in(suffixes: tuple[str, ...]) -> str:
    """As a message says it; nothing where any ending will do."""
    if suffixes == ANY_NAME:
        return ""
    plain = [suffix for suffix in suffixes if suffix.count(".") == 1]
    return f" ending in {' or '.join(plain)}{' (or compressed)' if len(plain) < len(suffixes) else ''}"


def find_arrivals(
    paths: str | Sequence[str], suffixes: tuple[str, ...], where: str, passed_over: Callable[[str], bool] | None = None
) -> list[FoundFile]:
    """Like `find_files`, oldest first, for folders in which files appear: they may be empty, and files in them whose
    name begins with `.` or `_` are not complete yet, also where a glob would take them. Raises `Unavailable` for a
    folder that is not there now. Local files whose id is `passed_over` are left out and cost no look at the file."""
    found = [file for path in _listed(paths, where) for file in _files_of(path, suffixes, where, passed_over)]
    complete = [file for file in _distinct(found, where) if not _hidden(file.id)]
    return sorted(complete, key=lambda file: (file.modified_ns, file.id))


def _listed(paths: str | Sequence[str], where: str) -> list[str]:
    if not isinstance(paths, str | os.PathLike | Sequence) or isinstance(paths, bytes):
        raise InvalidJob(f"{where}: {paths!r} is not a path: pass a file, a folder or a glob, or a list of them")
    listed = [str(paths)] if isinstance(paths, str | os.PathLike) else [str(path) for path in paths]
    if not listed:
        raise InvalidJob(f"{where}: no path is given: pass a file, a folder or a glob")
    return [without_credentials(path, where) for path in listed]


def _files_of(
    path: str, suffixes: tuple[str, ...], where: str, passed_over: Callable[[str], bool] | None = None
) -> list[FoundFile]:
    if is_remote(path):
        return _in_cloud(path, suffixes, where)
    named = _local(path, suffixes, where)
    whole = os.path.isdir(_plain(path))
    fresh = named if passed_over is None else (file for file in named if not passed_over(file[0]))
    return _local_files(fresh, whole, where)


def _distinct(files: Sequence[FoundFile], where: str) -> list[FoundFile]:
    found: dict[str, FoundFile] = {}
    for file in files:
        twin = found.get(file.id)
        if twin is not None and twin.url != file.url:
            raise InvalidJob(
                f"{where}: {twin.url} and {file.url} have the same name below their folders, and names tell "
                "positions apart: read them as two sources with union(), or rename one"
            )
        found[file.id] = file
    return list(found.values())


def _local(path: str, suffixes: tuple[str, ...], where: str) -> Iterable[tuple[str, str]]:
    """Ids and paths."""
    path = _plain(path)
    if os.path.isdir(path):
        root = os.path.join(os.path.abspath(path), "")
        return ((file[len(root) :], file) for file in _below(root, suffixes))
    if os.path.isfile(path):
        return [(os.path.basename(path), os.path.abspath(path))]
    if glob.has_magic(path):
        return [(os.path.basename(hit), hit) for hit in glob.glob(os.path.abspath(path))]
    raise Unavailable(f"{where}: there is no file or folder {path}: check the path")


def _plain(path: str) -> str:
    path = os.path.expanduser(path)
    return urlsplit(path).path if path.startswith("file://") else path


def _below(folder: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _hidden(name)]
        yield from (os.path.join(parent, name) for name in names if _counts(name, suffixes))


def _local_files(named: Iterable[tuple[str, str]], whole: bool, where: str) -> list[FoundFile]:
    """`whole`: ids are paths below the folder that was listed, and what is above it names no columns."""
    files = []
    for id, path in named:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            name = os.fsencode(path).decode("utf-8", "backslashreplace")
            raise InvalidJob(f"{where}: the name of file {name} is not UTF-8: rename it") from error
        with contextlib.suppress(FileNotFoundError):  # removed since it was listed
            about = os.stat(path)
            if stat.S_ISREG(about.st_mode):
                folders = folders_of(id if whole else path)
                files.append(FoundFile(id, path, about.st_size, about.st_mtime_ns, folders))
    return files


def _counts(name: str, suffixes: tuple[str, ...]) -> bool:
    return name.endswith(suffixes) and not _hidden(name)


def _hidden(name: str) -> bool:
    return name.startswith((".", "_")) or "/." in name or "/_" in name


def _in_cloud(path: str, suffixes: tuple[str, ...], where: str) -> list[FoundFile]:
    url = remote_url(path, where)
    magic = glob.has_magic(url.place)
    base = url.place
    if magic:
        base = base[: min(base.index(c) for c in "*?[" if c in base)].rpartition("/")[0]
    alone, listed = list_remote(url, base, where)
    files = []
    for file in listed:
        name = PurePosixPath(file.place).name if alone else PurePosixPath(file.place).relative_to(base).as_posix()
        if alone or (fnmatch.fnmatchcase(file.place, url.place) if magic else _counts(name, suffixes)):
            folders = folders_of(file.place if alone or magic else name)
            files.append(FoundFile(name, url.of(file.place), file.size, file.modified_ns, folders))
    return sorted(files, key=lambda file: file.id)


def open_listed(file: FoundFile) -> Any:
    """A random-access `pyarrow.NativeFile`. Raises `OSError`."""
    return open_remote(file.url) if is_remote(file.url) else pa.OSFile(file.url, "rb")


def open_file(file: FoundFile, where: str, *, grows: bool = False) -> Any:
    """A random-access `pyarrow.NativeFile`, checked to be the file that was listed; one that `grows` may be longer."""
    try:
        opened = open_listed(file)
        size = opened.size()
    except FileNotFoundError as error:
        raise InvalidJob(f"{where}: the file {file.url} is not there any more: bring it back") from error
    except PermissionError as error:
        raise InvalidJob(f"{where}: the file {file.url} may not be read ({error}): grant access to it") from error
    except OSError as error:
        raise Unavailable(f"{where}: the file {file.url} cannot be opened now: {error}") from error
    if size < file.size or (size > file.size and not grows):
        opened.close()
        raise InvalidJob(
            f"{where}: the file {file.url} had {file.size} bytes when the job started and has {size} now: "
            "files must not change while they are read; write to a new file and rename it into place"
        )
    return opened
