"""Object storage on S3 or anything that speaks it: `s3://bucket/prefix`. The only file that knows boto3.

Credentials come from boto3's default chain only; no secret is ever in our URLs, settings or messages. The endpoint is
AWS_ENDPOINT_URL or `?endpoint=` of the URL. botocore's own retries are off everywhere: a conditional put must reach the
store once (a retry could meet its own first try and take it for another's), and everything else is retried here,
with a budget, where it can be seen.
"""

import base64
import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable, missing_extra
from barrier_runtime.state.store.multipart import MultipartUploads
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
from barrier_runtime.state.store.urls import without_credentials
from barrier_runtime.state.store.use import StoreUse

_T = TypeVar("_T")
_PART_BYTES = 8 << 20  # of boto3's managed transfer
_SINGLE_PUT_BYTES = 64 << 20  # above this, boto3's managed transfer sends parts in parallel
_TOO_LARGE_TO_COPY = ("InvalidRequest", "EntityTooLarge")  # by CopyObject, whose limit is 5 GiB
_CHUNK = 1 << 20
_ABSENT = {"NoSuchKey", "NoSuchUpload", "404", "NotFound"}
_NOT_ALLOWED = {
    "AccessDenied", "403", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AllAccessDisabled",
    "ExpiredToken", "InvalidToken", "AccountProblem", "UnauthorizedAccess",
}  # fmt: skip


@dataclass(frozen=True)
class RetryBudget:
    """How long trouble that may pass is borne before `Unavailable` is raised: about 15 s."""

    attempts: int = 8
    first_wait_s: float = 0.1  # doubles with each attempt
    longest_wait_s: float = 5.0
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0


