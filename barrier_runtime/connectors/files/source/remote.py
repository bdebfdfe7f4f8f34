"""Input files that are not local, as `listing` needs them: `s3://` and `hdfs://` through pyarrow, `gs://`, `abfss://`
and `webhdfs://` through our own stores.

A *place* is a URL without scheme and query: `bucket/key`, of Azure `container@account.dfs.core.windows.net/key`. Keys
are as they are, nothing in them is unquoted.
"""

import io
import os
import threading
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.urls import shown, split_settings

_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "abfss": "abfss", "hdfs": "hdfs", "webhdfs": "webhdfs"}
_WITH_ENDPOINT = ("s3", "s3a", "gs", "abfss")
_AHEAD_BYTES = 1 << 20  # read at least, of a file that is read from its beginning to its end


@dataclass(frozen=True)
class RemoteFile:
    place: str
    size: int
    modified_ns: int


@dataclass(frozen=True)
class RemoteUrl:
    """`query` begins with its question mark, or is empty."""

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
    """Whether files are read from such a place."""
    return url.partition("://")[0] in _SCHEMES


def remote_url(url: str, where: str) -> RemoteUrl:
    """Raises `InvalidJob` for what is no URL of files."""
    bare, settings = split_settings(url)
    scheme, _, place = bare.partition("://")
    query = f"?{settings}" if settings else ""
    if scheme not in _SCHEMES:
        raise InvalidJob(
            f"{where}: cannot read files from {shown(url)}: use a path, s3://bucket/key, gs://bucket/key, "
            "abfss://container@account.dfs.core.windows.net/key, webhdfs://namenode:9870/path or hdfs://host:port/path"
        )
    given = parse_qs(settings)
    unknown = sorted(set(given) - ({"endpoint"} if scheme in _WITH_ENDPOINT else set()))
    if unknown:
        known = "only endpoint= is known" if scheme in _WITH_ENDPOINT else "none is known"
        raise InvalidJob(
            f"{where}: {shown(url)} has unknown settings {unknown}: {known}; write [?] for a question mark of a name"
        )
    if not given.get("endpoint", ["http://"])[0].startswith(("http://", "https://")):
        raise InvalidJob(f"{where}: the endpoint of {shown(url)} must start with http:// or https://")
    return RemoteUrl(_SCHEMES[scheme], place.rstrip("/"), query)


def list_remote(url: RemoteUrl, base: str, where: str) -> tuple[bool, list[RemoteFile]]:
    """The files below the folder with the place `base`, or that file itself; True if it is one file. Raises
    `Unavailable` when it cannot be listed now, and `InvalidJob` when there is no such bucket."""
    if url.scheme == "s3":
        return _list_arrow(url, base, _s3(url), where)
    if url.scheme == "hdfs":
        return _list_arrow(url, base, _hdfs(url, where), where)
    return _list_store(url, base)


def read_whole(url: str, place: str, size: int) -> bytes:
    """All of a file that was listed with `size` bytes, and more than those when it is longer now. `place` as of
    `open_remote`. Raises `OSError`."""
    at = _remote_at(url, place)
    if at.scheme in ("s3", "hdfs"):
        with open_remote(url, place) as opened:
            return bytes(opened.read_at(size + 1, 0))
    try:
        return _store(at.of(at.bucket)).get(at.place.partition("/")[2])
    except (ObjectNotFound, Unavailable) as error:
        raise OSError(str(error)) from error


def _remote_at(url: str, place: str) -> RemoteUrl:
    scheme, _, rest = url.partition("://")
    return RemoteUrl(_SCHEMES[scheme], place, rest[len(place) :]) if place else remote_url(url, "a file")


def open_remote(url: str, place: str = "") -> Any:
    """A random-access `pyarrow.NativeFile`. Raises `OSError`. `place`: that of the file, whose key may look like a
    setting of the URL."""
    at = _remote_at(url, place)
    if at.scheme == "s3":
        return _s3(at).open_input_file(at.place)
    if at.scheme == "hdfs":
        return _hdfs(at, f"file {shown(url)}").open_input_file(_path(at.place))
    key = at.place.partition("/")[2]
    store = _store(at.of(at.bucket))
    try:
        # An empty range asks for nothing: what is there, and how large it is, says the listing of its name.
        (found,) = (info for info in store.list(key) if info.key == key)
    except ValueError:
        raise FileNotFoundError(f"no object {shown(url)}") from None
    except Unavailable as error:
        raise OSError(str(error)) from error
    return pa.PythonFile(io.BufferedReader(_StoredFile(store, key, found.size), _AHEAD_BYTES), mode="r")


