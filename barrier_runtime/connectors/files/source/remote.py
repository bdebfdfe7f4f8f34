"""Input files that are not local: `hdfs://` through pyarrow, other schemes through the object stores.

A *place* is a URL without scheme and query: `bucket/key`, for Azure `container@account.dfs.core.windows.net/key`. Keys
are literal.
"""

import os
import threading
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any
from urllib.parse import parse_qs

import pyarrow.fs as pafs

from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import (
    ObjectChanged,
    ObjectInfo,
    ObjectNotFound,
    ObjectStore,
    ReadsVersions,
)
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.urls import shown, split_settings

_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "abfss": "abfss", "hdfs": "hdfs", "webhdfs": "webhdfs"}
_SETTINGS = {"s3": ("endpoint", "client"), "s3a": ("endpoint", "client"), "gs": ("endpoint",), "abfss": ("endpoint",)}
_CREDENTIALS = ("AWS_", "GOOGLE_", "AZURE_", "HADOOP_")


@dataclass(frozen=True)
class RemoteFile:
    place: str
    size: int
    modified_ns: int
    etag: str = ""


@dataclass(frozen=True)
class RemoteUrl:
    scheme: str
    place: str
    query: str

    @property
    def bucket(self) -> str:
        return self.place.partition("/")[0]

    def of(self, place: str) -> str:
        return f"{self.scheme}://{place}{self.query}"


def is_remote(url: str) -> bool:
    return "://" in url and not url.startswith("file://")


def is_known(url: str) -> bool:
    return url.partition("://")[0] in _SCHEMES


def remote_url(url: str, where: str) -> RemoteUrl:
    bare, settings = split_settings(url)
    scheme, _, place = bare.partition("://")
    query = f"?{settings}" if settings else ""
    if scheme not in _SCHEMES:
        raise InvalidJob(
            f"{where}: cannot read files from {shown(url)}: use a path, s3://bucket/key, gs://bucket/key, "
            "abfss://container@account.dfs.core.windows.net/key, webhdfs://namenode:9870/path or hdfs://host:port/path"
        )
    given = parse_qs(settings)
    unknown = sorted(set(given) - set(_SETTINGS.get(scheme, ())))
    if unknown:
        known = f"known are {', '.join(_SETTINGS[scheme])}" if scheme in _SETTINGS else "none is known"
        raise InvalidJob(
            f"{where}: {shown(url)} has unknown settings {unknown}: {known}; write [?] for a question mark of a name"
        )
    if not given.get("endpoint", ["http://"])[0].startswith(("http://", "https://")):
        raise InvalidJob(f"{where}: the endpoint of {shown(url)} must start with http:// or https://")
    return RemoteUrl(_SCHEMES[scheme], place.rstrip("/"), query)


def list_remote(url: RemoteUrl, base: str, where: str) -> tuple[bool, list[RemoteFile]]:
    """Returns False and the files below the folder `base`, or True and that file.

    Raises `Unavailable` for a failed listing, `InvalidJob` for a missing bucket.
    """
    return _list_hdfs(url, base, where) if url.scheme == "hdfs" else _list_store(url, base, where)


class StoredFile:
    """Listed file of a store: reads ranges, in any thread; detects a replaced or removed file.

    `place`: bucket and key, which may look like a setting of the URL. A file that `grows` may be longer and of another
    version than listed.
    """

    def __init__(self, url: str, place: str, size: int, etag: str, where: str, *, grows: bool) -> None:
        self._url = url
        self._at = _remote_at(url, place)
        self._size = size
        self._etag = "" if grows else etag
        self._grows = grows
        self._where = f"{where}: the file {shown(url)}"
        self._opened: ObjectStore | None = None

    def read(self, offset: int, length: int) -> bytes | memoryview:
        more = 1 if not self._etag and not self._grows and offset + length == self._size else 0
        try:
            data = self._asked(offset, length + more)
        except (FileNotFoundError, ObjectNotFound) as error:
            raise self._gone() from error
        except PermissionError as error:
            raise InvalidJob(f"{self._where} may not be read ({error}): grant access to it") from error
        except InvalidJob as error:
            raise InvalidJob(f"{self._where} cannot be read: {error}") from error
        except (OSError, Unavailable) as error:
            raise Unavailable(f"{self._where} cannot be read now: {error}") from error
        if len(data) != length:
            self.compare()
            raise self._changed(offset + len(data))
        return data

    def compare(self) -> None:
        try:
            now = self._listed()
        except Unavailable as error:
            raise Unavailable(f"{self._where} cannot be opened now: {error}") from error
        if now is None:
            raise self._gone()
        if now.size != self._size if not self._grows else now.size < self._size:
            raise self._changed(now.size)
        if self._etag and now.etag != self._etag:
            raise InvalidJob(
                f"{self._where} was replaced after it was listed, by another one of {self._size} bytes: files must not "
                "change while they are read; write to a new file and rename it into place"
            )

    def _asked(self, offset: int, length: int) -> bytes | memoryview:
        if self._at.scheme == "hdfs":
            with _hdfs(self._at, self._where).open_input_file(_path(self._at.place)) as opened:
                return bytes(opened.read_at(length, offset))
        store, key = self._store_and_key()
        if not self._etag or not isinstance(store, ReadsVersions):
            return store.get(key, offset, length)
        try:
            return store.get_version(key, self._etag, offset, length)
        except ObjectChanged:
            self.compare()
            self._etag = ""  # versions of listings and reads differ
            return store.get(key, offset, length)

    def _listed(self) -> RemoteFile | None:
        if self._at.scheme == "hdfs":
            alone, files = _list_hdfs(self._at, self._at.place, self._where)
            return files[0] if alone else None
        store, key = self._store_and_key()
        found: ObjectInfo | None = next((info for info in store.list(key) if info.key == key), None)
        return None if found is None else _remote_file(self._at, found)

    def _store_and_key(self) -> tuple[ObjectStore, str]:
        if self._opened is None:
            self._opened = _store(self._at.of(self._at.bucket))
        return self._opened, self._at.place.partition("/")[2]

    def _gone(self) -> InvalidJob:
        return InvalidJob(f"{self._where} is not there any more: bring it back")

    def _changed(self, size: int) -> InvalidJob:
        return InvalidJob(
            f"{self._where} had {self._size} bytes when the job started and has {size} now: files must not change "
            "while they are read; write to a new file and rename it into place"
        )


