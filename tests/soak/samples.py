"""Samples of a running soak: memory, descriptors and threads of each process; objects, log and disk."""

import contextlib
import os
from pathlib import Path

import msgspec

from tests.integration.chaos.processes import Found, family

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


class Sampled(msgspec.Struct, frozen=True):
    """A process. `started` tells a process from a later process with the same id."""

    role: str
    pid: int
    started: int
    age_s: float
    resident_mb: float
    descriptors: int
    threads: int


class Stored(msgspec.Struct, frozen=True):
    """`objects`: without the log, which has a record per checkpoint and generation, for ever."""

    objects: int
    objects_mb: float
    log_records: int
    log_mb: float
    local_mb: float  # local copies and temporary files
    output_files: int


class Latency(msgspec.Struct, frozen=True):
    """From the due time of a record until a reader of committed records has the record, in milliseconds."""

    rows: int
    p50: float
    p999: float


class Minute(msgspec.Struct, frozen=True):
    at_s: float  # since the first output
    processes: tuple[Sampled, ...]
    stored: Stored
    latency: Latency | None  # None: no new row
    kills: int  # until now
    rows: int  # until now
    load: float


def processes(run: str) -> tuple[Sampled, ...]:
    found = []
    for each in family(run):
        with contextlib.suppress(OSError, KeyError):  # exits: no memory is left
            found.append(_sampled(each))
    return tuple(found)


def stored(checkpoints: Path, job: str, local: list[Path], output: Path) -> Stored:
    objects, size = _counted(checkpoints)
    log, log_size = _counted(checkpoints / job / "log")
    files, _ = _counted(output)
    local_mb = sum(_counted(place)[1] for place in local) / 1e6
    return Stored(objects - log, (size - log_size) / 1e6, log, log_size / 1e6, local_mb, files)


def _sampled(process: Found) -> Sampled:
    entry = _PROC / str(process.pid)
    lines = (line.partition(":") for line in (entry / "status").read_text().splitlines())
    status = {name: value.split() for name, _, value in lines}
    up_s = float((_PROC / "uptime").read_text().split()[0])
    return Sampled(
        role=process.role,
        pid=process.pid,
        started=process.started,
        age_s=up_s - process.started / _TICKS,
        resident_mb=int(status["VmRSS"][0]) / 1e3,
        descriptors=len(os.listdir(entry / "fd")),
        threads=int(status["Threads"][0]),
    )


def _counted(folder: Path) -> tuple[int, int]:
    """(Files, bytes) below a folder."""
    files = size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                size += os.stat(os.path.join(place, name)).st_size
                files += 1
    return files, size
