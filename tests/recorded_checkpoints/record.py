"""Records the checkpoints of a real job on Spark for `test_why.py`: normal ones, and slow ones with a planted cause.

    python tests/recorded_checkpoints/record.py [cause …]

Two slots, two processes, files as the store; each cause has a separate run. Writes `<cause>.json.xz` beside this file
with the chains, the history, and in which checkpoints the cause was planted.
"""

import contextlib
import lzma
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).resolve().parent
PLANTED = Path(tempfile.mkdtemp(prefix="planted-"))
os.environ["PLANTED"] = str(PLANTED)
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
sys.path.insert(0, str(HERE))

import planted  # noqa: E402

from barrier_runtime import Dataflow  # noqa: E402

NORMAL = 120
BEFORE = 15  # normal checkpoints before the cause
BURNERS = 10
CAUSES = ("normal", "step", "skew", "precommit", "store", "large", "backpressure", "starved", "stalled")
WORST_MS = 1_500  # of a cause that builds up


def flow(name: str, out: Path) -> Dataflow:
    made = Dataflow(name)
    rows = made.rate("numbers", 400, 10**9, keys=200).map_batches(planted.read, name="read")
    kept = rows.key_by("key").process("keep", planted.Keep, schema={"key": "int64", "value": "int64", "n": "int64"})
    kept.rebalance().sink("out", planted.Sink(str(out)))
    return made


def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "gave up"
        time.sleep(0.05)


class Run:
    def __init__(
        self, spark: Any, flow: Dataflow, checkpoints: str, *, parallelism: int = 2, interval: float = 0.3
    ) -> None:
        self.handle = flow.start(
            spark=spark, parallelism=parallelism, checkpoints=checkpoints, checkpoint_interval=interval
        )

    def checkpoints(self) -> Any:
        return self.handle._coordinator.client.checkpoints(self.handle._spec.job)

    def completed(self, count: int) -> None:
        seen = self.checkpoints().completed
        until(lambda: self.checkpoints().completed >= seen + count)

    def worst_since(self, first: int) -> int:
        return max((each.duration_ms for each in self.checkpoints().history if each.checkpoint >= first), default=0)

    def last(self) -> int:
        return int(self.checkpoints().last_completed.checkpoint)


@contextlib.contextmanager
def starved(run: Run, slot: int = 1) -> Iterator[None]:
    """The slot has a few hundredths of one processor. Needs the right to raise priorities."""
    pid = run.handle.status().slots[slot].pid
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task), {0})
    burn = ["nice", "-n", "-9", "taskset", "-c", "0", sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(burn) for _ in range(BURNERS)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task), set(range(os.cpu_count() or 1)))


@contextlib.contextmanager
def stalled(run: Run, slot: int = 1, seconds: float = planted.PAUSE_S) -> Iterator[None]:
    pid = run.handle.status().slots[slot].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def file(cause: str) -> Iterator[None]:
    (PLANTED / cause).touch()
    yield
    planted.remove(cause)


def record(spark: Any, cause: str) -> None:
    with tempfile.TemporaryDirectory(prefix="recorded-") as folder:
        run = Run(spark, flow(f"recorded-{cause}", Path(folder) / "out"), f"{folder}/checkpoints")
        with run.handle:
            until(lambda: run.checkpoints().completed >= 5)
            run.completed(NORMAL if cause == "normal" else BEFORE)
            first = run.last() + 1
            if cause in ("starved", "stalled"):
                with starved(run) if cause == "starved" else stalled(run):
                    until(lambda: cause == "stalled" or run.worst_since(first) >= WORST_MS)
                run.completed(1)
            elif cause != "normal":
                with file(cause):
                    until(lambda: not (PLANTED / cause).exists() or run.worst_since(first) >= WORST_MS)
                run.completed(2)
            keep(run, cause, first, HERE)


def keep(run: Run, cause: str, first: int, folder: Path, most: int = 100) -> None:
    """End the run, and store what it told. `first`: the first checkpoint that the cause may have touched."""
    last = run.last()
    status, checkpoints = run.handle.status(), run.checkpoints()
    run.handle.stop("now")
    kept = {
        "cause": cause,
        "planted": [] if cause.startswith("normal") else list(range(first, last + 1)),
        "chains": status.chains,
        "history": checkpoints.history[-most:],
    }
    folder.mkdir(exist_ok=True)
    (folder / f"{cause}.json.xz").write_bytes(lzma.compress(msgspec.json.encode(kept)))
    durations = [(each.checkpoint, each.outcome, each.duration_ms) for each in checkpoints.history]
    print(cause, "planted", first, "to", last, durations[-10:], f"load {os.getloadavg()[0]:.1f}", flush=True)


def main(causes: list[str]) -> None:
    from barrier_runtime.spark.session import make_session

    spark = make_session("recorded", "local[3]", {})
    spark.sparkContext.setLogLevel("OFF")
    try:
        for cause in causes or CAUSES:
            record(spark, cause)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
