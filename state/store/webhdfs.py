"""Object storage on HDFS: `webhdfs://`, by the REST interface of the name node. No libhdfs, no JVM, no extra package.

Bytes go to a temporary file first; a *rename* of the name node gives it its name once it is closed. With the option
NONE that is the linearizable create: the name node looks for the name and takes it under one lock, and refuses a name
that exists. (pyarrow's `move` over libhdfs deletes what is there and renames again.) With OVERWRITE it replaces what
is there at once. A request is sent once, over a connection of its own: of one that was kept nobody would know whether
the name node had closed it before or after it took the request. What is no answer of WebHDFS itself says nothing: a
name node that starts answers 404 to everything.

The name node applies an edit before its journal has it, and syncs edits in order. So whoever finds a name taken deletes
its own temporary file before it says EXISTS: when that is answered, the edit that took the name is in the journal, too.
Blocks are synced to the disks of the data nodes (SYNC_BLOCK).

A folder of HDFS holds 1,048,576 names at most, and a job numbers a record per checkpoint: names that begin with 20
digits are in folders of 100,000, of which no caller knows.
"""

import contextlib
import getpass
import http.client
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import ObjectInfo, ObjectNotFound, PutOutcome, check_published, sha256_of
from barrier_runtime.state.store.paths import check_key, check_prefix
from barrier_runtime.state.store.retrying import retried
from barrier_runtime.state.store.use import StoreUse

_T = TypeVar("_T")
TEMPORARY = ".barrier-tmp"  # folder of half-written files, directly below the root; never listed
_STALE_TEMPORARY_MS = 24 * 3_600 * 1_000
_ATTEMPTS = 8  # about 15 s of trouble that may pass, beside the time that requests take
_FIRST_WAIT_S = 0.1  # doubles with each attempt
_LONGEST_WAIT_S = 5.0
_CONNECT_S = 5.0
_ANSWER_S = 30.0
_CHUNK = 1 << 20
_MOVES = 8  # attempts to make a folder that another process removes, since it is empty
_NUMBERED = re.compile(r"[0-9]{20}")
_HUNDRED_THOUSAND = re.compile(r"[0-9]{15}~")

# What the name node calls its refusals: those that may pass by themselves are all others.
_EXISTS = "FileAlreadyExistsException"
_ABSENT = "FileNotFoundException"
_NOT_EMPTY = "PathIsNotEmptyDirectoryException"
_STANDBY = "StandbyException"
_FOR_A_PERSON = {
    "AccessControlException": "give that user rights to the folder, or set HADOOP_USER_NAME to one who has them",
    "SecurityException": "set HADOOP_USER_NAME; a cluster with Kerberos is not supported",
    "InvalidToken": "a cluster with Kerberos is not supported",
    "AuthorizationException": "give that user rights to the folder, or set HADOOP_USER_NAME to one who has them",
    "ParentNotDirectoryException": "a file is there where a folder is wanted: use another location",
    "InvalidPathException": "HDFS takes no such name: use another one",
    "PathComponentTooLongException": "use a shorter name",
    "MaxDirectoryItemsExceededException": "write fewer files there (dfs.namenode.fs-limits.max-directory-items)",
    "NSQuotaExceededException": "raise the folder's quota of names",
    "UnsupportedOperationException": "use the address of a name node, of Hadoop 3",
    "IllegalArgumentException": "use the address of a name node, of Hadoop 3",
}


