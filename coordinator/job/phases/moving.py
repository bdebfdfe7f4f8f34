"""Moves: rescale, replace (`job/rescaling`), and slots to other hosts (`job/links`)."""

from collections.abc import Sequence

from msgspec.structs import replace

from barrier_runtime.coordinator.checkpoints.checkpoint import Checkpoint, CheckpointPhase
from barrier_runtime.coordinator.checkpoints.failures import Cause
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.health_facts import what_opens
from barrier_runtime.coordinator.job.links import slot_to_move
from barrier_runtime.coordinator.job.phases.checkpointing import checkpoint_aborted
from barrier_runtime.coordinator.job.phases.phase import Decision, HandOver, Restart
from barrier_runtime.coordinator.job.rescaling import Next, Rescale, RescaleRequest, RescaleState, is_narrow, widening
from barrier_runtime.coordinator.job.slot import GATHER_MS, RegisteredSlot, SlotState
from barrier_runtime.coordinator.log.manifest import DecidedManifest
from barrier_runtime.coordinator.log.restore_choice import begin_at_zero, check_fits
from barrier_runtime.coordinator.status.health import some_of
from barrier_runtime.coordinator.status.status import LEAVING, SilentLink
from barrier_runtime.coordinator.wire.messages import Prefetch
from barrier_runtime.state.errors import InvalidJob


def holds_checkpoints(job: Job) -> bool:
    rescale = job.rescales.open
    return rescale is not None and rescale.holds_checkpoints(job.last_completed)


def deadline_ms(job: Job) -> int | None:
    rescale = job.rescales.open
    return None if rescale is None or decides_move(job) else rescale.deadline_ms


def request_full_width(job: Job, now_ms: int) -> None:
    if is_narrow(job.spec) and job.rescales.open is None and not _ends(job):
        ends_ms, failed = job.rescales.ends_of_returns_ms, job.rescales.failed_returns
        request = widening(job.spec, job.led.token, ends_ms, now_ms, failed)
        if request is not None and job.rescales.ask(request, job.spec, now_ms):
            job.admit(f"job {job.spec.job} has no such slot")


def request_departure(job: Job, now_ms: int) -> None:
    """Moves slots whose successors are registered, all at once if the successors come together."""
    if job.leaving.any or job.slots.successors:
        job.leaving.look(job.slots, now_ms)
    ready = job.slots.ready_successors(now_ms)
    blocked = job.rescales.open is not None and not job.rescales.open.request.returns
    if not ready or blocked or _ends(job) or not job.leaving.may_move(now_ms):
        return
    notices = {slot.index: job.leaving.of(slot) for slot in job.slots}
    awaited = [index for index, each in notices.items() if each is not None and not each.ended and index not in ready]
    if awaited and now_ms - min(slot.registered_ms for slot in ready.values()) < GATHER_MS:
        return
    id = f"{LEAVING}{job.led.token}-{now_ms}"
    job.rescales.ask(RescaleRequest(id, job.spec.parallelism, leaves=tuple(sorted(ready))), job.spec, now_ms)


def _missing(job: Job, rescale: Rescale, now_ms: int) -> tuple[int, ...]:
    if not rescale.request.leaves:
        return job.slots.missing_standbys(now_ms)
    ready = job.slots.ready_successors(now_ms)
    return tuple(index for index in rescale.request.leaves if index not in ready)


def _ends(job: Job) -> bool:
    return job.stop is not None or job.generation.final is not None or job.all_ended


