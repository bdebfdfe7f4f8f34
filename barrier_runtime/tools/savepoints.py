"""Commands for savepoints."""

from datetime import datetime, timezone
from typing import Any

from barrier_runtime.coordinator.log.manifest import Manifest
from barrier_runtime.coordinator.log.savepoint import SAVEPOINT_FILE, decode_savepoint, object_sizes
from barrier_runtime.coordinator.savepoint_files import claimed_by, delete_savepoint, missing_objects, read_savepoint
from barrier_runtime.launch.requests import (
    SavepointTaken,
    known_status,
    savepoint_asked,
    savepoint_asked_again,
    wait_for_savepoint,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.store.object_store import folders_in, get_or_none
from barrier_runtime.state.store.open import open_existing_store
from barrier_runtime.state.store.urls import shown
from barrier_runtime.state.texts import counted


def take(client: Any, job: str, url: str, timeout: float | None) -> SavepointTaken:
    run_id, asked = client.status(job).run_id, savepoint_asked(url)
    return wait_for_savepoint(
        job, asked, lambda: client.savepoint(job, asked, run_id), lambda: known_status(client, job, run_id), timeout
    )


def stop_with(client: Any, job: str, url: str, drain: bool = False) -> SavepointTaken:
    """Stops the job with a savepoint in the folder `url`, and waits for both.

    A repeated call joins the open request, or returns the savepoint that ended the job. Raises `SavepointFailed` if the
    job ends without the savepoint, or continues.
    """
    known = client.status(job)
    run_id, asked = known.run_id, savepoint_asked_again(savepoint_asked(url), known)
    stop = lambda: client.stop(job, "drain" if drain else "checkpoint", run_id, asked)  # noqa: E731
    return wait_for_savepoint(job, asked, stop, lambda: known_status(client, job, run_id), None, ends=True)


def listing(url: str) -> str:
    store = open_existing_store(url)
    found: list[tuple[float, str]] = []
    for folder in folders_in(store, ""):
        data = get_or_none(store, f"{folder}/{SAVEPOINT_FILE}")
        if data is None:
            continue
        try:
            savepoint = decode_savepoint(f"{folder}/{SAVEPOINT_FILE}", data)
        except (Corrupt, InvalidJob) as error:
            found.append((float("inf"), f"{folder}  cannot be read: {error}"))
            continue
        taken = savepoint.taken
        line = f"{folder}  {_when(taken)}, checkpoint {taken.checkpoint} of job {taken.job}"
        line += f", {sum(object_sizes(taken).values()):,} bytes{', the job stopped with it' if savepoint.final else ''}"
        found.append((taken.created_wall_ms, line))
    if not found:
        return f"there are no savepoints in the folders right below {shown(url)}"
    return "\n".join(line for _, line in sorted(found))


def describe(url: str) -> tuple[str, bool]:
    savepoint = read_savepoint(url)
    taken, sizes = savepoint.taken, object_sizes(savepoint.taken)
    missing = missing_objects(url, savepoint)
    operators = sorted({snapshot.operator for snapshot in taken.operators if not snapshot.is_empty})
    lines = [
        f"savepoint {shown(url)}",
        f"  of checkpoint {taken.checkpoint} of job {taken.job}, generation {taken.token}, {_when(taken)}",
        f"  parallelism {taken.parallelism}, max_parallelism {taken.max_parallelism}",
        f"  {counted(len(sizes), 'file')}, {counted(sum(sizes.values()), 'byte')}",
        f"  operators with state: {', '.join(operators) or 'none'}",
        f"  the job {'stopped with it' if savepoint.final else 'ran on'}",
    ]
    lines += ["  drained: to go on with it needs allow_drained"] if taken.drained_by else []
    owner = claimed_by(url)
    lines += [f"  claimed by {owner}{owner.place}"] if owner else []
    lines += [f"  damaged: {counted(len(missing), 'file')} missing or too short, e.g. {missing[0]}"] if missing else []
    return "\n".join(lines), not missing


def _when(taken: Manifest) -> str:
    return datetime.fromtimestamp(taken.created_wall_ms / 1000, timezone.utc).isoformat(timespec="seconds")


def delete(url: str, sure: bool) -> str:
    savepoint = read_savepoint(url)
    if not sure:
        raise InvalidJob(
            f"this deletes the savepoint of checkpoint {savepoint.taken.checkpoint} of job {savepoint.taken.job} in "
            f"{shown(url)} for good: add --yes"
        )
    return f"deleted {shown(url)}: {counted(delete_savepoint(url), 'file')}"
