"""A job's program as a separate process that is killed once it has decided some checkpoints."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def deciding(command: Sequence[str], log: Path, records: int, patience_s: float) -> Iterator[None]:
    """Enters when the decision log `log` has `records` records; SIGKILL at the end."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + patience_s
        while len(list(log.glob("*.json"))) < records:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, "no checkpoints were decided"
            time.sleep(0.02)
        yield
    finally:
        process.kill()
        process.communicate(timeout=240)
