"""Access of this process to S3: clients of boto3, the place of a bucket, credentials, and errors.

Credentials come only from boto3's default chain. Messages never repeat a server's answer, which may contain key ids or
signatures.
"""

import os
import threading
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable, missing_extra
from barrier_runtime.state.store.object_store import ObjectChanged, ObjectNotFound, RangeBehindEnd
from barrier_runtime.state.store.retrying import RetryBudget
from barrier_runtime.state.store.urls import without_credentials

ABSENT = frozenset({"NoSuchKey", "NoSuchUpload", "404", "NotFound"})
NOT_ALLOWED = frozenset(
    {
        *("AccessDenied", "403", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AllAccessDisabled"),
        *("ExpiredToken", "InvalidToken", "AccountProblem", "UnauthorizedAccess"),
    }
)
NO_CREDENTIALS = frozenset({"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"})
_WRONG_SETTINGS = frozenset({"ParamValidationError", "InvalidRegionError", "ProfileNotFound"})
_PASSES = frozenset({"RequestTimeout", "BadDigest", "IncompleteBody"})  # retryable, although the status is 400
_HELPED = {  # retryable, although the status is 400 or 403, once a person has helped
    "RequestTimeTooSkewed": "the clocks of this machine and of the store differ too much: set them",
    **dict.fromkeys(
        ("QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull"),
        "the store has no room: delete objects, or raise the quota",
    ),
}


@dataclass(frozen=True)
class S3Failure:
    """`kind`: name of the client's exception. `code`, `status`: "" and 0 without an answer."""

    operation: str
    key: str
    kind: str
    code: str = ""
    status: int = 0
    text: str = ""


def s3_trouble(url: str, bucket: str, failure: S3Failure) -> BarrierRuntimeError:
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
    if code in _HELPED:
        return Unavailable(f"{operation} of {place} failed ({code}): {_HELPED[code]}; it is tried again")
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


_LEASE = timedelta(minutes=10)  # botocore renews credentials that end sooner
_NOBODY = "nobody"  # signs the request that shows where botocore sends requests


@dataclass(frozen=True)
class S3Place:
    """Destination of botocore's requests for a bucket.

    `virtual_host`: the bucket is in the host's name. `ca_bundle`: file of certificate authorities.
    """

    service: str  # the service's endpoint, the same for all buckets
    endpoint: str
    region: str
    virtual_host: bool
    ca_bundle: str | None


def make_client(endpoint: str | None, budget: RetryBudget, region: str | None = None, key_id: str | None = None) -> Any:
    """`key_id`: an id without a secret, for a client that sends nothing."""
    for given, what in ((endpoint, "the endpoint"), (_environment_endpoint(), "AWS_ENDPOINT_URL")):
        if given is not None:
            without_credentials(given, what)
    session = make_session()
    from botocore.config import Config

    options = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=budget.connect_timeout_s,
        read_timeout=budget.read_timeout_s,
        max_pool_connections=16,
        tcp_keepalive=True,
        s3={"addressing_style": "path"} if endpoint or _environment_endpoint() else {},
    )
    keys = {"aws_access_key_id": key_id, "aws_secret_access_key": key_id} if key_id else {}
    try:
        client = session.client("s3", endpoint_url=endpoint, region_name=region, config=options, **keys)
    except Exception as error:
        raise InvalidJob(f"the S3 client could not be set up: {error}; check region, profile and endpoint") from error
    refuse_cut_answers(client)
    return client


def refuse_cut_answers(client: Any) -> None:
    """Calls then raise `IncompleteReadError` if a connection ended within the answer.

    botocore alone would parse a cut answer, such as an empty list.
    """
    client.meta.events.register("before-parse", _check_length)


def _check_length(operation_model: Any, response_dict: Any, **_: Any) -> None:
    from botocore.exceptions import IncompleteReadError

    body, announced = response_dict["body"], response_dict["headers"].get("content-length")
    without_body = operation_model.http.get("method") == "HEAD" or response_dict["status_code"] >= 300
    if without_body or announced is None or not isinstance(body, bytes):  # bodies of downloads are streams
        return
    if len(body) < int(announced):
        raise IncompleteReadError(actual_bytes=len(body), expected_bytes=int(announced))


def read_descriptions() -> None:
    """Caches botocore's descriptions for this process and forked processes. Sends nothing."""
    make_client(None, RetryBudget(), "us-east-1", _NOBODY)


def make_session() -> Any:
    try:
        import boto3
        import botocore.session
    except ImportError as error:
        raise missing_extra("s3://", "s3", error) from None
    try:
        session = botocore.session.get_session()
        session.register_component("data_loader", _descriptions())
        return boto3.session.Session(botocore_session=session)
    except Exception as error:
        raise InvalidJob(f"the S3 client could not be set up: {error}; check region, profile and endpoint") from error


def place_of(bucket: str, endpoint: str | None, region: str | None = None) -> S3Place:
    """Finds the place by all of botocore's rules, from a signed request that is never sent.

    `region` replaces the configured region.
    """
    client = make_client(endpoint, RetryBudget(), region, _NOBODY)
    shown: list[Any] = []

    def keep(request: Any, **_: Any) -> None:
        shown.append(request)
        raise _NotSent

    client.meta.events.register("before-send.s3", keep)
    try:
        client.get_object(Bucket=bucket, Key="key")
    except _NotSent:
        pass
    except Exception as error:
        raise InvalidJob(f"bucket {bucket!r} was refused by boto3: {error}; correct the URL") from error
    url, signature = urlsplit(shown[0].url), shown[0].headers["Authorization"]
    signing_region = (signature if isinstance(signature, str) else signature.decode()).split("/")[2]
    virtual_host = url.netloc.startswith(f"{bucket}.")
    path = url.path.removesuffix("/key")
    path = path if virtual_host else path.removesuffix(f"/{bucket}")
    bundle = make_session()._session.get_config_variable("ca_bundle")
    own = f"{url.scheme}://{url.netloc}{path}"
    return S3Place(client.meta.endpoint_url, own, signing_region, virtual_host, bundle)


class _NotSent(Exception):
    """Stops a complete request instead of sending."""


def region_of(client: Any, bucket: str) -> str | None:
    """Region that the service reports; None if unreported."""
    try:
        answer = client.head_bucket(Bucket=bucket)
    except client.exceptions.ClientError as error:
        answer = error.response
    except Exception:  # no answer: the caller raises the refusal that led here
        return None
    found = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("x-amz-bucket-region")
    return str(found) if found else None


class AwsCredentials:
    """Credentials of boto3's default chain, in obstore's format. For any thread."""

    def __init__(self) -> None:
        self._session = make_session()
        self._looking = threading.Lock()  # sessions are not thread-safe

    def __call__(self) -> dict[str, Any]:
        from botocore.exceptions import NoCredentialsError

        with self._looking:
            found = self._session.get_credentials()
        if found is None:
            raise NoCredentialsError
        frozen, ends = found.get_frozen_credentials(), datetime.now(timezone.utc) + _LEASE
        known_end = getattr(found, "_expiry_time", None)  # set if botocore renews them; not public
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": min(ends, known_end) if isinstance(known_end, datetime) else ends,
        }


@cache
def _descriptions() -> Any:
    """Read once per process: a megabyte of JSON."""
    import botocore.session

    return botocore.session.get_session().get_component("data_loader")


def _environment_endpoint() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
