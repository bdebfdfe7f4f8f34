"""Object storage by obstore: `gs://` and `abfss://`, and `s3://` together with `s3/by_obstore`.

The only file that imports obstore, which releases the interpreter's lock during a request. Credentials come only from
the clouds' default chains. The client's own retries are off: a repeated conditional put could mistake the first
attempt's object for another writer's. All other requests are retried here.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
    RangeBehindEnd,
    check_published,
    sha256_of,
)
from barrier_runtime.state.store.paths import check_key, check_prefix
from barrier_runtime.state.store.retrying import RetryBudget, retried
from barrier_runtime.state.store.use import StoreUse

_T = TypeVar("_T")
_Part = tuple[memoryview, int, str | None]  # bytes, and the object's size and tag
_Take = Callable[[int, memoryview], None]  # offset and bytes of a part
Cloud = Literal["gs", "abfss", "s3"]
_PART_BYTES = 8 << 20  # sent within a request's time limit
SINGLE_PUT_BYTES = 16 << 20  # larger objects are sent in parts
_MOST_PARTS = 10_000
_PARTS_AT_ONCE = 8
_REFUSED_ATTEMPTS = 4  # all attempts take less than a second
_BEHIND_END = "Wanted range starting at"  # obstore's message if a server answers with the end of the object
_STATUS = re.compile(r"status code: ([0-9]{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,100})</Code>")
_CONNECTION = re.compile(r"HttpError \{\s*kind: ([A-Za-z]+)")
_RIGHTS = {
    "gs": "storage.objects.get, create, delete and list (role Storage Object User)",
    "abfss": "to read, write, delete and list blobs (role Storage Blob Data Contributor)",
}
_CREDENTIALS = {
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account's key, or run where the machine has one",
    "abfss": "set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, or AZURE_CLIENT_ID, AZURE_CLIENT_SECRET and "
    "AZURE_TENANT_ID, or run where the machine has an identity",
}


class NotDone(Unavailable):
    """An unexecuted request. `then`: error after `_REFUSED_ATTEMPTS` attempts."""

    def __init__(self, message: str, then: BarrierRuntimeError | None = None) -> None:
        super().__init__(message)
        self.then = then


class CloudStore:
    """Thread-safe."""

    def __init__(
        self,
        cloud: Cloud,
        bucket: str,
        prefix: str = "",
        account: str = "",  # of Azure
        endpoint: str | None = None,  # of an emulator or a gateway
        budget: RetryBudget | None = None,
    ) -> None:
        self._cloud = cloud
        self._prefix = check_key(prefix.strip("/")) + "/" if prefix.strip("/") else ""
        self._place = f"{bucket}@{account}.dfs.core.windows.net" if account else bucket
        self._budget = budget or RetryBudget()
        self.use = StoreUse()
        self._obstore: Any = _obstore(cloud)
        self._errors: Any = self._obstore.exceptions
        self._had_token = False  # after the first success: there are credentials
        try:
            self._made: Any = None if cloud == "s3" else _client(cloud, bucket, account, endpoint, self._budget)
        except self._errors.BaseError as error:
            raise InvalidJob(f"the client of {self.url} could not be set up: {_first_line(error)}") from error

    @property
    def url(self) -> str:
        return f"{self._cloud}://{self._place}/{self._prefix}".rstrip("/")

    @property
    def key_prefix(self) -> str:
        return self._prefix

    @property
    def _client(self) -> Any:
        return self._made

    def put(self, key: str, data: bytes) -> None:
        self._put(key, data, len(data))

    def put_file(self, key: str, path: Path) -> None:
        self._name(key)
        size = path.stat().st_size
        self._put(key, path if size > SINGLE_PUT_BYTES else path.read_bytes(), size)

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        name = self._name(key)
        self.use.sent(len(data))

        def create() -> PutOutcome:
            try:
                self._obstore.put(self._client, name, data, mode="create", use_multipart=False)
                return PutOutcome.CREATED
            except Exception as error:
                if self._says_exists(error):
                    return PutOutcome.EXISTS
                trouble = self._trouble("put_if_absent", key, error)
            if isinstance(trouble, InvalidJob | NotDone):
                raise trouble
            return PutOutcome.UNKNOWN  # the object may exist now, or later

        try:
            return self._retrying("put_if_absent", key, create)
        except Unavailable:
            return PutOutcome.UNKNOWN

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        try:
            return bytes(self._get(key, offset, size, None))
        except ObjectChanged as error:
            raise Unavailable(f"{error} while it was read in parts: read it again") from error

    def _get(self, key: str, offset: int, size: int | None, etag: str | None) -> memoryview:
        self._name(key)
        if size == 0:
            return memoryview(b"")
        data, total, tag = self._first_part(key, offset, size, etag)
        end = total if size is None else min(total, offset + size)
        if end - offset <= len(data):
            return data
        whole = bytearray(end - offset)
        whole[: len(data)] = data

        def take(start: int, part: memoryview) -> None:
            whole[start - offset : start - offset + len(part)] = part

        self._other_parts(key, offset + len(data), end, tag, take)
        return memoryview(whole)

    def get_version(self, key: str, etag: str, offset: int, size: int) -> memoryview:
        return self._get(key, offset, size, etag)

    def get_file(self, key: str, path: Path) -> None:
        self._name(key)
        if path.exists():
            raise FileExistsError(f"{path} is there already: download to a fresh file")
        data, total, tag = self._first_part(key, 0, None, None)
        with path.open("xb") as file:

            def take(start: int, part: memoryview) -> None:
                while part:
                    written = os.pwrite(file.fileno(), part, start)
                    start, part = start + written, part[written:]

            try:
                take(0, data)
                self._other_parts(key, len(data), total, tag, take)
            except BaseException as error:
                path.unlink(missing_ok=True)
                if isinstance(error, ObjectChanged):
                    raise Unavailable(f"{error} while it was read in parts: read it again") from error
                raise

    def copy_from(self, source: ObjectStore, key: str, to: str, beside_work: bool = False) -> bool:
        """Copies by the service; only within the same bucket or container."""
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
        self.show(staged, final, sha256, fresh=fresh)
        self.delete([staged])

    def show(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        old, new = self._name(staged), self._name(final)
        copied = False
        if fresh or not self._is_there(final):
            with contextlib.suppress(ObjectNotFound):  # published meanwhile, or absent
                self._retrying("publish", final, lambda: self._obstore.copy(self._client, old, new))
                copied = True
        if not copied:
            check_published(self, staged, final, sha256, self._sha256_of(final))

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _put(self, key: str, body: bytes | Path, size: int) -> None:
        name, many, part = self._name(key), size > SINGLE_PUT_BYTES, max(_PART_BYTES, -(-size // _MOST_PARTS))
        self.use.sent(size)
        if many:
            self.use.request("put", 1 + -(-size // part))  # begin, parts, end; the attempt counts as the last
        self._retrying(
            "put",
            key,
            lambda: self._obstore.put(
                self._client, name, body, use_multipart=many, chunk_size=part, max_concurrency=_PARTS_AT_ONCE
            ),
        )

    def _first_part(self, key: str, offset: int, size: int | None, etag: str | None) -> _Part:
        end = offset + (_PART_BYTES if size is None else min(size, _PART_BYTES))
        try:
            return self._part(key, offset, end, etag)
        except RangeBehindEnd:
            return memoryview(b""), 0, None

    def _other_parts(self, key: str, start: int, end: int, tag: str | None, take: _Take) -> None:
        def fetch(first: int) -> None:
            take(first, self._part(key, first, min(first + _PART_BYTES, end), tag)[0])

        if start >= end:
            return
        with ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="object-parts") as pool:
            for _ in pool.map(fetch, range(start, end, _PART_BYTES)):
                pass

    def _part(self, key: str, start: int, end: int, tag: str | None) -> _Part:
        name, options = self._name(key), {"range": (start, end), **({"if_match": tag} if tag else {})}

        def read() -> _Part:
            found = self._obstore.get(self._client, name, options=options)
            data = memoryview(found.bytes())
            if len(data) < min(end, found.meta["size"]) - start:
                raise Unavailable(f"get of {self.url}/{key} broke off after {len(data)} bytes; it is tried again")
            return data, found.meta["size"], found.meta["e_tag"]

        part = self._retrying("get", key, read)
        self.use.received(len(part[0]))
        return part

    def _is_there(self, key: str) -> bool:
        name = self._name(key)
        try:
            self._retrying("get", key, lambda: self._obstore.head(self._client, name))
        except ObjectNotFound:
            return False
        return True

    def _sha256_of(self, key: str) -> str | None:
        name = self._name(key)
        with contextlib.suppress(ObjectNotFound):
            return self._retrying("get", key, lambda: sha256_of(self._obstore.get(self._client, name).stream()))
        return None

    def _retrying(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        budget = self._budget
        if budget.attempts < 1:
            raise Unavailable(f"{operation} of {self.url}/{key} has no attempts in its budget: allow one or more")

        def ask() -> _T:
            self.use.request(operation)
            try:
                return call()
            except BarrierRuntimeError:
                raise
            except Exception as error:
                trouble = self._trouble(operation, key, error)
            raise trouble  # without the cause, in which a server may repeat keys and signatures

        def trouble_of(trouble: Exception, attempt: int) -> BarrierRuntimeError:
            assert isinstance(trouble, BarrierRuntimeError)
            if isinstance(trouble, NotDone) and trouble.then is not None and attempt >= _REFUSED_ATTEMPTS:
                return trouble.then
            return trouble

        found = retried(ask, trouble_of, budget.attempts, budget.first_wait_s, budget.longest_wait_s)
        self._had_token = True
        return found

    def _says_exists(self, error: Exception) -> bool:
        return isinstance(error, self._errors.AlreadyExistsError | self._errors.PreconditionError)

    def _trouble(self, operation: str, key: str, error: Exception) -> BarrierRuntimeError:
        """The message never repeats a server's answer."""
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
            return self._no_token(operation, key, _CREDENTIALS[self._cloud])
        code, status = answer_of(error)
        if status == 416 or _BEHIND_END in _first_line(error):
            return RangeBehindEnd(f"the requested part of {place} is behind its end")
        return Unavailable(f"{operation} of {place} failed ({code or kind_of(error)}); it is tried again")

    def _no_token(self, operation: str, key: str, remedy: str) -> NotDone:
        place = f"{self.url}/{key}"
        then = None if self._had_token else InvalidJob(f"{operation} of {place} found no credentials: {remedy}")
        return NotDone(f"{operation} of {place} got no access token; it is tried again", then)


