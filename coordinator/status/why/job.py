"""Explanations of a job's troubles, from the status. Pure."""

from collections.abc import Sequence
from statistics import median

from barrier_runtime.coordinator.checkpoints.slowness import SlowUpload
from barrier_runtime.coordinator.status.health import (
    TROUBLED,
    ended_in_words,
    in_seconds,
    missing_slots,
)
from barrier_runtime.coordinator.status.statistics import late_rows, late_rows_in_words
from barrier_runtime.coordinator.status.status import (
    CheckpointStatus,
    JobStatus,
    LatencyPoint,
    LatencyStatus,
    Room,
    SourceStatus,
)
from barrier_runtime.coordinator.status.transactions import SinkTransactions, most_spent, of_sinks
from barrier_runtime.coordinator.status.why.away import why_fewer_slots, why_fewer_spares, why_slots_move
from barrier_runtime.coordinator.status.why.bottleneck import bottleneck
from barrier_runtime.coordinator.status.why.checkpoint import slow_above_ms, usual_of, why_checkpoint
from barrier_runtime.coordinator.status.why.reason import REMEDIES_FOR_SLOTS, Answer, Reason, line_of
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import counted

_RECENT_MS = 120_000
_ROSE = 3.0  # times the median of the hour
_ROSE_MS = 50.0  # and by this much
_FEW_POINTS = 3
_HOLDERS = 5
_WAITS_LONG_MS = 60_000  # this far behind the clock, a watermark holds windows back


def why_job(status: JobStatus, now_ms: int) -> tuple[Reason, ...]:
    """Returns all applicable reasons, the gravest first. For an ended job: the end."""
    if status.outcome is not None:
        return (_ended(status),)
    hosts = tuple(Reason("preflight", f"{each.text}.", (), each.remedy) for each in status.preflight.findings)
    if status.phase != "running":
        starting = why_not_running(status, now_ms)
        return hosts if starting is None else (*hosts, starting)
    reasons = (
        *hosts,
        why_nothing_is_visible(status, now_ms),
        why_rows_are_missing(status),
        why_fewer_slots(status),
        why_slots_move(status) if status.leaving else None,
        why_fewer_spares(status),
        why_latency_rose(status, now_ms),
        bottleneck(status.chains),
    )
    return tuple(reason for reason in reasons if reason is not None)


def answer(status: JobStatus, checkpoint: int | None) -> Answer:
    """Explains a checkpoint, or the job (None). Raises `InvalidJob` for an unknown checkpoint."""
    if checkpoint is None:
        otherwise = f"Job {status.job} runs, nothing that was recorded is wrong, and its latencies are as usual."
        return Answer(why_job(status, status.at_ms), otherwise)
    checkpoints = status.checkpoints
    record = next((each for each in checkpoints.history if each.checkpoint == checkpoint), None)
    if record is None:
        raise InvalidJob(_unknown(status, checkpoint))
    reason = why_checkpoint(record, checkpoints.history, status.chains)
    slow_ms = slow_above_ms(usual_of(record, checkpoints.history))
    otherwise = (
        f"Checkpoint {checkpoint} was not slow: it took {record.duration_ms} ms; slow is from {slow_ms:.0f} ms on."
    )
    return Answer((reason,) if reason is not None else (), otherwise)


def _unknown(status: JobStatus, checkpoint: int) -> str:
    checkpoints = status.checkpoints
    if checkpoint in checkpoints.in_progress:
        waiting = ", ".join(checkpoints.waiting_for[:8])
        what = f"checkpoint {checkpoint} of job {status.job} is under way"
        return f"{what}, and waits for {waiting or 'the store'}: ask again"
    known = [each.checkpoint for each in checkpoints.history]
    which = f"{min(known)} to {max(known)}" if known else "none yet"
    return f"checkpoint {checkpoint} of job {status.job} is not known: the history has {which}"


def _ended(status: JobStatus) -> Reason:
    last = status.failures[-1] if status.outcome == "failed" and status.failures else None
    where = (
        () if last is None else (f"operator {last.operator or 'unknown'} in slot {last.slot}: {line_of(last.error)}",)
    )
    reason = line_of(status.error or status.reason)
    about = f"job {status.job} "
    reason = f"it {reason.removeprefix(about)}" if reason.startswith(about) else reason
    assert status.outcome is not None
    return Reason(
        "ended",
        f"Job {status.job} is {ended_in_words(status.outcome)}{f': {reason}' if reason else ''}.",
        where,
        "cure what the message says and start it again: it goes on from the last completed checkpoint"
        if status.outcome == "failed"
        else "nothing; what the last completed checkpoint covers is committed",
    )


