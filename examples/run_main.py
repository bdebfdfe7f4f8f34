"""`make run`: runs the main job on real data, kills a slot and the coordinator, and checks every row.

Kills a slot's Python process after a third of the records and the coordinator after two thirds, both with SIGKILL.
Writes build/run/summary.json; exits 0 only if nothing is lost, doubled or different from Spark SQL's batch answer.
"""

import argparse
import contextlib
import shutil
import sys
from pathlib import Path

import pyarrow.dataset

from examples.flight_delays import build
from examples.flights_data import prepare
from examples.run_check import check
from examples.run_job import RUN, SECONDS, conclude, run_job
from examples.servers import s3_server


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", choices=["file", "s3"], default="file", help="of checkpoints and output")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of the replay")
    chosen = parser.parse_args()
    shutil.rmtree(RUN, ignore_errors=True)
    RUN.mkdir(parents=True)
    flights = prepare(Path("build/data"))
    records = pyarrow.dataset.dataset(flights, format="parquet").count_rows()
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(s3_server()).url if chosen.storage == "s3" else str(RUN.resolve())
        flow = build(flights, f"{root}/output", rows_per_second=records / chosen.seconds)
        status, observer = run_job(flow, records, f"{root}/checkpoints", chosen.seconds)
        print("checking against Spark SQL …", flush=True)
        verdict = check(flights, f"{root}/output")
        return conclude(status, observer, verdict, records, f"{root}/checkpoints")


if __name__ == "__main__":
    sys.exit(main())
