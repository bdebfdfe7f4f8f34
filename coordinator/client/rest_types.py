"""Types of the REST interface besides `JobSpec` and `JobStatus`. Shared by server and client."""

import hashlib
from typing import Literal

import msgspec

from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.messages import JobSpec

LONGEST_WAIT_S = 3.0  # for a new status version; less than the timeout of any client


def news_of(status: JobStatus) -> str:
    """Returns the version of facts for drivers: condition, outcome, kills, requested slots, leader.

    A driver that repeats the version in `unless=` waits for an answer until the version changes.
    """
    moving = any(each.ended_ms is None for each in status.rescales)
    news = (
        status.leader,
        status.outcome,
        status.condition,
        status.condition_reason,
        status.kill,
        status.standbys,
        status.program_wanted,
        moving,
    )
    return hashlib.sha256(msgspec.json.encode(news)).hexdigest()[:32]


class SubmitReply(msgspec.Struct, frozen=True):
    """Address for the job's slots, and their secret. Never printed or logged."""

    phase: str
    secret: str  # hex
    control_host: str
    control_port: int

    def __repr__(self) -> str:
        return f"SubmitReply(phase={self.phase!r}, secret=******, control={self.control_host}:{self.control_port})"


class SavepointAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of a savepoint. `id`: the same however often a client repeats the request."""

    id: str
    url: str  # of the savepoint's folder


class StopRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Literal["checkpoint", "drain", "now"] = "checkpoint"
    savepoint: SavepointAsked | None = None  # to stop with


class RescaleAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of a rescale. `id`: the same however often a client repeats the request."""

    id: str
    parallelism: int
    timeout_ms: int = 60_000


class ReplaceAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to replace the program, or the answer with a loaded program. Never code.

    `id`: the same however often a client repeats the request. With `spec` the program is loaded; otherwise the program
    that runs the job loads `flow` ("app.py:flow"), and answers with the same id and `spec`, or with `error`.
    """

    id: str
    flow: str = ""
    spec: JobSpec | None = None
    allow_non_restored: bool = False
    timeout_ms: int = 60_000
    error: str = ""


class TriggerReply(msgspec.Struct, frozen=True):
    answer: Literal["accepted", "refused"]
    reason: str


class JobSummary(msgspec.Struct, frozen=True):
    job: str
    run_id: str
    phase: str
    outcome: str | None
    condition: str = ""
    condition_reason: str = ""


class LoginLinkReply(msgspec.Struct, frozen=True):
    """Path of a page that logs in once, without the daemon's address.

    Any holder can log in until the link is used: only the requesting person sees it, and it is never logged.
    """

    path: str

    def __repr__(self) -> str:
        return "LoginLinkReply(path=******)"


class Health(msgspec.Struct, frozen=True):
    status: str
    pid: int


class DaemonReply(msgspec.Struct, frozen=True):
    """Address of this daemon for slots, and the storage whose jobs it can lead."""

    control_host: str
    control_port: int
    storage: str


class ErrorReply(msgspec.Struct, frozen=True):
    error: str
    leader: str = ""  # with 421: the URL that the leading daemon gives itself
