"""The command `rescale`."""

from typing import Any

from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.launch.rescaling import Rescaled, asked_for, wait_for_rescale
from barrier_runtime.state.errors import Unavailable


def rescale(client: Any, job: str, parallelism: int, timeout: float) -> Rescaled:
    """Ask for it and wait until it is over. Raises `RescaleFailed` when the job goes on as it was."""
    run_id, asked = client.status(job).run_id, asked_for(parallelism, timeout)

    def status() -> JobStatus | None:
        """None while nobody answers."""
        try:
            known: JobStatus = client.status(job, run_id)
        except Unavailable:
            return None
        return known

    return wait_for_rescale(job, asked, lambda: client.rescale(job, asked, run_id), status)
