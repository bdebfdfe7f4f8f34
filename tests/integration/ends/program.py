"""A run of a job program under fire: any file with `build(settings) -> Dataflow`, on real Spark.

    python -m tests.integration.ends.program <settings.json>

A later run continues from the latest checkpoint, whatever ended the run before. Ends when the job ends, or when a file
requests a last checkpoint. Exit codes: 0 ended well, 1 anything else (the traceback is on standard error).
"""

import runpy
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tests.integration.chaos.program import Settings, accompany, publish
from tests.integration.ends.moves import next_order, take_orders


class JobSettings(Settings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    program: str  # path
    job: dict[str, Any]  # the argument of `build`
    options: dict[str, Any]  # of `flow.start`
    moves: str = ""  # folder with orders to change the running job


def main() -> int:
    settings = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=JobSettings)
    build = partial(runpy.run_path(settings.program)["build"], settings.job)
    first_order = next_order(Path(settings.moves)) if settings.moves else 0
    with build().start(**settings.options, checkpoints=settings.checkpoints) as handle:
        threading.Thread(target=accompany, args=(handle, settings), daemon=True).start()
        if settings.moves:
            orders = (handle, Path(settings.moves), first_order, build)
            threading.Thread(target=take_orders, args=orders, daemon=True).start()
        result = handle.wait()
    publish(result.status, settings)
    print(result, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
