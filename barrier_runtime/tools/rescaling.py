"""The commands `rescale` and `replace`."""

from typing import Any

from barrier_runtime.launch.requests import (
    Replaced,
    Rescaled,
    known_status,
    own_flow,
    replace_asked,
    rescale_asked,
    wait_for_replace,
    wait_for_rescale,
)


def rescale(client: Any, job: str, parallelism: int, timeout: float) -> Rescaled:
    run_id, asked = client.status(job).run_id, rescale_asked(parallelism, timeout)
    return wait_for_rescale(
        job, asked, lambda: client.rescale(job, asked, run_id), lambda: known_status(client, job, run_id)
    )


def replace(client: Any, job: str, flow: str, timeout: float, *, allow_non_restored: bool = False) -> Replaced:
    """`flow`: "app.py:flow" on the machine of the process that runs the job."""
    run_id = client.status(job).run_id
    asked = replace_asked(own_flow(flow), timeout, allow_non_restored=allow_non_restored)
    return wait_for_replace(
        job, asked, lambda: client.replace(job, asked, run_id), lambda: known_status(client, job, run_id)
    )
