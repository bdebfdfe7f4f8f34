"""SIGKILL of a slot, an executor or the coordinator under load: time until output and until caught up.

Times count from the kill: to the first row that any sink gets from the new generation (a replayed row), to the first
row that was *due* after the kill, to the return of latency to the earlier value, and to the next completed checkpoint.
The coordinator's death stops no rows, so the coordinator has only the last figure.
"""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.launch.job_handle import JobHandle
from benchmarks.measuring_sink import MeasuringSink, first_writes
from benchmarks.paced_source import PacedSource
from benchmarks.progress import Progress
from benchmarks.spec import Recovery
from benchmarks.stamps import Stamps, read_stamps
from benchmarks.workloads import KEYED_COUNT

Victim = Literal["slot", "executor", "coordinator"]
VICTIMS: tuple[Victim, ...] = ("slot", "executor", "coordinator")

_FOLDER = Path("build/bench/recovery")
_TIMEOUT_S = 120.0
_FAILURES = 100  # of a task in a given session
_LOOK_S = 0.02
_STEP_NS = 100_000_000
_BEFORE_S, _AFTER_S = 2, 10  # of the timeline
_BACK = 2.0  # latency below this multiple of the usual median, and a little more, is caught up
_LITTLE_MS = 5.0
_STEADY = 5  # consecutive steps


@dataclass(frozen=True)
class Setting:
    """`given_session`: the job runs in a session that the user made, without any setting for us."""

    spare_slots: int = 0
    given_session: bool = False


class _Kill:
    def __init__(self, at_ns: int, token: int, checkpoint_ns: int | None) -> None:
        self.at_ns = at_ns
        self.token = token  # of the generation after the kill
        self.checkpoint_ns = checkpoint_ns  # completion of the next checkpoint


def recoveries(
    victims: Sequence[Victim],
    kills: int,
    rate: float,
    keys: int,
    pause_s: float,
    progress: Progress,
    setting: Setting = Setting(),
) -> list[Recovery]:
    """Measures each victim on a separate job."""
    found: list[Recovery] = []
    for victim in victims:
        folder = _FOLDER / victim
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "rows").mkdir(parents=True)
        done: list[_Kill] = []
        with _job(victim, rate, keys, folder, setting) as handle:
            _until(handle, lambda status: status.checkpoints.completed >= 3)
            time.sleep(pause_s)
            for number in range(kills):
                progress.say(f"kill {number + 1} of {kills}: {victim}")
                _until(handle, lambda status: status.spares.ready >= setting.spare_slots)
                done.append(_kill(handle, victim, number, progress))
                time.sleep(pause_s)
                progress.step()
            handle.stop()
            handle.wait(timeout=_TIMEOUT_S)
        stamps = read_stamps(folder / "rows")
        first = first_writes(folder / "rows")
        watched_ns = [kill.at_ns + _AFTER_S * 10**9 for kill in done]
        until_ns = [
            min(pair) for pair in zip(watched_ns, [*(kill.at_ns for kill in done[1:]), watched_ns[-1]], strict=True)
        ]
        found.extend(
            _recovery(victim, rate, keys, kill, stamps, first, end) for kill, end in zip(done, until_ns, strict=True)
        )
    return found


@contextlib.contextmanager
def _job(victim: Victim, rate: float, keys: int, folder: Path, setting: Setting) -> Iterator[JobHandle]:
    """A running job, with separate executors only if an executor is to die."""
    flow, result = KEYED_COUNT.flow(lambda flow: flow.source("events", PacedSource(rate, keys), event_time="at"))
    result.sink("measured", MeasuringSink(str((folder / "rows").resolve()), column="emitted", keep_s=0.05))
    with _spark_home(folder) if victim == "executor" else contextlib.nullcontext():
        cores = 2 + setting.spare_slots
        master = "local-cluster[2,1,1024]" if victim == "executor" else f"local[{cores}]"
        with flow.start(
            **({"spark": _given_session(cores)} if setting.given_session else {"master": master}),
            parallelism=2,
            spare_slots=setting.spare_slots,
            checkpoints=str((folder / "checkpoints").resolve()),
            checkpoint_interval=1.0,
        ) as handle:
            yield handle


def _given_session(cores: int) -> Any:
    """A local session; tasks may fail, which a single failure of `local[2]` forbids."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores},{_FAILURES}]").config("spark.ui.enabled", "false")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


@contextlib.contextmanager
def _spark_home(folder: Path) -> Iterator[None]:
    """The installed Spark, with executors' folders below `folder` instead of in the package."""
    import pyspark

    home = folder / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    before = os.environ.get("SPARK_HOME")
    os.environ["SPARK_HOME"] = str(home.resolve())
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]
        if before is not None:
            os.environ["SPARK_HOME"] = before


