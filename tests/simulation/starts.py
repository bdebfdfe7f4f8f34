"""Faults while new slots start, and their checker: the job stays untouched, and its history has the reason.

New programs may fail to import, may not fit the state of the job, or may fail to open their operators."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import msgspec
from checkers import Checker, Report
from facts import Facts
from workload import Workload

from barrier_runtime.coordinator.job.protocol import JobProtocol
from barrier_runtime.coordinator.log.records import Fence, Record
from barrier_runtime.coordinator.status.history import decode_history
from barrier_runtime.coordinator.status.status import RescaleStatus
from barrier_runtime.coordinator.wire.messages import JobSpec, Register
from barrier_runtime.runtime.network.control_link import ControlLink

NOT_IMPORTED = "ModuleNotFoundError: No module named 'of_the_new_program'"
_NEVER_MOVES = {"broken": NOT_IMPORTED, "unfit": "has state of operators that the job no longer has"}


class NewSlotsStart(Checker):
    """A program that cannot be imported, or does not fit, never gets the job.

    No generation ends for a program that is still starting. The history has the reason of each failed change. A slot
    that the driver was asked for is not dismissed."""

    def __init__(self, facts: Facts, workload: Workload, report: Report) -> None:
        super().__init__(facts, workload, report)
        self._kinds: dict[str, str] = {}  # program -> its fault

    def program(self, name: str, kind: str, spec: JobSpec) -> JobSpec:
        self._kinds[name] = kind
        if kind != "unfit":
            return spec
        other = [msgspec.structs.replace(each, operators=tuple(map(_other, each.operators))) for each in spec.chains]
        return msgspec.structs.replace(spec, chains=tuple(other))

    def is_unwell(self, program: str) -> bool:
        return self._kinds.get(program) == "unwell"

    def link(self, program: str, link: ControlLink) -> ControlLink:
        return _BrokenLink(link) if self._kinds.get(program) == "broken" else link

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        registered = JobProtocol._on_registered

        def on_registered(protocol: Any, link: int, register: Register, now_ms: int) -> Any:
            self.on_register(protocol, register)
            return registered(protocol, link, register, now_ms)

        with patch.object(JobProtocol, "_on_registered", on_registered):
            yield

    def on_register(self, protocol: JobProtocol, register: Register) -> None:
        wanted, refused = protocol.standbys, protocol._job.slots._why_refused(register)
        if wanted is None or refused is None or not refused.unneeded or register.program != wanted.program:
            return
        if wanted.first <= register.slot <= wanted.last:
            self.wrong(f"slot {register.slot} of {wanted.request} was asked for, and is sent away: {refused.reason}")

    def on_record(self, position: int, record: Record) -> None:
        if not isinstance(record, Fence):
            return
        kind = self._kinds.get(record.spec.program, "")
        if kind in _NEVER_MOVES:
            self.wrong(f"the FENCE at {position} has program {record.spec.program}, which is {kind}")
        for sign in (NOT_IMPORTED, "did not come within", "did not fetch their key groups"):
            if sign in record.reason:
                self.wrong(f"the FENCE at {position} ends a generation because new slots did not start: {sign}")

    def on_put(self, actor: str, key: str, data: bytes, read: Callable[[str], bytes | None]) -> None:
        if key == self.facts.paths.history:
            for each in decode_history(key, data).rescales:
                self._judge(each)

    def _judge(self, change: RescaleStatus) -> None:
        kind = self._kinds.get(change.id, "")
        if (change.state == "failed") is not bool(change.error):
            self.wrong(f"{change.kind} {change.id} is {change.state}, and the history says why: {change.error!r}")
        elif change.state == "done" and kind in _NEVER_MOVES:
            self.wrong(f"the history says that {change.id} is done, which is {kind}")


class _BrokenLink:
    """The control connection of a slot that reports a failed import of its program (`spark/task`)."""

    def __init__(self, link: ControlLink) -> None:
        self._link = link

    def send(self, message: Any) -> Any:
        broken = isinstance(message, Register)
        return self._link.send(msgspec.structs.replace(message, broken=NOT_IMPORTED) if broken else message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)


def _other(operator: str) -> str:
    return f"{operator}-of-the-new-program"


START_CHECKERS: tuple[type[Checker], ...] = (NewSlotsStart,)  # for every kind of job
