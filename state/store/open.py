"""Opens the object store of a URL."""

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.urls import local_path, shown, split_settings, without_credentials

_memory_stores: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()
_ONE_SLASH = re.compile("(file|s3a?|gs|abfss|webhdfs|hdfs|memory):/")
_FORMS = (
    "use file:///folder, a plain folder path, s3://bucket/prefix, gs://bucket/prefix, "
    "abfss://container@account.dfs.core.windows.net/prefix, webhdfs://namenode:9870/folder or memory://name"
)


def open_store(url: str) -> ObjectStore:
    """Raises `InvalidJob` for an impossible `url`.

    - `file:///folder` and plain paths: a folder, created if absent.
    - `s3://bucket/prefix[?endpoint=http://host:port]`: `client=boto3` replaces obstore.
    - `gs://bucket/prefix` and `abfss://container@account.dfs.core.windows.net/prefix`, also with `?endpoint=`.
    - `webhdfs://namenode:9870/folder`: HDFS, by the REST interface.
    - `memory://name`: the store of that name in this process.
    """
    return _opened(url, _open_folder)


def open_existing_store(url: str) -> ObjectStore:
    """As `open_store`, for reading: creates no folder."""
    return _opened(url, _open_existing_folder)


def open_as_found(url: str) -> ObjectStore:
    """Opens for reading. An absent folder is an empty store."""
    return _opened(url, lambda path: _open_existing_folder(path) if path.exists() else MemoryStore(str(path)))


def within(url: str, key: str) -> str:
    """URL of an object, before the URL's settings; for a local folder the absolute path."""
    if "://" not in url or url.startswith("file://"):
        return os.path.join(os.path.abspath(os.path.expanduser(local_path(url))), key)
    place, settings = split_settings(url)
    scheme, _, rest = place.partition("://")
    return f"{'s3' if scheme == 's3a' else scheme}://{rest.rstrip('/')}/{key}{'?' if settings else ''}{settings}"


def lies_within(url: str, root: str) -> bool:
    """True if `url` is `root` or a folder below, with the same settings, such as `endpoint=`.

    Follows links of local folders. False for names with parts like `..`, which a store may follow.
    """
    (place, settings), (root_place, root_settings) = _resolved(url), _resolved(root)
    parts = place.partition("://")[2].split("/")
    if settings != root_settings or any(unquote(part) in (".", "..") for part in parts):
        return False
    return f"{place}/".startswith(f"{root_place.rstrip('/')}/")


def _resolved(url: str) -> tuple[str, dict[str, list[str]]]:
    if "://" not in url or url.startswith("file://"):
        return os.path.realpath(within(url, "")), {}
    place, settings = split_settings(url)
    return within(place, "").rstrip("/"), parse_qs(settings)


def _opened(url: str, open_folder: Callable[[Path], ObjectStore]) -> ObjectStore:
    if isinstance(url, os.PathLike):
        url = os.fspath(url)
    if not isinstance(url, str):
        raise InvalidJob(f"the storage URL is {url!r}: {_FORMS}")
    if not url.strip():
        raise InvalidJob(f"the storage URL is empty: {_FORMS}")
    if "://" not in url:
        if _ONE_SLASH.match(url):
            raise InvalidJob(f"storage URL {url!r} has no // behind its scheme: {_FORMS}")
        return open_folder(Path(url).expanduser())
    without_credentials(url, "the storage")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidJob(f"the storage URL is not understood ({error}): {_FORMS}") from None
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise InvalidJob(
                f"storage URL {shown(url)!r} names a host: a folder is file:///absolute/path, three slashes"
            )
        return open_folder(Path(local_path(url)))
    if parts.scheme in ("s3", "s3a"):
        return _open_s3(url)
    if parts.scheme in ("gs", "abfss"):
        return _open_cloud(url)
    if parts.scheme == "memory":
        return _open_memory((parts.netloc + parts.path).strip("/") or "memory")
    if parts.scheme == "webhdfs":
        return _open_webhdfs(url)
    if parts.scheme == "hdfs":
        raise InvalidJob(
            f"storage URL {shown(url)!r}: checkpoints and files of sinks are kept in HDFS by its REST interface, since "
            "pyarrow's client cannot create a file only if it is absent: use webhdfs://namenode:9870/folder, with the "
            "name node's HTTP address (dfs.namenode.http-address)"
        )
    raise InvalidJob(f"storage URL {shown(url)!r} has the unknown scheme {parts.scheme!r}: {_FORMS}")


