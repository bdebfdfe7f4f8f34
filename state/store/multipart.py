"""Completes multipart uploads to S3, which checkpoints of older releases list.

A failed or unknown completion is verified at the final key. Right content: done. Other content: `Corrupt`. Absent,
while the upload exists: retried. If S3 shows neither object nor upload, the file is lost, or another process is
completing the upload: only the last of `_LOOKS` consecutive checks raises `Corrupt`. The caller pauses between checks,
some 13 s in total.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import ObjectNotFound

_T = TypeVar("_T")
_LOOKS = 8  # consecutive checks before `Corrupt`
_SHA256 = "sha256"  # in the object's metadata: hash of the whole; S3 itself hashes only the parts


class Upload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    parts: tuple[str, ...]  # ETags, in order
    checksums: tuple[str, ...]  # sha256 of each part, base64: required again at the completion


class S3Access(Protocol):
    @property
    def url(self) -> str: ...

    def request(self, operation: str, key: str, send: Callable[[Any, str, str], _T]) -> _T:
        """Calls `send(client, bucket, full name of key)` once. Raises this package's errors."""
        ...

    def retrying(self, operation: str, key: str, send: Callable[[Any, str, str], _T]) -> _T:
        """As `request`, with retries within the store's budget."""
        ...


@runtime_checkable
class HasMultipart(Protocol):
    def multipart(self) -> "MultipartUploads": ...


class MultipartUploads:
    """Blocking, thread-safe.

    Counts checks that found nothing, so keep a single object if other processes may complete the same uploads.
    """

    def __init__(self, access: S3Access) -> None:
        self._access = access
        self._looks: dict[str, int] = {}

    def complete(self, key: str, upload: Upload, sha256: str, size: int) -> None:
        """Idempotent: succeeds if the object already has this content."""
        tagged = enumerate(zip(upload.parts, upload.checksums, strict=True), 1)
        parts = {"Parts": [{"PartNumber": number, "ETag": tag, "ChecksumSHA256": sum} for number, (tag, sum) in tagged]}
        try:
            self._access.request(
                "complete",
                key,
                lambda client, bucket, name: client.complete_multipart_upload(
                    Bucket=bucket, Key=name, UploadId=upload.id, MultipartUpload=parts, IfNoneMatch="*"
                ),
            )
        except BarrierRuntimeError as error:
            if not self._is_there(key, sha256, size):
                self._not_completed(key, upload, sha256, size, error)
        self._looks.pop(upload.id, None)

    def _not_completed(self, key: str, upload: Upload, sha256: str, size: int, error: BarrierRuntimeError) -> None:
        """Returns only if another process has completed the upload meanwhile."""
        if isinstance(error, InvalidJob):
            raise error
        name = f"{self._access.url}/{key}"
        if any(found == (key, upload.id) for found in self.list(key)):
            self._looks.pop(upload.id, None)
            raise Unavailable(f"{name} could not be completed ({error})") from error
        if self._is_there(key, sha256, size):
            return
        looks = self._looks[upload.id] = self._looks.get(upload.id, 0) + 1
        missing = f"neither {name} (sha256 {sha256}, {size} bytes) nor its upload {upload.id} is there"
        if looks < _LOOKS:
            raise Unavailable(
                f"{missing} (look {looks} of {_LOOKS}): another process may be completing it, so the commit is tried "
                "again; where that does not help, it was aborted, and has to be put back under this name"
            ) from error
        raise Corrupt(
            f"a decided file is gone: {missing}, after {looks} looks. Was it aborted by a person, or by a new rule of "
            "the bucket? Put the file back under this name; the commit is tried again"
        ) from error

    def abort(self, key: str, upload_id: str) -> None:
        """Idempotent; a completed upload stays."""
        with contextlib.suppress(ObjectNotFound):
            self._access.retrying("abort", key, _abort(upload_id))

    def list(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yields (key, upload id) of every pending upload."""
        marker: dict[str, Any] = {}
        while True:

            def send(client: Any, bucket: str, name: str, marker: dict[str, Any] = marker) -> Any:
                page = client.list_multipart_uploads(Bucket=bucket, Prefix=name, **marker)
                start = len(name) - len(prefix)
                return page, [(found["Key"][start:], found["UploadId"]) for found in page.get("Uploads", ())]

            page, found = self._access.retrying("list", prefix, send)
            yield from found
            if not page.get("IsTruncated"):
                return
            marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page.get("NextUploadIdMarker", "")}

    def _is_there(self, key: str, sha256: str, size: int) -> bool:
        found = self._look(key)
        if found is not None and found != (sha256, size):
            raise Corrupt(
                f"{self._access.url}/{key} has other content than was uploaded: expected sha256 {sha256}, {size} "
                f"bytes, found {found[0]}, {found[1]}; if another writer uses this name, give this sink a location of "
                "its own"
            )
        return found is not None

    def _look(self, key: str) -> tuple[str, int] | None:
        def send(client: Any, bucket: str, name: str) -> tuple[str, int]:
            head = client.head_object(Bucket=bucket, Key=name)
            size = int(head["ContentLength"])
            noted = head.get("Metadata", {}).get(_SHA256)
            if noted:
                return noted, size
            digest = hashlib.sha256()
            for chunk in client.get_object(Bucket=bucket, Key=name)["Body"].iter_chunks(1 << 20):
                digest.update(chunk)
            return digest.hexdigest(), size

        try:
            return self._access.retrying("get", key, send)
        except ObjectNotFound:
            return None


def _abort(upload_id: str) -> Callable[[Any, str, str], object]:
    return lambda client, bucket, name: client.abort_multipart_upload(Bucket=bucket, Key=name, UploadId=upload_id)
