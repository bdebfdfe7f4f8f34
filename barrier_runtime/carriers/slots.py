"""All slots of a job, started again while the coordinator wants them.

A carrier replaces a single dead slot; this file submits again if a whole submission failed. A slot added later has a
separate submission, so the program knows whether the slot still runs.

Contract of a carrier:

| call | Spark | processes |
|---|---|---|
| `submit` | a job with a task per slot, which Spark replaces alone | a process per slot, replaced when it dies |
| `cancel` | the job group is cancelled | the processes of the group are killed |
| `kill` | the task attempt is killed and starts again | the process is killed and starts again |
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from barrier_runtime.connectors.memory.batch_function import MakeFrame
from barrier_runtime.coordinator.status.health import number_for_driver
from barrier_runtime.coordinator.status.status import LeavingSlot, Room, SparesStatus, StandbysWanted
from barrier_runtime.spark.task import SlotSettings


class Carrier(Protocol):
    """Any thread may call any method.

    A group names the slots of one `submit`; the names of a job's groups begin with the same text.
    """

    def submit(self, settings: SlotSettings, slots: Sequence[int], group: str, hosts: Sequence[str] = ()) -> None:
        """Runs `slots` until each has left, and replaces dead slots. Raises if that becomes impossible.

        `hosts`: preferred.
        """

    def cancel(self, group: str) -> None:
        """Ends the slots of `group` without waiting, also of a submission that has not begun."""

    def kill(self, attempt: int, reason: str) -> bool:
        """Ends a slot; a replacement starts. False: no such slot runs."""
        ...

    def elsewhere(self, attempt: int) -> Sequence[str]:
        """Hosts with room for a slot, except that of `attempt`, unless only the executor of `attempt` ends."""
        ...

    def leaving(self, attempts: Collection[int]) -> Mapping[int, str]:
        """Those of `attempts` whose executor Spark decommissions, with the host."""
        ...

    @property
    def one_host(self) -> bool:
        """Returns whether slots never have another host."""
        ...

    def trouble(self) -> Exception | None:
        """Reason why no slot can run any more, or None."""

    def room(self, groups: str) -> "RoomOfCarrier | None":
        """Free cores for the job whose groups begin with `groups`; None if unknown."""

    def described(self, slots: int) -> str:
        """Text about the cores, for slots that did not register."""
        ...

    @property
    def frames(self) -> MakeFrame:
        """Makes data frames for functions of `for_each_batch`."""
        ...

    @property
    def environment(self) -> dict[str, str]:
        """Variables that slots need and their processes do not inherit."""
        ...

    def close(self) -> None:
        """Ends the processes and sessions that this program started."""


class RoomOfCarrier(Protocol):
    def look(self) -> Room:
        """Returns the room of the job."""
        ...

    def complete(self) -> None:
        """Records that no slot is missing: `look` then omits earlier failures."""


_FIRST_DELAY_S = 0.2
_MAX_DELAY_S = 30.0
_QUIET_S = 60.0  # a submission that lived this long resets the back-off


class Submission:
    """`wanted()`, asked before a failed submission is repeated: slots that the coordinator still wants."""

    def __init__(
        self,
        carrier: Carrier,
        settings: SlotSettings,
        slots: Sequence[int],
        wanted: Callable[[], Sequence[int]],
        group: str = "",
        hosts: Sequence[str] = (),
    ) -> None:
        self._carrier = carrier
        self._hosts = hosts
        self._settings = settings
        self._slots = tuple(slots)
        self._wanted = wanted
        self._group = f"{_group(settings)}{group}"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="barrier-slots", daemon=True)
        self.last_failure = ""
        self.submissions = 0

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def given_up(self) -> bool:
        return self._stopping.is_set()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Waits up to 30 s, whatever the slots do."""
        self.give_up()
        self._thread.join(30)

    def give_up(self) -> None:
        """Ends the submission without waiting, also if it has only begun."""
        self._stopping.set()
        self._carrier.cancel(self._group)

    def _supervise(self) -> None:
        delay = _FIRST_DELAY_S
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._submit()
                return
            except Exception as error:  # Spark raises many kinds; each means that the submission has ended
                self.last_failure = str(error)[:4000]
            if time.monotonic() - began > _QUIET_S:
                delay = _FIRST_DELAY_S
            if self._stopping.wait(delay):
                return
            self._slots = tuple(self._wanted())
            if not self._slots:
                return
            delay = min(delay * 2, _MAX_DELAY_S)

    def _submit(self) -> None:
        self.submissions += 1
        self._carrier.submit(self._settings, self._slots, self._group, self._hosts)