def why_not_running(status: JobStatus, now_ms: int) -> Reason | None:
    if status.phase == "running" or status.outcome is not None:
        return None
    if status.missing_slots and status.phase in ("waiting", "loading", "checking", "resuming"):
        return _waits_for_slots(status, now_ms)
    what = status.condition_reason or status.reason or f"it is {status.phase}"
    waits = _since(status, now_ms)
    remedies = {
        "WAITING_STORE": "look at the object store: its address, credentials and errors above",
        "WAITING_NETWORK": "look at the network between the two hosts: firewalls, routes, both directions",
        "WAITING_SERVER": "start the server that is named above, or correct its address",
        "WAITING_RESTORE": "look at the store's bandwidth and at what the operator that is named above opens",
    }
    return Reason(
        "starting",
        f"Job {status.job} does not run yet: {what}.",
        (f"it has been {status.condition or status.phase.upper()} for {waits}", *_last_failures(status)),
        remedies.get(status.condition, "wait; if it lasts, the slot's log says what it does"),
    )


def _waits_for_slots(status: JobStatus, now_ms: int) -> Reason:
    needed, missing = status.parallelism, len(status.missing_slots)
    registered, room = needed - missing, status.room or Room()
    held = sorted(room.held_by.items(), key=lambda each: (-each[1], each[0]))
    holders = ", ".join(f"{name} ({cores})" for name, cores in held[:_HOLDERS])
    if len(held) > _HOLDERS:
        holders += f" and {len(held) - _HOLDERS} others ({sum(cores for _, cores in held[_HOLDERS:])})"
    each = f" of {room.cores_per_slot} cores" if room.cores_per_slot > 1 else ""
    if room.cores:
        free = max(0, room.cores - sum(cores for _, cores in held))
        found = f"needs {counted(needed, 'slot')}{each}, free {free} of {counted(room.cores, 'core')}"
    else:
        found = f"needs {needed} slots{each}, {registered} have come"
    sentence = f"Job {status.job} does not start: it {found}{f', held by {holders}' if holders else ''}."
    return Reason(
        "cores",
        sentence,
        (_missing(status, now_ms), *((room.failing,) if room.failing else ()), *_last_failures(status)),
        REMEDIES_FOR_SLOTS[status.carrier],
    )


def _missing(status: JobStatus, now_ms: int) -> str:
    if status.absences:
        return missing_slots(status.absences, {}, now_ms)
    return f"slots {', '.join(map(str, status.missing_slots))} are missing for {_since(status, now_ms)}"


def why_nothing_is_visible(status: JobStatus, now_ms: int) -> Reason | None:
    if status.phase != "running":
        return None
    forgotten = most_spent(of_sinks(status, now_ms))
    if forgotten is not None:
        return _nearly_forgotten(forgotten)
    for trouble in status.commits.troubles:
        return Reason(
            "commit",
            f"Nothing new becomes visible in {trouble.sink.rpartition('/')[0]}, because its commit fails: "
            f"{line_of(trouble.error)}.",
            (
                f"checkpoint {trouble.checkpoint} was tried {counted(trouble.attempts, 'time')} in {trouble.sink}"
                + (f", for {in_seconds(max(0, now_ms - trouble.since_ms))}" if trouble.since_ms else ""),
            ),
            "cure what the target says; it is tried again until it succeeds, and nothing is lost meanwhile",
        )
    if status.commits.slow and status.condition in ("RUNNING", "WAITING_SINK"):
        return _slow_commit(status, now_ms)
    if status.checkpoints.slow_uploads and status.condition == "RUNNING":
        return _slow_upload(status, now_ms)
    if status.condition in TROUBLED:
        return Reason(
            status.condition.lower(),
            f"Job {status.job} is {status.condition}: {status.condition_reason}.",
            (f"for {_since(status, now_ms)}",),
            "cure what is named; the job goes on by itself",
        )
    last = status.checkpoints.last_completed
    if last is None:
        waiting = ", ".join(status.checkpoints.waiting_for[:4])
        return Reason(
            "no_checkpoint",
            "Nothing is visible yet, because no checkpoint has completed: rows become visible with one.",
            (
                f"{status.checkpoints.triggered} were triggered, {status.checkpoints.failed} failed",
                *((f"the oldest one waits for {waiting}",) if waiting else ()),
            ),
            "wait for the first one, or take checkpoints more often (checkpoint_interval)",
        )
    if not status.records:
        return Reason(
            "no_rows",
            "Nothing becomes visible, because the sources have brought no row.",
            tuple(f"{source.source}: idle: {source.idle or 'none'}" for source in status.sources),
            "look at the system that the job reads from: topic, folder, offsets, permissions",
        )
    return _held_back(status, last) or _stands_still(status)


