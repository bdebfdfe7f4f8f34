"""Object storage on HDFS: `webhdfs://`, by the REST interface of the name node.

Bytes go to a temporary file, which is closed, then renamed. With the option NONE the name node refuses an existing name
(the linearizable create); OVERWRITE replaces the file atomically. Each request is sent once, over a new connection: if
a kept connection ended, nobody could know whether the name node took the request. Only answers of WebHDFS itself count:
a starting name node answers 404 to everything.

The name node applies an edit before the journal has the edit, and syncs edits in order. Before EXISTS is returned, the
temporary file is deleted: once that is answered, the edit that took the name is in the journal, too.

A folder of HDFS holds at most 1,048,576 names, so names that begin with 20 digits go to folders of 100,000.
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
TEMPORARY = ".barrier-tmp"  # half-written files, directly below the root; never listed
_STALE_TEMPORARY_MS = 24 * 3_600 * 1_000
_ATTEMPTS = 8  # about 15 s of retryable errors
_FIRST_WAIT_S = 0.1  # doubles with each attempt
_LONGEST_WAIT_S = 5.0
_CONNECT_S = 5.0
_ANSWER_S = 30.0
_CHUNK = 1 << 20
_MOVES = 8  # another process may remove the empty folder
_NUMBERED = re.compile(r"[0-9]{20}")
_HUNDRED_THOUSAND = re.compile(r"[0-9]{15}~")

# Names of the name node's refusals; all others are retried.
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
    """An answer to a request that was not executed."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class _NotSent(Exception):
    """No connection, so no request was sent."""


class WebHdfsStore:
    """Thread-safe. `nodes`: `host:port` of each name node, of which a single node is active."""

    def __init__(self, nodes: str, prefix: str = "") -> None:
        self.use = StoreUse()
        self._place = nodes
        self._nodes = nodes.split(",")  # the node that answered last comes first
        self._root = "/" + check_key(prefix.strip("/")) if prefix.strip("/") else ""
        self._user = _user()
        self._swept = False

    @property
    def url(self) -> str:
        return f"webhdfs://{self._place}{self._root}"

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
            self._ask("DELETE", "DELETE", temporary)  # once answered, the existing name is in the journal
        except Exception as error:
            trouble = self._trouble("put_if_absent", key, error)
            if isinstance(trouble, InvalidJob):
                raise trouble from (None if trouble is error else error)
            return PutOutcome.UNKNOWN  # the object may exist now, or later
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
            path.unlink(missing_ok=True)  # left by an earlier attempt
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
        with contextlib.suppress(ObjectNotFound):  # published already, or absent
            moved = self._retrying("publish", staged, lambda: self._move(source, target, "NONE"))
        if not moved:
            check_published(self, staged, final, sha256, self._sha256_of(final))
        self.delete([staged])

    def _path(self, key: str) -> str:
        check_key(key)
        if key.split("/", 1)[0] == TEMPORARY:
            raise InvalidJob(f"object key {key!r} is reserved for temporary files: use another name")
        folder, _, name = key.rpartition("/")
        if _NUMBERED.match(name):
            name = f"{name[:15]}~/{name}"
        return f"{self._root}/{folder}/{name}" if folder else f"{self._root}/{name}"

    def _walk(self, folder: str, prefix: str, below: str | None = None) -> Iterator[ObjectInfo]:
        """`below`: path of `folder`, if different."""
        for each in self._children(below or f"{self._root}/{folder}"):
            name = each["pathSuffix"]
            key = folder + name
            if each["type"] == "FILE":
                if name and key.startswith(prefix):  # `folder` is a file
                    yield ObjectInfo(key, each["length"], each["modificationTime"])
            elif _HUNDRED_THOUSAND.fullmatch(name):
                yield from self._walk(folder, prefix, f"{self._root}/{key}")
            elif key != TEMPORARY and (key.startswith(prefix) or prefix.startswith(key + "/")):
                yield from self._walk(key + "/", prefix)

    # ---- operations of the name node and the data nodes

    def _upload(self, data: bytes | BinaryIO, size: int) -> str:
        self._sweep()
        temporary = f"{self._root}/{TEMPORARY}/{uuid.uuid4().hex}"
        self.use.sent(size)
        how = {"overwrite": "false", "createflag": "create,sync_block"}
        with self._data("PUT", "CREATE", temporary, how, data, size) as answer:
            answer.read()
        return temporary

    def _move(self, source: str, target: str, option: str) -> bool:
        """Returns False if `target` exists. Raises `_Refused` if `source` is absent."""
        for _ in range(_MOVES):
            try:
                _, said = self._ask("PUT", "RENAME", source, destination=target, renameoptions=option)
            except _Refused as refused:
                if refused.name == _EXISTS:
                    return False
                if refused.name != _ABSENT:
                    raise
            else:
                if said.strip():  # a server that answers true or false ignores options
                    raise InvalidJob(
                        f"{self.url} is a gateway (HttpFS), which does not tell whether it has replaced what was "
                        "there: use the HTTP address of the name node itself"
                    )
                return True
            self._status(source)  # raises if `source` is absent; otherwise the folder is absent
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
        """As in `LocalStore`: no put takes a day."""
        if self._swept:
            return
        self._swept = True
        folder, before = f"{self._root}/{TEMPORARY}", time.time() * 1_000 - _STALE_TEMPORARY_MS
        for each in self._children(folder):
            if each["modificationTime"] < before:
                self._remove(f"{folder}/{each['pathSuffix']}")

    def _sha256_of(self, key: str) -> str | None:
        path = self._path(key)
        with contextlib.suppress(ObjectNotFound):
            return self._retrying("get", key, lambda: sha256_of(self._open(path)))
        return None

    # ---- requests

    def _ask(self, method: str, operation: str, path: str, **parameters: str) -> tuple[str, bytes]:
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
        """Answer of the data node to which the name node redirects.

        A standby name node redirects as well; the data node is then refused.
        """
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
    parts = urlsplit(place)
    if parts.scheme != "http":
        raise InvalidJob(f"the name node sends to {parts.scheme or 'nothing'}, not to http: allow it (dfs.http.policy)")
    return parts.netloc, f"{parts.path}?{parts.query}"


def _checked(answer: http.client.HTTPResponse) -> bytes:
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