class AllSlots:
    """Slots of all submissions. For one thread, except `join` and `cancel`.

    `runs()`: true while the coordinator runs the job.
    """

    def __init__(
        self, carrier: Carrier, settings: SlotSettings, slots: Sequence[int], runs: Callable[[], bool]
    ) -> None:
        self._carrier = carrier
        self._programs = {settings.program: settings}
        self._runs = runs
        self._program, self._parallelism = settings.program, len(slots)  # from the coordinator's last status
        self._first = Submission(carrier, settings, slots, lambda: self._wanted_of(self._first))
        self._carried_by: dict[_Place, Submission] = {(settings.program, slot): self._first for slot in slots}
        self._standbys: StandbysWanted | None = None
        self._spares = 0
        self._asked = ""  # id of the newest request for standbys
        self._awaited: set[_Place] = set()  # slots of that request that are not started
        self._joined: set[Submission] = set()  # their slots were in the job: the coordinator ends them
        self._started = 0
        self._successors: dict[tuple[int, int], Submission] = {}  # by attempt and time of a notice: the one before
        self._before: dict[int, Submission] = {}  # by task attempt: of slots that start elsewhere

    def start(self) -> None:
        self._first.start()

    @property
    def group(self) -> str:
        return _group(next(iter(self._programs.values())))

    def learn(self, program: str, graph: bytes) -> None:
        first = self._programs[next(iter(self._programs))]
        self._programs.setdefault(program, replace(first, graph=graph, program=program))

    def follow(
        self,
        program: str,
        parallelism: int,
        standbys: StandbysWanted | None,
        missing: Sequence[int],
        away: Sequence[int] = (),
        spares: SparesStatus = SparesStatus(),
    ) -> None:
        """Follows a leading coordinator, whose job has `parallelism` slots of `program` and needs `standbys`.

        `missing`: slots of the job that are not connected. `away`: missing slots that the carrier does not replace, as
        on a lost host, which Spark notices late.
        """
        self._program, self._parallelism, self._standbys = program, parallelism, standbys
        self._spares, missing = spares.wanted, spares.gone if spares.wanted else missing
        if standbys is not None and standbys.program in self._programs:
            if standbys.request != self._asked:
                self._asked = standbys.request
                self._awaited = {(standbys.program, slot) for slot in range(standbys.first, standbys.last + 1)}
            # A slot started for an earlier coordinator keeps the place while the slot runs: two processes for a slot
            # would replace each other for ever.
            for place in sorted(place for place in self._awaited if not self._keeps(place)):
                self._awaited.discard(place)
                self._carry(place)
        for place, submission in tuple(self._carried_by.items()):
            if submission is self._first:
                if place[0] == self._program and not self._is_of_job(place):
                    del self._carried_by[place]  # the process leaves for good, although the submission goes on
                continue
            if not self._is_of_job(place):
                wanted = standbys is not None and place[0] == standbys.program
                if not wanted and submission.alive and submission not in self._joined:
                    submission.give_up()  # the slot may wait for a core in vain
            elif submission.alive:
                self._joined.add(submission)
            elif place[1] in missing:  # an outdated coordinator ordered the slot to leave
                self._carry(place)
        for place in [(program, slot) for slot in spares.gone]:
            if place not in self._carried_by:
                self._carry(place)
        for place in [(program, slot) for slot in away]:
            if self._carried_by.get(place) is self._first:
                self._carry(place)

    def _is_carried(self, place: "_Place") -> bool:
        """True if a separate submission runs the slot; the first submission outlives single slots."""
        submission = self._carried_by.get(place)
        return submission is not None and submission is not self._first and submission.alive and not submission.given_up

    def _keeps(self, place: "_Place") -> bool:
        """True if a process runs, or will run again by itself: of a standby, or of a spare that was a slot before."""
        first = self._carried_by.get(place) is self._first and self._first.alive
        return self._is_carried(place) or (first and self._spares > 0 and self._is_of_job(place))

    def _is_of_job(self, place: "_Place") -> bool:
        return place[0] == self._program and place[1] < self._parallelism + self._spares

    def _stands_by(self, place: "_Place") -> bool:
        wanted = self._standbys
        return wanted is not None and place[0] == wanted.program and wanted.first <= place[1] <= wanted.last

    def kill(self, attempt: int, reason: str) -> bool:
        return self._carrier.kill(attempt, reason)

    def move(self, slot: int, attempt: int, reason: str) -> None:
        """Starts the slot on another host, where it replaces `attempt`; if none has room, ends `attempt`."""
        hosts, place = self._carrier.elsewhere(attempt), (self._program, slot)
        if hosts and place in self._carried_by:
            self._before[attempt] = self._carried_by[place]
            self._carry(place, hosts)
        else:
            self.kill(attempt, reason)

    def succeed(self, slots: Sequence[LeavingSlot]) -> None:
        """Starts a successor of each slot that leaves its host, once another host has room."""
        hosts: Sequence[str] | None = () if self._carrier.one_host else None  # None: not asked yet
        for each in slots:
            place, notice = (self._program, number_for_driver(each)), (each.task_attempt, each.since_ms)
            if each.state == "ended" and notice in self._successors:
                self._return_to(self._successors.pop(notice), place)
            if each.state != "asked" or place not in self._carried_by:
                continue
            if notice in self._successors and self._carried_by[place].alive:
                continue
            if hosts is None:
                rooms = [set(self._carrier.elsewhere(other.task_attempt)) for other in slots]
                hosts = sorted(set.intersection(*rooms))
            if not hosts and not self._carrier.one_host:
                continue
            self._successors.setdefault(notice, self._carried_by[place])
            self._carry(place, hosts, succeeds=True)

    def _return_to(self, before: Submission, place: "_Place") -> None:
        self._carried_by[place].give_up()
        self._carried_by[place] = before

    def stay(self, slot: int, attempt: int, reason: str) -> None:
        """Ends `attempt`, which the process elsewhere has not replaced."""
        before, place = self._before.pop(attempt, None), (self._program, slot)
        if before is not None and place in self._carried_by:
            self._return_to(before, place)
            self.kill(attempt, reason)

    @property
    def last_failure(self) -> str:
        return next((each.last_failure for each in self._all if each.last_failure), "")

    @property
    def submissions(self) -> int:
        return next((each.submissions for each in self._all if each.last_failure), self._first.submissions)

    def join(self, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        return all(each.join(max(0.0, until - time.monotonic())) for each in self._all)

    def give_up(self) -> None:
        for each in self._all:
            each.give_up()

    def cancel(self) -> None:
        self.give_up()
        for each in self._all:
            each.cancel()

    @property
    def _all(self) -> tuple[Submission, ...]:
        return tuple(dict.fromkeys((self._first, *self._carried_by.values())))

    def _carry(self, place: "_Place", hosts: Sequence[str] = (), *, succeeds: bool = False) -> None:
        program, slot = place
        self._started += 1
        group = f"-{slot}-{self._started}"
        settings = replace(self._programs[program], succeeds=succeeds)
        submission = Submission(self._carrier, settings, [slot], lambda: self._wanted_of(submission), group, hosts)
        self._carried_by[place] = submission
        submission.start()

    def _wanted_of(self, submission: Submission) -> Sequence[int]:
        """Slots of `submission` to start again: slots of the job and awaited standbys. The first submission starts no
        standby: each standby gets a separate submission.
        """
        own = [place for place, by in dict(self._carried_by).items() if by is submission]
        if not self._runs():
            return ()
        own_standbys = submission is not self._first
        return [place[1] for place in own if self._is_of_job(place) or (own_standbys and self._stands_by(place))]


def _group(settings: SlotSettings) -> str:
    return f"barrier-runtime-{settings.options.run_id}"


_Place: TypeAlias = tuple[str, int]  # (program, slot)