def answer_of(error: Exception) -> tuple[str, int]:
    """Error code and HTTP status; "" and 0 if `error` has none."""
    status, code = _STATUS.search(str(error)), _CODE.search(str(error))
    return code[1] if code else "", int(status[1]) if status else 0


def kind_of(error: Exception) -> str:
    connection = _CONNECTION.search(str(error))
    return connection[1] if connection else type(error).__name__


def _obstore(cloud: Cloud) -> Any:
    try:
        import obstore
    except ImportError as error:
        raise missing_extra(f"{cloud}://", "s3" if cloud == "s3" else "clouds", error) from None
    return obstore


def _settings(budget: RetryBudget, endpoint: str | None) -> dict[str, Any]:
    options: Any = {
        "timeout": timedelta(seconds=budget.read_timeout_s),
        "connect_timeout": timedelta(seconds=budget.connect_timeout_s),
        "allow_http": endpoint is not None,
    }
    return {"client_options": options, "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=30)}}


def s3_client(
    bucket: str, endpoint: str, region: str, virtual_host: bool, credentials: Callable[[], Any], budget: RetryBudget
) -> Any:
    """Sets every option for destinations and signatures, so that obstore ignores environment variables
    that boto3 does not know.
    """
    unknown_setting = _obstore("s3").exceptions.UnknownConfigurationKeyError
    from obstore.store import S3Store

    config: dict[str, Any] = {
        "endpoint": endpoint,
        "region": region,
        "virtual_hosted_style_request": virtual_host,
        "checksum_algorithm": "SHA256",
        "conditional_put": "etag",
        "skip_signature": False,
        "unsigned_payload": False,
        "s3_express": False,
    }
    made: dict[str, Any] = {**_settings(budget, endpoint), "credential_provider": credentials}

    def make(**more: Any) -> Any:
        settings: Any = {**config, **more}
        return S3Store(bucket, config=settings, **made)

    try:  # releases of obstore that know this name prefer the environment variable to `endpoint`
        return make(aws_endpoint_url_s3=endpoint)
    except unknown_setting:
        return make()


def _client(cloud: Cloud, bucket: str, account: str, endpoint: str | None, budget: RetryBudget) -> Any:
    from obstore.store import AzureStore, GCSStore

    settings = _settings(budget, endpoint)
    if cloud == "gs":
        more: dict[str, Any] = {}
        if endpoint is not None:
            nobody = {"client_email": "", "private_key": "", "private_key_id": ""}
            more = {"service_account_key": json.dumps({"gcs_base_url": endpoint, "disable_oauth": True, **nobody})}
        return GCSStore(bucket, **settings, **more)
    more = {"endpoint": endpoint} if endpoint else {}
    return AzureStore(bucket, account_name=account, **settings, **more)


def _etag(listed: str | None) -> str:
    """Adds the quotes that conditions need and Azure's lists omit."""
    return f'"{listed}"' if listed and not listed.endswith('"') else listed or ""


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
