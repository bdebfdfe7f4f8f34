"""The engine's side of a run: its spec, the three words it says, and the order to stop (standard input ends)."""

import os
import sys
import threading
import time
from pathlib import Path

import msgspec

from benchmarks.spec import Facts, RunSpec

PREFIX = "bench: "


def spec_of_this_run() -> RunSpec:
    return msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=RunSpec)


def say(word: str) -> None:
    """ "began", "running" or "finished"."""
    print(f"{PREFIX}{word} {time.time_ns()}", flush=True)


def stop_order() -> threading.Event:
    """Set when the harness closes standard input (or is gone)."""
    ordered = threading.Event()

    def listen() -> None:
        while os.read(sys.stdin.fileno(), 1):  # not by way of its buffer, whose lock the end of the interpreter needs
            pass
        ordered.set()

    threading.Thread(target=listen, name="stop-order", daemon=True).start()
    return ordered


def leave_facts(spec: RunSpec, facts: Facts) -> None:
    Path(spec.folder, "facts.json").write_bytes(msgspec.json.encode(facts))
