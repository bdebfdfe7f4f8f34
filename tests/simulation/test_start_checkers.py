"""Tests of the checker of new slots: a move to slots that cannot start is reported."""

from types import SimpleNamespace
from typing import Any

from histories import COORDINATOR, PATHS, History
from judged import Case, Table, check, each_case, untold
from starts import NOT_IMPORTED, START_CHECKERS, NewSlotsStart

from barrier_runtime.coordinator.job.slot import Refused
from barrier_runtime.coordinator.status.history import History as StoredHistory
from barrier_runtime.coordinator.status.history import encode_history
from barrier_runtime.coordinator.status.status import RescaleStatus, StandbysWanted
from barrier_runtime.coordinator.wire.messages import ChainSpec, CheckpointOptions, JobSpec

SPEC = JobSpec("bank", "run-1", "test", 2, 16, (ChainSpec(0, ("count",)),), CheckpointOptions(retained=1))
SENT_AWAY = Refused("slot 2 does not exist", unneeded=True)


def job(kind: str = "well") -> History:
    """Returns the history of a job whose replacement program is of this kind."""
    history = History(more=START_CHECKERS).fence()
    judge_of(history).program("replace-1", kind, SPEC)
    return history


def judge_of(history: History) -> NewSlotsStart:
    return next(each for each in history.checkers if isinstance(each, NewSlotsStart))


def moved(kind: str) -> History:
    return job(kind).fence(says={"spec": JobSpec("bank", "run-1", "test", 2, 16, (), program="replace-1")})


def stored(kind: str, state: str, error: str = "") -> History:
    change = RescaleStatus(
        id="replace-1", before=2, parallelism=2, state=state, asked_ms=0, ended_ms=1, kind="replace", error=error
    )
    written = StoredHistory(job="bank", run_id="run-1", rescales=(change,))
    return job(kind).put(PATHS.history, encode_history(written), COORDINATOR)


def came(slot: int, refused: Refused | None, program: str = "") -> History:
    """Registers slot `slot` while the driver is asked for slots 2 and 3."""
    history = job()
    slots = SimpleNamespace(_why_refused=lambda _: refused)
    wanted = StandbysWanted("leader/rescale-1", 2, 3, "")
    protocol: Any = SimpleNamespace(standbys=wanted, _job=SimpleNamespace(slots=slots))
    register: Any = SimpleNamespace(slot=slot, program=program)
    judge_of(history).on_register(protocol, register)
    return history


STARTS: Table = {
    "NewSlotsStart": (
        Case("a program that cannot be imported", lambda: moved("broken"), "replace-1, which is broken", once=True),
        Case("a program that does not fit", lambda: moved("unfit"), "replace-1, which is unfit", once=True),
        Case("one that cannot open what it has", lambda: moved("unwell")),
        Case("one that is well", lambda: moved("well")),
        Case(
            "a generation ends for it",
            lambda: job().fence(says={"reason": f"a new slot cannot run the program: {NOT_IMPORTED}"}),
            "because new slots did not start",
        ),
        Case("a generation ends for another reason", lambda: job().fence(says={"reason": "slot 1 lost contact"})),
        Case("it failed, and nobody says why", lambda: stored("broken", "failed"), "replace-1 is failed"),
        Case("it is said to be done", lambda: stored("broken", "done"), "replace-1 is done, which is broken"),
        Case("it failed, and the history says why", lambda: stored("broken", "failed", NOT_IMPORTED)),
        Case("a slot that was asked for is sent away", lambda: came(2, SENT_AWAY), "was asked for, and is sent away"),
        Case("another one", lambda: came(4, SENT_AWAY)),
        Case("one of another program", lambda: came(2, SENT_AWAY, "replace-0")),
        Case("it was replaced", lambda: came(2, Refused("a newer attempt"))),
        Case("it has its place", lambda: came(2, None)),
    ),
}


@each_case(STARTS)
def test_judges_of_new_slots(judge: str, case: Case) -> None:
    """1.13, 1.18: the checker reports exactly the jobs that change before their new slots are there."""
    check(judge, case)


def test_each_is_shown_to_speak_and_to_be_silent() -> None:
    assert untold(STARTS, {each.__name__ for each in START_CHECKERS}) == []
