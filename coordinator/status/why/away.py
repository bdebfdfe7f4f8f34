"""Slots and spares that are away, or leave their hosts. Pure."""

from barrier_runtime.coordinator.status.health import leaving_in_words, spares_in_words
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.status.why.reason import REMEDIES_FOR_SPARES, Reason, line_of
from barrier_runtime.state.texts import counted


def why_slots_move(status: JobStatus) -> Reason:
    failed = [each.error for each in status.rescales if each.error and each.leaves_host]
    return Reason(
        "leaving",
        f"Job {status.job} moves slots off a host: {leaving_in_words(status.leaving)}.",
        tuple(f"the last attempt failed: {line_of(error)}" for error in failed[-1:]),
        "keep a core free on another host for each slot that leaves; without it the slot dies with the host, and the "
        "job goes on from the last checkpoint",
    )


def why_fewer_slots(status: JobStatus) -> Reason | None:
    if status.parallelism >= status.full_parallelism:
        return None
    because = f", because {status.narrow_because} stayed away" if status.narrow_because else ""
    returns = next((each for each in reversed(status.rescales) if each.ended_ms is None), None)
    failed = next((each for each in reversed(status.rescales) if each.error), None)
    waits = "waits for new slots" if status.standbys is not None else "new slots fetch their state"
    evidence = [f"{returns.what}: {returns.state}, {waits}"] if returns is not None else []
    if failed is not None and returns is None:
        evidence.append(f"the last attempt failed: {line_of(failed.error)}")
    return Reason(
        "fewer_slots",
        f"Job {status.job} runs with {status.parallelism} of {status.full_parallelism} slots{because}.",
        tuple(evidence),
        "give Spark cores for all slots: the job returns to them by itself; or make the present number the new one "
        "with a rescale",
    )


def why_fewer_spares(status: JobStatus) -> Reason | None:
    spares = status.spares
    if spares.ready >= spares.wanted:
        return None
    away = min(len(spares.gone), spares.wanted - spares.ready)
    silent = spares.wanted - spares.ready - away
    return Reason(
        "fewer_spares",
        f"Job {status.job} has {spares_in_words(spares)}: a lost slot may wait for a new process.",
        tuple(
            text
            for count, text in ((away, "not started, or lost"), (silent, "silent, or cannot run the program"))
            for text in [f"{counted(count, 'spare')} {text}"]
            if count
        ),
        REMEDIES_FOR_SPARES[status.carrier],
    )
