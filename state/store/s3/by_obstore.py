"""Object storage on S3 by obstore: `s3://`, unless the URL or the environment requires boto3.

obstore needs less than half of boto3's processor time. boto3 finds credentials, region and endpoint, and sends the
requests that obstore cannot send as the contract requires:

| request                                   | obstore                                                   |
|-------------------------------------------|-----------------------------------------------------------|
| list                                      | fails at a key that obstore cannot name (`a//b`, `./x`);  |
|                                           | a prefix must end at a slash                              |
| copy with the checksum of the copy        | does not return the checksum                              |
| copy of more than 5 GiB, or from a bucket | has no copy in parts, and none between buckets            |
| a deletion that the store refused in part | reports a single key                                      |
| uploads that are completed later          | has no access to their parts                              |
| large puts, by obstore before 0.12        | leaves the parts of a failed upload in the bucket         |

boto3 carries all requests for directory buckets of S3 Express, whose sessions obstore would have to renew, and with
`AWS_CA_BUNDLE`: obstore refuses self-signed certificates that boto3 accepts; older releases take no bundle.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob
from barrier_runtime.state.store.clouds import SINGLE_PUT_BYTES, CloudStore, NotDone, answer_of, kind_of, s3_client
from barrier_runtime.state.store.multipart import MultipartUploads
from barrier_runtime.state.store.object_store import ObjectInfo, ObjectStore
from barrier_runtime.state.store.retrying import RetryBudget
from barrier_runtime.state.store.s3.aws import (
    AwsCredentials,
    S3Failure,
    S3Place,
    make_client,
    place_of,
    region_of,
    s3_trouble,
)
from barrier_runtime.state.store.s3.by_boto3 import S3Store

_CREDENTIALS = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch"})
_OTHER_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_NO_LOCATION = "Received redirect without LOCATION"  # for a redirect to another region
_OWN_PROVIDER = "External AWS credential provider"  # if `AwsCredentials` raised
_EXPRESS = "--x-s3"  # end of a directory bucket's name
_BATCH = 1_000  # keys per deletion


def s3_store(bucket: str, prefix: str, endpoint: str | None, client: str | None) -> "S3Store | ObstoreS3Store":
    """`client`: "boto3" or "obstore"; None: obstore if possible."""
    if client == "boto3":
        return S3Store(bucket, prefix, endpoint)
    why_not = _why_not(bucket, endpoint)
    if why_not and client is None:
        return S3Store(bucket, prefix, endpoint)
    if why_not:
        raise InvalidJob(f"client=obstore of s3://{bucket} cannot be: {why_not}; leave client= out, then boto3 is used")
    return ObstoreS3Store(bucket, prefix, endpoint)


def _why_not(bucket: str, endpoint: str | None) -> str:
    if bucket.endswith(_EXPRESS):
        return "directory buckets of S3 Express are reached by boto3 only"
    place = _shared(bucket, endpoint, RetryBudget()).place
    if place.ca_bundle and place.endpoint.startswith("https://"):
        return "AWS_CA_BUNDLE, or ca_bundle of the profile, is understood by boto3 only"
    return ""


class _Access:
    """Shared by all stores of a bucket in a process."""

    def __init__(self, bucket: str, endpoint: str | None, budget: RetryBudget) -> None:
        self._bucket = bucket
        self._endpoint = endpoint
        self._budget = budget
        self._lock = threading.Lock()
        self._boto3: Any = None
        self.place = place_of(bucket, endpoint)
        self.client = self._made(self.place)

    def _made(self, place: S3Place) -> Any:
        return s3_client(self._bucket, place.endpoint, place.region, place.virtual_host, AwsCredentials(), self._budget)

    @property
    def boto3(self) -> Any:
        with self._lock:
            if self._boto3 is None:
                self._boto3 = make_client(self._endpoint, self._budget)
            return self._boto3

    def renew(self, failed: Any) -> None:
        """Reads the credentials again, unless another thread has replaced the client `failed`."""
        with self._lock:
            if self.client is failed:
                self._boto3 = None
                self.client = self._made(self.place)

    def move(self, failed: Any) -> bool:
        """Returns False if the client `failed` has used the bucket's region."""
        found = region_of(self.boto3, self._bucket)
        with self._lock:
            if self.client is not failed:
                return True
            if found is None or found == self.place.region:
                return False
            self.place = place_of(self._bucket, self._endpoint, found)
            self.client = self._made(self.place)
            return True


@lru_cache(maxsize=64)
def _access(
    bucket: str, endpoint: str | None, budget: RetryBudget, process: int, environment: tuple[tuple[str, str], ...]
) -> _Access:
    return _Access(bucket, endpoint, budget)


