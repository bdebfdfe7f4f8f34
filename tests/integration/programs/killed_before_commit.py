"""A user's whole program that is killed, once, between a decision and its first commit."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import Fault, FaultySink, counting_flow


class StopsWhereItKills(FaultySink):
    """The slot that kills the program gets no further: not to its commit."""

    def _maybe(self, point: str) -> None:
        before = os.path.exists(self.fault.marker)
        super()._maybe(point)
        while not before and os.path.exists(self.fault.marker):
            time.sleep(0.1)  # until the worker notices that the program is gone, and leaves


def main() -> None:
    folder, rows, rate = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    own_pid = folder / "program.pid"
    own_pid.write_text(str(os.getpid()))
    fault = Fault("before commit", "coordinator", str(folder / "killed"), str(own_pid))
    sink = StopsWhereItKills(str(folder / "out"), fault)
    counting_flow("settled", folder / "out", rows, rate, sink=sink).run(
        master="local[2]", parallelism=2, checkpoints=str(folder / "checkpoints"), checkpoint_interval=0.3
    )


if __name__ == "__main__":
    main()