def _remote_at(url: str, place: str) -> RemoteUrl:
    scheme, _, rest = url.partition("://")
    return RemoteUrl(_SCHEMES[scheme], place, rest[len(place) :]) if place else remote_url(url, "a file")


def _list_hdfs(url: RemoteUrl, base: str, where: str) -> tuple[bool, list[RemoteFile]]:
    path, system = _path(base), _hdfs(url, where)
    try:
        info = system.get_file_info(path)
        if info.type == pafs.FileType.File:
            return True, [RemoteFile(base, info.size, info.mtime_ns or 0)]
        infos = system.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
    except OSError as error:
        raise Unavailable(
            f"{where}: {shown(url.of(url.place))} cannot be listed ({error}): check host and permissions"
        ) from error
    files = [info for info in infos if info.type == pafs.FileType.File]
    return False, [RemoteFile(f"{url.bucket}/{info.path.lstrip('/')}", info.size, info.mtime_ns or 0) for info in files]


def _path(place: str) -> str:
    return "/" + place.partition("/")[2]


_CONNECTING = threading.Lock()


@cache
def _connected(host_and_port: str) -> Any:
    """Connects for the life of the process: libhdfs has a single connection.
    Raises `OSError`.
    """
    host, _, port = host_and_port.partition(":")
    return pafs.HadoopFileSystem(host or "default", int(port) if port.isdigit() else 8020)


def _hdfs(url: RemoteUrl, where: str) -> Any:
    try:
        with _CONNECTING:
            return _connected(url.bucket)
    except OSError as error:
        said = str(error).split("\n", 1)[0]
        if "Unable to load" not in said:
            raise Unavailable(f"{where}: HDFS at {url.bucket} does not answer ({said}): it is tried again") from error
        raise InvalidJob(
            f"{where}: hdfs:// needs Hadoop's libhdfs, a JVM and Hadoop's classes on every host ({said}): set "
            "ARROW_LIBHDFS_DIR (or HADOOP_HOME), JAVA_HOME and CLASSPATH=$(hadoop classpath --glob), or read the files "
            "without them, from webhdfs://namenode:9870/path"
        ) from error


@lru_cache(maxsize=16)
def _opened_store(bucket: str, environment: tuple[tuple[str, str], ...]) -> ObjectStore:
    """`environment`: variables from which the client takes credentials."""
    return open_store(bucket)


def _store(bucket: str) -> ObjectStore:
    names = sorted(name for name in os.environ if name.startswith(_CREDENTIALS))  # per file: items() decodes all values
    return _opened_store(bucket, tuple((name, os.environ.get(name, "")) for name in names))


def _list_store(url: RemoteUrl, base: str, where: str) -> tuple[bool, list[RemoteFile]]:
    key = base.partition("/")[2]
    try:
        store = _store(url.of(url.bucket))
        below = _below(url, store, key + "/" if key else "")
        if below or not key:
            return False, below
        alone = [file for file in _below(url, store, key) if file.place == base]
    except InvalidJob as error:
        raise InvalidJob(f"{where}: {error}") from error
    except Unavailable as error:
        raise Unavailable(
            f"{where}: {shown(url.of(url.place))} cannot be listed ({error}): check bucket, endpoint and credentials"
        ) from error
    return bool(alone), alone


def _below(url: RemoteUrl, store: ObjectStore, prefix: str) -> list[RemoteFile]:
    return [_remote_file(url, info) for info in store.list(prefix) if not info.key.endswith("/")]


def _remote_file(url: RemoteUrl, info: ObjectInfo) -> RemoteFile:
    return RemoteFile(f"{url.bucket}/{info.key}", info.size, info.modified_ms * 1_000_000, info.etag)
