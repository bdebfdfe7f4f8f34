"""A job's program from outside: events, usage of the processes, and the end."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.idle import below
from benchmarks.slow_store.job import EVENTS, Event, Order
from benchmarks.usage import parsed

_BENCHMARKS = Path(__file__).parents[2]


class JobFailed(RuntimeError):
    """The job or the job's program did not reach the wanted state. The message has the reason."""


class RunningJob:
    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.events: list[Event] = []
        self._process = process
        self._log = log
        self._rest = b""

    def until(self, kind: str, timeout_s: float) -> Event:
        """The next event of this kind. Raises `JobFailed`."""
        deadline = time.monotonic() + timeout_s
        while True:
            event = self.next(deadline - time.monotonic())
            if event is None:
                raise JobFailed(f"no {kind!r} within {timeout_s:.0f} s; the last line of the log: {self._last_words()}")
            if event.kind == "failed":
                raise JobFailed(f"{event.error}; it said: {self._last_words()}")
            if event.kind == kind:
                return event

    def next(self, timeout_s: float) -> Event | None:
        """The next event; None after the timeout."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return None
            data = os.read(self._process.stdout.fileno(), 1 << 20)
            if not data:
                raise JobFailed(f"the job's program ended: {self._last_words()}")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        event = EVENTS.decode(line)
        self.events.append(event)
        return event

    def at(self, kind: str) -> float:
        """Time of the first event of this kind."""
        return next(event.at for event in self.events if event.kind == kind)

    def cpu_s(self) -> float:
        """Processor time of the program's live processes until now."""
        return cpu_of(below(self._process.pid))

    def resident_mb(self) -> float:
        """Memory of the program's processes together."""
        return sum(_process(pid)[1] for pid in below(self._process.pid)) / 1e6

    def kill(self) -> None:
        """Sends SIGKILL to all processes of the program."""
        for pid in below(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])[-600:] if lines else "nothing was said"


@contextlib.contextmanager
def running(order: Order, folder: Path, tree: Path | None = None) -> Iterator[RunningJob]:
    """The job's program, killed at the end. `tree`: a checkout whose runtime runs, instead of this one's."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "job.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.slow_store.job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, import_path(tree, folder)))},
        )
    job = RunningJob(process, log)
    try:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()  # stays open until the end: the job ends with this program
        yield job
    finally:
        job.kill()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()


def import_path(tree: Path | None, folder: Path) -> list[Path]:
    """Import path with this checkout's benchmarks and the runtime of `tree`."""
    if tree is None:
        return [_BENCHMARKS]
    ours = folder / "ours"
    ours.mkdir(parents=True, exist_ok=True)
    for name in ("benchmarks", "examples"):
        if not (ours / name).exists():
            (ours / name).symlink_to(_BENCHMARKS / name)
    return [ours, tree.resolve()]


def cpu_of(pids: list[int]) -> float:
    """Seconds of processor time until now."""
    return sum(_process(pid)[0] for pid in pids)


def _process(pid: int) -> tuple[float, float]:
    """(Seconds of processor time, resident bytes); zeros for an ended process."""
    try:
        found = parsed(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0.0
    return found.cpu_s, found.rss_bytes
