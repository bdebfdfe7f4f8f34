"""Blocking clients of the REST interface: of a coordinator, and of several daemons on the same storage.

A standby names the leader; `FailoverClient` follows only to an address that the user gave, because a page at another
address could ask people for the token.
"""

import http.client
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Literal, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from barrier_runtime.coordinator.client.rest_token import (
    STORAGE_HEADER,
    Call,
    covered,
    daemon_key,
    masked,
    signature,
    signing_key,
)
from barrier_runtime.coordinator.client.rest_types import (
    LONGEST_WAIT_S,
    DaemonReply,
    ErrorReply,
    Health,
    JobSummary,
    LeavingAsked,
    LeavingReply,
    LoginLinkReply,
    ReplaceAsked,
    RescaleAsked,
    RowsAsked,
    SavepointAsked,
    SlotLines,
    StopRequest,
    SubmitReply,
    TriggerReply,
    news_of,
)
from barrier_runtime.coordinator.client.trust import HttpsConnections, Trust
from barrier_runtime.coordinator.status.status import CheckpointsStatus, JobStatus, Room, completed_brief
from barrier_runtime.coordinator.status.why.reason import Answer
from barrier_runtime.coordinator.wire.messages import JobSpec, Subject
from barrier_runtime.state.errors import UNREADABLE, BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.store.urls import without_credentials

Reply = TypeVar("Reply")
_CHECKPOINTS = msgspec.json.Decoder(CheckpointsStatus)
_ANSWER = msgspec.json.Decoder(Answer)
_DAEMON = msgspec.json.Decoder(DaemonReply)
_ERROR = msgspec.json.Decoder(ErrorReply)
_HEALTH = msgspec.json.Decoder(Health)
_LINES = msgspec.json.Decoder(SlotLines)
_LINK = msgspec.json.Decoder(LoginLinkReply)
_JOBS = msgspec.json.Decoder(list[JobSummary])
_STATUS = msgspec.json.Decoder(JobStatus)
_SUBMIT = msgspec.json.Decoder(SubmitReply)
_LEAVING = msgspec.json.Decoder(LeavingReply)
_TRIGGER = msgspec.json.Decoder(TriggerReply)
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class LedByAnother(Unavailable):
    """This daemon stands by: the daemon at `url` leads the job."""

    def __init__(self, message: str, url: str) -> None:
        super().__init__(message)
        self.url = url


class UnknownJob(InvalidJob):
    """The daemon does not know the job or run."""