def follow_rescale(job: Job, now_ms: int) -> Decision | None:
    rescale = job.rescales.before_moving
    if rescale is None:
        return None
    if _ends(job):
        ends = "it is being stopped" if job.stop is not None else "it has read all of its input"
        job.fail_rescale(f"job {job.spec.job} ends: {ends}", now_ms)
        return None
    if rescale.state is RescaleState.LOADING:
        if rescale.deadline_ms is not None and now_ms >= rescale.deadline_ms:
            job.fail_rescale(_why_not_loaded(rescale), now_ms)
        return None
    missing = _missing(job, rescale, now_ms)
    if missing and rescale.request.leaves and rescale.state is RescaleState.STARTING:
        job.fail_rescale(f"new slots were lost: {', '.join(map(str, missing))}", now_ms)
        return None
    if missing:
        rescale.wait_for_slots(now_ms)
    late = rescale.deadline_ms is not None and now_ms >= rescale.deadline_ms
    if rescale.state is RescaleState.STARTING:
        unfit = _why_unfit(job, rescale, job.decided)
        broken = next((slot.register.broken for slot in _needed(job, rescale) if slot.register.broken), "")
        if unfit or broken:
            job.fail_rescale(unfit or f"a new slot cannot run the program: {broken}", now_ms)
        elif not missing and _knows_what_moves(job) and _fetched(job, rescale, late):
            job.rescales.stop_with(job.generation.checkpoints.request())
        elif late:
            wanted = rescale.ahead.checkpoint
            slow = sorted(slot.index for slot in _preparing(job) if slot.prefetched < wanted)
            job.fail_rescale(_why_not_started(rescale, missing, slow), now_ms)
    elif rescale.state is RescaleState.STOPPING:
        if late and not decides_move(job):
            _give_up_move(job, rescale, now_ms)
    elif rescale.state is RescaleState.COMMITTING:
        _ask_to_fetch(job, rescale)  # new files of the last checkpoint, while sinks commit
        if job.commits.all_through(job.last_completed):
            return _move(job, rescale, missing, now_ms)
        if late:
            behind = ", ".join(job.commits.behind(job.last_completed))
            return _stay(job, f"sinks did not commit within {rescale.request.timeout_ms} ms: {behind}", now_ms)
    return None


def decides_move(job: Job) -> bool:
    return any(
        job.rescales.pauses(each.id) and each.phase is CheckpointPhase.DECIDING
        for each in job.generation.checkpoints.open
    )


def _give_up_move(job: Job, rescale: Rescale, now_ms: int) -> None:
    """After an abort, this generation's sources continue."""
    for checkpoint in job.generation.checkpoints.open:
        if rescale.pauses(checkpoint.id):
            job.generation.checkpoints.abort(checkpoint, now_ms)
            reason = f"it was not decided within {rescale.request.timeout_ms} ms, {_undecided_because(checkpoint)}"
            checkpoint_aborted(job, checkpoint, Cause.MOVE_ABORTED, f"{reason}: give a longer timeout", now_ms)


def _knows_what_moves(job: Job) -> bool:
    """A restarted coordinator knows no checkpoint, and requests one."""
    if job.decided is not None or job.last_completed == 0:
        return True
    if not job.generation.checkpoints.open:
        job.generation.checkpoints.request()
    return False


def _fetched(job: Job, rescale: Rescale, late: bool) -> bool:
    _ask_to_fetch(job, rescale)
    if job.decided is None:
        return True
    fetched = min(slot.prefetched for slot in _preparing(job))
    due = rescale.ahead.next(fetched, job.decided.manifest.checkpoint, late)
    if due is Next.CHECKPOINT:
        rescale.ahead.taken(job.generation.checkpoints.request())
    return due is Next.STOP


def _preparing(job: Job) -> list[RegisteredSlot]:
    """Slots to prepare: new and remaining slots fetch files, present slots stop compacting."""
    rescale = job.rescales.open
    standbys = [] if rescale is None else _needed(job, rescale)
    return [*standbys, *job.slots.successors, *job.slots]


def _needed(job: Job, rescale: Rescale) -> list[RegisteredSlot]:
    """Standbys that become slots: spares beyond prepare nothing."""
    return [slot for slot in job.slots.standbys if slot.index < rescale.after.parallelism]


def _ask_to_fetch(job: Job, rescale: Rescale) -> None:
    decided, after = job.decided, rescale.after
    if decided is None:
        return
    order = Prefetch(decided.manifest.checkpoint, decided.ref, after.parallelism, after.max_parallelism)
    for slot in _preparing(job):
        if slot.connected and slot.is_to_prefetch(rescale.request.id, order.checkpoint):
            keeps_number = rescale.request.leaves and slot.started_under_other >= 0  # a rescale restores numbers
            job.outbox.send(slot, replace(order, slot=slot.index) if keeps_number else order)


