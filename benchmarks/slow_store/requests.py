"""The proxy's log of requests, and the purpose of a request by the key in the runtime's store."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

_KINDS = (
    ("probe", re.compile(r"(^|/)\.?probe")),
    ("decision log", re.compile(r"/log/\d+\.json$")),
    ("hint", re.compile(r"hint\.json$")),
    ("manifest", re.compile(r"/checkpoints/.*manifest[^/]*\.json$")),
    ("state", re.compile(r"/(data|checkpoints)/")),
    ("write-ahead", re.compile(r"/write-ahead/")),
    ("history", re.compile(r"/history\.json$")),
    ("pins", re.compile(r"/pins/")),
    ("lease", re.compile(r"/lease\.json$")),
    ("staged rows", re.compile(r"(^|/)_staging/")),
    ("commit log", re.compile(r"(^|/)_commits/")),
    ("table log", re.compile(r"/(_delta_log|metadata)/")),
    ("rows", re.compile(r"\.(jsonl|csv|parquet|avro|json)(\.\w+)?$")),
)


class Request(msgspec.Struct, frozen=True, array_like=True):
    """A request, or a connection's wait for a database's answer (operation ANSWER, no key)."""

    at: float  # arrival of the last byte, seconds since the epoch
    operation: str
    key: str
    status: int  # 0: cut off before the answer
    sent: int  # bytes of the body
    received: int
    ms: float  # until the last byte of the answer was sent

    @property
    def kind(self) -> str:
        """The part of the runtime's store that the key belongs to."""
        return kind_of(self.key)

    @property
    def end(self) -> float:
        return self.at + self.ms / 1000


_DECODER = msgspec.json.Decoder(Request)
_ENCODER = msgspec.json.Encoder()


def encoded(request: Request) -> bytes:
    return _ENCODER.encode(request) + b"\n"


def read_requests(log: Path, since: float = 0.0, until: float = float("inf")) -> list[Request]:
    """Requests that have ended and that arrived within [since, until), in the order of arrival."""
    lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
    found = [_DECODER.decode(line) for line in lines]
    return sorted((each for each in found if since <= each.at < until), key=lambda each: each.at)


def kind_of(key: str) -> str:
    return next((name for name, pattern in _KINDS if pattern.search(key)), "other")


def counted(requests: Iterable[Request]) -> Counter[tuple[str, str]]:
    """Requests by operation and kind of key."""
    return Counter((request.operation, request.kind) for request in requests)


def in_sequence(requests: Sequence[Request]) -> int:
    """The longest chain of waits in a row: each request arrived after the answer to the request before."""
    longest: list[float] = []  # at n: the earliest end of a chain of n + 1 requests
    for request in sorted(requests, key=lambda each: each.end):
        place = sum(1 for end in longest if end <= request.at)
        if place == len(longest):
            longest.append(request.end)
        else:
            longest[place] = min(longest[place], request.end)
    return len(longest)