class CoordinatorClient:
    """Raises `Unavailable` without an answer, `InvalidJob` for a refusal.

    `url`: e.g. `https://node-1:8080`.
    """

    def __init__(self, url: str, token: str, *, timeout_s: float = 10.0, trust: Trust = Trust()) -> None:
        parts = urlsplit(without_credentials(url, "the coordinator's address"))
        if parts.scheme not in ("http", "https") or parts.hostname is None or parts.port is None:
            raise InvalidJob(
                f"coordinator address {url!r} is not understood: use http://<host>:<port> or https://<host>:<port>"
            )
        self.url = url
        self._host, self._port = parts.hostname, parts.port
        self._key = signing_key(token)
        self._timeout_s = timeout_s
        self._https = HttpsConnections(token, trust) if parts.scheme == "https" else None

    def __repr__(self) -> str:
        return f"CoordinatorClient({self.url!r})"

    def health(self) -> Health:
        return self._call("GET", "/healthz", b"", _HEALTH)

    def daemon(self) -> DaemonReply:
        return self._call("GET", "/daemon", b"", _DAEMON)

    def jobs(self) -> list[JobSummary]:
        return self._call("GET", "/jobs", b"", _JOBS)

    def submit(self, spec: JobSpec, storage_url: str = "") -> SubmitReply:
        """`storage_url`: store of the slots' checkpoints; refused if the daemon has another."""
        headers = {STORAGE_HEADER: quote(storage_url)} if storage_url else {}
        path, nonce = f"/jobs/{check_job_id(spec.job)}", uuid.uuid4().hex
        reply = self._call("PUT", path, msgspec.json.encode(spec), _SUBMIT, headers, nonce)
        try:
            secret = masked(self._key, nonce, bytes.fromhex(reply.secret))
        except ValueError as cause:
            raise self._not_ours(path, 200) from cause
        return msgspec.structs.replace(reply, secret=secret.hex())

    def status(self, job: str, run_id: str = "") -> JobStatus:
        """Status of run `run_id`, or of the last submitted run."""
        return self._call("GET", _path(job, "", run_id), b"", _STATUS)

    def next_status(
        self, job: str, run_id: str, last: JobStatus | None, wait_s: float, *, brief: bool = False
    ) -> JobStatus:
        """Waits until `news_of` differs from that of `last`, or for `wait_s`. `brief`: else with figures of `last`."""
        if last is None:
            return self.status(job, run_id)
        path = f"{_path(job, '', run_id)}&unless={news_of(last)}&wait={min(wait_s, LONGEST_WAIT_S):g}"
        found = self._call("GET", f"{path}&brief=1" if brief else path, b"", _STATUS)
        return completed_brief(found, last) if found.brief else found

    def checkpoints(self, job: str) -> CheckpointsStatus:
        return self._call("GET", f"/jobs/{check_job_id(job)}/checkpoints", b"", _CHECKPOINTS)

    def why(self, job: str, checkpoint: int | None = None, run_id: str = "") -> Answer:
        """Raises `InvalidJob` for a checkpoint outside the history."""
        asked = {"checkpoint": checkpoint, "run": run_id and check_job_id(run_id)}
        query = urlencode({name: value for name, value in asked.items() if value})
        return self._call("GET", f"/jobs/{check_job_id(job)}/why?{query}".rstrip("?"), b"", _ANSWER)

    def slot_lines(self, job: str, slot: int, subject: Subject, run_id: str = "") -> SlotLines:
        return self._call("GET", _path(job, f"/slots/{slot}/{subject}", run_id), b"", _LINES)

    def rows(self, job: str, asked: RowsAsked, run_id: str = "") -> SlotLines:
        """Rows that a step sends on now, as JSON objects."""
        return self._call("POST", _path(job, "/rows", run_id), msgspec.json.encode(asked), _LINES)

    def tell_room(self, job: str, room: Room, run_id: str = "") -> TriggerReply:
        return self._call("PUT", _path(job, "/room", run_id), msgspec.json.encode(room), _TRIGGER)

    def trigger(self, job: str, run_id: str = "") -> TriggerReply:
        return self._call("POST", _path(job, "/checkpoints", run_id), b"", _TRIGGER)

    def savepoint(self, job: str, asked: SavepointAsked, run_id: str = "") -> TriggerReply:
        """`status` shows the progress. A repeated id changes nothing."""
        return self._call("POST", _path(job, "/savepoints", run_id), msgspec.json.encode(asked), _TRIGGER)

    def stop(
        self,
        job: str,
        mode: Literal["checkpoint", "drain", "now"] = "checkpoint",
        run_id: str = "",
        savepoint: SavepointAsked | None = None,
    ) -> TriggerReply:
        body = msgspec.json.encode(StopRequest(mode, savepoint))
        return self._call("POST", _path(job, "/stop", run_id), body, _TRIGGER)

    def rescale(self, job: str, asked: RescaleAsked, run_id: str = "") -> TriggerReply:
        return self._call("POST", _path(job, "/rescale", run_id), msgspec.json.encode(asked), _TRIGGER)

    def leave(self, host: str, job: str = "", run_id: str = "") -> LeavingReply:
        """Without `job`: all jobs of the daemon."""
        path = _path(job, "/leaving", run_id) if job else "/leaving"
        return self._call("POST", path, msgspec.json.encode(LeavingAsked(host)), _LEAVING)

    def replace(self, job: str, asked: ReplaceAsked, run_id: str = "") -> TriggerReply:
        return self._call("POST", _path(job, "/replace", run_id), msgspec.json.encode(asked), _TRIGGER)

    def page_link(self, job: str) -> str:
        """Raises `UnknownJob` if this coordinator has no page."""
        path = self._call("POST", "/login-links", b"", _LINK).path
        return f"{self.url.rstrip('/')}{path}&to=/jobs/{check_job_id(job)}"

    def report(self, job: str, run_id: str = "") -> bytes:
        path = _path(job, "/report", run_id)
        status, data = self._exchange("GET", path, b"", _NO_HEADERS)
        if status != 200:
            raise self._refused(path, status, data)
        return data

    def _call(
        self,
        method: str,
        path: str,
        body: bytes,
        reply: msgspec.json.Decoder[Reply],
        more_headers: Mapping[str, str] = _NO_HEADERS,
        nonce: str = "",
    ) -> Reply:
        status, data = self._exchange(method, path, body, more_headers, nonce)
        try:
            if status in (200, 202) or (status == 409 and reply is _TRIGGER):
                return reply.decode(data)
        except UNREADABLE as cause:
            raise self._not_ours(path, status) from cause
        raise self._refused(path, status, data)

    def _refused(self, path: str, status: int, data: bytes) -> BarrierRuntimeError:
        try:
            error = _ERROR.decode(data)
        except UNREADABLE as cause:
            raise self._not_ours(path, status) from cause
        return _error_of(status, f"coordinator {self.url}: {error.error}", error.leader)

    def _not_ours(self, path: str, status: int) -> Unavailable:
        return Unavailable(
            f"{self.url}{path} answered {status} with something that is not a coordinator's: check the address"
        )

    def _exchange(
        self, method: str, path: str, body: bytes, more_headers: Mapping[str, str], nonce: str = ""
    ) -> tuple[int, bytes]:
        now_ms = round(time.time() * 1000)
        headers = {
            "X-Barrier-Runtime": "1",
            "X-Request-Id": uuid.uuid4().hex,
            "Content-Type": "application/json",
            **more_headers,
        }
        call = Call(method, path.encode("ascii"), body, covered(headers))
        headers["Authorization"] = signature(self._key, call, now_ms, nonce or uuid.uuid4().hex)
        connection: http.client.HTTPConnection | None = None
        try:
            connection = self._connection()
            connection.request(method, path, body=body or None, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(
                f"coordinator {self.url} does not answer ({error or type(error).__name__}): is it running there?"
            ) from error
        finally:
            if connection is not None:
                connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._https is not None:
            return self._https.open(self._host, self._port, self._timeout_s)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)


