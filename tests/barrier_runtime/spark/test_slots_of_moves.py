"""Spark jobs submitted for the slots of a rescaled job, on a context that runs nothing."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from barrier_runtime.carriers.slots import AllSlots
from barrier_runtime.coordinator.option_types import SlotOptions
from barrier_runtime.coordinator.status.status import LeavingSlot, SparesStatus, StandbysWanted
from barrier_runtime.spark.stage import SparkCarrier
from barrier_runtime.spark.task import SlotSettings
from tests.waiting import until


class Context:
    """Replacement for Spark's context: a job runs until all slots have left or the job is cancelled."""

    def __init__(self) -> None:
        self.submitted: list[tuple[int, ...]] = []
        self.ended: list[int] = []  # task attempts that were killed
        self.left: dict[int, threading.Event] = {}  # by number of the job
        self.before: Callable[[], None] = lambda: None  # a job is submitted
        self.sparkContext = self._jsc = self
        self._group = threading.local()
        self._cancelled: set[str] = set()
        self._running: dict[int, str] = {}  # groups

    def setLocalProperty(self, name: str, value: str) -> None:
        if name == "spark.jobGroup.id":
            self._group.id = value

    def sc(self) -> "Context":
        return self

    def cancelJobGroup(self, group: str) -> None:
        for number in [number for number, of in self._running.items() if of == group]:
            del self._running[number]

    def cancelJobGroupAndFutureJobs(self, group: str) -> None:
        self._cancelled.add(group)
        self.cancelJobGroup(group)

    def killTaskAttempt(self, attempt: int, _: bool, reason: str) -> bool:
        self.ended.append(attempt)
        return True

    def kill(self, number: int) -> None:
        """Ends a job, as a user can on Spark's page, or Spark itself when a task fails too often."""
        until(lambda: number in self._running)
        del self._running[number]

    def parallelize(self, slots: tuple[int, ...], _: int) -> "Context":
        self._group.number = len(self.submitted)
        self.left[self._group.number] = threading.Event()
        self.submitted.append(tuple(slots))
        return self

    def mapPartitions(self, _: object) -> "Context":
        return self

    def collect(self) -> list[Any]:
        self.before()
        number = self._group.number
        if self._group.id not in self._cancelled:
            self._running[number] = self._group.id
        while not self.left[number].wait(0.01):
            if number not in self._running:
                raise RuntimeError("cancelled")
        return []


def slots_of(
    context: Context,
    parallelism: int,
    runs: Callable[[], bool] = lambda: True,
    carrier: SparkCarrier | None = None,
) -> AllSlots:
    settings: Any = SlotSettings(
        graph=b"", options=SlotOptions(run_id="run"), secret=b"", control_addresses=(), storage_url=""
    )  # fmt: skip
    slots = AllSlots(carrier or SparkCarrier(context, own_session=False), settings, range(parallelism), runs)
    slots.start()
    until(lambda: context.submitted == [tuple(range(parallelism))])
    return slots


def test_a_slot_that_left_the_first_spark_job_is_started_again_when_it_is_wanted() -> None:
    """From 2 slots to 1 and to 3: slot 0 holds the first Spark job open, in which slot 1 is no more."""
    context = Context()
    slots = slots_of(context, 2)
    slots.follow("", 1, None, ())
    slots.follow("", 1, StandbysWanted("rescale", 1, 2), ())
    until(lambda: sorted(context.submitted[1:]) == [(1,), (2,)])
    slots.follow("", 3, None, ())
    assert len(context.submitted) == 3, "once"
    slots.cancel()


def test_present_slots_of_a_dead_coordinator_are_not_started_again() -> None:
    context = Context()
    slots = slots_of(context, 1)
    slots.follow("", 1, StandbysWanted("first", 1, 1), ())
    until(lambda: context.submitted == [(0,), (1,)])
    slots.follow("", 1, StandbysWanted("second", 1, 1), ())
    assert context.submitted == [(0,), (1,)]
    context.left[1].set()

    def again() -> bool:
        slots.follow("", 1, StandbysWanted("second", 1, 1), ())
        return context.submitted == [(0,), (1,), (1,)]

    until(again)
    slots.cancel()


def test_a_slot_that_another_spark_job_carries_is_not_started_again_after_it_left() -> None:
    """Spark gave the first Spark job a core for slot 1 again, beside the Spark job of the return to full width."""
    context = Context()
    slots = slots_of(context, 2)
    slots.follow("", 1, StandbysWanted("full width", 1, 1), ())
    until(lambda: context.submitted == [(0, 1), (1,)])
    slots.follow("", 2, None, ())
    context.left[1].set()
    until(lambda: not slots._is_carried(("", 1)))
    slots.follow("", 2, None, ())
    assert context.submitted == [(0, 1), (1,)], "the other process is the slot"
    slots.follow("", 2, None, (1,))
    until(lambda: context.submitted == [(0, 1), (1,), (1,)])
    slots.cancel()


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(StandbysWanted("r", 1, 1), id="return of one slot to two"),
        pytest.param(StandbysWanted("r", 2, 2), id="rescale from two slots to three"),
        pytest.param(StandbysWanted("r", 0, 0, "next"), id="replace of the program"),
    ],
)
def test_a_standby_whose_spark_job_fails_is_started_again_while_it_is_wanted(wanted: StandbysWanted) -> None:
    context = Context()
    slots = slots_of(context, 2)
    slots.learn("next", b"")
    has = wanted.first or 1
    slots.follow("", has, wanted, ())
    context.kill(1)
    context.kill(2)
    until(lambda: len(context.submitted) == 4)
    slots.follow("", has, wanted, ())
    assert context.submitted == [(0, 1), *[(wanted.first,)] * 3], "once after each failure"
    submission = slots._carried_by[wanted.program, wanted.first]
    slots.follow("", has, None, ())
    until(lambda: not submission.alive, "the request is over")
    assert len(context.submitted) == 4
    slots.cancel()