def _kill(handle: JobHandle, victim: Victim, number: int, progress: Progress) -> _Kill:
    before = handle.status()
    slot = before.slots[number % len(before.slots)].pid
    target = handle.coordinator_pid if victim == "coordinator" else _executor_of(slot) if victim == "executor" else slot
    assert target is not None
    at_ns = time.time_ns()
    os.kill(target, signal.SIGKILL)
    if victim != "coordinator":
        _until(handle, lambda status: (status.token or 0) > (before.token or 0) and status.phase == "running")
        progress.note(_steps(handle.status(), at_ns // 1_000_000))
    last = before.checkpoints.last_completed
    after = _until(handle, lambda status: _newer(status, last.checkpoint if last is not None else 0, at_ns))
    completed = after.checkpoints.last_completed
    assert completed is not None
    return _Kill(at_ns, after.token or 0, (completed.triggered_ms + completed.duration_ms) * 1_000_000)


def _steps(status: JobStatus, at_ms: int) -> str:
    """Milliseconds from the kill, as the coordinator knows them."""
    newest = status.recoveries[-1]
    steps = {"noticed": newest.started_ms, "slots there": newest.slots_ready_ms, "runs": newest.running_ms}
    return ", ".join(f"{what} after {ms - at_ms} ms" for what, ms in steps.items() if ms is not None)


def _newer(status: JobStatus, checkpoint: int, than_ns: int) -> bool:
    last = status.checkpoints.last_completed
    return last is not None and last.checkpoint > checkpoint and last.triggered_ms * 1_000_000 > than_ns


def _executor_of(slot: int) -> int:
    import psutil

    for parent in psutil.Process(slot).parents():
        if "CoarseGrainedExecutorBackend" in " ".join(parent.cmdline()):
            return int(parent.pid)
    raise RuntimeError(f"process {slot} runs below no executor")


def _recovery(
    victim: Victim, rate: float, keys: int, kill: _Kill, stamps: Stamps, first: dict[int, int], until_ns: int
) -> Recovery:
    """`until_ns`: the next kill, or the end of the observation."""
    due_after = stamps.arrived[stamps.intended >= kill.at_ns]
    first_ns = int(due_after.min()) if victim == "coordinator" else first[kill.token]
    fresh_ns = int(due_after[due_after >= first_ns].min())  # an executor's orphans continue briefly
    from_ns = kill.at_ns - _BEFORE_S * 10**9
    until_ns = min(until_ns, int(stamps.arrived.max()))
    within = stamps.arrived[(stamps.arrived >= from_ns) & (stamps.arrived < until_ns)]
    within = within[within < kill.at_ns + (until_ns - kill.at_ns) // _STEP_NS * _STEP_NS]  # whole steps only
    steps, counts = np.unique((within - kill.at_ns) // _STEP_NS, return_counts=True)
    caught_up_ns = caught_up(stamps, kill.at_ns, until_ns)
    return Recovery(
        victim=victim,
        rate=rate,
        keys=keys,
        first_output_ms=round((first_ns - kill.at_ns) / 1e6, 1),
        first_due_ms=round((fresh_ns - kill.at_ns) / 1e6, 1),
        caught_up_ms=round((caught_up_ns - kill.at_ns) / 1e6, 1) if caught_up_ns is not None else None,
        next_checkpoint_ms=(
            round((kill.checkpoint_ns - kill.at_ns) / 1e6, 1) if kill.checkpoint_ns is not None else None
        ),
        timeline=[(float(step) * _STEP_NS / 1e9, int(count)) for step, count in zip(steps, counts, strict=True)],
    )


def caught_up(stamps: Stamps, at_ns: int, until_ns: int) -> int | None:
    """Arrival of the last row that the fault delayed; None if not before `until_ns`.

    From then on, for half a second at least, every tenth of a second of rows had the usual latency (twice its median,
    and a little more)."""
    usual = stamps.due_in(at_ns - _BEFORE_S * 10**9, at_ns)
    after = stamps.due_in(at_ns, until_ns)
    limit_ms = _BACK * float(np.median(usual.latency_ns)) / 1e6 + _LITTLE_MS
    steps = (after.intended - at_ns) // _STEP_NS
    late = [float(np.median(after.latency_ns[steps == step])) / 1e6 > limit_ms for step in range(int(steps.max()) + 1)]
    for first in range(len(late) - _STEADY + 1):
        if not any(late[first : first + _STEADY]):
            return int(after.arrived[steps < first].max()) if first else at_ns
    return None


def _until(handle: JobHandle, reached: Callable[[JobStatus], bool]) -> JobStatus:
    deadline = time.monotonic() + _TIMEOUT_S
    while not reached(status := handle.status()):
        if status.outcome is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the job is {status.phase}: {status.error or status.reason}")
        time.sleep(_LOOK_S)
    return status