def _move(job: Job, rescale: Rescale, missing: tuple[int, ...], now_ms: int) -> Decision:
    if missing:
        return _stay(job, f"new slots were lost: {', '.join(map(str, missing))}", now_ms)
    unfit = _why_unfit(job, rescale, job.decided)
    if unfit:
        return _stay(job, unfit, now_ms)
    job.rescales.move(now_ms)
    added = "" if job.decided is None else begin_at_zero(rescale.after, job.decided.manifest)
    reason, replaces = f"{rescale.what}; {added}" if added else rescale.what, rescale.request.replaces
    return HandOver(rescale.after, reason, replaces, kind="replace" if replaces else "rescale")


def _stay(job: Job, error: str, now_ms: int) -> Decision:
    """The sources have stopped for good; the same slots continue in the next generation."""
    job.fail_rescale(error, now_ms)
    return Restart(f"the job goes on as it was: {error}", counted=False)


def move_if_apart(job: Job, links: tuple[SilentLink, ...], now_ms: int) -> None:
    """Moves a slot of a pair that failed before, except on a single machine."""
    moving = {kill.uuid for kill in job.slots.kills}
    for link in links:
        pair = {slot.uuid for slot in (job.slots.at(link.slot), job.slots.at(link.peer)) if slot is not None}
        apart = job.links.failed(job.slots, link, now_ms)
        if apart and job.spec.carrier != "processes" and not pair & moving:
            slot = slot_to_move(job.slots, link)
            if slot is not None:
                job.outbox.put(job.slots.want_moved(slot))
                moving.add(slot.uuid)


def _why_unfit(job: Job, rescale: Rescale, decided: DecidedManifest | None) -> str:
    if decided is None or not rescale.request.replaces or rescale.checked == decided.key:
        return ""
    try:
        what = f"checkpoint {decided.manifest.checkpoint} of job {job.spec.job}"
        check_fits(rescale.after, decided.manifest, what, settled=True)  # a move begins with all rows visible
    except InvalidJob as error:
        return str(error)
    rescale.checked = decided.key
    return ""


def _why_not_loaded(rescale: Rescale) -> str:
    within = f"within {rescale.request.timeout_ms / 1000:g} s"
    return (
        f"the program that runs the job did not load {rescale.request.flow} {within}: give a longer timeout, or "
        "see that program's output"
    )


def _why_not_started(rescale: Rescale, missing: tuple[int, ...], slow: Sequence[int]) -> str:
    """`slow`: slots that still fetch key groups, or compact databases."""
    within = f"within {(rescale.request.start_timeout_ms or rescale.request.timeout_ms) / 1000:g} s"
    if not missing and rescale.checked == "" and rescale.request.replaces:
        return f"no checkpoint was completed {within}, so nothing tells whether the program fits its state"
    if not missing:
        slots = ", ".join(map(str, slow))
        return f"slots {slots} did not fetch their key groups {within}, or compact databases: give a longer timeout"
    if rescale.request.replaces:
        return (
            f"slots {', '.join(map(str, missing))} of the new program did not come {within}; the job goes on with the "
            f"old one. Are there {rescale.parallelism} more free cores, for as long as both are there?"
        )
    return (
        f"slots {', '.join(map(str, missing))} did not come {within}; the job "
        f"goes on with {rescale.before.parallelism}. Are there {rescale.parallelism} free cores? Give Spark more "
        "cores, or ask for a lower parallelism or a longer timeout"
    )


def why_not_run(job: Job) -> str:
    rescale = job.rescales.open
    within = "" if rescale is None else f" within {rescale.request.timeout_ms / 1000:g} s"
    away = [f"{key}: {each.error}" for key, each in sorted(job.generation.waiting.items())]
    if away:
        waited, remedy = some_of(away, "; "), "start the server, or give a longer timeout, and replace again"
    else:
        restoring = [slot for slot in job.slots if slot.state is SlotState.RESTORING]
        waited = f"slots {', '.join(str(slot.index) for slot in restoring)}"
        hanging = some_of([text for slot in restoring for text in what_opens(slot)], "; ")
        waited += f" ({hanging})" if hanging else ""
        remedy = "see what they open, or give a longer timeout, and replace again"
    return f"it did not run{within}, it waited for {waited}: {remedy}"


def _undecided_because(checkpoint: Checkpoint) -> str:
    missing = ", ".join(map(str, checkpoint.missing))
    return f"subtasks {missing} have not answered" if missing else "its manifest is not stored"
