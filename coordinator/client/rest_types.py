"""Types of the REST interface besides `JobSpec` and `JobStatus`."""

from typing import Literal

import msgspec

from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.status.summary import JobSummary as JobSummary
from barrier_runtime.coordinator.status.summary import News
from barrier_runtime.coordinator.wire.messages import JobSpec

LONGEST_WAIT_S = 3.0  # less than the timeout of any client


def news_of(status: JobStatus) -> str:
    """Version of the facts that drivers act on.

    A call with the version in `unless=` waits until the version changes.
    """
    moving = any(each.ended_ms is None for each in status.rescales)
    news = News(
        status.leader,
        status.token,
        status.phase,
        status.outcome,
        status.condition,
        status.condition_reason,
        status.kill,
        status.standbys,
        status.program_wanted,
        moving,
        status.leaving,
    )
    return news.version


class SubmitReply(msgspec.Struct, frozen=True):
    """Address and secret for the job's slots. Never printed or logged."""

    phase: str
    secret: str  # hex
    control_host: str
    control_port: int

    def __repr__(self) -> str:
        return f"SubmitReply(phase={self.phase!r}, secret=******, control={self.control_host}:{self.control_port})"


class SavepointAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`id`: the same however often a client repeats the request."""

    id: str
    url: str  # of the savepoint's folder


class StopRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Literal["checkpoint", "drain", "now"] = "checkpoint"
    savepoint: SavepointAsked | None = None  # to stop with


class RescaleAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    parallelism: int
    timeout_ms: int = 60_000


class ReplaceAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of a client, or the driver's answer.

    `id`: the same however often a client repeats the request. With `spec` the program is loaded; otherwise the driver
    loads `flow` ("app.py:flow"), and answers with the same id and `spec`, or with `error`.
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


class LeavingAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    host: str  # as the status of the job shows the slots' hosts


class LeavingReply(msgspec.Struct, frozen=True):
    slots: dict[str, int]  # by job: slots on the host


class LoginLinkReply(msgspec.Struct, frozen=True):
    """Any holder of the path can log in until the link is used, so the link is never logged."""

    path: str

    def __repr__(self) -> str:
        return "LoginLinkReply(path=******)"


class SlotLines(msgspec.Struct, frozen=True):
    slot: int
    lines: tuple[str, ...]


class RowsAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`slot`: None: the slot that reads the most rows of the step's chain."""

    step: str
    slot: int | None = None
    rows: int = 10


class Health(msgspec.Struct, frozen=True):
    status: str
    pid: int


class DaemonReply(msgspec.Struct, frozen=True):
    """Address of this daemon for slots, and the storage whose jobs this daemon can lead.

    `of_program`: the daemon ends with the program of a job, and does not return.
    """

    control_host: str
    control_port: int
    storage: str
    of_program: bool = False


class ErrorReply(msgspec.Struct, frozen=True):
    error: str
    leader: str = ""  # with 421: the URL that the leading daemon gives itself
