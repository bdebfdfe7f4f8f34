"""Finds the processes of the program by a mark in their environment, which children inherit.

The nemesis therefore never strikes a foreign process, even if a process id was reused, and finds every leftover
process, even if its parent has exited.
"""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MARK = "BARRIER_RUNTIME_CHAOS"  # environment variable: "<run>/<number of the start>"
Role = Literal["driver", "jvm", "coordinator", "executor", "slot", "worker daemon", "other"]
_PROC = Path("/proc")


@dataclass(frozen=True)
class Found:
    pid: int
    started: int  # clock ticks since boot: with the pid, a process for ever
    role: Role
    mark: str
    stopped: bool


def family(run: str, start: int | None = None) -> list[Found]:
    """The living processes of a run (or of a single start of the run), in the order of their ids."""
    mark = f"{MARK}={run}/".encode() + (b"" if start is None else str(start).encode())
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # exited meanwhile
                process = _looked_at(entry, mark, exact=start is not None)
                if process is not None:
                    found.append(process)
    return sorted(found, key=lambda each: each.pid)


def send(process: Found, number: signal.Signals) -> bool:
    """False when the process has exited. A process id that was reused by another process is not struck."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if _state_of(_PROC / str(process.pid))[1] != process.started:
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except (ProcessLookupError, FileNotFoundError):
        return False
    finally:
        os.close(descriptor)


Listener = tuple[int, str]  # port and inode of a listening TCP socket: the inode is not given to another socket soon


def listeners_of(pids: set[int]) -> set[Listener]:
    """The sockets on which these processes listen."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in (_PROC / str(pid) / "fd").iterdir():
                with contextlib.suppress(OSError):
                    link = os.readlink(entry)
                    if link.startswith("socket:["):
                        inodes.add(link[8:-1])
    return {listener for listener in all_listeners() if listener[1] in inodes}


def all_listeners() -> set[Listener]:
    found = set()
    for table in ("tcp", "tcp6"):
        for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                found.add((int(fields[1].rsplit(":", 1)[1], 16), fields[9]))
    return found


def _looked_at(entry: Path, mark: bytes, exact: bool) -> Found | None:
    marks = [part for part in (entry / "environ").read_bytes().split(b"\0") if part.startswith(mark)]
    if not marks or (exact and marks[0] != mark):
        return None
    state, started = _state_of(entry)
    if state in "ZX":
        return None
    return Found(int(entry.name), started, _role(entry), marks[0].decode().partition("=")[2], state in "Tt")


def _state_of(entry: Path) -> tuple[str, int]:
    fields = (entry / "stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _role(entry: Path) -> Role:
    command = _command(entry)
    if "CoarseGrainedExecutorBackend" in command:
        return "executor"
    if "org.apache.spark.deploy.SparkSubmit" in command:
        return "jvm"
    if "barrier_runtime.coordinator.server.daemon" in command:
        return "coordinator"
    if "chaos.program" in command or "soak.program" in command:
        return "driver"
    if "carriers.slot_process" in command:
        return "slot"
    if "spark.worker_daemon" in command:
        parent = _PROC / (entry / "stat").read_text().rpartition(")")[2].split()[1]
        return "slot" if "spark.worker_daemon" in _command(parent) else "worker daemon"
    return "other"


def _command(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
