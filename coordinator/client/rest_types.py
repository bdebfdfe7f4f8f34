"""What the REST interface says and takes, besides `JobSpec` and `JobStatus`. Shared by server and client."""

import hashlib
from typing import Literal

import msgspec

from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.messages import JobSpec

LONGEST_WAIT_S = 3.0  # for news; less than any client waits for an answer
STORAGE_HEADER = "X-Storage"  # percent-encoded URL of the store that the submitting program uses


def news_of(status: JobStatus) -> str:
    """Of what a driver acts on: how the job is, whether and how it ended, which tasks to kill or slots to start, and
    who says so. As long as it is the same, a driver that asks with `unless=` waits for an answer."""
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
    """Where the job's slots connect, and the secret they need. Never printed or logged."""

    phase: str
    secret: str  # hex
    control_host: str
    control_port: int

    def __repr__(self) -> str:
        return f"SubmitReply(phase={self.phase!r}, secret=******, control={self.control_host}:{self.control_port})"


class SavepointAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`id`: the same for the same wish, however often it is asked for."""

    id: str
    url: str  # of a folder of its own


class StopRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Literal["checkpoint", "drain", "now"] = "checkpoint"
    savepoint: SavepointAsked | None = None  # to stop with


class RescaleAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`id`: the same for the same wish, however often it is asked for."""

    id: str
    parallelism: int
    timeout_ms: int = 60_000


class ReplaceAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`id`: the same for the same wish, however often it is asked for. With `spec` the program is there already; else
    the program that runs the job is to load `flow` ("app.py:flow"), and answers with the same id and `spec`, or with
    `error`. Never code."""

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
    """A page's address without the daemon's own, which logs in once. Whoever has it can log in until then: it is shown
    to the person who asked, and never logged."""

    path: str

    def __repr__(self) -> str:
        return "LoginLinkReply(path=******)"


class Health(msgspec.Struct, frozen=True):
    status: str
    pid: int


class DaemonReply(msgspec.Struct, frozen=True):
    """Where slots reach this daemon, and the storage whose jobs it can lead."""

    control_host: str
    control_port: int
    storage: str


class ErrorReply(msgspec.Struct, frozen=True):
    error: str
    leader: str = ""  # with 421: the daemon that leads the job, by the url it gives itself
