"""A run of the soaked job, with a process per slot: `python -m tests.soak.program <settings.json>`.

Exit codes are those of `chaos.program`.
"""

import logging
import sys
import threading
from pathlib import Path

import msgspec

from barrier_runtime.state.errors import Fenced
from tests.integration.chaos.program import FENCED, Settings, accompany, publish
from tests.soak import workload

_PUBLISH_S = 1.0  # the status is large


class SoakSettings(Settings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    job: str
    bootstrap: str
    target: str
    rows_per_second: float
    rows: int | None
    late_s: float
    parallelism: int


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    settings = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=SoakSettings)
    flow = workload.build(
        settings.job, settings.bootstrap, settings.target, settings.rows_per_second, settings.rows, settings.late_s
    )
    try:
        with flow.start_local(
            processes=settings.parallelism,
            parallelism=settings.parallelism,
            checkpoints=settings.checkpoints,
            checkpoint_interval=workload.INTERVAL_S,
            tolerable_failures=3,
            resource_wait_timeout=600.0,
            state_memory_mb=64,
        ) as handle:
            following = threading.Thread(target=accompany, args=(handle, settings, _PUBLISH_S), daemon=True)
            following.start()
            result = handle.wait()
    except Fenced as error:
        print(f"fenced: {error}", file=sys.stderr, flush=True)
        return FENCED
    publish(result.status, settings)
    print(result, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