class S3Store:
    """Keys are below `prefix` of `bucket`. Thread-safe: one client, whose connections are pooled."""

    def __init__(
        self, bucket: str, prefix: str = "", endpoint: str | None = None, budget: RetryBudget | None = None
    ) -> None:
        self._bucket = bucket
        self._prefix = check_key(prefix.strip("/")) + "/" if prefix.strip("/") else ""
        self._budget = budget or RetryBudget()
        self.use = StoreUse()
        self._client = _make_client(endpoint, self._budget)
        self._endpoint: str = self._client.meta.endpoint_url

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def key_prefix(self) -> str:
        return self._prefix

    @property
    def place(self) -> str:
        """The bucket with its endpoint: two services may have buckets of one name."""
        return f"{self._endpoint}/{self._bucket}"

    # ---- the contract

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
        self.use.request("put", 1 + -(-size // _PART_BYTES))  # beside the one that is counted below: begin, parts, end
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
            return PutOutcome.UNKNOWN  # 409, 5xx, throttled, timeout, connection lost: it may be there, or come later
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
        except _RangeBehindEnd:
            return b""
        self.use.received(len(found))
        return found

    def get_file(self, key: str, path: Path) -> None:
        name = self._name(key)
        if path.exists():
            raise FileExistsError(f"{path} is there already: download to a fresh file")
        self._retrying("get", key, lambda: self._client.download_file(self._bucket, name, str(path)))
        self.use.received(path.stat().st_size)

    def copy_from(self, source: ObjectStore, key: str, to: str, beside_work: bool = False) -> bool:
        """By the service, in parts where the object is large. Only from a bucket of the same service."""
        if not isinstance(source, S3Store) or source._endpoint != self._endpoint:
            return False
        what = {"Bucket": source._bucket, "Key": source._name(key)}
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
                    if failed.get("Code") in _ABSENT:
                        continue
                    what = f"delete of s3://{self._bucket}/{failed.get('Key')} failed: {failed.get('Code')}"
                    if failed.get("Code") in _NOT_ALLOWED:
                        raise InvalidJob(f"{what}; allow s3:DeleteObject there")
                    raise Unavailable(f"{what}; it is tried again")

            self._retrying("delete", batch[0][len(self._prefix) :], remove)

    def publish(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        found = None if fresh else self._sha256_of(final)
        if found is None:
            # Without the staged object another process has published and dropped it, or it is nowhere.
            with contextlib.suppress(ObjectNotFound):
                found = self._copy(staged, final)
            found = found or self._sha256_of(final)
        check_published(self, staged, final, sha256, found)
        self.delete([staged])

    # ---- uploads that are completed later

    def multipart(self) -> MultipartUploads:
        return MultipartUploads(self)

    def request(self, operation: str, key: str, send: Callable[[Any, str, str], _T]) -> _T:
        """`send(client, bucket, full name of key)`, once. `key` may be a prefix."""
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

    # ---- inside

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _copy(self, staged: str, final: str) -> str | None:
        """Copies by the service; the hash of the copy where the answer has one of the whole content."""
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
        """Hash of an object's content; None if it is absent. The store's own checksum if it has one of the whole."""
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
        """Run `call`, again after trouble that may pass, a bounded number of times with growing pauses."""
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
        """What an exception of boto3 means for the caller. Keeps request headers and credentials out of the message."""
        place = f"{self.url}/{key}"
        code, status = _code_of(error)
        if code == "NoSuchBucket" or (operation == "list" and status == 404):
            return InvalidJob(f"bucket {self._bucket!r} does not exist: create it, or correct the URL {self.url}")
        if code in _ABSENT or status == 404:
            return ObjectNotFound(f"no object {place}")
        if operation == "get" and status == 412:
            return ObjectChanged(f"{place} was replaced")
        if code == "InvalidRange" or status == 416:
            return _RangeBehindEnd(f"the asked part of {place} is behind its end")
        if code in _NOT_ALLOWED or status in (401, 403):
            return InvalidJob(
                f"{operation} of {place} is not allowed ({code}): give the credentials of this process the permissions "
                "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there"
            )
        if type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
            return InvalidJob(
                f"{operation} of {place} found no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                "a profile in ~/.aws (AWS_PROFILE), or run where the machine has a role"
            )
        if type(error).__name__ in ("ParamValidationError", "InvalidRegionError", "ProfileNotFound"):
            return InvalidJob(f"{operation} of {place} was refused by boto3: {error}; correct URL or AWS settings")
        if status in (400, 405, 501) and code not in ("RequestTimeout", "BadDigest", "IncompleteBody"):
            return InvalidJob(
                f"{operation} of {place} was refused by the store ({code}): it may lack this feature; use another"
            )
        if "certificate verify failed" in str(error).lower():
            return InvalidJob(
                f"{operation} of {place}: the store's certificate is not trusted: set AWS_CA_BUNDLE to the file with "
                "the authority that signed it, or correct the endpoint"
            )
        return Unavailable(f"{operation} of {place} failed ({code or type(error).__name__}); it is tried again")


class _RangeBehindEnd(BarrierRuntimeError):
    """The asked range starts at or behind the end of the object: no bytes."""


def _checksum(digest: bytes) -> str:
    return base64.b64encode(digest).decode("ascii")


def _whole_sha256(answer: Mapping[str, Any]) -> str | None:
    """Hash (hex) of an object's whole content by the store's own checksum; None if it has none or one per part."""
    stored: str = answer.get("ChecksumSHA256") or ""
    whole = stored and answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT" and "-" not in stored
    return base64.b64decode(stored).hex() if whole else None


def _code_of(error: Exception) -> tuple[str, int]:
    """(error code, HTTP status) of a botocore ClientError; ("", 0) for anything else."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        cause = error.__cause__ or error.__context__  # managed transfers wrap the ClientError
        return _code_of(cause) if isinstance(cause, Exception) else ("", 0)
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return str(response.get("Error", {}).get("Code", "")), status


def _make_client(endpoint: str | None, budget: RetryBudget) -> Any:
    try:
        import boto3
        import botocore.session
        from botocore.config import Config
    except ImportError as error:
        raise missing_extra("s3://", "s3", error) from None
    for given, what in ((endpoint, "the endpoint"), (_environment_endpoint(), "AWS_ENDPOINT_URL")):
        if given is not None:
            without_credentials(given, what)
    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=budget.connect_timeout_s,
        read_timeout=budget.read_timeout_s,
        max_pool_connections=16,
        tcp_keepalive=True,
        s3={"addressing_style": "path"} if endpoint or _environment_endpoint() else {},
    )
    try:
        session = botocore.session.get_session()
        session.register_component("data_loader", _descriptions())
        return boto3.session.Session(botocore_session=session).client("s3", endpoint_url=endpoint, config=config)
    except Exception as error:
        raise InvalidJob(f"the S3 client could not be set up: {error}; check region, profile and endpoint") from error


@cache
def _descriptions() -> Any:
    """botocore's descriptions of services, read once per process: a session of its own reads a megabyte of JSON."""
    import botocore.session

    return botocore.session.get_session().get_component("data_loader")


def _environment_endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
