"""A run of the program under fire: starts the job, publishes the job's status, ends when a file requests the end.

    python -m tests.integration.chaos.program <settings.json>

A later run continues from the latest checkpoint, whatever ended the run before. Exit codes: 0 stopped on request, 3
another run took the job over, 1 anything else (the traceback is on standard error).
"""

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import Literal

import msgspec

from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.launch.job_handle import JobHandle
from barrier_runtime.state.errors import Fenced, InvalidJob, Unavailable
from tests.integration.chaos import workload

FENCED = 3
_PUBLISH_S = 0.2


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that every supervised program has."""

    checkpoints: str  # URL
    status_file: str
    stop_file: str  # creating this file requests a last checkpoint and the end


class ProgramSettings(Settings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    target: str  # folder of both sinks
    rows_per_second: float
    jvm_temporary: str  # files of killed JVMs there are not ours
    parallelism: int = 2
    master: str = "local-cluster[2,1,1024]"
    interval_s: float = 0.5
    slot_timeout_s: float = 4.0
    mode: Literal["exactly_once", "at_least_once"] = "exactly_once"


def main() -> int:
    settings = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ProgramSettings)
    flow = workload.build(settings.target, settings.rows_per_second)
    brief = "-XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a JVM that is killed soon starts cheaply
    jvm = f"-Djava.io.tmpdir={settings.jvm_temporary} {brief}"
    try:
        with flow.start(
            master=settings.master,
            parallelism=settings.parallelism,
            checkpoints=settings.checkpoints,
            checkpoint_interval=settings.interval_s,
            checkpoint_timeout=15.0,
            tolerable_failures=3,
            retained=2,
            slot_timeout=settings.slot_timeout_s,
            resource_wait_timeout=300.0,
            restart_attempts=None,
            mode=settings.mode,
            state_memory_mb=64,
            spark_conf={
                "spark.deploy.maxExecutorRetries": "-1",
                "spark.python.task.killTimeout": "1s",
                "spark.driver.extraJavaOptions": jvm,
                "spark.executor.extraJavaOptions": jvm,
            },
        ) as handle:
            threading.Thread(target=accompany, args=(handle, settings), daemon=True).start()
            result = handle.wait()
    except Fenced as error:
        print(f"fenced: {error}", file=sys.stderr, flush=True)
        return FENCED
    publish(result.status, settings)
    print(result, flush=True)
    return 0


def accompany(handle: JobHandle, settings: Settings, every_s: float = _PUBLISH_S) -> None:
    """Publishes the status and passes on the request to stop, as long as the program lives."""
    pause = threading.Event()
    stop_wanted = Path(settings.stop_file)
    told = False
    while True:
        with contextlib.suppress(Unavailable, InvalidJob):  # the coordinator is restarting: retried at once
            publish(handle.status(), settings)
            if not told and stop_wanted.exists():
                handle.stop("checkpoint")
                told = True
        pause.wait(every_s)


def publish(status: JobStatus, settings: Settings) -> None:
    path = Path(settings.status_file)
    written = path.with_suffix(".new")
    written.write_bytes(msgspec.json.encode(status))
    os.replace(written, path)


if __name__ == "__main__":
    sys.exit(main())
