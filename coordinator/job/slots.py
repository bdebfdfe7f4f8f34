"""Slots of a job in the coordinator, by index.

A link is a connection, a uuid a process, a task attempt Spark's number for the process's task. A higher attempt of an
index replaces a lower attempt. A process fenced for silence is never accepted again: a stalled process ends on waking
up.
"""

from collections import OrderedDict
from collections.abc import Container, Iterator, Mapping
from typing import TypeAlias

import msgspec

from barrier_runtime.coordinator.job.effects import KillSlotTask
from barrier_runtime.coordinator.job.events import Link
from barrier_runtime.coordinator.job.slot import (
    Contact,
    Joined,
    Reconnected,
    Refused,
    RegisteredSlot,
    Registration,
    Seats,
    SlotState,
    registered,
)
from barrier_runtime.coordinator.metric_table import LOOP_LAG_MS
from barrier_runtime.coordinator.status.history import KnownSlot
from barrier_runtime.coordinator.status.latency import ReportedHistograms
from barrier_runtime.coordinator.status.status import AbsentSlot, Room, SlotDuring
from barrier_runtime.coordinator.wire.messages import Heartbeat, JobSpec, Peer, Register

_Place: TypeAlias = tuple[str, int]  # (program, index)
_Task: TypeAlias = tuple[int, bool]  # (number of the start, whether a successor)


def _place(register: Register) -> _Place:
    return register.program, register.slot


def _task(slot: RegisteredSlot) -> _Task:
    return slot.started_as, slot.register.succeeds