def _shared(bucket: str, endpoint: str | None, budget: RetryBudget) -> _Access:
    """Reopening a store in the same environment makes no client and no connection."""
    asked = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "home", "ssl_cert_file", "ssl_cert_dir")
    names = (name for name in os.environ if name.startswith("AWS_") or name.lower() in asked)
    return _access(bucket, endpoint, budget, os.getpid(), tuple((name, os.environ[name]) for name in sorted(names)))


class _NotAll(BarrierRuntimeError):
    """A deletion whose answer names keys that were not deleted."""


class ObstoreS3Store(CloudStore):
    def __init__(
        self, bucket: str, prefix: str = "", endpoint: str | None = None, budget: RetryBudget | None = None
    ) -> None:
        super().__init__("s3", bucket, prefix, endpoint=endpoint, budget=budget)
        self._bucket = bucket
        self._endpoint = endpoint
        self._access = _shared(bucket, endpoint, self._budget)

    @property
    def _client(self) -> Any:
        return self._access.client

    @property
    def by_boto3(self) -> S3Store:
        return S3Store(self._bucket, self._prefix, self._endpoint, self._budget, self._access.boto3, self.use)

    @property
    def place(self) -> str:
        return f"{self._access.place.service}/{self._bucket}"

    # ---- requests that boto3 carries, or may have to carry

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self.by_boto3.list(prefix)

    def folders(self, prefix: str) -> Iterator[str]:
        return self.by_boto3.folders(prefix)

    def copy_from(self, source: ObjectStore, key: str, to: str, beside_work: bool = False) -> bool:
        return self.by_boto3.copy_from(source, key, to, beside_work)

    def multipart(self) -> MultipartUploads:
        return MultipartUploads(self.by_boto3)

    def delete(self, keys: Iterable[str]) -> None:
        names = iter([(key, self._name(key)) for key in keys])
        while batch := list(islice(names, _BATCH)):
            asked = [name for _, name in batch]
            try:
                self._retrying(
                    "delete",
                    batch[0][0],
                    lambda asked=asked: self._obstore.delete(self._client, asked),  # type: ignore[misc]
                )
            except _NotAll:
                self.by_boto3.delete(key for key, _ in batch)

    def show(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        self.by_boto3.show(staged, final, sha256, fresh=fresh)

    def _put(self, key: str, body: bytes | Path, size: int) -> None:
        if size <= SINGLE_PUT_BYTES or self._aborts_uploads:
            super()._put(key, body, size)
        elif isinstance(body, bytes):
            self.by_boto3.put(key, body)
        else:
            self.by_boto3.put_file(key, body)

    @property
    def _aborts_uploads(self) -> bool:
        """Returns whether a failed upload leaves no parts. Python 3.10 has older releases of obstore."""
        return tuple(map(int, self._obstore.__version__.split(".")[:2])) >= (0, 12)

    # ---- errors

    def _says_exists(self, error: Exception) -> bool:
        """True for status 412 only; after 409 the outcome is unknown."""
        return super()._says_exists(error) and answer_of(error)[1] == 412

    def _trouble(self, operation: str, key: str, error: Exception) -> BarrierRuntimeError:
        text, (code, status) = str(error), answer_of(error)
        if _OWN_PROVIDER in text:
            remedy = s3_trouble(self.url, self._bucket, S3Failure(operation, key, "NoCredentialsError"))
            return NotDone(
                f"{operation} of {self.url}/{key} got no credentials; it is tried again",
                None if self._had_token else remedy,
            )
        if operation == "delete" and ("DeleteResult" in text or "DeleteObjects" in text):
            return _NotAll(f"delete of {self.url}/{key} was refused in part")
        if not code and isinstance(error, self._errors.NotFoundError | FileNotFoundError):
            status = 404
        trouble = s3_trouble(self.url, self._bucket, S3Failure(operation, key, kind_of(error), code, status, text))
        if code in _CREDENTIALS | _KEYS:
            self._access.renew(self._client)
            if code in _CREDENTIALS:
                return NotDone(f"{operation} of {self.url}/{key} failed ({code}); it is tried again", trouble)
        if (code in _OTHER_REGION or _NO_LOCATION in text) and self._access.move(self._client):
            return NotDone(f"{self.url} is in another region; it is asked there", trouble)
        if _NO_LOCATION in text:
            return InvalidJob(
                f"{operation} of {self.url}/{key}: the bucket is in another region than "
                f"{self._access.place.region}: set AWS_DEFAULT_REGION, or the region of the profile"
            )
        return trouble
