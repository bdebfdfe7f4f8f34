"""Finds and opens input files, local and in stores (`remote`)."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.files.hive import folders_of
from barrier_runtime.connectors.files.paths import (
    PassedOver,
    PathPattern,
    has_magic,
    is_hidden_file,
    local_files,
    takes,
)
from barrier_runtime.connectors.files.source.remote import (
    StoredFile,
    is_known,
    is_remote,
    list_remote,
    remote_url,
)
from barrier_runtime.connectors.source import Split
from barrier_runtime.connectors.source_bases.ranges import PartFetcher, RangesFile
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.urls import local_path, shown, without_credentials


class FoundFile(msgspec.Struct, frozen=True):
    """Input file. `id`: stable if the folder moves.
    `folders`: the `column=value` folders above the file.
    """

    id: str
    url: str
    size: int
    modified_ns: int = 0  # a hint for the order
    folders: str = ""
    place: str = ""
    former: str = ""  # id in earlier releases
    etag: str = ""  # version of a remote file; empty: unknown

    def split(self) -> Split:
        return Split(self.id, msgspec.json.encode(self), self.size, formerly=self.former)

    @property
    def path(self) -> str:
        if not is_remote(self.url):
            return self.url
        scheme = self.url.partition("://")[0]
        return f"{scheme}://{self.place or remote_url(self.url, 'a file').place}"

    @staticmethod
    def of(split: Split) -> "FoundFile":
        return _FOUND.decode(split.payload)


_FOUND = msgspec.json.Decoder(FoundFile)


ANY_NAME = ("",)
_ENDS_BYTES = 64 << 10


def fingerprint(opened: Any, size: int, where: str) -> str:
    last = max(_ENDS_BYTES, size - _ENDS_BYTES)
    try:
        at = opened.tell()
        ends = [opened.read_at(min(size, _ENDS_BYTES), 0)]
        if last < size:
            ends.append(opened.read_at(size - last, last))
        opened.seek(at)
    except OSError as error:
        raise Unavailable(f"{where}: it cannot be read now: {error}") from error
    return hashlib.blake2b(b"".join(ends), digest_size=8).hexdigest()


def find_files(
    paths: str | Sequence[str], suffixes: tuple[str, ...], where: str, passed: PassedOver | None = None
) -> list[FoundFile]:
    """Files of `paths`, sorted by id.
    In folders, only visible names with one of `suffixes`; `passed` counts other names.

    Raises `InvalidJob` if a path has no such file.
    """
    found: list[FoundFile] = []
    passed = PassedOver() if passed is None else passed
    listed = _listed(paths, where)
    for path in listed:
        try:
            files = _files_of(path, suffixes, where, passed, alone=len(listed) == 1)
        except Unavailable as error:
            raise InvalidJob(str(error)) from error
        if not files:
            raise InvalidJob(f"{where}: {shown(path)} holds no file{_ending_in(suffixes)}: check the path{passed}")
        found += files
    return sorted(_distinct(found, where), key=lambda file: file.id)


def _ending_in(suffixes: tuple[str, ...]) -> str:
    if suffixes == ANY_NAME:
        return ""
    plain = [suffix for suffix in suffixes if suffix.count(".") == 1]
    return f" ending in {' or '.join(plain)}{' (or compressed)' if len(plain) < len(suffixes) else ''}"


def find_arrivals(
    paths: str | Sequence[str],
    suffixes: tuple[str, ...],
    where: str,
    skips: Callable[[str], bool] | None = None,
    passed: PassedOver | None = None,
) -> list[FoundFile]:
    """Files of folders in which files appear, oldest first; else like `find_files`.

    Raises `Unavailable` for a missing folder; folders may be empty. Omits hidden names even if a pattern names them.
    `skips`: ids of local files that need no look.
    """
    listed, passed = _listed(paths, where), PassedOver() if passed is None else passed
    found = [file for path in listed for file in _files_of(path, suffixes, where, passed, skips, len(listed) == 1)]
    complete = [file for file in _distinct(found, where) if not is_hidden_file(file.id.removeprefix("./"))]
    return sorted(complete, key=lambda file: (file.modified_ns, file.id))


def _listed(paths: str | Sequence[str], where: str) -> list[str]:
    if not isinstance(paths, str | os.PathLike | Sequence) or isinstance(paths, bytes):
        raise InvalidJob(f"{where}: {paths!r} is not a path: pass a file, a folder or a glob, or a list of them")
    listed = [str(paths)] if isinstance(paths, str | os.PathLike) else [str(path) for path in paths]
    if not listed:
        raise InvalidJob(f"{where}: no path is given: pass a file, a folder or a glob")
    return [without_credentials(path, where) for path in listed]


def _files_of(
    path: str,
    suffixes: tuple[str, ...],
    where: str,
    passed: PassedOver,
    skips: Callable[[str], bool] | None = None,
    alone: bool = False,
) -> list[FoundFile]:
    if is_remote(path):
        return _in_store(path, suffixes, where, passed)
    named, whole = local_files(local_place(path), suffixes, where, passed)
    fresh = named if skips is None else (file for file in named if not skips(file[0]))
    return _with_sizes(fresh, whole, alone, where, passed)


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


def local_place(path: str) -> str:
    return os.path.abspath(os.path.expanduser(local_path(path)))


def _with_sizes(
    named: Iterable[tuple[str, str]], whole: bool, alone: bool, where: str, passed: PassedOver
) -> list[FoundFile]:
    """`whole`: ids are paths below the listed folder; `column=value` is sought only in ids.
    `alone`: a single path is listed, so former ids cannot collide with ids of other paths.
    """
    files = []
    for id, path in named:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            name = os.fsencode(path).decode("utf-8", "backslashreplace")
            raise InvalidJob(f"{where}: the name of file {name} is not UTF-8: rename it") from error
        try:
            about = os.stat(path)
        except FileNotFoundError:
            if os.path.islink(path):
                passed.add("links to nothing", path)
            continue
        if not stat.S_ISREG(about.st_mode):
            passed.add("things that are no files", path)
            continue
        folders = folders_of(id if whole else path)
        former = os.path.basename(path) if alone and not whole and "/" in id else ""
        files.append(FoundFile(id, path, about.st_size, about.st_mtime_ns, folders, former=former))
    return files


def _in_store(path: str, suffixes: tuple[str, ...], where: str, passed: PassedOver) -> list[FoundFile]:
    url = remote_url(path, where)
    alone, listed = list_remote(url, url.place, where)
    pattern, base = None, url.place
    if not listed and has_magic(url.place):
        pattern = PathPattern.of(url.place)
        base = pattern.base
        alone, listed = list_remote(url, base, where)
    files = []
    for file in listed:
        name = file.place.rpartition("/")[2] if alone else file.place[len(base) :].lstrip("/")
        if alone or takes(name, pattern, suffixes, passed):
            folders = folders_of(file.place if alone or pattern is not None else name)
            found = FoundFile(
                name, url.of(file.place), file.size, file.modified_ns, folders, file.place, etag=file.etag
            )
            files.append(found)
    return sorted(files, key=lambda file: file.id)


def would_find(paths: str | Sequence[str], suffixes: tuple[str, ...], where: str, place: str) -> bool:
    return any(_would_find(path, suffixes, where, place) for path in _listed(paths, where))


def _would_find(path: str, suffixes: tuple[str, ...], where: str, place: str) -> bool:
    if is_remote(path) != is_remote(place) or (is_remote(place) and not is_known(place)):
        return False
    if is_remote(path):
        url, file = remote_url(path, where), remote_url(place, where)
        if (url.scheme, url.query) != (file.scheme, file.query):
            return False
        wanted, found = url.place, file.place
    else:
        wanted, found = local_place(path), os.path.realpath(place)
    below = _below_real(wanted, found, is_remote(path))
    if below:
        return takes(below, None, suffixes, PassedOver())
    if not has_magic(wanted):
        return wanted == found
    pattern = PathPattern.of(wanted)
    below = _below_real(pattern.base, found, is_remote(path))
    return bool(below) and takes(below, pattern, suffixes, PassedOver())


def _below_real(folder: str, file: str, remote: bool) -> str:
    root = f"{folder if remote else os.path.realpath(folder)}/"
    return file.removeprefix(root) if file.startswith(root) else ""


def open_file(file: FoundFile, where: str, *, grows: bool = False, fetcher: PartFetcher | None = None) -> Any:
    """Opens the listed file for random access. With `grows` the file may be longer than listed.

    The first read detects a missing or changed remote file.
    """
    if is_remote(file.url):
        stored = StoredFile(file.url, file.place, file.size, file.etag, where, grows=grows)
        if not file.size:
            stored.compare()  # an empty file is never read, so no read detects a change
        return RangesFile(stored.read, file.size, fetcher)
    try:
        opened = pa.OSFile(file.url, "rb")
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
