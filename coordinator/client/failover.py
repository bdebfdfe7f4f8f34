"""Client for several daemons on the same storage, which asks the present leader.

A standby names the leader; the client only follows to an address that the user gave, because a page at another address
could ask people for the token.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Literal, TypeVar

from barrier_runtime.coordinator.client.client import CoordinatorClient, LedByAnother, UnknownJob
from barrier_runtime.coordinator.client.rest_token import daemon_key
from barrier_runtime.coordinator.client.rest_types import (
    DaemonReply,
    JobSummary,
    LeavingReply,
    ReplaceAsked,
    RescaleAsked,
    RowsAsked,
    SavepointAsked,
    SlotLines,
    SubmitReply,
    TriggerReply,
)
from barrier_runtime.coordinator.client.trust import Trust
from barrier_runtime.coordinator.status.status import CheckpointsStatus, JobStatus, Room
from barrier_runtime.coordinator.status.why.reason import Answer
from barrier_runtime.coordinator.wire.messages import JobSpec, Subject
from barrier_runtime.state.errors import InvalidJob, Unavailable

Reply = TypeVar("Reply")
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
