"""Multipart uploads of S3 that older releases began: file sinks could leave rows as uploads, to be completed behind the
decision. Checkpoints of those releases still list some; nothing begins an upload like this any more. (Measured on a
store that answers in 30 ms, an upload takes two waits before the decision and three requests, a staged object one wait
and two requests, and its deletion is off the path.)

An upload is named by its key, its id and the tags of its parts; whoever has these can complete it at any later time, as
long as nobody aborts it.

Nothing S3 answers in an emergency is believed. When a completion failed, or nobody knows, the object under the final
key is looked at: there with the right content, it is done; there with other content, it is `Corrupt`; not there while
its upload is, it is tried again. Neither there is what damage looks like, and also what a completion looks like that
another process has under way: S3 may take a while, in which the upload is gone and the object not to be seen yet. So
only the last of several looks in a row, by the same `MultipartUploads`, calls that `Corrupt`; the pauses between them
are the caller's (commits are repeated after 0.1 s, 0.2 s, …, so that it takes some 13 s).
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import ObjectNotFound

_T = TypeVar("_T")
_LOOKS = 8  # in a row that find neither object nor upload, until that is damage
_SHA256 = "sha256"  # our entry in the object's metadata: of the whole, which S3 itself only has of the parts


class Upload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that it takes to complete or abort it."""

    id: str
    parts: tuple[str, ...]  # ETags, in order
    checksums: tuple[str, ...]  # sha256 of each part, base64: S3 asks for them again when the upload is completed


class S3Access(Protocol):
    """What of `S3Store` is needed here."""

    @property
    def url(self) -> str: ...

    def request(self, operation: str, key: str, send: Callable[[Any, str, str], _T]) -> _T:
        """`send(client, bucket, full name of key)`, once; trouble is raised as one of our errors."""
        ...

    def retrying(self, operation: str, key: str, send: Callable[[Any, str, str], _T]) -> _T:
        """The same within the store's budget."""
        ...


@runtime_checkable
class HasMultipart(Protocol):
    """A store that may hold uploads."""

    def multipart(self) -> "MultipartUploads": ...


class MultipartUploads:
    """Uploads below one prefix of one bucket. Blocking, thread-safe. Who completes what others may have completed keeps
    one of these: it counts the looks that found nothing."""

    def __init__(self, access: S3Access) -> None:
        self._access = access
        self._looks: dict[str, int] = {}  # upload id -> looks in a row that found neither it nor its object

    def complete(self, key: str, upload: Upload, sha256: str, size: int) -> None:
        """Make the object appear. Idempotent: success also when it is there already with this content."""
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
        """Return only if another process has completed it by now."""
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
        """Idempotent; a completed upload is left as it is."""
        with contextlib.suppress(ObjectNotFound):
            self._access.retrying("abort", key, _abort(upload_id))

    def list(self, prefix: str) -> Iterator[tuple[str, str]]:
        """(key, upload id) of every upload below `prefix` that is neither completed nor aborted."""
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

    # ---- inside

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
        """(sha256, size) of the object; None when it is absent."""

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
