"""Object storage on Google Cloud Storage and Azure Blob: `gs://` and `abfss://`. The only file that knows obstore.

Credentials come from the clouds' default chains only (environment, files of their tools, identities of machines); no
secret is ever in our URLs, settings or messages. The client's own retries are off: a conditional put must reach the
store once (a retry could meet its own first try and take it for another's), and everything else is retried here.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable, missing_extra
from barrier_runtime.state.store.object_store import (
    ObjectChanged,
    ObjectInfo,
    ObjectNotFound,
    ObjectStore,
    PutOutcome,
    check_published,
    sha256_of,
)
from barrier_runtime.state.store.paths import check_key, check_prefix
from barrier_runtime.state.store.retrying import retried

_T = TypeVar("_T")
Cloud = Literal["gs", "abfss"]
_ATTEMPTS = 8  # about 15 s of trouble that may pass
_FIRST_WAIT_S = 0.1  # doubles with each attempt
_LONGEST_WAIT_S = 5.0
_FIRST_TOKEN_ATTEMPTS = 4  # under a second; then this process has no credentials
_RIGHTS = {
    "gs": "storage.objects.get, create, delete and list (role Storage Object User)",
    "abfss": "to read, write, delete and list blobs (role Storage Blob Data Contributor)",
}
_CREDENTIALS = {
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account's key, or run where the machine has one",
    "abfss": "set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, or AZURE_CLIENT_ID, AZURE_CLIENT_SECRET and "
    "AZURE_TENANT_ID, or run where the machine has an identity",
}


class _NoToken(Unavailable):
    """No access token could be had, so the request was not sent."""


class CloudStore:
    """Keys are below `prefix` of a bucket or container. Thread-safe. `account`: of Azure; `endpoint`: of an emulator
    or a gateway."""

    def __init__(
        self, cloud: Cloud, bucket: str, prefix: str = "", account: str = "", endpoint: str | None = None
    ) -> None:
        self._cloud = cloud
        self._prefix = check_key(prefix.strip("/")) + "/" if prefix.strip("/") else ""
        self._place = f"{bucket}@{account}.dfs.core.windows.net" if account else bucket
        try:
            import obstore
        except ImportError as error:
            raise missing_extra(f"{cloud}://", "clouds", error) from None
        self._obstore: Any = obstore
        self._errors: Any = obstore.exceptions
        self._had_token = False  # once, so there are credentials
        try:
            self._client = _client(cloud, bucket, account, endpoint)
        except obstore.exceptions.BaseError as error:
            raise InvalidJob(f"the client of {self.url} could not be set up: {_first_line(error)}") from error

    @property
    def url(self) -> str:
        return f"{self._cloud}://{self._place}/{self._prefix}".rstrip("/")

    @property
    def key_prefix(self) -> str:
        return self._prefix

    # ---- the contract

    def put(self, key: str, data: bytes) -> None:
        name = self._name(key)
        self._retrying("put", key, lambda: self._obstore.put(self._client, name, data))

    def put_file(self, key: str, path: Path) -> None:
        name = self._name(key)
        self._retrying("put", key, lambda: self._obstore.put(self._client, name, path))

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        name = self._name(key)

        def create() -> PutOutcome:
            try:
                self._obstore.put(self._client, name, data, mode="create", use_multipart=False)
            except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
                return PutOutcome.EXISTS
            except Exception as error:
                trouble = self._trouble("put_if_absent", key, error)
                if isinstance(trouble, InvalidJob | _NoToken):
                    raise trouble from error
                return PutOutcome.UNKNOWN  # it may be there, or come later
            return PutOutcome.CREATED

        try:
            return self._retrying("put_if_absent", key, create)
        except Unavailable:
            return PutOutcome.UNKNOWN

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        name = self._name(key)
        if size == 0:
            return b""

        def read() -> bytes:
            if not offset and size is None:
                return bytes(self._obstore.get(self._client, name).bytes())
            there = self._obstore.head(self._client, name)["size"]
            end = there if size is None else min(there, offset + size)
            return bytes(self._obstore.get_range(self._client, name, start=offset, end=end)) if offset < end else b""

        return self._retrying("get", key, read)

    def get_version(self, key: str, etag: str, offset: int, size: int) -> bytes:
        name = self._name(key)
        if size == 0:
            return b""
        wanted: Any = {"if_match": etag, "range": (offset, offset + size)}
        return self._retrying("get", key, lambda: bytes(self._obstore.get(self._client, name, options=wanted).bytes()))

    def get_file(self, key: str, path: Path) -> None:
        name = self._name(key)
        if path.exists():
            raise FileExistsError(f"{path} is there already: download to a fresh file")

        def read() -> None:
            path.unlink(missing_ok=True)  # what an attempt before has left
            found = self._obstore.get(self._client, name)
            with path.open("xb") as file:
                for chunk in found.stream():
                    file.write(chunk)

        try:
            self._retrying("get", key, read)
        except BarrierRuntimeError:
            path.unlink(missing_ok=True)
            raise

    def copy_from(self, source: ObjectStore, key: str, to: str, beside_work: bool = False) -> bool:
        """By the service; only from the same bucket or container."""
        if not isinstance(source, CloudStore) or (source._cloud, source._place) != (self._cloud, self._place):
            return False
        old, new = source._name(key), self._name(to)
        self._retrying("copy", key, lambda: self._obstore.copy(self._client, old, new))
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        wanted = self._prefix + prefix
        folder = wanted.rpartition("/")[0]  # the client lists whole folders only

        def read() -> list[ObjectInfo]:
            return [
                ObjectInfo(
                    each["path"][len(self._prefix) :], each["size"], _ms(each["last_modified"]), _etag(each["e_tag"])
                )
                for chunk in self._obstore.list(self._client, folder or None)
                for each in chunk
                if each["path"].startswith(wanted)
            ]

        return iter(sorted(self._retrying("list", prefix, read), key=lambda info: info.key))

    def folders(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        folder = (self._prefix + prefix).rstrip("/")

        def read() -> list[str]:
            found = self._obstore.list_with_delimiter(self._client, folder or None)
            return [each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"]]

        return iter(self._retrying("list", prefix, read))

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            name = self._name(key)
            with contextlib.suppress(ObjectNotFound):
                self._retrying("delete", key, lambda name=name: self._obstore.delete(self._client, name))  # type: ignore[misc]

    def publish(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        old, new = self._name(staged), self._name(final)
        copied = False
        if fresh or not self._is_there(final):
            with contextlib.suppress(ObjectNotFound):  # another process has published it meanwhile, or it is nowhere
                self._retrying("publish", final, lambda: self._obstore.copy(self._client, old, new))
                copied = True
        if not copied:
            check_published(self, staged, final, sha256, self._sha256_of(final))
        self.delete([staged])

    # ---- inside

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _is_there(self, key: str) -> bool:
        name = self._name(key)
        try:
            self._retrying("get", key, lambda: self._obstore.head(self._client, name))
        except ObjectNotFound:
            return False
        return True

    def _sha256_of(self, key: str) -> str | None:
        """Of what is there; None: nothing is."""
        name = self._name(key)
        with contextlib.suppress(ObjectNotFound):
            return self._retrying("get", key, lambda: sha256_of(self._obstore.get(self._client, name).stream()))
        return None

    def _retrying(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        def trouble_of(error: Exception, attempt: int) -> BarrierRuntimeError:
            trouble = error if isinstance(error, BarrierRuntimeError) else self._trouble(operation, key, error)
            if isinstance(trouble, _NoToken) and not self._had_token and attempt == _FIRST_TOKEN_ATTEMPTS:
                return InvalidJob(f"{operation} of {self.url}/{key} found no credentials: {_CREDENTIALS[self._cloud]}")
            return trouble

        found = retried(call, trouble_of, _ATTEMPTS, _FIRST_WAIT_S, _LONGEST_WAIT_S)
        self._had_token = True
        return found

    def _trouble(self, operation: str, key: str, error: Exception) -> BarrierRuntimeError:
        """What an exception of the client means for the caller. Keeps answers of servers out of the message."""
        place = f"{self.url}/{key}"
        if isinstance(error, self._errors.NotFoundError | FileNotFoundError):
            if operation in ("put", "put_if_absent", "list"):
                return InvalidJob(f"{self._place} does not exist: create it, or correct the URL {self.url}")
            return ObjectNotFound(f"no object {place}")
        if operation == "get" and isinstance(error, self._errors.PreconditionError):
            return ObjectChanged(f"{place} was replaced")
        if isinstance(error, self._errors.PermissionDeniedError | self._errors.UnauthenticatedError):
            return InvalidJob(
                f"{operation} of {place} is not allowed: give the credentials of this process the rights "
                f"{_RIGHTS[self._cloud]} there"
            )
        if isinstance(error, self._errors.NotSupportedError | self._errors.InvalidPathError):
            return InvalidJob(f"{operation} of {place} was refused ({type(error).__name__}): use another store or key")
        if "token request" in _first_line(error):
            return _NoToken(f"{operation} of {place} got no access token; it is tried again")
        return Unavailable(f"{operation} of {place} failed ({type(error).__name__}); it is tried again")


def _client(cloud: Cloud, bucket: str, account: str, endpoint: str | None) -> Any:
    from obstore.store import AzureStore, GCSStore

    retry: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=30)}
    options: Any = {"timeout": "30s", "connect_timeout": "5s", "allow_http": endpoint is not None}
    if cloud == "gs":
        more: dict[str, Any] = {}
        if endpoint is not None:
            emulator = {
                "gcs_base_url": endpoint,
                "disable_oauth": True,
                "client_email": "",
                "private_key": "",
                "private_key_id": "",
            }
            more = {"service_account_key": json.dumps(emulator)}
        return GCSStore(bucket, client_options=options, retry_config=retry, **more)
    more = {"endpoint": endpoint} if endpoint else {}
    return AzureStore(bucket, account_name=account, client_options=options, retry_config=retry, **more)


def _etag(listed: str | None) -> str:
    """As a condition has it: Azure lists it without its quotes."""
    return f'"{listed}"' if listed and not listed.endswith('"') else listed or ""


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
