"""What an engine's process says and is told: three words on standard output, and the order to stop (standard input
ends). Imports nothing of ours: side environments load it, too.
"""

import os
import sys
import threading
import time

PREFIX = "bench: "


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
