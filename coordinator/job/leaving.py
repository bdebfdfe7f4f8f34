"""Notices of slots that have to leave their hosts. Pure. States and events: docs/design/leaving-hosts.md."""

from collections.abc import Iterable
from dataclasses import dataclass

from barrier_runtime.coordinator.job.slot import RegisteredSlot

NOTICE_MS = 300_000  # a notice without a replacement ends
GATHER_MS = 5_000  # wait of a replacement for the others of the same move
RETRY_MS = 2_000  # after a move that failed


@dataclass
class Notice:
    since_ms: int
    count: int = 0  # of signals that the process has reported
    ended: bool = False


class Leaving:
    def __init__(self) -> None:
        self._notices: dict[str, Notice] = {}  # by process uuid
        self._failed_ms: int | None = None

    def host(self, host: str, slots: Iterable[RegisteredSlot], now_ms: int) -> None:
        """Later processes of `host` are not meant: a host may stay after all."""
        for slot in slots:
            if slot.register.host == host:
                notice = self._notices.setdefault(slot.uuid, Notice(now_ms))
                if notice.ended:
                    notice.since_ms, notice.ended = now_ms, False

    def look(self, slots: Iterable[RegisteredSlot], now_ms: int) -> None:
        found: dict[str, Notice] = {}  # a process that went is forgotten
        for slot in slots:
            notice = self._notices.get(slot.uuid)
            if slot.notices > (0 if notice is None else notice.count):
                renewed = notice is None or notice.ended
                notice = Notice(now_ms if renewed or notice is None else notice.since_ms, slot.notices)
            if notice is not None:
                notice.ended = notice.ended or now_ms - notice.since_ms >= NOTICE_MS
                found[slot.uuid] = notice
        self._notices = found

    def of(self, slot: RegisteredSlot) -> Notice | None:
        return self._notices.get(slot.uuid)

    @property
    def any(self) -> bool:
        return bool(self._notices)

    def failed(self, now_ms: int) -> None:
        self._failed_ms = now_ms

    def may_move(self, now_ms: int) -> bool:
        return self._failed_ms is None or now_ms - self._failed_ms >= RETRY_MS