def _path(job: str, what: str, run_id: str) -> str:
    path = f"/jobs/{check_job_id(job)}{what}"
    return f"{path}?run={check_job_id(run_id)}" if run_id else path


def _error_of(status: int, message: str, leader: str) -> BarrierRuntimeError:
    if status == 421:
        return LedByAnother(message, leader)
    if status == 404:
        return UnknownJob(message)
    return Unavailable(message) if status >= 500 else InvalidJob(message)


_TIMEOUT_S = 10.0
_TIMEOUT_OF_SEVERAL_S = 4.0  # another daemon may have the answer


class FailoverClient:
    """Raises `InvalidJob` for the first permanent refusal.

    Raises `UnknownJob` if no answering daemon knows the job, else `Unavailable`.
    """

    def __init__(
        self,
        urls: Iterable[str],
        token: str,
        trust: Trust = Trust(),
        trust_of: Mapping[str, Trust] = MappingProxyType({}),
    ) -> None:
        given = tuple(urls)
        timeout_s = _TIMEOUT_S if len(given) == 1 else _TIMEOUT_OF_SEVERAL_S
        self._clients = [
            CoordinatorClient(url, token, timeout_s=timeout_s, trust=trust_of.get(url, trust)) for url in given
        ]
        self.root_key = daemon_key(token)
        if not self._clients:
            raise InvalidJob("no coordinator address is given: use http://<host>:<port>, several with commas between")
        self._first = 0

    def __repr__(self) -> str:
        return f"FailoverClient({', '.join(client.url for client in self._clients)})"

    @property
    def url(self) -> str:
        return self._clients[self._first].url

    def daemons(self) -> list[DaemonReply]:
        found = []
        for index in self._order():
            try:
                found.append(self._clients[index].daemon())
            except Unavailable:
                continue  # may start later, unknown to slots that start before
        return found

    def daemon(self) -> DaemonReply:
        return self._ask(lambda client: client.daemon())

    def jobs(self) -> list[JobSummary]:
        return self._ask(lambda client: client.jobs())

    def submit(self, spec: JobSpec, storage_url: str = "") -> SubmitReply:
        return self._ask(lambda client: client.submit(spec, storage_url))

    def status(self, job: str, run_id: str = "") -> JobStatus:
        return self._ask(lambda client: client.status(job, run_id))

    def next_status(
        self, job: str, run_id: str, last: JobStatus | None, wait_s: float, *, brief: bool = False
    ) -> JobStatus:
        return self._ask(lambda client: client.next_status(job, run_id, last, wait_s, brief=brief))

    def checkpoints(self, job: str) -> CheckpointsStatus:
        return self._ask(lambda client: client.checkpoints(job))

    def why(self, job: str, checkpoint: int | None = None, run_id: str = "") -> Answer:
        return self._ask(lambda client: client.why(job, checkpoint, run_id))

    def slot_lines(self, job: str, slot: int, subject: Subject, run_id: str = "") -> SlotLines:
        return self._ask(lambda client: client.slot_lines(job, slot, subject, run_id))

    def rows(self, job: str, asked: RowsAsked, run_id: str = "") -> SlotLines:
        return self._ask(lambda client: client.rows(job, asked, run_id))

    def tell_room(self, job: str, room: Room, run_id: str = "") -> TriggerReply:
        return self._ask(lambda client: client.tell_room(job, room, run_id))

    def trigger(self, job: str, run_id: str = "") -> TriggerReply:
        return self._ask(lambda client: client.trigger(job, run_id))

    def savepoint(self, job: str, asked: SavepointAsked, run_id: str = "") -> TriggerReply:
        return self._ask(lambda client: client.savepoint(job, asked, run_id))

    def stop(
        self,
        job: str,
        mode: Literal["checkpoint", "drain", "now"] = "checkpoint",
        run_id: str = "",
        savepoint: SavepointAsked | None = None,
    ) -> TriggerReply:
        return self._ask(lambda client: client.stop(job, mode, run_id, savepoint))

    def rescale(self, job: str, asked: RescaleAsked, run_id: str = "") -> TriggerReply:
        return self._ask(lambda client: client.rescale(job, asked, run_id))

    def leave(self, host: str, job: str = "", run_id: str = "") -> LeavingReply:
        return self._ask(lambda client: client.leave(host, job, run_id))

    def replace(self, job: str, asked: ReplaceAsked, run_id: str = "") -> TriggerReply:
        return self._ask(lambda client: client.replace(job, asked, run_id))

    def page_link(self, job: str) -> str:
        return self._ask(lambda client: client.page_link(job))

    def report(self, job: str, run_id: str = "") -> bytes:
        return self._ask(lambda client: client.report(job, run_id))

    def _ask(self, question: Callable[[CoordinatorClient], Reply]) -> Reply:
        waiting = self._order()
        silent: Unavailable | None = None
        unknown: UnknownJob | None = None
        while waiting:
            index = waiting.pop(0)
            try:
                answer = question(self._clients[index])
            except LedByAnother as error:
                silent = silent or error
                waiting = self._sooner(waiting, error.url)
            except Unavailable as error:
                silent = error
            except UnknownJob as error:
                unknown = error
            else:
                self._first = index
                return answer
        if unknown is not None:
            raise UnknownJob(f"{unknown}; {silent}") if silent is not None else unknown
        assert silent is not None, "nobody was asked"
        raise silent

    def _sooner(self, waiting: list[int], url: str) -> list[int]:
        return sorted(waiting, key=lambda index: self._clients[index].url.rstrip("/") != url.rstrip("/"))

    def _order(self) -> list[int]:
        others = [index for index in range(len(self._clients)) if index != self._first]
        return [self._first, *others]


def addresses(text: str) -> tuple[str, ...]:
    return tuple(url.strip() for url in text.split(",") if url.strip())
