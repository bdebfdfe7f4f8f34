"""`barrier-runtime preflight`: slots of a small separate job start, report their hosts, and end."""

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.memory.callable import CallableSink
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.preflight import HostFacts, Preflight
from barrier_runtime.launch.job_handle import JobHandle
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.state.store.open import open_store

_LOOK_S = 0.2
_ANSWERS_S = 120.0  # a registered slot needs 4 s if 64 connections get no answer
_UNKNOWN = "unknown"
_OF_THE_JOB = ("restore", "restore_mode", "allow_replay", "allow_non_restored", "allow_drained", "allow_outdated")
_HEAD = ("host", "address", "slots", "Python", "pyarrow", "clock", "open files", "disk free", "store", "reaches slots")


def preflight(flow: Dataflow | None, options: Mapping[str, Any], processes: int | None = None) -> Preflight:
    """Runs the preflight of `flow`, or of `options` alone, and removes the job's files.

    Raises `JobFailed` if slots do not start, or have incompatible versions.
    """
    given = {name: value for name, value in options.items() if name not in _OF_THE_JOB}
    of_flow: dict[str, Any] = (
        {} if flow is None else {name: value for name, value in flow.options.items() if name not in _OF_THE_JOB}
    )
    small = Dataflow(f"preflight-{uuid.uuid4().hex[:12]}", **of_flow)
    small.rate("nothing", 1.0).sink("nowhere", CallableSink(_ignored))
    started = small.start(**{**given, "ui": False}) if processes is None else _apart(small, given, processes)
    try:
        with started as job:
            found = completed(lambda: _status(job))
            _end(job, found)
    finally:
        _remove(small.name, options.get("checkpoints", of_flow.get("checkpoints")))
    return found


def _apart(flow: Dataflow, given: Mapping[str, Any], processes: int) -> JobHandle:
    return flow.start_local(processes=processes, **{**given, "ui": False})


def _status(job: JobHandle) -> JobStatus:
    status = job.status()
    if job.done and not status.preflight.complete:
        job.wait()
    return status


def _end(job: JobHandle, found: Preflight) -> None:
    try:
        job.stop("now", wait=False)
        job.wait()
    except JobFailed:
        if not found.findings:  # else a slot was refused, and a finding says so
            raise


def completed(
    look: Callable[[], JobStatus],
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Preflight:
    """Facts of all slots. Slots that do not answer within `_ANSWERS_S` are given up."""
    since_s: float | None = None
    while not (found := (status := look()).preflight).complete:
        if since_s is None and not status.missing_slots:
            since_s = clock()
        if since_s is not None and clock() - since_s > _ANSWERS_S:
            return found.given_up(status.missing_slots, _ANSWERS_S)
        wait(_LOOK_S)
    return found


def _remove(job: str, checkpoints: Any) -> None:
    if checkpoints is not None:  # otherwise the folder was temporary
        store = open_store(os.fspath(checkpoints))
        store.delete([each.key for each in store.list(f"{job}/")])


def _ignored(rows: pa.RecordBatch) -> None:
    pass


def lines(found: Preflight) -> list[str]:
    rows = [_HEAD, *map(_row, found.hosts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return [*table, *(f"{each.severity}: {each.line}" for each in found.findings)]


def _row(host: HostFacts) -> Sequence[str]:
    return (
        host.host,
        host.address,
        _ranges(host.slots),
        host.versions.get("Python", _UNKNOWN),
        host.versions.get("pyarrow", _UNKNOWN),
        _known(host.clock_ms, lambda ms: f"{ms / 1000:+.1f} s"),
        _known(host.open_files, lambda number: f"{number:,}"),
        _known(host.free_bytes, lambda number: f"{number / (1 << 30):,.1f} GiB"),
        _known(host.store, lambda error: "no" if error else f"{host.store_ms} ms"),
        _known(host.unreached, lambda slots: f"not {_ranges(slots)}" if slots else "all"),
    )


def _known(value: Any, shown: Callable[[Any], str]) -> str:
    return _UNKNOWN if value is None else shown(value)


def _ranges(slots: Sequence[int]) -> str:
    found: list[list[int]] = []
    for slot in sorted(slots):
        if found and slot == found[-1][1] + 1:
            found[-1][1] = slot
        else:
            found.append([slot, slot])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in found)
