"""The command `rescale`."""

from typing import Any

from barrier_runtime.launch.rescaling import Rescaled, asked_for, wait_for_rescale
from barrier_runtime.launch.wishes import known_status


def rescale(client: Any, job: str, parallelism: int, timeout: float) -> Rescaled:
    """Ask for it and wait until it is over. Raises `RescaleFailed` when the job goes on as it was."""
    run_id, asked = client.status(job).run_id, asked_for(parallelism, timeout)
    return wait_for_rescale(
        job, asked, lambda: client.rescale(job, asked, run_id), lambda: known_status(client, job, run_id)
    )
