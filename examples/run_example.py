"""`make run EXAMPLE=…`: runs an example between real servers, with kills, and checks every row.

Starts the servers, feeds them at an even pace once the job runs, and kills with SIGKILL a slot after a third of the
rows, then each server (started again three seconds later), and the coordinator after two thirds. Writes
build/run/summary.json; exits 0 only if nothing is lost, doubled or different from the truth.
"""

import argparse
import contextlib
import shutil
import sys
from pathlib import Path

from examples.grow_run import SECONDS, run_grow
from examples.run_job import RUN, conclude, run_job
from examples.run_stages import STAGES
from examples.servers import ServerError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("example", choices=sorted([*STAGES, "grow"]))
    parser.add_argument(
        "--seconds", type=float, help="how long the servers are fed; default: as long as the example wants"
    )
    chosen = parser.parse_args()
    shutil.rmtree(RUN, ignore_errors=True)
    RUN.mkdir(parents=True)
    if chosen.example == "grow":  # without servers or kills: the job itself changes
        return run_grow(RUN.resolve(), chosen.seconds or SECONDS)
    checkpoints = str(RUN.resolve() / "checkpoints")
    try:
        with contextlib.ExitStack() as stack:
            make = STAGES[chosen.example]
            seconds = chosen.seconds or make.seconds
            stage = make(stack, Path("build/data").resolve(), seconds)
            status, observer = run_job(
                stage.flow,
                stage.records,
                checkpoints,
                seconds,
                stage.servers,
                begin=stage.feed.start,
                complete=stage.complete,
                known=stage.known,
            )
            print("checking every row …", flush=True)
            return conclude(status, observer, stage.check(), stage.records, checkpoints)
    except ServerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    sys.exit(main())