def why_rows_are_missing(status: JobStatus) -> Reason | None:
    dropped = late_rows(status)
    if not dropped:
        return None
    rows = sum(dropped.values())
    return Reason(
        "late_rows",
        f"Results lack rows, because rows were behind the watermark: {late_rows_in_words(status)}.",
        (f"{rows:,} of {status.records:,} rows read",) if status.records >= rows else (),
        "use late=True to get such rows as a stream of their own, or a larger max_out_of_orderness at the source; if "
        "the step's event-time column is not the source's, use the source's column",
    )


def _slow_commit(status: JobStatus, now_ms: int) -> Reason:
    slow = status.commits.slow
    behind = {each.sink: each.pending for each in of_sinks(status, now_ms) if each.pending}
    return Reason(
        "slow_commit",
        f"Rows become visible late, because {' and '.join(each.sink for each in slow[:_HOLDERS])} "
        f"{'commits' if len(slow) == 1 else 'commit'} more slowly than checkpoints complete.",
        (
            *(
                f"{each.sink}: since checkpoint {each.checkpoint}, for {in_seconds(max(0, now_ms - each.since_ms))}"
                for each in slow
            ),
            *(
                f"{sink} has {counted(pending, 'completed checkpoint')} to commit"
                for sink, pending in list(behind.items())[:_HOLDERS]
            ),
            *((status.condition_reason,) if status.condition in TROUBLED else ()),
        ),
        "look at the target of that sink: its load, locks and limits; or take checkpoints less often "
        "(checkpoint_interval)",
    )


def _slow_upload(status: JobStatus, now_ms: int) -> Reason:
    slow = status.checkpoints.slow_uploads
    last = status.checkpoints.last_completed
    newest = () if last is None else last.subtasks
    return Reason(
        "slow_upload",
        f"Rows become visible late, because uploads of {' and '.join(_operators(slow)[:_HOLDERS])} take longer than "
        "the interval between checkpoints.",
        (
            *(
                f"{each.operator} in slot {each.slot}: since checkpoint {each.checkpoint}, for "
                f"{in_seconds(max(0, now_ms - each.since_ms))}"
                for each in slow
            ),
            *(
                f"newest checkpoint, {each.slowest} in slot {each.subtask}: pre-commit "
                f"{in_seconds(round(each.precommit_ms))}, state written in {in_seconds(round(each.upload_ms))}"
                for each in newest[:_HOLDERS]
                if each.slowest in _operators(slow)
            ),
        ),
        "look at the object store's latency and throttling, at the network of these slots, and at a sink's target; or "
        "take checkpoints less often (checkpoint_interval)",
    )


def _operators(slow: Sequence[SlowUpload]) -> list[str]:
    return list(dict.fromkeys(each.operator for each in slow))


def _nearly_forgotten(sink: SinkTransactions) -> Reason:
    return Reason(
        "transaction_age",
        f"A transaction of {sink.sink} is {in_seconds(sink.oldest_ms or 0)} old and not visible: its target may forget "
        f"it after {in_seconds(sink.timeout_ms or 0)}.",
        (
            f"{sink.spent:.0%} of that time is over; {sink.pending} completed checkpoints are not visible in it",
            *((f"its commit fails: {line_of(sink.error)}",) if sink.error else ()),
        ),
        "bring the target back, or raise its timeout, before that time is over; `barrier-runtime transactions` "
        "resolves what a stopped job left",
    )


def _held_back(status: JobStatus, last: CheckpointStatus) -> Reason | None:
    emitted = any(chain.rows_in_per_s for chain in status.chains if chain.sinks)
    for source in sorted(status.sources, key=_progress):
        behind = source.watermark_ms is None or (source.lag_ms or 0) >= _WAITS_LONG_MS
        if source.split and behind and not emitted:
            lag = "has had no row yet" if source.watermark_ms is None else f"is {in_seconds(source.lag_ms or 0)} behind"
            return Reason(
                "watermark",
                f"Nothing comes out, because split {source.split} of {source.source} holds the watermark back: it "
                f"{lag}.",
                (f"it is read in slot {source.split_slot}; checkpoint {last.checkpoint} completed: the job goes on",),
                "give the source an idle_timeout if that split may be silent for long, or look why it has no rows",
            )
    return None


def _progress(source: SourceStatus) -> tuple[bool, int]:
    return source.watermark_ms is not None, source.watermark_ms or 0


def _stands_still(status: JobStatus) -> Reason | None:
    known = [source for source in status.sources if source.watermark_ms is not None]
    ahead = max(known, key=lambda source: source.watermark_ms or 0, default=None)
    silent = next((each for each in status.sources if each.watermark_ms is None and not each.idle_count), None)
    silent = silent or _paused(status)
    if ahead is None or ahead.watermark_ms is None or silent is None:
        return None
    reached_ms = status.watermark_ms
    if reached_ms is not None and ahead.watermark_ms - reached_ms < _WAITS_LONG_MS:
        return None
    behind = "has not begun" if reached_ms is None else f"is {in_seconds(ahead.watermark_ms - reached_ms)} behind"
    return Reason(
        "standing_source",
        f"Event time {behind}, because source {silent.source} brings no rows: windows, timers and joins of its rows "
        f"and of source {ahead.source} wait for it.",
        (f"{silent.source} has nothing to read at present, and no idle_timeout, or a longer one",),
        f"read {silent.source} with idle_timeout= (or a shorter one), after which a silent source holds nothing back",
    )


