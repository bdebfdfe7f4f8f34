"""Slot of a job in the coordinator, and notices that slots leave their hosts (docs/design/leaving-hosts.md). Pure."""

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from barrier_runtime.coordinator.job.events import Link
from barrier_runtime.coordinator.status.history import KnownSlot
from barrier_runtime.coordinator.status.latency import ReportedHistograms
from barrier_runtime.coordinator.status.shares import ReportedFigures
from barrier_runtime.coordinator.status.status import SlotDuring
from barrier_runtime.coordinator.wire.messages import HeldBack, Probed, Register

_KEPT = 32
_STALL_MS = 150.0
_SPARE_MS = 500  # shorter silences (beyond the heartbeat interval) and delays are not reported


class Contact:
    """Notable silences and stalls, as evidence for slow checkpoints."""

    def __init__(self, heartbeat_ms: int, now_ms: int) -> None:
        self._notable_ms = heartbeat_ms + _SPARE_MS
        self._heard_ms = now_ms
        self._shortest_ms: int | None = None  # shortest transfer of a heartbeat; negative if clocks differ
        self._silences: deque[tuple[int, int]] = deque(maxlen=_KEPT)  # (end, duration)
        self._stalls: deque[tuple[int, float]] = deque(maxlen=_KEPT)
        self._delays: deque[tuple[int, float]] = deque(maxlen=_KEPT)

    def heard(self, now_ms: int) -> None:
        silent_ms, self._heard_ms = now_ms - self._heard_ms, now_ms
        if silent_ms >= self._notable_ms:
            self._silences.append((now_ms, silent_ms))

    def forgive(self, now_ms: int) -> None:
        """For stalls of the coordinator itself."""
        self._heard_ms = now_ms

    def heartbeat(self, sent_at_ms: int, lag_ms: float, now_ms: int) -> None:
        if lag_ms >= _STALL_MS:
            self._stalls.append((now_ms, lag_ms))
        way_ms = now_ms - sent_at_ms
        self._shortest_ms = way_ms if self._shortest_ms is None else min(self._shortest_ms, way_ms)
        if way_ms - self._shortest_ms >= _SPARE_MS:
            self._delays.append((now_ms, float(way_ms - self._shortest_ms)))

    def during(self, slot: int, since_ms: int, now_ms: int) -> SlotDuring | None:
        silences = [length for ended, length in self._silences if ended > since_ms]
        if now_ms - self._heard_ms >= self._notable_ms:
            silences.append(now_ms - self._heard_ms)
        stalls = [length for ended, length in self._stalls if ended > since_ms]
        delays = [length for ended, length in self._delays if ended > since_ms]
        if not (silences or stalls or delays):
            return None
        return SlotDuring(slot, max(silences, default=0), max(stalls, default=0.0), max(delays, default=0.0))


class SlotState(enum.Enum):
    REGISTERED = "registered"  # connected, without a deployment of this generation
    RESTORING = "restoring"
    READY = "ready"  # restored, waits for the other slots
    RUNNING = "running"
    OUT_OF_REACH = "out of reach"  # the process may come back


@dataclass
class RegisteredSlot:
    index: int
    register: Register
    link: Link | None
    last_seen_ms: int
    contact: Contact
    state: SlotState = SlotState.REGISTERED
    deployed_token: int = 0  # newest generation of this process
    lost_ms: int | None = None
    gone_ms: int | None = None  # `lost_ms`, unchanged by a stall of this coordinator
    metrics: dict[str, float] = field(default_factory=dict)
    latency: ReportedHistograms = field(default_factory=lambda: ReportedHistograms(began_empty=False))
    opening: dict[str, float] = field(default_factory=dict)  # this and fields of the same name: see `Heartbeat`
    figures: ReportedFigures = field(default_factory=ReportedFigures)
    sources: dict[str, HeldBack] = field(default_factory=dict)
    blocked: str = ""
    blocked_reported_ms: int = 0
    blocked_reading: bool = False
    blocked_starved: bool = False
    asked_to_prefetch: tuple[str, int] = "", 0  # move and checkpoint of the last Prefetch on this connection
    prefetched: int = 0  # of the last `Heartbeat` since the first Prefetch
    unheard: dict[int, int] = field(default_factory=dict)
    started_as: int = -1  # number of the process for the driver: `seats`
    differs: str = ""
    clock_ms: int | None = None  # ahead of the coordinator's
    probed: Probed | None = None
    beat_ms: int = 0
    in_time_since_ms: int = 0  # heartbeats have no gap since then
    notices: int = 0
    registered_ms: int = 0

    @property
    def uuid(self) -> str:
        return self.register.uuid

    @property
    def connected(self) -> bool:
        return self.link is not None

    def is_ready(self, now_ms: int, silent_ms: int) -> bool:
        return not self.register.broken and not self.is_silent(now_ms, silent_ms)

    def is_silent(self, now_ms: int, silent_ms: int) -> bool:
        return not self.connected or now_ms - self.last_seen_ms > silent_ms

    @property
    def started_under_other(self) -> int:
        """Number for the driver, if other than `index`; else -1."""
        return -1 if self.started_as == self.index else self.started_as

    @property
    def known(self) -> KnownSlot:
        r = self.register
        return KnownSlot(r.slot, r.uuid, r.pid, r.host, r.task_attempt, r.program, self.started_under_other)

    def is_to_prefetch(self, move: str, checkpoint: int) -> bool:
        """Files fetched for another move do not count."""
        before, self.asked_to_prefetch = self.asked_to_prefetch, (move, checkpoint)
        if before[0] != move:
            self.prefetched = 0
        return before != (move, checkpoint)


def registered(known: KnownSlot) -> Register:
    of_process = known.slot, known.uuid, known.pid, known.host, known.task_attempt
    return Register(*of_process, "", 0, 0, "idle", program=known.program)


@dataclass(frozen=True)
class Joined:
    slot: RegisteredSlot
    replaced: RegisteredSlot | None

    @property
    def death(self) -> str:
        """Cause of the previous process's death; "" if unknown."""
        if self.replaced is None or self.replaced.register.host != self.slot.register.host:
            return ""
        pid = self.replaced.register.pid
        of = self.slot.register.died.get(pid)
        return f"process {pid} of slot {self.slot.index} died of {of}" if of else ""


@dataclass(frozen=True)
class Reconnected:
    slot: RegisteredSlot
    old_link: Link | None


@dataclass(frozen=True)
class Refused:
    """`unneeded`: the job has fewer slots now."""

    reason: str
    unneeded: bool = False


Arrival: TypeAlias = Joined | Reconnected
Registration: TypeAlias = Arrival | Refused


class Seats:
    """Numbers of slots, by the numbers under which the driver started their processes.

    A permutation: a process has the first number until a spare takes the place.
    """

    def __init__(self) -> None:
        self._index: dict[int, int] = {}
        self._started_as: dict[int, int] = {}

    def index(self, started_as: int) -> int:
        return self._index.get(started_as, started_as)

    def started_as(self, index: int) -> int:
        return self._started_as.get(index, index)

    def exchange(self, one: int, other: int) -> None:
        first, second = self.started_as(one), self.started_as(other)
        self._index[first], self._index[second] = other, one
        self._started_as[other], self._started_as[one] = first, second

    @property
    def exchanged(self) -> int | None:
        """A number whose process was started under another number; None: no such number."""
        return next((index for index, started in self._started_as.items() if index != started), None)


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
