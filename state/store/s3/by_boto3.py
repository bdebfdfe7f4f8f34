"""Object storage on S3 by boto3: `s3://bucket/prefix?client=boto3`, and for requests of `by_obstore`.

botocore's own retries are off, as in `clouds`.
"""

import base64
import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.store.multipart import MultipartUploads
from barrier_runtime.state.store.object_store import (
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
from barrier_runtime.state.store.s3.aws import ABSENT, NOT_ALLOWED, S3Failure, make_client, s3_trouble
from barrier_runtime.state.store.use import StoreUse

_T = TypeVar("_T")
_PART_BYTES = 8 << 20  # of boto3's managed transfer
_SINGLE_PUT_BYTES = 64 << 20  # larger files are sent in parts
_TOO_LARGE_TO_COPY = ("InvalidRequest", "EntityTooLarge")  # errors of CopyObject, whose limit is 5 GiB
_CHUNK = 1 << 20


@runtime_checkable
class OnS3(Protocol):
    @property
    def by_boto3(self) -> "S3Store": ...


class S3Store:
    """Thread-safe."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        endpoint: str | None = None,
        budget: RetryBudget | None = None,
        client: Any = None,
        use: StoreUse | None = None,
    ) -> None:
        self._bucket = bucket
        self._prefix = check_key(prefix.strip("/")) + "/" if prefix.strip("/") else ""
        self._budget = budget or RetryBudget()
        self.use = use or StoreUse()
        self._client = client or make_client(endpoint, self._budget)
        self._endpoint: str = self._client.meta.endpoint_url

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def key_prefix(self) -> str:
        return self._prefix

    @property
    def by_boto3(self) -> "S3Store":
        return self

    @property
    def place(self) -> str:
        """Includes the endpoint: two services may have buckets of the same name."""
        return f"{self._endpoint}/{self._bucket}"

    def put(self, key: str, data: bytes) -> None:
        name = self._name(key)
        checksum = _checksum(hashlib.sha256(data).digest())
        self.use.sent(len(data))
        self._retrying(
            "put",
            key,
            lambda: self._client.put_object(Bucket=self._bucket, Key=name, Body=data, ChecksumSHA256=checksum),
        )

    def put_file(self, key: str, path: Path) -> None:
        name = self._name(key)
        size = path.stat().st_size
        if size <= _SINGLE_PUT_BYTES:
            self.put(key, path.read_bytes())
            return
        self.use.request("put", 1 + -(-size // _PART_BYTES))  # begin, parts and end, besides the request counted below
        self.use.sent(size)
        extra = {"ChecksumAlgorithm": "SHA256"}
        self._retrying("put", key, lambda: self._client.upload_file(str(path), self._bucket, name, ExtraArgs=extra))

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
        name = self._name(key)
        checksum = _checksum(hashlib.sha256(data).digest())
        self.use.request("put")
        self.use.sent(len(data))
        try:
            self._client.put_object(Bucket=self._bucket, Key=name, Body=data, ChecksumSHA256=checksum, IfNoneMatch="*")
        except Exception as error:
            status = _code_of(error)[1]
            if status == 412:
                return PutOutcome.EXISTS
            trouble = self._trouble("put_if_absent", key, error)
            if isinstance(trouble, InvalidJob):
                raise trouble from error
            return PutOutcome.UNKNOWN  # 409, 5xx, throttled, timeout, connection lost
        return PutOutcome.CREATED

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        return self._get(key, offset, size, {})

    def get_version(self, key: str, etag: str, offset: int, size: int) -> bytes:
        return self._get(key, offset, size, {"IfMatch": etag})

    def _get(self, key: str, offset: int, size: int | None, condition: dict[str, str]) -> bytes:
        name = self._name(key)
        if size == 0:
            return b""
        last = "" if size is None else str(offset + size - 1)
        part: dict[str, Any] = dict(condition)
        if offset or size is not None:
            part["Range"] = f"bytes={offset}-{last}"

        def read() -> bytes:
            answer = self._client.get_object(Bucket=self._bucket, Key=name, **part)
            data: bytes = answer["Body"].read()
            if len(data) != answer["ContentLength"]:
                raise Unavailable(f"get of {self.url}/{key} broke off after {len(data)} bytes; it is tried again")
            return data

        try:
            found = self._retrying("get", key, read)
        except RangeBehindEnd:
            return b""
        self.use.received(len(found))
        return found

    def get_file(self, key: str, path: Path) -> None:
        name = self._name(key)
        if path.exists():
            raise FileExistsError(f"{path} is there already: download to a fresh file")
        self._retrying("get", key, lambda: self._client.download_file(self._bucket, name, str(path)))
        size = path.stat().st_size
        self.use.request("get", max(1, -(-size // _PART_BYTES)))  # parts, besides the HEAD
        self.use.received(size)

    def copy_from(self, source: ObjectStore, key: str, to: str, beside_work: bool = False) -> bool:
        """Copies by the service, large objects in parts, within the same service."""
        if not isinstance(source, OnS3) or source.by_boto3._endpoint != self._endpoint:
            return False
        what = {"Bucket": source.by_boto3._bucket, "Key": source.by_boto3._name(key)}
        extra = {"ChecksumAlgorithm": "SHA256"}
        name = self._name(to)
        self._retrying("copy", key, lambda: self._client.copy(what, self._bucket, name, ExtraArgs=extra))
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for page in self._pages(prefix):
            for item in page.get("Contents", ()):
                modified_ms = int(item["LastModified"].timestamp() * 1_000)
                yield ObjectInfo(item["Key"][len(self._prefix) :], item["Size"], modified_ms, item.get("ETag", ""))

    def folders(self, prefix: str) -> Iterator[str]:
        for page in self._pages(prefix, Delimiter="/"):
            for item in page.get("CommonPrefixes", ()):
                yield item["Prefix"][len(self._prefix + prefix) :].removesuffix("/")

    def _pages(self, prefix: str, **options: str) -> Iterator[dict[str, Any]]:
        check_prefix(prefix)
        while True:
            page = self._retrying(
                "list",
                prefix,
                lambda options=options: self._client.list_objects_v2(  # type: ignore[misc]
                    Bucket=self._bucket, Prefix=self._prefix + prefix, **options
                ),
            )
            yield page
            if not page.get("IsTruncated"):
                return
            options = {**options, "ContinuationToken": page["NextContinuationToken"]}

    def delete(self, keys: Iterable[str]) -> None:
        names = iter([self._name(key) for key in keys])
        while batch := list(islice(names, 1_000)):
            wanted = {"Objects": [{"Key": name} for name in batch], "Quiet": True}

            def remove(wanted: Any = wanted) -> None:
                answer = self._client.delete_objects(Bucket=self._bucket, Delete=wanted)
                for failed in answer.get("Errors", ()):
                    if failed.get("Code") in ABSENT:
                        continue
                    what = f"delete of s3://{self._bucket}/{failed.get('Key')} failed: {failed.get('Code')}"
                    if failed.get("Code") in NOT_ALLOWED:
                        raise InvalidJob(f"{what}; allow s3:DeleteObject there")
                    raise Unavailable(f"{what}; it is tried again")

            self._retrying("delete", batch[0][len(self._prefix) :], remove)

    def publish(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        self.show(staged, final, sha256, fresh=fresh)
        self.delete([staged])

    def show(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        found = None if fresh else self._sha256_of(final)
        if found is None:
            # If `staged` is absent, another process has published the object, or there was none.
            with contextlib.suppress(ObjectNotFound):
                found = self._copy(staged, final)
            found = found or self._sha256_of(final)
        check_published(self, staged, final, sha256, found)

    # ---- uploads that are completed later

    def multipart(self) -> MultipartUploads:
        return MultipartUploads(self)

    def request(self, operation: str, key: str, send: Callable[[Any, str, str], _T]) -> _T:
        """`key` may be a prefix."""
        name = self._prefix + check_prefix(key)
        try:
            return send(self._client, self._bucket, name)
        except BarrierRuntimeError:
            raise
        except Exception as error:
            raise self._trouble(operation, key, error) from error

    def retrying(self, operation: str, key: str, send: Callable[[Any, str, str], _T]) -> _T:
        name = self._prefix + check_prefix(key)
        return self._retrying(operation, key, lambda: send(self._client, self._bucket, name))

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _copy(self, staged: str, final: str) -> str | None:
        """Returns the hash of the copy's whole content, if answered."""
        what, target = {"Bucket": self._bucket, "Key": self._name(staged)}, self._name(final)

        def copy() -> dict[str, Any]:
            try:
                answer = self._client.copy_object(
                    Bucket=self._bucket, Key=target, CopySource=what, ChecksumAlgorithm="SHA256"
                )
            except self._client.exceptions.ClientError as error:
                if _code_of(error)[0] not in _TOO_LARGE_TO_COPY:
                    raise
                self._client.copy(what, self._bucket, target)
                return {}
            return dict(answer["CopyObjectResult"])

        return _whole_sha256(self._retrying("publish", final, copy))

    def _sha256_of(self, key: str) -> str | None:
        """Prefers the store's own checksum; None: absent."""
        name = self._name(key)
        try:
            head = self._retrying(
                "get", key, lambda: self._client.head_object(Bucket=self._bucket, Key=name, ChecksumMode="ENABLED")
            )
        except ObjectNotFound:
            return None
        whole = _whole_sha256(head)
        if whole is not None:
            return whole

        def read() -> str:
            return sha256_of(self._client.get_object(Bucket=self._bucket, Key=name)["Body"].iter_chunks(_CHUNK))

        return self._retrying("get", key, read)

    def _retrying(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        budget = self._budget
        if budget.attempts < 1:
            raise Unavailable(f"{operation} of {self.url}/{key} has no attempts in its budget: allow one or more")

        def ask() -> _T:
            self.use.request(operation)
            return call()

        def trouble_of(error: Exception, attempt: int) -> BarrierRuntimeError:
            return error if isinstance(error, BarrierRuntimeError) else self._trouble(operation, key, error)

        return retried(ask, trouble_of, budget.attempts, budget.first_wait_s, budget.longest_wait_s)

    def _trouble(self, operation: str, key: str, error: Exception) -> BarrierRuntimeError:
        """Keeps request headers and credentials out of the message."""
        code, status = _code_of(error)
        failure = S3Failure(operation, key, type(error).__name__, code, status, str(error))
        return s3_trouble(self.url, self._bucket, failure)


def _checksum(digest: bytes) -> str:
    return base64.b64encode(digest).decode("ascii")


def _whole_sha256(answer: Mapping[str, Any]) -> str | None:
    """Hash (hex) of the content; None if the store has no checksum, or only checksums of parts."""
    stored: str = answer.get("ChecksumSHA256") or ""
    whole = stored and answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT" and "-" not in stored
    return base64.b64decode(stored).hex() if whole else None


def _code_of(error: Exception) -> tuple[str, int]:
    """Error code and HTTP status of a botocore ClientError; "" and 0 for any other exception."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        cause = error.__cause__ or error.__context__  # managed transfers wrap the ClientError
        return _code_of(cause) if isinstance(cause, Exception) else ("", 0)
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return str(response.get("Error", {}).get("Code", "")), status
