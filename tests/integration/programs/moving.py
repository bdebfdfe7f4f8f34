"""A user's whole program that changes the job and is killed at a moment of the change that only the program knows.

    python moving.py OUT CHECKPOINTS ROWS VERSION MOVE MOMENT

VERSION 2 is another program than 1. MOVE is "rescale" or "replace"; MOMENT "starting" (new slots), "stopping" (the last
barrier is out), "decided" (the log has the record), or "never".
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import NumbersUntilEnough
from slow_sink import PatientSink

from barrier_runtime import Dataflow, count
from barrier_runtime.state.errors import BarrierRuntimeError

NAME, RATE, BEFORE, AFTER = "moved", 100, 2, 3
PATIENT_S = 200.0
_LOOK_S = 0.01  # a checkpoint takes 0.3 s (PatientSink), and after the record new slots have to start


def build(out, rows, version):
    flow = Dataflow(NAME)
    numbers = flow.source("numbers", NumbersUntilEnough(RATE, rows, keys=200, out=out))
    counted = numbers.key_by("key").aggregate("count", n=count())
    if version == 2:
        counted = counted.filter(lambda row: row["n"] > 0)
    counted.sink("out", PatientSink(out))
    return flow


def main():
    out, checkpoints, rows, version, move, moment = sys.argv[1:]
    options = {"master": "local[6]", "parallelism": BEFORE, "checkpoints": checkpoints, "checkpoint_interval": 0.3}
    log = Path(checkpoints, NAME, "log")
    began = Began(time.time() * 1000, len(list(log.glob("*.json"))))
    with build(out, int(rows), int(version)).start(**options) as handle:
        threading.Thread(target=kill_at, args=(moment, handle, log, began), daemon=True).start()
        if moment == "starting":  # there are rows to lose; other moments request the change before their slots exist
            while not has_checkpoint(handle, began):
                time.sleep(0.02)
        if move == "rescale":
            done = handle.rescale(AFTER, timeout=PATIENT_S)
        else:
            done = handle.replace(build(out, int(rows), 2), timeout=PATIENT_S)
        print(f"{move} done with checkpoint {done.checkpoint}, {handle.status().parallelism} slots", flush=True)
        handle.wait()


@dataclass(frozen=True)
class Began:
    """This run, and the files that existed before the run."""

    at_ms: float
    records: int


def kill_at(moment, handle, log, began):
    reached = decided(log, began) if moment == "decided" else (lambda: moved_to(moment, handle, began))
    while moment != "never":
        if reached():
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(_LOOK_S)


def decided(log, began):
    """A function that returns True if a record of the change has been written since the last call."""
    seen = set(sorted(log.glob("*.json"))[: began.records])

    def reached():
        new = set(log.glob("*.json")) - seen
        seen.update(new)
        return any(map(is_move, new))

    return reached


def is_move(record):
    found = json.loads(record.read_bytes())
    return found["kind"] == "FENCE" and (found["spec"].get("program") or found["spec"]["parallelism"] == AFTER)


def moved_to(moment, handle, began):
    """True once the change has reached or passed the moment."""
    status = known(handle)
    states = [each.state for each in status.rescales if each.asked_ms > began.at_ms] if status else []
    if moment == "starting":
        return states == ["starting"] and workers() > BEFORE
    return bool(states) and states[0] != "starting"


def workers():
    """Processes of slots; they are forks of a daemon that looks like them."""
    commands = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # ended meanwhile, or a zombie process
            commands.append(" ".join(each.cmdline()))
    return sum("worker_daemon" in command for command in commands) - 1


def has_checkpoint(handle, began):
    status = known(handle)
    last = status and status.checkpoints.last_completed
    return last is not None and last.triggered_ms > began.at_ms


def known(handle):
    try:
        return handle.status()
    except BarrierRuntimeError:  # the coordinator does not answer yet
        return None


if __name__ == "__main__":
    main()
