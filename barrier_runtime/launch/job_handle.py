"""Handle of a job with slots in own processes: coordinator, slots, and a watching thread.

Dead parts are started again: the coordinator's process by a supervisor, a single slot by the carrier, all slots by
`AllSlots`.
"""

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Literal

from barrier_runtime.carriers.slots import AllSlots, Carrier
from barrier_runtime.coordinator.client.rest_types import SavepointAsked
from barrier_runtime.coordinator.status.health import number_for_driver
from barrier_runtime.coordinator.status.status import JobStatus, KillRequest, LeavingSlot
from barrier_runtime.coordinator.status.why.reason import Answer
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.launch.coordinator_of_job import CoordinatorOfJob
from barrier_runtime.launch.display import ConditionLog, Follower, Show
from barrier_runtime.launch.options import JobOptions, url_for_slots
from barrier_runtime.launch.outcome import (
    JobFailed,
    JobResult,
    how_to_stop,
    plain_errors,
    raise_unless_ended_well,
    tell_page,
)
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.launch.requests import (
    HasPlan,
    LoadOrder,
    Programs,
    SavepointFailed,
    SavepointTaken,
    ended_before,
    new_program,
    own_flow,
    savepoint_asked,
    savepoint_of,
)
from barrier_runtime.launch.steering import Requests, Steered, at_end, end_in_time, line_of
from barrier_runtime.spark.task import SlotSettings, local_root
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable
from barrier_runtime.state.store.open import open_store

log = logging.getLogger("barrier_runtime.job")

_LEADING = frozenset({"waiting", "restoring", "running"})
_POLL_S = 0.25
_WHOLE_S = 10.0  # between statuses with the figures of all slots, which nobody is shown
_NEWS_WITHIN_S = 1.0  # also the interval of looking at the carrier
_ROOM_S = 3.0  # time with missing slots before the carrier is asked for room, and again
_LEAVE_S = 15.0
_MOVE_S = 90.0  # for the start of a slot on another host


