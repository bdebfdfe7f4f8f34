"""A user's whole program that is killed, once, between a decision and the first commit."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import Fault, FaultySink, counting_flow


class KillsTheProgram(Fault):
    """Kills the program in the slot, so that the slot does not reach the commit."""

    def strike(self, point: str) -> None:
        before = self.happened(point)
        super().strike(point)
        while not before and self.happened(point):
            time.sleep(0.1)  # until the worker notices the program's death, and exits


def main() -> None:
    folder, rows, rate = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    fault = KillsTheProgram("coordinator", str(folder))
    fault.order("before commit", os.getpid())
    sink = FaultySink(str(folder / "out"), fault)
    counting_flow("settled", folder / "out", rows, rate, sink=sink).run(
        master="local[2]", parallelism=2, checkpoints=str(folder / "checkpoints"), checkpoint_interval=0.3
    )


if __name__ == "__main__":
    main()
