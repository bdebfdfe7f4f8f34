"""Masks what looks like a secret in texts of a report: errors of libraries, rows in tracebacks. Pure.

The runtime puts no secret into a status by itself; what users' code and libraries raise may hold some. What looks like
one is replaced whole; a text that only resembles one is lost to the report, which is the lesser harm.
"""

import re
from typing import Any

import msgspec

from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.status.why.reason import Reason

MASK = "******"
_STATUS = msgspec.msgpack.Decoder(JobStatus)
_ANY = msgspec.msgpack.Decoder()
_NAMED = (
    r"(?:[\w.-]*(?:password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|credential|private[_-]?key)"
    r"[\w.-]*)"
)
_PATTERNS = (
    # user:password@host of a URL
    (re.compile(r"(?<=://)[^/\s@'\"<>]+@"), f"{MASK}@"),
    # password=…, "secret_key": "…", token: …
    (
        re.compile(rf"(?i)\b({_NAMED})(['\"]?\s*(?:=>|[=:])\s*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&'\"<>)\]}}]+)"),
        rf"\1\2{MASK}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {MASK}"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), MASK),  # a JSON web token
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), MASK),
    (re.compile(r"\b[0-9a-fA-F]{64,}\b"), MASK),  # a token of ours, or a digest that nobody needs
)


def masked_text(text: str) -> str:
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


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