class SlotTable:
    def __init__(self, spec: JobSpec, heartbeat_ms: int) -> None:
        self._job = spec.job
        self._carrier = spec.carrier
        self._program = spec.program
        self._heartbeat_ms = heartbeat_ms
        self._parallelism = spec.parallelism
        self._left_from = float("inf")  # lowest number that has left the job, perhaps to return
        self._spare_slots = spec.spare_slots  # standbys of the job's program from `parallelism` on
        self._seats = Seats()  # of the job's program
        self._slots: dict[int, RegisteredSlot] = {}
        self._standbys: dict[_Place, RegisteredSlot] = {}
        self._successors: dict[int, RegisteredSlot] = {}  # wait beside the member that leaves a host
        self._moved_in: set[str] = set()  # uuids of former successors
        self._awaited: str | None = spec.program  # program of admitted standbys; None: any
        self._admitted = spec.parallelism  # of that program: slots below this
        self._by_link: OrderedDict[Link, RegisteredSlot] = OrderedDict()  # longest unheard first
        self._cut_off: dict[str, RegisteredSlot] = {}  # by uuid; slots without a connection
        self._given_up: dict[str, str] = {}  # uuid -> reason
        self._kills: dict[_Task, KillSlotTask] = {}
        self._moves: dict[int, KillSlotTask] = {}  # of living slots
        self._asked_away: set[str] = set()  # uuids; outlives `_moves`
        self._known: tuple[KnownSlot, ...] | None = None
        self._answered: dict[_Place, str] = {}  # process and link of the answered Register
        self.room = Room()
        self.forgiven_ms = 0  # last stall of this coordinator
        self.unknown_until_ms = 0  # until then a slot that never registered here may live
        self.departed: list[ReportedHistograms] = []

    def __iter__(self) -> Iterator[RegisteredSlot]:
        return iter(tuple(self._slots.values()))

    def is_first_answer(self, slot: RegisteredSlot) -> bool:
        connection = f"{slot.uuid} {slot.link}"
        place = _place(slot.register)
        if self._successors.get(slot.index) is slot:
            place = (place[0], -1 - slot.index)
        before, self._answered[place] = self._answered.get(place), connection
        return before != connection

    def admit_any(self, parallelism: int) -> None:
        """Admits slots of any program, until the log is known."""
        self._awaited, self._admitted = None, max(parallelism, self._parallelism)
        for slot in (*self, *self.standbys):
            self._adopt(slot.started_as, slot.register)

    def admit(self, parallelism: int, program: str | None = None) -> tuple[RegisteredSlot, ...]:
        """`program`: None: the job's. Returns superfluous standbys."""
        self._awaited = self._program if program is None else program
        self._admitted = max(parallelism, self._parallelism) if self._awaited == self._program else parallelism
        return self._unwanted_standbys()

    def stands_by(self, slot: RegisteredSlot) -> bool:
        return self._standbys.get(_place(slot.register)) is slot or self._successors.get(slot.index) is slot

    @property
    def standbys(self) -> tuple[RegisteredSlot, ...]:
        return tuple(self._standbys[place] for place in sorted(self._standbys))

    @property
    def successors(self) -> tuple[RegisteredSlot, ...]:
        return tuple(self._successors.values())

    def ready_successors(self, now_ms: int) -> dict[int, RegisteredSlot]:
        return {slot.index: slot for slot in self._successors.values() if self._is_ready(slot, now_ms)}

    def promote(self, *, only_ready_at: int) -> tuple[RegisteredSlot, ...]:
        """Gives slots to their successors. Returns processes that leave."""
        leaving, waiting = [], dict[int, RegisteredSlot]()
        for index, slot in self._successors.items():
            if not self._is_member(_place(slot.register)) or self._seats.index(slot.started_as) != index:
                leaving.append(slot)
                continue
            if not self._is_ready(slot, only_ready_at):
                waiting[index] = slot
                continue
            before = self._slots.get(index)
            if before is not None:
                leaving.append(before)
                self._cut_off.pop(before.uuid, None)
                self._asked_away.add(before.uuid)
            self._slots[index], self._known = slot, None
            self._moved_in.add(slot.uuid)
        self._successors = waiting
        self._slots = dict(sorted(self._slots.items()))
        return tuple(leaving)

    def _is_ready(self, slot: RegisteredSlot, now_ms: int) -> bool:
        return slot.is_ready(now_ms, 3 * self._heartbeat_ms)

    def missing_standbys(self, now_ms: int) -> tuple[int, ...]:
        there = {slot.index for slot in self._standbys.values() if self._is_ready(slot, now_ms)}
        first = self._parallelism if self._awaited == self._program else 0
        return tuple(index for index in range(first, self._admitted) if index not in there)

    def resize(self, parallelism: int, program: str = "", *, keep: bool = False) -> tuple[RegisteredSlot, ...]:
        """Returns the slots that leave. With `keep`, slots of the previous program stand by."""
        leaving: tuple[RegisteredSlot, ...] = ()
        awaited, admitted = program, parallelism
        resized = (program, parallelism) != (self._program, self._parallelism)
        while resized and (index := self._seats.exchanged) is not None:  # the driver starts and ends slots by these
            self._exchange(index, self._seats.started_as(index))
        if program != self._program:
            before, self._slots, self._kills = tuple(self), {}, {}
            if keep:
                awaited, admitted = self._program, self._parallelism
                self._standbys.update({_place(slot.register): slot for slot in before if slot.connected})
            else:
                leaving = before
        self._left_from = min(self._left_from, parallelism) if parallelism < self._parallelism else self._left_from
        self._program, self._parallelism, self._awaited, self._admitted = program, parallelism, awaited, admitted
        for place in [place for place in self._standbys if place[0] == program and place[1] < parallelism]:
            self._slots[place[1]] = self._standbys.pop(place)
        self._slots, self._known = dict(sorted(self._slots.items())), None
        self._moves.clear()
        self._kills = {task: kill for task, kill in self._kills.items() if task[0] < parallelism + self._spare_slots}
        beyond = [self._slots.pop(index) for index in list(self._slots) if index >= parallelism]
        self._standbys.update({_place(slot.register): slot for slot in beyond})  # some are spares now
        leaving = (*leaving, *self._unwanted_standbys())
        self._cut_off = {uuid: slot for uuid, slot in self._cut_off.items() if self._has(slot)}
        return leaving

    def _unwanted_standbys(self) -> tuple[RegisteredSlot, ...]:
        unwanted = [place for place in sorted(self._standbys) if not self._has_place(place)]
        leaving = tuple(self._standbys.pop(place) for place in unwanted)
        for slot in leaving:
            self._cut_off.pop(slot.uuid, None)
        return leaving

    def _has_place(self, place: "_Place") -> bool:
        program, index = place
        if program == self._program and 0 <= index < self._parallelism + self._spare_slots:
            return True
        return 0 <= index < self._admitted and self._awaited in (None, program)

    def _is_member(self, place: "_Place") -> bool:
        return place[0] == self._program and place[1] < self._parallelism

    def _present(self, place: "_Place") -> RegisteredSlot | None:
        return self._slots.get(place[1]) if self._is_member(place) else self._standbys.get(place)

    def at(self, index: int) -> RegisteredSlot | None:
        return self._slots.get(index)

    def by_link(self, link: Link) -> RegisteredSlot | None:
        return self._by_link.get(link)

    @property
    def connected(self) -> tuple[RegisteredSlot, ...]:
        return tuple(slot for slot in self if slot.connected)

    @property
    def longest_unheard(self) -> RegisteredSlot | None:
        heard = self._by_link.values()
        return next((each for each in heard if self._slots.get(each.index) is each or self.stands_by(each)), None)

    @property
    def cut_off(self) -> tuple[RegisteredSlot, ...]:
        return tuple(slot for slot in self._cut_off.values() if self._slots.get(slot.index) is slot)

    @property
    def expected_until_ms(self) -> int:
        unknown_ms = self.unknown_until_ms if len(self._slots) < self._parallelism else 0
        return max([unknown_ms, *(slot.gone_ms or 0 for slot in self.cut_off)])

    @property
    def missing(self) -> tuple[int, ...]:
        if len(self._slots) == self._parallelism and not self.cut_off:
            return ()
        return tuple(
            index for index in range(self._parallelism) if index not in self._slots or not self._slots[index].connected
        )

    def absences(self) -> tuple[AbsentSlot, ...]:
        """Missing slots, with host "" and time 0 if never registered here."""
        found = []
        for index in self.missing:
            slot = self._slots.get(index)
            kill = None if slot is None else self._kills.get(_task(slot))
            host = "" if slot is None else slot.register.host
            since_ms = 0 if slot is None or slot.gone_ms is None else slot.gone_ms
            ending = None if kill is None else kill.task_attempt
            found.append(AbsentSlot(index, host, since_ms, ending, self._carrier, self._seats.started_as(index)))
        return tuple(found)

    @property
    def kills(self) -> tuple[KillSlotTask, ...]:
        """Requested kills and moves, until a replacement has registered."""
        moves = [move for index, move in self._moves.items() if self._slots[index].uuid == move.uuid]
        wanted = {each.uuid: each for each in (*moves, *self._kills.values())}
        return tuple(sorted(wanted.values(), key=lambda each: (each.slot, each.task_attempt)))

    def all_in(self, *states: SlotState) -> bool:
        return not self.missing and all(slot.state in states for slot in self)

    def peers(self) -> tuple[Peer, ...]:
        return tuple(
            Peer(slot.index, slot.uuid, slot.register.data_host, slot.register.data_port) for slot in self.connected
        )

    def register(self, link: Link, register: Register, now_ms: int) -> Registration:
        started_as = register.slot
        if register.program == self._program:
            if register.uuid not in self._given_up:
                self._adopt(started_as, register)
            register = msgspec.structs.replace(register, slot=self._seats.index(started_as))
        refusal = self._why_refused(register)
        if register.program == self._program and (refusal is None or refusal.unneeded):
            self._kills.pop((started_as, register.succeeds), None)
        if refusal is not None:
            return refusal
        index, place, self._known = register.slot, _place(register), None
        succeeds = self._succeeds(register)
        existing = self._successors.get(index) if succeeds else self._present(place)
        if existing is not None and existing.uuid == register.uuid:
            old_link, existing.link = existing.link, link
            if old_link is not None:
                self._by_link.pop(old_link, None)
            existing.register, existing.lost_ms, existing.asked_to_prefetch = register, None, ("", 0)
            existing.gone_ms = None
            self._cut_off.pop(existing.uuid, None)
            self._by_link[link] = existing
            self.heard(existing, now_ms)
            existing.deployed_token = max(existing.deployed_token, register.token)
            return Reconnected(existing, old_link)
        latency = ReportedHistograms(began_empty=register.token == 0)
        contact = Contact(self._heartbeat_ms, now_ms)
        slot = RegisteredSlot(index, register, link, now_ms, contact, deployed_token=register.token, latency=latency)
        slot.registered_ms = now_ms
        slot.started_as = started_as
        slot.clock_ms = None if register.facts is None else register.facts.clock_ms - now_ms
        if succeeds:
            self._successors[index] = slot
        elif self._is_member(place):
            self._slots[index] = slot
            self._slots = dict(sorted(self._slots.items()))  # here, because iterating is frequent
            if register.succeeds:  # the process before is gone already
                self._moved_in.add(register.uuid)
        else:
            self._standbys[place] = slot
        self._by_link[link] = slot
        if existing is not None:
            self._depart(existing)
        return Joined(slot, existing)

    def _succeeds(self, register: Register) -> bool:
        """Until the log is known, the process that has the slot may register later."""
        place = _place(register)
        if not register.succeeds or register.token or not self._is_member(place):
            return False
        present = self._slots.get(register.slot)
        if present is not None and present.uuid == register.uuid:
            return False
        return self._awaited is None or (present is not None and present.connected)

    def expect(self, known: KnownSlot, now_ms: int, until_ms: int) -> None:
        """A predecessor's process counts as lost unless registered by `until_ms`, so the task can be ended."""
        if known.program != self._program or not 0 <= known.slot < self._parallelism:
            return
        if self._may_change_places(known.slot, known.started_as) and known.slot not in self._slots:
            self._exchange(known.slot, self._seats.index(known.started_as))
        if known.slot in self._slots:
            return
        register = registered(known)
        contact = Contact(self._heartbeat_ms, until_ms)
        slot = RegisteredSlot(known.slot, register, None, now_ms, contact, SlotState.OUT_OF_REACH, lost_ms=until_ms)
        slot.gone_ms, self._cut_off[slot.uuid] = until_ms, slot
        slot.started_as = self._seats.started_as(known.slot)
        self._slots[known.slot] = slot
        self._slots, self._known = dict(sorted(self._slots.items())), None

    def known(self) -> tuple[KnownSlot, ...]:
        if self._known is None:
            self._known = tuple(slot.known for slot in self)
        return self._known

    def heard(self, slot: RegisteredSlot, now_ms: int) -> None:
        slot.last_seen_ms = now_ms
        if slot.link is not None:
            self._by_link.move_to_end(slot.link)
        slot.contact.heard(now_ms)

    def during(self, since_ms: int, now_ms: int) -> tuple[SlotDuring, ...]:
        seen = (slot.contact.during(slot.index, since_ms, now_ms) for slot in self)
        return tuple(each for each in seen if each is not None)

    def metrics(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        return ((slot.uuid, slot.metrics) for slot in self)

    def heartbeat(self, slot: RegisteredSlot, message: Heartbeat, now_ms: int) -> None:
        if now_ms - slot.beat_ms > 3 * self._heartbeat_ms:
            slot.in_time_since_ms = now_ms
        slot.beat_ms = now_ms
        slot.unheard = message.unheard if message.token == slot.deployed_token else {}
        slot.metrics = message.metrics
        slot.prefetched = message.prefetched
        slot.notices = message.notices
        slot.figures.tell(message.token, message.sent_at_ms, message.metrics)
        slot.sources = message.sources
        slot.contact.heartbeat(message.sent_at_ms, message.metrics.get(LOOP_LAG_MS.name, 0.0), now_ms)
        slot.opening = message.opening if message.token == slot.deployed_token else {}
        if message.blocked:
            slot.blocked, slot.blocked_reported_ms = message.blocked, now_ms
            slot.blocked_reading, slot.blocked_starved = message.blocked_reading, message.blocked_starved
        if message.latency:
            slot.latency.tell(message.latency, now_ms)

    def lost(self, link: Link, now_ms: int) -> RegisteredSlot | None:
        slot = self._by_link.pop(link, None)
        if slot is not None and self._successors.get(slot.index) is slot:
            del self._successors[slot.index]
            slot.link = None
            return None
        if slot is not None:
            slot.link, slot.lost_ms, slot.state = None, now_ms, SlotState.OUT_OF_REACH
            slot.gone_ms = now_ms
            self._cut(slot)
        return slot

    def silent(self, now_ms: int, timeout_ms: int) -> tuple[RegisteredSlot, ...]:
        return tuple(slot for slot in self.connected if now_ms - slot.last_seen_ms >= timeout_ms)

    def silent_beside(self, now_ms: int, timeout_ms: int) -> tuple[RegisteredSlot, ...]:
        """Standbys and successors: connections outlive a process that hangs."""
        beside = (slot for slot in (*self._standbys.values(), *self._successors.values()) if slot.connected)
        return tuple(slot for slot in beside if now_ms - slot.last_seen_ms >= timeout_ms)

    def forgive(self, now_ms: int) -> None:
        self.forgiven_ms = now_ms
        for slot in (*self, *self._standbys.values(), *self._successors.values()):
            slot.last_seen_ms = now_ms
            slot.contact.forgive(now_ms)
            slot.in_time_since_ms = now_ms
            if slot.lost_ms is not None:
                slot.lost_ms = max(now_ms, slot.lost_ms)

    def give_up(self, slot: RegisteredSlot, reason: str) -> None:
        self._given_up[slot.uuid] = reason

    def to_be_killed(self) -> tuple[tuple[RegisteredSlot, int], ...]:
        """Unreachable slots, and when last heard (0: given up).

        Kill only while leading: a deposed coordinator hears no slot.
        """
        return tuple(
            (slot, 0 if slot.uuid in self._given_up else slot.last_seen_ms)
            for slot in (*self.cut_off, *self._replaced_by_spares)
            if _task(slot) not in self._kills
        )

    def want_moved(self, slot: RegisteredSlot) -> KillSlotTask:
        move = KillSlotTask(slot.started_as, slot.register.task_attempt, slot.uuid, slot.register.host)
        self._moves[slot.index] = move
        self._asked_away.add(slot.uuid)
        return move

    def stay(self) -> None:
        self._moves.clear()

    def is_carried_twice(self, slot: RegisteredSlot) -> bool:
        """Returns whether two Spark jobs may carry the slot: it was to move, or had left and came back."""
        return slot.uuid in self._asked_away or slot.index >= self._left_from

    def want_killed(self, slot: RegisteredSlot) -> KillSlotTask:
        kill = KillSlotTask(slot.started_as, slot.register.task_attempt, slot.uuid)
        self._kills[_task(slot)] = kill
        return kill

    def disconnect(self, slot: RegisteredSlot) -> Link | None:
        """The caller closes the link."""
        link, slot.link, slot.state = slot.link, None, SlotState.OUT_OF_REACH
        slot.gone_ms = slot.last_seen_ms
        if self._successors.get(slot.index) is slot:
            del self._successors[slot.index]
        self._cut(slot)
        if link is not None:
            self._by_link.pop(link, None)
        return link

    def _cut(self, slot: RegisteredSlot) -> None:
        if self._has(slot):  # otherwise the slot has left the job
            self._cut_off[slot.uuid] = slot

    def _has(self, slot: RegisteredSlot) -> bool:
        return self._present(_place(slot.register)) is slot

    def ready_spares(self, now_ms: int) -> tuple[RegisteredSlot, ...]:
        return tuple(slot for slot in self.standbys if self._is_spare(slot) and self._is_ready(slot, now_ms))

    def take_spares(
        self, now_ms: int, leaving: Container[str] = ()
    ) -> tuple[tuple[RegisteredSlot, ...], tuple[RegisteredSlot, ...]]:
        """Gives numbers of missing slots to ready spares, last of hosts that are `leaving`: docs/design/spare-slots.md.

        Also returns successors that leave, because a spare was sooner.
        """
        taken, superfluous = [], []
        for index in self.missing:
            lost, ready = self._slots.get(index), self.ready_spares(now_ms)
            if not ready:
                break
            if now_ms < (self.unknown_until_ms if lost is None else lost.gone_ms or 0):
                continue  # may connect again
            host = "" if lost is None else lost.register.host
            avoided = {each.index for each in ready if each.notices or each.register.host in leaving}
            spare = min(ready, key=lambda each: (each.index in avoided, each.register.host == host, each.index))
            if (successor := self._successors.pop(index, None)) is not None:
                superfluous.append(successor)
            if lost is not None:
                self.give_up(lost, f"spare {spare.uuid} on {spare.register.host} has the number of this process")
            self._exchange(index, spare.index)
            taken.append(spare)
        return tuple(taken), tuple(superfluous)

    def gone(self) -> tuple[int, ...]:
        """Numbers, as started, of the job's slots and spares that are not connected."""
        indices = range(self._parallelism + self._spare_slots)
        places = {self._seats.started_as(index): self._present((self._program, index)) for index in indices}
        return tuple(sorted(number for number, slot in places.items() if slot is None or not slot.connected))

    @property
    def _replaced_by_spares(self) -> tuple[RegisteredSlot, ...]:
        return tuple(
            slot
            for slot in self._cut_off.values()
            if slot.uuid in self._given_up and self._is_spare(slot) and self._has(slot)
        )

    def _is_spare(self, slot: RegisteredSlot) -> bool:
        own = slot.register.program == self._program
        return own and self._parallelism <= slot.index < self._parallelism + self._spare_slots

    def _adopt(self, started_as: int, register: Register) -> None:
        """After a restart of the coordinator: the number of a process that runs under another number."""
        seat = -1 if register.phase == "idle" else register.seat
        if register.program != self._program or not self._may_change_places(seat, started_as):
            return
        occupant = self._present((self._program, seat))
        if occupant is None or occupant.deployed_token < register.token:
            self._exchange(seat, self._seats.index(started_as))
            beside = self._slots.get(seat)
            if beside is not None and beside.register.succeeds and not beside.deployed_token:
                self._successors[seat] = self._slots.pop(seat)  # registered first, when the seats were unknown

    def _may_change_places(self, index: int, started_as: int) -> bool:
        numbers = range(self._parallelism + self._spare_slots)
        return index in numbers and started_as in numbers and self._seats.index(started_as) != index

    def _exchange(self, one: int, other: int) -> None:
        places = ((one, other), (other, one))
        slots = [(self._taken((self._program, index)), to) for index, to in places]
        self._moves.clear()
        self._seats.exchange(one, other)
        for slot, index in slots:
            if slot is not None:
                slot.index, slot.register = index, msgspec.structs.replace(slot.register, slot=index)
                if self._is_member(_place(slot.register)):
                    self._slots[index] = slot
                else:
                    self._standbys[_place(slot.register)] = slot
        self._slots, self._known = dict(sorted(self._slots.items())), None

    def _taken(self, place: "_Place") -> RegisteredSlot | None:
        return self._slots.pop(place[1], None) if self._is_member(place) else self._standbys.pop(place, None)

    def _why_refused(self, register: Register) -> Refused | None:
        if not self._has_place(_place(register)):
            reason = f"slot {register.slot} does not exist in job {self._job} of parallelism {self._parallelism}"
            if register.program != self._program:
                reason = f"job {self._job} has another program than that of this slot {register.slot}"
            return Refused(reason, unneeded=register.slot >= 0)
        if register.uuid in self._given_up:
            return Refused(f"slot {register.slot} of job {self._job} was given up: {self._given_up[register.uuid]}")
        existing = self._present(_place(register))
        if existing is None or existing.uuid == register.uuid:
            return None
        keeps = existing.uuid in self._moved_in - self._asked_away
        if keeps and existing.connected and not (register.succeeds or register.token):
            reason = f"slot {register.slot} of job {self._job} has moved to {existing.register.host}"
            return Refused(reason, unneeded=True)
        if register.task_attempt < existing.register.task_attempt:
            return Refused(
                f"slot {register.slot} of job {self._job} was replaced by task attempt "
                f"{existing.register.task_attempt} on {existing.register.host}",
                unneeded=register.uuid in self._asked_away or register.slot >= self._left_from,
            )
        return None

    def _depart(self, slot: RegisteredSlot) -> None:
        if slot.link is not None:
            self._by_link.pop(slot.link, None)
        self._cut_off.pop(slot.uuid, None)
        self._given_up.setdefault(slot.uuid, "a newer task attempt took its place")
        if slot.latency.newest:
            self.departed.append(slot.latency)
            del self.departed[:-64]