class _Refused(Exception):
    """The name node or a data node has answered, and has not done it."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class _NotSent(Exception):
    """No connection, so nothing has been asked."""


class WebHdfsStore:
    """Keys are below the folder `prefix`. `nodes`: `host:port` of the name node, or of several, of which one is active.
    Thread-safe."""

    def __init__(self, nodes: str, prefix: str = "") -> None:
        self.use = StoreUse()
        self._place = nodes
        self._nodes = nodes.split(",")  # the one that answered last is the first
        self._root = "/" + check_key(prefix.strip("/")) if prefix.strip("/") else ""
        self._user = _user()
        self._swept = False

    @property
    def url(self) -> str:
        return f"webhdfs://{self._place}{self._root}"

    # ---- the contract

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        self._retrying("put", key, lambda: self._move(self._upload(data, len(data)), path, "OVERWRITE"))

    def put_file(self, key: str, path: Path) -> None:
        target = self._path(key)

        def send() -> None:
            with path.open("rb") as file:
                self._move(self._upload(file, path.stat().st_size), target, "OVERWRITE")

        self._retrying("put", key, send)

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        path = self._path(key)
        try:
            temporary = self._upload(data, len(data))
            if self._move(temporary, path, "NONE"):
                return PutOutcome.CREATED
            self._ask("DELETE", "DELETE", temporary)  # after it, what exists is in the journal
        except Exception as error:
            trouble = self._trouble("put_if_absent", key, error)
            if isinstance(trouble, InvalidJob):
                raise trouble from (None if trouble is error else error)
            return PutOutcome.UNKNOWN  # it may be there, or come later
        return PutOutcome.EXISTS

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        path = self._path(key)
        if size == 0:
            return b""

        def read() -> bytes:
            part = {} if size is None else {"length": str(size)}
            try:
                return b"".join(self._open(path, offset=str(offset), **part))
            except _Refused as refused:
                if refused.name == "IOException" and offset and offset >= self._status(path)["length"]:
                    return b""
                raise

        return self._retrying("get", key, read)

    def get_file(self, key: str, path: Path) -> None:
        name = self._path(key)
        if path.exists():
            raise FileExistsError(f"{path} is there already: download to a fresh file")

        def read() -> None:
            path.unlink(missing_ok=True)  # what an attempt before has left
            with path.open("xb") as file:
                for chunk in self._open(name):
                    file.write(chunk)

        try:
            self._retrying("get", key, read)
        except BarrierRuntimeError:
            path.unlink(missing_ok=True)
            raise

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        folder = prefix.rpartition("/")[0]
        found = self._retrying("list", prefix, lambda: list(self._walk(folder + "/" if folder else "", prefix)))
        return iter(sorted(found, key=lambda info: info.key))

    def folders(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        found = self._retrying("list", prefix, lambda: self._children(f"{self._root}/{prefix}"))
        names = (each["pathSuffix"] for each in found if each["type"] == "DIRECTORY")
        return (name for name in names if not _HUNDRED_THOUSAND.fullmatch(name) and (prefix or name != TEMPORARY))

    def delete(self, keys: Iterable[str]) -> None:
        parents: dict[str, str] = {}
        for key in keys:
            path = self._path(key)
            self._retrying("delete", key, lambda path=path: self._remove(path))  # type: ignore[misc]
            parents[path.rpartition("/")[0]] = key
        for parent, key in parents.items():
            self._retrying("delete", key, lambda parent=parent: self._prune(parent))  # type: ignore[misc]

    def publish(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        source, target = self._path(staged), self._path(final)
        moved = False
        with contextlib.suppress(ObjectNotFound):  # it has been published, or it is nowhere
            moved = self._retrying("publish", staged, lambda: self._move(source, target, "NONE"))
        if not moved:
            check_published(self, staged, final, sha256, self._sha256_of(final))
        self.delete([staged])

    # ---- paths

    def _path(self, key: str) -> str:
        check_key(key)
        if key.split("/", 1)[0] == TEMPORARY:
            raise InvalidJob(f"object key {key!r} is reserved for temporary files: use another name")
        folder, _, name = key.rpartition("/")
        if _NUMBERED.match(name):
            name = f"{name[:15]}~/{name}"
        return f"{self._root}/{folder}/{name}" if folder else f"{self._root}/{name}"

    def _walk(self, folder: str, prefix: str, below: str | None = None) -> Iterator[ObjectInfo]:
        """`folder`: what keys in it begin with; `below`: its path, where that is another one."""
        for each in self._children(below or f"{self._root}/{folder}"):
            name = each["pathSuffix"]
            key = folder + name
            if each["type"] == "FILE":
                if name and key.startswith(prefix):  # without a name: `folder` is a file
                    yield ObjectInfo(key, each["length"], each["modificationTime"])
            elif _HUNDRED_THOUSAND.fullmatch(name):
                yield from self._walk(folder, prefix, f"{self._root}/{key}")
            elif key != TEMPORARY and (key.startswith(prefix) or prefix.startswith(key + "/")):
                yield from self._walk(key + "/", prefix)

    # ---- what the name node and the data nodes do

    def _upload(self, data: bytes | BinaryIO, size: int) -> str:
        """Path of a temporary file with these bytes, closed."""
        self._sweep()
        temporary = f"{self._root}/{TEMPORARY}/{uuid.uuid4().hex}"
        self.use.sent(size)
        how = {"overwrite": "false", "createflag": "create,sync_block"}
        with self._data("PUT", "CREATE", temporary, how, data, size) as answer:
            answer.read()
        return temporary

    def _move(self, source: str, target: str, option: str) -> bool:
        """Whether `source` is `target` now; no, since that exists. Raises `_Refused` when `source` is not there."""
        for _ in range(_MOVES):
            try:
                _, said = self._ask("PUT", "RENAME", source, destination=target, renameoptions=option)
            except _Refused as refused:
                if refused.name == _EXISTS:
                    return False
                if refused.name != _ABSENT:
                    raise
            else:
                if said.strip():  # what says true or false knows no options
                    raise InvalidJob(
                        f"{self.url} is a gateway (HttpFS), which does not tell whether it has replaced what was "
                        "there: use the HTTP address of the name node itself"
                    )
                return True
            self._status(source)  # so it is the folder that is not there
            self._ask("PUT", "MKDIRS", target.rpartition("/")[0])
        raise Unavailable(f"{self.url}: the folder of {target} is removed whenever it is made; it is tried again")

    def _open(self, path: str, **part: str) -> Iterator[bytes]:
        with self._data("GET", "OPEN", path, part) as answer:
            while chunk := answer.read(_CHUNK):
                self.use.received(len(chunk))
                yield chunk
            if answer.length:
                raise http.client.IncompleteRead(b"", answer.length)

    def _status(self, path: str) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self._ask("GET", "GETFILESTATUS", path)[1])["FileStatus"]
        return status

    def _children(self, path: str) -> Sequence[dict[str, Any]]:
        try:
            found = json.loads(self._ask("GET", "LISTSTATUS", path.rstrip("/") or "/")[1])
        except _Refused as refused:
            if refused.name == _ABSENT or "is not a directory" in str(refused):
                return []
            raise
        children: Sequence[dict[str, Any]] = found["FileStatuses"]["FileStatus"]
        return children

    def _remove(self, path: str) -> bool:
        try:
            self._ask("DELETE", "DELETE", path, recursive="false")
        except _Refused as refused:
            if refused.name == _NOT_EMPTY:
                return False
            raise
        return True

    def _prune(self, folder: str) -> None:
        while len(folder) > len(self._root) and self._remove(folder):
            folder = folder.rpartition("/")[0]

    def _sweep(self) -> None:
        """Orphans of crashed writers. A day is longer than any put takes."""
        if self._swept:
            return
        self._swept = True
        folder, before = f"{self._root}/{TEMPORARY}", time.time() * 1_000 - _STALE_TEMPORARY_MS
        for each in self._children(folder):
            if each["modificationTime"] < before:
                self._remove(f"{folder}/{each['pathSuffix']}")

    def _sha256_of(self, key: str) -> str | None:
        """Of what is there; None: nothing is."""
        path = self._path(key)
        with contextlib.suppress(ObjectNotFound):
            return self._retrying("get", key, lambda: sha256_of(self._open(path)))
        return None

    # ---- requests

    def _ask(self, method: str, operation: str, path: str, **parameters: str) -> tuple[str, bytes]:
        """Where the active name node sends us, and what it says. It is asked once."""
        self.use.request({"OPEN": "get", "GETFILESTATUS": "get", "DELETE": "delete"}.get(operation, "put"))
        query = urlencode({"op": operation, "user.name": self._user, **parameters})
        target = f"/webhdfs/v1{quote(path)}?{query}"
        nodes = self._nodes
        troubles = []
        for node in nodes:
            try:
                with _exchange(node, target, method) as answer:
                    said = _checked(answer)
            except _NotSent as error:
                troubles.append(str(error))
            except _Refused as refused:
                if refused.name != _STANDBY:
                    raise
                troubles.append(f"{node} is on standby")
            else:
                if node != nodes[0]:
                    self._nodes = [node, *(each for each in nodes if each != node)]
                return answer.getheader("Location") or "", said
        raise _NotSent("; ".join(troubles))

    @contextlib.contextmanager
    def _data(
        self,
        method: str,
        operation: str,
        path: str,
        parameters: Mapping[str, str],
        body: bytes | BinaryIO = b"",
        size: int = 0,
    ) -> Iterator[http.client.HTTPResponse]:
        """The good answer of the data node to which the name node sends us. A name node on standby does that, too; then
        it is the data node that is refused."""
        for left in range(len(self._nodes) - 1, -1, -1):
            place, _ = self._ask(method, operation, path, **parameters)
            asked = self._nodes[0]
            if not isinstance(body, bytes):
                body.seek(0)
            with _exchange(*_data_node(place), method, body, size) as answer:
                if answer.status in (200, 201):
                    yield answer
                    return
                try:
                    _checked(answer)
                except _Refused as refused:
                    if refused.name != _STANDBY or not left:
                        raise
            self._nodes = [*(each for each in self._nodes if each != asked), asked]

    def _retrying(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        def trouble_of(error: Exception, attempt: int) -> BarrierRuntimeError:
            return self._trouble(operation, key, error)

        return retried(call, trouble_of, _ATTEMPTS, _FIRST_WAIT_S, _LONGEST_WAIT_S)

    def _trouble(self, operation: str, key: str, error: Exception) -> BarrierRuntimeError:
        """What an exception means for the caller."""
        place = f"{self.url}/{key}"
        if isinstance(error, _Refused):
            if error.name == _ABSENT:
                return ObjectNotFound(f"no object {place}")
            if error.name in _FOR_A_PERSON:
                return InvalidJob(f"{operation} of {place} was refused ({error}): {_FOR_A_PERSON[error.name]}")
            return Unavailable(f"{operation} of {place} failed ({error.name}: {error}); it is tried again")
        if isinstance(error, _NotSent | OSError | http.client.HTTPException):
            return Unavailable(f"{operation} of {place} failed ({type(error).__name__}: {error}); it is tried again")
        if isinstance(error, BarrierRuntimeError):
            return error
        raise error


def _user() -> str:
    try:
        return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    except (OSError, KeyError):
        raise InvalidJob("nobody knows the name of this user, which HDFS asks for: set HADOOP_USER_NAME") from None


@contextlib.contextmanager
def _exchange(
    node: str, target: str, method: str, body: bytes | BinaryIO = b"", size: int = 0
) -> Iterator[http.client.HTTPResponse]:
    """One request to `node` and its answer."""
    connection = http.client.HTTPConnection(node, timeout=_CONNECT_S, blocksize=_CHUNK)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise _NotSent(f"{node} cannot be reached: {error}") from error
        connection.sock.settimeout(_ANSWER_S)
        headers = {"Content-Type": "application/octet-stream"}
        if method == "PUT":
            headers["Content-Length"] = str(size)
        connection.request(method, target, body or None, headers)
        yield connection.getresponse()
    finally:
        connection.close()


def _data_node(place: str) -> tuple[str, str]:
    """Its `host:port`, and what to ask it for."""
    parts = urlsplit(place)
    if parts.scheme != "http":
        raise InvalidJob(f"the name node sends to {parts.scheme or 'nothing'}, not to http: allow it (dfs.http.policy)")
    return parts.netloc, f"{parts.path}?{parts.query}"


def _checked(answer: http.client.HTTPResponse) -> bytes:
    """What was said. Raises `_Refused` if it was no."""
    said = answer.read()
    if answer.status in (200, 201, 307):
        return said
    if answer.status == 401:
        raise _Refused("SecurityException", "it wants to know who asks")
    try:
        refusal = json.loads(said)["RemoteException"]
        raise _Refused(refusal["exception"], refusal["message"].partition("\n")[0])
    except (ValueError, KeyError, TypeError):
        raise _Refused("", f"answer {answer.status}, which is none of WebHDFS") from None