@plain_errors
class JobHandle(Steered):
    """Handle of a running job. The context stops the job after a last checkpoint, `close` at once."""

    def __init__(
        self,
        job: PreparedJob,
        options: JobOptions,
        carrier: Carrier,
        coordinator: CoordinatorOfJob,
        slots: Sequence[int],
        closed: Callable[[], object] = lambda: None,
    ) -> None:
        """`slots`: those that this program starts."""
        self._job = job
        self._spec = job.spec
        self._options = options
        self._carrier = carrier
        self._when_closed = closed
        self._coordinator = coordinator
        self.show: Show | None = None  # without `show`, deaths are logged
        self._last: JobStatus | None = None
        self._follower = Follower()
        self._conditions = ConditionLog()
        self._trouble: Exception | None = None  # keeps this program from following the job
        self._stop_mode: Literal["checkpoint", "drain", "now"] | None = None
        self._stop_asked: SavepointAsked | None = None
        self._room_s = time.monotonic()
        self._ending: set[int] = set()  # task attempts on executors whose end was logged
        self._away_s = None if options.at_least is None else options.degrade_after
        self._stop_told = ""  # coordinator process that received the last stop request
        self._ended = threading.Event()
        self._closed = False
        assert options.checkpoints is not None
        settings = SlotSettings(
            graph=job.graph,
            options=options.for_slots(),
            secret=bytes.fromhex(coordinator.submitted.secret),
            control_addresses=coordinator.control_addresses(),
            storage_url=url_for_slots(options.checkpoints),
            environment=carrier.environment,
            job=job.spec.job,
        )
        self._slots = AllSlots(carrier, settings, slots, lambda: not self._ended.is_set())
        self._room = carrier.room(self._slots.group)
        self._slots.start()
        tell = lambda answer: coordinator.client.replace(job.spec.job, answer, job.spec.run_id)  # noqa: E731
        self._programs = Programs(own_flow(job.loaded_from), job.spec, self._slots.learn, tell)
        if options.ui:
            tell_page(coordinator.client, job.spec.job)
        self._functions = job.batch_functions(open_store(options.checkpoints), carrier.frames)
        self._functions.start(self._function_failed)
        self._watching = threading.Thread(target=self._watch, name="barrier-job-watch", daemon=True)
        self._forget = at_end(self._end)
        self._watching.start()

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def line(self) -> str:
        return f"job {self._spec.job} starts" if self._last is None else line_of(self._last)

    def status(self) -> JobStatus:
        """While the coordinator restarts, the last known status."""
        status = self._coordinator.status()
        if status is not None:
            self._last = status
        if self._last is None:
            raise Unavailable(f"the coordinator of job {self._spec.job} is being restarted: ask again in a moment")
        return self._last

    def wait(self, timeout: float | None = None) -> JobResult:
        """Waits until the job ends. Raises `JobFailed`, `Fenced`, or `Unavailable` after `timeout` seconds."""
        self._wait_for_end(timeout)
        if self._functions.trouble is not None or self._trouble is not None:
            self.close()
        self._raise_trouble()
        assert self._last is not None
        status = self._last
        hint = f"\n{self._view_of_carrier()}" if status.absent_slots and not self._closed else ""
        self.close()
        try:
            raise_unless_ended_well(status)
        except JobFailed as error:
            raise JobFailed(f"{error}{hint}", status) from None
        return JobResult(status)

    def why(self, checkpoint: int | None = None) -> Answer:
        if self._last is not None and self._last.missing_slots:
            self._tell_room()
        return super().why(checkpoint)

    def stop(
        self,
        mode: Literal["checkpoint", "now"] = "checkpoint",
        *,
        savepoint: str | None = None,
        drain: bool = False,
        wait: bool = True,
        timeout: float | None = None,
    ) -> SavepointTaken | None:
        """Ends the job: after a last committed checkpoint ("checkpoint") or at once ("now").
        Waits for the end.

        `wait=False` returns at once. Raises as `wait` does. `savepoint`: a folder or URL of a last savepoint, which is
        returned when the job has ended and everything is committed. If the savepoint cannot be written, the job
        continues and `SavepointFailed` is raised. `drain`: sources end first, so windows and timers fire as at the end
        of all input; for a job that will not continue. A drained job ends even if its savepoint cannot be written.
        """
        how = how_to_stop(mode, drain, savepoint)
        asked = None if savepoint is None else savepoint_asked(savepoint)
        if not self._closed:
            self._request_stop(how, asked)
        elif asked is not None and self._last is not None:
            raise SavepointFailed(ended_before(self._last, "the savepoint was taken"))
        if asked is not None:
            return self._stopped_with(asked)
        if wait:
            self._wait_for_end(timeout)
            self._raise_trouble()
            if self._last is not None and self._last.outcome is not None:  # else closed before
                raise_unless_ended_well(self._last)
        return None

    def _request_stop(self, how: Literal["checkpoint", "drain", "now"], asked: SavepointAsked | None = None) -> None:
        self._stop_told = self._last.leader if self._last is not None else ""
        self._coordinator.client.stop(self._spec.job, how, self._spec.run_id, asked)
        self._stop_mode, self._stop_asked = how, asked

    def _wait_for_end(self, timeout: float | None) -> None:
        if not self._ended.wait(timeout):
            raise Unavailable(f"job {self._spec.job} still runs after {timeout} s: wait longer or stop it")

    def _raise_trouble(self) -> None:
        if self._functions.trouble is not None:
            raise self._functions.trouble
        if self._trouble is not None:
            raise Unavailable(f"job {self._spec.job} was given up: {self._trouble}") from self._trouble

    def _stopped_with(self, asked: SavepointAsked) -> SavepointTaken:
        while True:
            ended = self._ended.wait(_POLL_S)
            status = self._last
            self._raise_trouble()
            try:
                taken = None if status is None else savepoint_of(status, asked.id)
            except SavepointFailed:
                self._stop_mode = self._stop_asked = None
                raise
            if ended and taken is None:
                raise SavepointFailed(f"job {self._spec.job} ended without the savepoint: see its status")
            if ended and taken is not None:
                return taken

    @property
    def coordinator_pid(self) -> int | None:
        return self._coordinator.pid

    def close(self) -> None:
        """Stops everything that this handle started. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._forget()
        with ExitStack() as last_first:  # another Ctrl-C interrupts one wait, and the other calls follow
            last_first.callback(self._when_closed)
            last_first.callback(shutil.rmtree, local_root(self._spec.run_id), ignore_errors=True)
            last_first.callback(self._unstage_if_finished)
            last_first.callback(self._carrier.close)
            last_first.callback(self._coordinator.close)
            last_first.callback(self._functions.close)
            last_first.callback(self._watching.join, 5)
            last_first.callback(self._end_slots)
            last_first.callback(self._ended.set)
            if not self._ended.is_set() or self._trouble is not None or self._functions.trouble is not None:
                # The coordinator may be gone; the calls above end the slots anyway.
                with contextlib.suppress(BarrierRuntimeError):
                    self._request_stop("now")

    def _end_slots(self) -> None:
        try:
            left = self._slots.join(_LEAVE_S)
        except BaseException:
            self._slots.give_up()
            raise
        if not left:
            self._slots.cancel()

    def _unstage_if_finished(self) -> None:
        if self._last is not None and self._last.outcome == "finished":
            assert self._options.checkpoints is not None
            self._job.unstage(self._options.checkpoints)

    def __enter__(self) -> "JobHandle":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stops a running job: after a last checkpoint, or at once after an exception."""
        try:
            if kind is None:
                self._end()
        finally:
            self.close()

    def _end(self) -> None:
        if self._closed:
            return
        try:
            with contextlib.suppress(BarrierRuntimeError):
                end_in_time(self._spec.job, partial(self.stop, wait=False), self._ended.wait)
        finally:
            self.close()

    def _function_failed(self) -> None:
        self._ended.set()

    def _requests(self) -> Requests:
        return self._coordinator.client

    def _status_now(self) -> JobStatus | None:
        return self._coordinator.status()

    def _learn(self, id: str, flow: HasPlan, order: LoadOrder) -> JobSpec:
        program = new_program(flow.plan, flow.options, order)
        self._slots.learn(id, program.graph)
        return program.spec

    # ------------------------------------------------------------ the watching thread

    def _watch(self) -> None:
        try:
            self._follow()
        except Exception as error:  # otherwise `wait` would wait for ever; Spark raises many kinds
            self._trouble = self._carrier.trouble() or error
        self._ended.set()

    def _follow(self) -> None:
        ordered: dict[int, float] = {}  # task attempt -> time of the order
        status: JobStatus | None = None
        whole_s = 0.0  # when a status with all figures came
        while not self._ended.is_set():
            trouble = self._carrier.trouble()
            if trouble is not None:
                raise trouble
            asked_s = time.monotonic()
            brief = self.show is None and asked_s - whole_s < _WHOLE_S
            status = self._coordinator.next_status(status, _NEWS_WITHIN_S, brief=brief)
            whole_s = whole_s if brief else asked_s
            if status is not None:
                self._last = status
                self._conditions.log(status, time.monotonic())
                if status.phase in _LEADING:
                    self._programs.follow(status)
                    away = staying_away(status, self._away_s)
                    wanted = status.program, status.parallelism, status.standbys, status.missing_slots
                    self._slots.follow(*wanted, away, status.spares)
                self._tell_progress(status)
                self._look_for_room(status)
                self._slots.succeed([*status.leaving, *self._decommissioned(status)])
                for order in status.kill:
                    self._carry_out(order, ordered)
                if status.outcome is not None:
                    return
                self._repeat_stop(status)
            self._ended.wait(max(0.0, asked_s + _POLL_S - time.monotonic()))

    def _decommissioned(self, status: JobStatus) -> list[LeavingSlot]:
        """Slots on executors that Spark decommissions. The coordinator needs no notice, only the successor."""
        if status.phase != "running":
            return []
        known = {each.task_attempt for each in status.leaving}
        running = {each.task_attempt: each for each in status.slots if each.task_attempt not in known}
        found = self._carrier.leaving(running)
        new = {attempt: host for attempt, host in found.items() if attempt not in self._ending}
        self._ending |= new.keys()
        for attempt, host in new.items():
            log.warning(
                "Spark decommissions the executor of slot %d on host %s: the slot moves to another at a barrier",
                running[attempt].slot,
                host,
            )
        return [
            LeavingSlot(slot.slot, found[attempt], attempt, 0, "asked", started_as=slot.started_as)
            for attempt, slot in running.items()
            if attempt in found
        ]

    def _carry_out(self, order: KillRequest, ordered: dict[int, float]) -> None:
        attempt, reason = order.task_attempt, f"slot {order.slot} of {self._spec.job} was given up"
        if attempt in ordered:
            if time.monotonic() - ordered[attempt] >= _MOVE_S:
                self._slots.stay(order.slot, attempt, reason)
            return
        ordered[attempt] = time.monotonic()
        if order.avoid:
            self._slots.move(order.slot, attempt, reason)
        else:
            self._slots.kill(attempt, reason)

    def _tell_progress(self, status: JobStatus) -> None:
        if self.show is not None:
            self.show(status)
            return
        for line in self._follower.happened(status):
            log.warning("%s", line)

    def _look_for_room(self, status: JobStatus) -> None:
        now_s = time.monotonic()
        if not status.missing_slots or status.outcome is not None:
            self._room_s = now_s
            if self._room is not None:
                self._room.complete()
        elif now_s - self._room_s >= _ROOM_S:
            self._room_s = now_s
            self._tell_room()

    def _tell_room(self) -> None:
        if self._room is not None and self._carrier.trouble() is None:
            try:
                room = self._room.look()
            except Exception as error:  # explains only why slots are missing, and Spark raises many kinds
                log.debug("job %s: the room for slots is not known: %s", self._spec.job, error)
                return
            with contextlib.suppress(Unavailable, InvalidJob):  # away, or of a release without this request
                self._coordinator.client.tell_room(self._spec.job, room, self._spec.run_id)

    def _repeat_stop(self, status: JobStatus) -> None:
        """Sends the stop request to a new leader, which knows only requests in the log."""
        if self._stop_mode is not None and status.leader != self._stop_told:
            with contextlib.suppress(Unavailable, InvalidJob):  # away again: the next status starts another attempt
                self._coordinator.client.stop(self._spec.job, self._stop_mode, self._spec.run_id, self._stop_asked)
                self._stop_told = status.leader

    def _view_of_carrier(self) -> str:
        view = self._carrier.described(self._options.parallelism + self._options.spare_slots)
        failed, times = self._slots.last_failure, self._slots.submissions
        return f"{view}\nthe slots were submitted {times} time(s), the last failure:\n{failed}" if failed else view


def staying_away(status: JobStatus, after_s: float | None) -> list[int]:
    """Returns slots that have been missing for `after_s`; None: no slot counts."""
    since_ms = 0.0 if after_s is None else status.at_ms - after_s * 1000
    return [number_for_driver(each) for each in status.absences if 0 < each.since_ms <= since_ms]
