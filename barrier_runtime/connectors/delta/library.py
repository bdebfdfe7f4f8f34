"""Access to delta-rs: locations of tables, storage options, and errors."""

import os
import re
from typing import Any
from urllib.parse import parse_qs, quote

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable, missing_extra
from barrier_runtime.state.outside_errors import must_be_mended, says_refused
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.urls import shown, split_settings, without_credentials

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def load_deltalake(where: str, who: str) -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        raise missing_extra(f"{where}: {who}", "delta", error) from None
    return deltalake


def checked_url(url: object, location: str, refusal: str) -> str:
    """URL without credentials. Raises `InvalidJob`; `location` and `refusal` begin the messages."""
    found = without_credentials(str(url), location)
    if "://" in found and not found.startswith(("file://", "s3://", "s3a://")):
        raise InvalidJob(f"{refusal} {shown(found)}: use a folder, file:// or s3://")
    return found


def library_url(store: ObjectStore) -> str:
    """Location of the table for delta-rs, which decodes percent signs."""
    scheme, _, place = store.url.partition("://")
    return store.url if scheme == "file" else f"{scheme}://{quote(place, safe='/:')}"


def storage_options(url: str) -> dict[str, str] | None:
    """delta-rs' options for S3; credentials and region come from the environment."""
    if not url.startswith(("s3://", "s3a://")):
        return None
    query = parse_qs(split_settings(url)[1])
    endpoint = query["endpoint"][-1] if "endpoint" in query else None
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    options = {
        "aws_conditional_put": "etag",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "false",
        "connect_timeout": "5 seconds",
        "timeout": "30 seconds",
        "max_retries": "3",
        "retry_timeout": "15 seconds",
    }
    if endpoint:
        options["AWS_ENDPOINT_URL"] = endpoint
        options["AWS_ALLOW_HTTP"] = str(endpoint.startswith("http://")).lower()
    return options


def is_refused(error: BaseException) -> bool:
    kinds = ("DeltaProtocolError", "SchemaMismatchError")
    return must_be_mended(error) or type(error).__name__ in kinds or says_refused(str(error))


def trouble(error: Exception, failure: str) -> BarrierRuntimeError:
    if isinstance(error, BarrierRuntimeError):
        return error
    if is_refused(error):
        return InvalidJob(
            f"{failure}: {brief(error)}. Correct the table, its place or the rights of this process; then start the "
            "job again"
        )
    return Unavailable(f"{failure} ({brief(error)}); it is tried again")


def brief(error: BaseException) -> str:
    if isinstance(error, BarrierRuntimeError):
        return str(error)
    text = " ".join(_ANSI.sub("", str(error)).split())
    return f"{text[:300]} ({type(error).__name__})"
