"""Protocol with an engine's process: three words on standard output, and the order to stop.

The end of standard input is the order to stop. This module imports nothing of ours, because side environments load it
too.
"""

import os
import sys
import threading
import time

PREFIX = "bench: "


def say(word: str) -> None:
    """Prints "began", "running" or "finished"."""
    print(f"{PREFIX}{word} {time.time_ns()}", flush=True)


def stop_order() -> threading.Event:
    """An event that is set when the harness closes standard input or ends."""
    ordered = threading.Event()

    def listen() -> None:
        while os.read(sys.stdin.fileno(), 1):  # unbuffered: the interpreter needs the buffer's lock at its end
            pass
        ordered.set()

    threading.Thread(target=listen, name="stop-order", daemon=True).start()
    return ordered
