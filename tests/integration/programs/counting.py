"""A user's whole program, in a separate process so that a test can kill all of it."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness import counting_flow


def main() -> None:
    out, checkpoints, rows, rate, master = sys.argv[1:6]
    counting_flow("whole-program", out, int(rows), float(rate)).run(
        master=master,
        parallelism=2,
        checkpoints=checkpoints,
        checkpoint_interval=0.3,
        spark_conf={"spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]},  # as cheap as the driver's
    )


if __name__ == "__main__":
    main()
