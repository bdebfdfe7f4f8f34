"""A job's status and reasons without what looks like a secret in any of their texts. Pure."""

from typing import Any

import msgspec

from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.status.why.reason import Reason
from barrier_runtime.state.masked_text import masked_text

_STATUS = msgspec.msgpack.Decoder(JobStatus)
_ANY = msgspec.msgpack.Decoder()


def masked(status: JobStatus) -> JobStatus:
    """The same status without what looks like a secret in any of its texts, names of operators included."""
    plain = _ANY.decode(msgspec.msgpack.encode(status))  # not as JSON: bytes that are text may look like a password
    return _STATUS.decode(msgspec.msgpack.encode(_without_secrets(plain)))


def masked_reason(reason: Reason) -> Reason:
    evidence = tuple(map(masked_text, reason.evidence))
    return Reason(reason.cause, masked_text(reason.sentence), evidence, masked_text(reason.remedy))


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return masked_text(value)
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    if isinstance(value, dict):
        return {masked_text(key): _without_secrets(each) for key, each in value.items()}
    return value