def _open_folder(path: Path) -> ObjectStore:
    from barrier_runtime.state.store.local import LocalStore

    return LocalStore(path)


def _open_existing_folder(path: Path) -> ObjectStore:
    from barrier_runtime.state.store.local import LocalStore

    return LocalStore.existing(path)


def _open_memory(name: str) -> ObjectStore:
    with _memory_lock:
        if name not in _memory_stores:
            _memory_stores[name] = MemoryStore(name, now_ms=lambda: time.time_ns() // 1_000_000)
        return _memory_stores[name]


def _open_s3(url: str) -> ObjectStore:
    from barrier_runtime.state.store.s3.by_obstore import s3_store

    parts = urlsplit(url)
    if not parts.netloc:
        raise InvalidJob(f"storage URL {shown(url)!r} names no bucket: use s3://bucket/prefix")
    settings = _settings_of(url, "endpoint", "client")
    client = settings.get("client")
    if client not in (None, "boto3", "obstore"):
        raise InvalidJob(f"storage URL {shown(url)!r} has client={client!r}: use client=boto3, or leave client= out")
    return s3_store(parts.netloc, _prefix_of(url), settings.get("endpoint"), client)


def _open_cloud(url: str) -> ObjectStore:
    from barrier_runtime.state.store.clouds import CloudStore

    parts = urlsplit(url)
    endpoint = _settings_of(url, "endpoint").get("endpoint")
    if parts.scheme == "gs":
        if not parts.netloc:
            raise InvalidJob(f"storage URL {shown(url)!r} names no bucket: use gs://bucket/prefix")
        return CloudStore("gs", parts.netloc, _prefix_of(url), endpoint=endpoint)
    container, _, host = parts.netloc.partition("@")
    account = host.removesuffix(".dfs.core.windows.net").removesuffix(".blob.core.windows.net")
    if not container or not account or "." in account:
        raise InvalidJob(
            f"storage URL {url.partition('?')[0]!r} is not understood: use "
            "abfss://container@account.dfs.core.windows.net/prefix"
        )
    return CloudStore("abfss", container, _prefix_of(url), account, endpoint)


def _open_webhdfs(url: str) -> ObjectStore:
    from barrier_runtime.state.store.webhdfs import WebHdfsStore

    parts = urlsplit(url)
    nodes = [re.fullmatch(r"[A-Za-z0-9._-]+:([0-9]{1,5})", node) for node in parts.netloc.split(",")]
    if parts.query or any(node is None or not 0 < int(node[1]) < 65_536 for node in nodes):
        raise InvalidJob(
            f"storage URL {shown(url)!r} is not understood: use webhdfs://namenode:9870/folder, or "
            "webhdfs://one:9870,other:9870/folder where the name node has a standby"
        )
    return WebHdfsStore(parts.netloc, _prefix_of(url))


def _prefix_of(url: str) -> str:
    """Refuses percent signs, which earlier releases decoded: objects would be missing."""
    bare = split_settings(url)[0]
    prefix = bare.partition("://")[2].partition("/")[2]
    if "?" in prefix:
        raise InvalidJob(f"storage URL {shown(url)!r} has a question mark in its path: only ?endpoint= may follow it")
    if unquote(prefix) != prefix:
        raise InvalidJob(
            f"storage URL {shown(url)!r} has percent-encoded characters, and keys are not encoded: write the path as "
            f"it is, {unquote(prefix)!r}"
        )
    return prefix


def _settings_of(url: str, *known: str) -> dict[str, str]:
    query = parse_qs(split_settings(url)[1], keep_blank_values=True)
    unknown = sorted(set(query) - set(known))
    if unknown:
        names = " and ".join(f"{name}=" for name in known)
        only = f"only {names} is known" if len(known) == 1 else f"only {names} are known"
        raise InvalidJob(f"storage URL {shown(url)!r} has unknown settings {unknown}: {only}")
    settings = {name: values[-1] for name, values in query.items()}
    if not settings.get("endpoint", "http://").startswith(("http://", "https://")):
        raise InvalidJob(f"the endpoint of storage URL {shown(url)!r} must start with http:// or https://")
    return settings
