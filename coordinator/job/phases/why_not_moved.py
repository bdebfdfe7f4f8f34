"""Why a rescale or a replace does not go on, for people. Pure."""

from collections.abc import Sequence

from barrier_runtime.coordinator.checkpoints.checkpoint import Checkpoint
from barrier_runtime.coordinator.job.facts import Job
from barrier_runtime.coordinator.job.health_facts import what_opens
from barrier_runtime.coordinator.job.rescaling import Rescale
from barrier_runtime.coordinator.job.slots import SlotState
from barrier_runtime.coordinator.log.manifest import DecidedManifest
from barrier_runtime.coordinator.log.restore_choice import check_fits
from barrier_runtime.coordinator.status.health import some_of
from barrier_runtime.state.errors import InvalidJob


def why_unfit(job: Job, rescale: Rescale, decided: DecidedManifest | None) -> str:
    """Why the new program cannot restore what the job has; "" if it can, also where nothing is decided yet."""
    if decided is None or not rescale.request.replaces or rescale.checked == decided.key:
        return ""
    try:
        what = f"checkpoint {decided.manifest.checkpoint} of job {job.spec.job}"
        check_fits(rescale.after, decided.manifest, what, settled=True)  # it moves when all is visible
    except InvalidJob as error:
        return str(error)
    rescale.checked = decided.key
    return ""


def why_not_loaded(rescale: Rescale) -> str:
    within = f"within {rescale.request.timeout_ms / 1000:g} s"
    return (
        f"the program that runs the job did not load {rescale.request.flow} {within}: give a longer timeout, or "
        "see that program's output"
    )


def why_not_started(rescale: Rescale, missing: tuple[int, ...], slow: Sequence[int]) -> str:
    """`slow`: have not fetched their key groups, or compact databases."""
    within = f"within {rescale.request.timeout_ms / 1000:g} s"
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
    """The new program was deployed, and its time is over."""
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


def undecided_because(checkpoint: Checkpoint) -> str:
    missing = ", ".join(map(str, checkpoint.missing))
    return f"subtasks {missing} have not answered" if missing else "its manifest is not stored"