def _paused(status: JobStatus) -> SourceStatus | None:
    """Source with the lowest watermark, if the source had rows before and has none now."""
    last = min(status.sources, key=_progress, default=None)
    resting = {chain.operators[0] for chain in status.chains if chain.is_source and chain.rows_in_per_s == 0}
    return last if last is not None and last.source in resting else None


def why_latency_rose(status: JobStatus, now_ms: int) -> Reason | None:
    """Explains the sink whose p99 rose most above the last hour."""
    risen = [
        (latency.p99 / usual, name, latency, usual)
        for name, latency in status.latency_last_minute.items()
        if (usual := _usual_p99(status.latency_hour.get(name, ()))) is not None and _rose(latency, usual)
    ]
    if not risen:
        return None
    _, name, latency, usual = max(risen)
    sink, _, kind = name.rpartition(":")
    what = (
        f"The {kind} latency of {sink} rose to {latency.p99:,.0f} ms (p99 of the last minute, usually {usual:,.0f} ms)"
    )
    recovery = next((each for each in reversed(status.recoveries[1:]) if now_ms - each.started_ms <= _RECENT_MS), None)
    if recovery is not None:
        took = "is not over yet" if recovery.duration_ms is None else f"took {in_seconds(recovery.duration_ms)}"
        return Reason(
            "recovery",
            f"{what}, because the job restarted.",
            (f"{in_seconds(now_ms - recovery.started_ms)} ago: {line_of(recovery.reason)}; it {took}",),
            "rows that waited meanwhile are processed first; cure what ended the generation",
        )
    if kind == "visible":
        slow = _slow_checkpoints(status, what)
        if slow is not None:
            return slow
    limit = bottleneck(status.chains)
    if limit is not None and limit.cause != "input":
        return Reason(limit.cause, f"{what}. {limit.sentence}", limit.evidence, limit.remedy)
    return Reason(
        "unclear",
        f"{what}, and nothing that was recorded says why.",
        (f"{counted(latency.count, 'row')} in the last minute",),
        "look at the slots' machines and at the source: rows that come late there count from the time they were due",
    )


def _usual_p99(points: tuple[LatencyPoint, ...]) -> float | None:
    earlier = points[:-1]
    return median(point.p99 for point in earlier) if len(earlier) >= _FEW_POINTS else None


def _rose(latency: LatencyStatus, usual: float) -> bool:
    return latency.count > 0 and latency.p99 >= max(_ROSE * usual, usual + _ROSE_MS)


def _slow_checkpoints(status: JobStatus, what: str) -> Reason | None:
    history = [each for each in status.checkpoints.history if each.outcome == "complete"]
    if len(history) < 6:
        return None
    recent, before = history[-3:], history[:-3]

    def rose(now: float, then: float) -> bool:
        return now >= max(_ROSE * then, then + _ROSE_MS)

    commit = (
        [float(each.commit_duration_ms or 0) for each in recent],
        [float(each.commit_duration_ms or 0) for each in before],
    )
    if rose(max(commit[0]), median(commit[1])):
        slowest = max(recent, key=lambda each: each.commit_duration_ms or 0)
        return Reason(
            "commit",
            f"{what}, because commits take longer: {max(commit[0]):,.0f} ms, usually {median(commit[1]):,.0f} ms.",
            (f"checkpoint {slowest.checkpoint}: {slowest.slowest_commit or 'a sink'} committed last",),
            "look at the target of that sink: its load, locks and limits",
        )
    took = max(float(each.duration_ms) for each in recent)
    usual = median(float(each.duration_ms) for each in before)
    if rose(took, usual):
        slowest = max(recent, key=lambda each: each.duration_ms)
        return Reason(
            "checkpoint",
            f"{what}, because checkpoints take longer: {took:,.0f} ms, usually {usual:,.0f} ms.",
            (f"checkpoint {slowest.checkpoint} took longest",),
            f"`barrier-runtime why {status.job} {slowest.checkpoint}` says why",
        )
    return None


def _last_failures(status: JobStatus) -> tuple[str, ...]:
    return tuple(f"last failure: {line_of(each.error)}" for each in status.failures[-1:])


def _since(status: JobStatus, now_ms: int) -> str:
    return in_seconds(max(0, now_ms - status.condition_since_ms))
