"""Legal moves of a job by phase and decision. Others raise `ProtocolViolation`.

    wanted in →     Loading  Checking Resuming Fencing         WaitingForSlots Running         Finishing Failing Ended
    LoadLog         -        Loading  Loading  Loading         -               -               -         -       -
    Check           Checking -        -        -               -               -               -         -       -
    TakeOver        Resuming -        -        -               -               -               -         -       -
    BeginGeneration Fencing  -        Fencing  -               -               -               -         -       -
    Gather          -        -        -        WaitingForSlots -               -               -         -       -
    Run             -        -        Running  -               Running         -               -         -       -
    Restart         -        -        -        -               Fencing/Failing Fencing/Failing -         -       -
    HandOver        -        -        -        -               Fencing         Fencing         -         -       -
    FinishJob       -        -        -        -               -               Finishing       -         -       -
    Fail            -        -        Failing  Failing         Failing         Failing         -         -       -
    Cancel          Ended    Ended    Ended    Finishing/Ended Finishing/Ended Finishing/Ended -         -       -
    FencedBy        Ended    Ended    Ended    Ended           Ended           Ended           Ended     Ended   -
    EndJob          Ended    Ended    Ended    Ended           Ended           Ended           Ended     Ended   Ended

Where two phases are named, the restart policy (`Restart`) or the option `on_cancel` (`Cancel`) chooses. A job begins in
Loading. `EndJob` in Ended: damage found later. Until a program after a replace has run, WaitingForSlots falls back to
the previous program (`HandOver`) instead of restarting or failing. With `at_least`, WaitingForSlots continues with
fewer slots (`HandOver`, see `job/rescaling`).
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NoReturn, TypeAlias

from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.phases.ending import Ended, Failing, Finishing
from barrier_runtime.coordinator.job.phases.phase import (
    BeginGeneration,
    Cancel,
    Check,
    Decision,
    EndJob,
    Fail,
    FencedBy,
    FinishJob,
    Gather,
    HandOver,
    LoadLog,
    Phase,
    Restart,
    Run,
    TakeOver,
)
from barrier_runtime.coordinator.job.phases.running import Running
from barrier_runtime.coordinator.job.phases.start import Checking, Fencing, Loading, Resuming
from barrier_runtime.coordinator.job.phases.waiting import WaitingForSlots
from barrier_runtime.coordinator.log.records import Fence, Lead, Record
from barrier_runtime.state.errors import ProtocolViolation

_Moves: TypeAlias = Mapping[type[Decision], AbstractSet[type[Phase]]]

_ENDS: _Moves = {FencedBy: {Ended}, EndJob: {Ended}}
_MAY_LEAD: _Moves = {Fail: {Failing}, Cancel: {Finishing, Ended}, **_ENDS}

MOVES: dict[type[Phase], _Moves] = {
    Loading: {Check: {Checking}, TakeOver: {Resuming}, BeginGeneration: {Fencing}, Cancel: {Ended}, **_ENDS},
    Checking: {LoadLog: {Loading}, Cancel: {Ended}, **_ENDS},
    Resuming: {
        LoadLog: {Loading},
        BeginGeneration: {Fencing},
        Run: {Running},
        Fail: {Failing},
        Cancel: {Ended},
        **_ENDS,
    },
    Fencing: {LoadLog: {Loading}, Gather: {WaitingForSlots}, **_MAY_LEAD},
    WaitingForSlots: {Run: {Running}, Restart: {Fencing, Failing}, HandOver: {Fencing}, **_MAY_LEAD},
    Running: {Restart: {Fencing, Failing}, HandOver: {Fencing}, FinishJob: {Finishing}, **_MAY_LEAD},
    Finishing: _ENDS,
    Failing: _ENDS,
    Ended: {EndJob: {Ended}},
}


def next_phase(job: Job, phase: Phase, wanted: Decision, now_ms: int) -> Phase:
    if isinstance(wanted, Restart | Fail) and isinstance(phase, WaitingForSlots):
        wanted = _taken_back(job, wanted)
    following = _made(job, wanted, now_ms)
    if type(following) not in MOVES[type(phase)].get(type(wanted), ()):
        raise ProtocolViolation(
            f"job {job.spec.job}: {type(wanted).__name__} while {phase.name} must not lead to {following.name}: file a "
            "bug"
        )
    return following


def _made(job: Job, wanted: Decision, now_ms: int) -> Phase:
    match wanted:
        case LoadLog(attempts):
            return Loading(attempts)
        case Check(attempts):
            return Checking(attempts)
        case TakeOver(attempts):
            return Resuming(attempts)
        case BeginGeneration():
            return Fencing(wanted)
        case Gather(reason, deploy_from_ms):
            return WaitingForSlots(reason, deploy_from_ms)
        case Run(reason):
            return Running(reason)
        case HandOver(spec, reason, keep, visible, kind):
            return Fencing(BeginGeneration(None, reason, now_ms, spec=spec, keep=keep, visible=visible, kind=kind))
        case Restart():
            return _restarted(job, wanted, now_ms)
        case FinishJob():
            return Finishing("finished", f"job {job.spec.job} has read all of its input", discard="keep")
        case Fail(error):
            return Failing(error)
        case Cancel(visible):
            return _cancelled(job, visible)
        case FencedBy(record):
            return _fenced(job, record)
        case EndJob(outcome, reason):
            return Ended(outcome, reason)
        case _:
            raise _never(wanted)


def _taken_back(job: Job, wanted: Restart | Fail) -> Restart | Fail | HandOver:
    if job.rescales.fallback_spec is None:
        return wanted
    why = wanted.reason if isinstance(wanted, Restart) else wanted.error
    return HandOver(job.rescales.fallback_spec, f"the new program did not start, and the one before goes on: {why}")


def _restarted(job: Job, wanted: Restart, now_ms: int) -> Phase:
    delay_ms = job.restarts.delay_ms(now_ms, wanted.unavailable) if wanted.counted else 0
    if delay_ms is None:
        return Failing(f"{wanted.reason}\njob {job.spec.job}: {job.restarts.exhausted()}")
    return Fencing(BeginGeneration(None, wanted.reason, now_ms, delay_ms))


def _cancelled(job: Job, visible: int) -> Phase:
    reason = f"job {job.spec.job} was stopped by its user"
    if job.spec.checkpoints.on_cancel == "delete" and job.leads:
        return Finishing("cancelled", reason, discard="discard")
    if job.leads and (visible or job.stop_record is not None):
        return Finishing("cancelled", reason, discard="keep", visible=visible)
    return Ended("cancelled", reason)


def _fenced(job: Job, record: Record) -> Phase:
    if isinstance(record, Fence) and record.spec.run_id != job.spec.run_id:
        return Ended(
            "fenced",
            f"job {job.spec.job} was taken over by generation {record.token} of {record.spec.submitter}; this run "
            "stops, nothing is lost: stop the other run before starting the job again",
            fenced_by=f"generation {record.token} of {record.spec.submitter}",
        )
    who = record.leader if isinstance(record, Lead) else record.put_id.rpartition("-")[0]
    return Ended(
        "replaced",
        f"coordinator {who} ({record.writer}) leads job {job.spec.job} now with generation {record.token}; this one "
        "stops and leaves the slots to it",
    )


def _never(value: NoReturn) -> AssertionError:
    """`typing.assert_never` needs Python 3.11."""
    return AssertionError(f"unexpected: {value!r}")
