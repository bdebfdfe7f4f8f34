"""Errors of S3 as errors of this package: one classification for both clients, boto3 and obstore. Pure.

A client reports an error code of S3, an HTTP status and the name of its own exception. Messages name the object and the
remedy; they never repeat a server's answer, which may hold key ids or signatures.
"""

from dataclasses import dataclass

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import ObjectChanged, ObjectNotFound, RangeBehindEnd

ABSENT = frozenset({"NoSuchKey", "NoSuchUpload", "404", "NotFound"})
NOT_ALLOWED = frozenset(
    {
        *("AccessDenied", "403", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AllAccessDisabled"),
        *("ExpiredToken", "InvalidToken", "AccountProblem", "UnauthorizedAccess"),
    }
)
NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"})
_WRONG_SETTINGS = frozenset({"ParamValidationError", "InvalidRegionError", "ProfileNotFound"})
_PASSES = frozenset({"RequestTimeout", "BadDigest", "IncompleteBody"})  # in answers with status 400


@dataclass(frozen=True)
class S3Failure:
    """A failed request. `kind`: name of the client's exception; `code`, `status`: of the answer, "" and 0 without one;
    `text`: the exception's message."""

    operation: str
    key: str
    kind: str
    code: str = ""
    status: int = 0
    text: str = ""


def s3_trouble(url: str, bucket: str, failure: S3Failure) -> BarrierRuntimeError:
    """The error that a failed request means for the caller. `url`: of the store."""
    operation, code, status = failure.operation, failure.code, failure.status
    place = f"{url}/{failure.key}"
    if code == "NoSuchBucket" or (operation == "list" and status == 404):
        return InvalidJob(f"bucket {bucket!r} does not exist: create it, or correct the URL {url}")
    if code in ABSENT or status == 404:
        return ObjectNotFound(f"no object {place}")
    if operation == "get" and status == 412:
        return ObjectChanged(f"{place} was replaced")
    if code == "InvalidRange" or status == 416:
        return RangeBehindEnd(f"the requested part of {place} is behind its end")
    if code in NOT_ALLOWED or status in (401, 403):
        return InvalidJob(
            f"{operation} of {place} is not allowed ({code}): give the credentials of this process the permissions "
            "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there"
        )
    if failure.kind in NO_CREDENTIALS:
        return InvalidJob(
            f"{operation} of {place} found no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "a profile in ~/.aws (AWS_PROFILE), or run where the machine has a role"
        )
    if failure.kind in _WRONG_SETTINGS:
        return InvalidJob(f"{operation} of {place} was refused by boto3: {failure.text}; correct URL or AWS settings")
    if status in (400, 405, 501) and code not in _PASSES:
        return InvalidJob(
            f"{operation} of {place} was refused by the store ({code}): it may lack this feature; use another"
        )
    if any(each in failure.text for each in ("certificate verify failed", "CERTIFICATE_VERIFY", "InvalidCertificate")):
        return InvalidJob(
            f"{operation} of {place}: the store's certificate is not trusted: set AWS_CA_BUNDLE to the file with "
            "the authority that signed it, or correct the endpoint"
        )
    return Unavailable(f"{operation} of {place} failed ({code or failure.kind}); it is tried again")