# ------------------------------------------------------------ s3 and hdfs


def _list_arrow(url: RemoteUrl, base: str, system: Any, where: str) -> tuple[bool, list[RemoteFile]]:
    above = f"{url.bucket}/" if url.scheme == "hdfs" else ""  # is no part of a path there
    path = _path(base) if above else base
    try:
        info = system.get_file_info(path)
        if info.type == pafs.FileType.File:
            return True, [RemoteFile(base, info.size, info.mtime_ns or 0)]
        infos = system.get_file_info(pafs.FileSelector(path, recursive=True, allow_not_found=True))
        if not infos and not above and system.get_file_info(url.bucket).type == pafs.FileType.NotFound:
            raise InvalidJob(f"{where}: bucket {url.bucket!r} does not exist: create it, or correct the URL")
    except OSError as error:
        raise Unavailable(
            f"{where}: {shown(url.of(url.place))} cannot be listed ({error}): check bucket, endpoint and credentials"
        ) from error
    files = [info for info in infos if info.type == pafs.FileType.File]
    return False, [RemoteFile(above + info.path.lstrip("/"), info.size, info.mtime_ns or 0) for info in files]


def _path(place: str) -> str:
    """Of a place whose first part is a host."""
    return "/" + place.partition("/")[2]


_CONNECTING = threading.Lock()


@cache
def _connected(host_and_port: str) -> Any:
    """For good: when pyarrow drops its object, libhdfs closes the connection, which is one for all of the process, and
    with it every file that is being read. Raises `OSError`."""
    host, _, port = host_and_port.partition(":")
    return pafs.HadoopFileSystem(host or "default", int(port) if port.isdigit() else 8020)


def _hdfs(url: RemoteUrl, where: str) -> Any:
    """Through libhdfs, which is part of Hadoop and not of pyarrow."""
    try:
        with _CONNECTING:  # two that ask first would get one each, and the one that is dropped closes both
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


def _s3(url: RemoteUrl) -> Any:
    """The endpoint is that of the query, else of AWS_ENDPOINT_URL."""
    given = parse_qs(url.query.removeprefix("?")).get("endpoint", [])
    endpoint = given[0] if given else os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    options: dict[str, Any] = {}
    if endpoint:
        target = urlsplit(endpoint if "//" in endpoint else f"https://{endpoint}")
        options = {"endpoint_override": target.netloc, "scheme": target.scheme or "https"}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        options["region"] = region
    environment = (item for item in os.environ.items() if item[0].startswith("AWS_"))
    return _s3_client(tuple(sorted(options.items())), tuple(sorted(environment)))


@lru_cache(maxsize=16)
def _s3_client(options: tuple[tuple[str, str], ...], environment: tuple[tuple[str, str], ...]) -> Any:
    """A client keeps its connections, and there may be thousands of files. `environment`: of which it takes its
    credentials when it is made."""
    return pafs.S3FileSystem(**dict(options))


# ------------------------------------------------------------ gs, abfss and webhdfs


@lru_cache(maxsize=16)
def _store(bucket: str) -> ObjectStore:
    """`bucket`: its URL. A client keeps its connections, and there may be thousands of files."""
    return open_store(bucket)


def _list_store(url: RemoteUrl, base: str) -> tuple[bool, list[RemoteFile]]:
    store = _store(url.of(url.bucket))
    key = base.partition("/")[2]

    def listed(prefix: str) -> list[RemoteFile]:
        return [
            RemoteFile(f"{url.bucket}/{info.key}", info.size, info.modified_ms * 1_000_000)
            for info in store.list(prefix)
        ]

    below = listed(key + "/" if key else "")
    if below or not key:
        return False, below
    alone = [file for file in listed(key) if file.place == base]
    return bool(alone), alone


class _StoredFile(io.RawIOBase):
    """An object of `size` bytes, read by ranges."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        try:
            data = self._store.get(self._key, self._at, wanted)
        except ObjectNotFound as error:
            raise FileNotFoundError(str(error)) from error
        except Unavailable as error:
            raise OSError(str(error)) from error
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