def test_a_slot_that_gets_its_own_spark_job_leaves_the_first() -> None:
    """Two processes for one slot would replace each other for ever."""
    context, asked, followed = Context(), threading.Event(), threading.Event()

    def runs() -> bool:
        asked.set()
        until(followed.is_set)
        return True

    slots = slots_of(context, 2, runs)
    slots.follow("", 1, None, ())
    context.kill(0)
    until(asked.is_set)
    slots.follow("", 1, StandbysWanted("full width", 1, 1), ())
    followed.set()
    until(lambda: len(context.submitted) == 3)
    assert sorted(context.submitted[1:]) == [(0,), (1,)]
    slots.cancel()


class OnHosts(SparkCarrier):
    """Spark's view of its hosts is fixed; the rest is the carrier of Spark."""

    def __init__(self, context: Context, free: list[str]) -> None:
        super().__init__(context, own_session=False)
        self.free = free
        self.wished: list[tuple[str, ...]] = []

    def elsewhere(self, attempt: int) -> tuple[str, ...]:
        return tuple(self.free)

    def _slots_on(self, slots: Sequence[int], hosts: Sequence[str]) -> Any:
        self.wished.append(tuple(hosts))
        return super()._slots_on(slots, ())


def test_a_slot_apart_from_another_starts_on_another_host_before_it_ends() -> None:
    context = Context()
    carrier = OnHosts(context, ["worker-b"])
    slots = slots_of(context, 2, carrier=carrier)
    slots.move(1, attempt=7, reason="apart")
    until(lambda: context.submitted == [(0, 1), (1,)])
    assert carrier.wished == [(), ("worker-b",)]
    assert context.ended == []
    slots.stay(1, attempt=7, reason="apart")  # it did not register in time
    assert context.ended == [7]
    until(lambda: len(context._running) == 1, "the other host's slot was given up")
    slots.cancel()


def test_a_slot_apart_from_another_ends_where_no_other_host_has_a_core() -> None:
    context = Context()
    slots = slots_of(context, 2, carrier=OnHosts(context, []))
    slots.move(1, attempt=7, reason="apart")
    assert context.ended == [7]
    assert context.submitted == [(0, 1)]
    slots.cancel()


def test_slots_that_are_given_up_while_their_spark_job_is_submitted_do_not_run() -> None:
    """Spark has no job to cancel yet, and pickling a function may take long."""
    context = Context()
    given_up = threading.Event()
    context.before = lambda: until(given_up.is_set)
    slots = slots_of(context, 1)
    for each in slots._all:
        each.give_up()
    given_up.set()
    assert slots.join(30.0)
    assert context.submitted == [(0,)], "once"


def test_a_slot_that_leaves_its_host_gets_one_successor_where_no_slot_leaves() -> None:
    context = Context()
    carrier = OnHosts(context, [])
    slots = slots_of(context, 2, carrier=carrier)
    leaving = LeavingSlot(1, "spot", 7, since_ms=1, state="asked")
    slots.succeed([leaving])
    assert context.submitted == [(0, 1)], "no host has room"
    carrier.free = ["worker-b"]
    for _ in range(2):
        slots.succeed([leaving])
    until(lambda: context.submitted == [(0, 1), (1,)])
    assert carrier.wished == [(), ("worker-b",)]
    slots.succeed([msgspec.structs.replace(leaving, state="ended")])
    until(lambda: len(context._running) == 1, "the successor was given up")
    assert context.ended == []
    slots.cancel()


def test_successor_of_a_former_spare_has_the_number_of_the_start() -> None:
    context = Context()
    slots = slots_of(context, 3, carrier=OnHosts(context, ["worker-b"]))
    slots.succeed([LeavingSlot(0, "spot", 7, since_ms=1, state="asked", started_as=2)])
    until(lambda: context.submitted == [(0, 1, 2), (2,)])
    slots.cancel()


def test_spare_with_the_number_of_a_slot_that_left_is_started() -> None:
    context = Context()
    slots = slots_of(context, 4)
    slots.follow("", 4, None, (), spares=SparesStatus(1, 0, (4,)))
    until(lambda: context.submitted[1:] == [(4,)])
    slots.follow("", 2, None, (), spares=SparesStatus(1, 1, ()))  # number 2 stays as the spare, 3 leaves
    slots.follow("", 2, StandbysWanted("up", 2, 2), (), spares=SparesStatus(1, 1, ()))
    slots.follow("", 3, None, (), spares=SparesStatus(1, 0, (3,)))
    until(lambda: (3,) in context.submitted)
    slots.cancel()
