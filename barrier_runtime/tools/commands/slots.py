"""The command `slot`: slots on this machine for a job that another program runs."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from barrier_runtime.tools.commands.app import USER_MODULE, Target, app, load_flow


@app.command()
def slot(
    target: Target,
    coordinator: Annotated[str, typer.Option(help="http://host:port of the job's coordinator, or of several")],
    token_file: Annotated[Path, typer.Option(help="file with the coordinator's bearer token")],
    slot: Annotated[list[int], typer.Option(help="number of a slot to run here; may be repeated")],
    insecure_network_ok: Annotated[
        bool, typer.Option("--insecure-network-ok", help="as in the program of the job: rows are not encrypted")
    ] = False,
) -> None:
    """Run slots of a job of another program on this machine, without Spark, until the job ends.

    The job has more slots than its program starts (`processes=2, parallelism=4`: slots 2 and 3 are free). The file must
    be the program that runs the job. Exits with 1 if the job fails.
    """
    from barrier_runtime.coordinator.client.failover import FailoverClient, addresses
    from barrier_runtime.coordinator.client.rest_token import read_token_file
    from barrier_runtime.launch.outcome import JobResult, raise_unless_ended_well
    from barrier_runtime.launch.several_processes.joining import join
    from barrier_runtime.spark.closure import ship_by_value

    flow = load_flow(target)
    ship_by_value(sys.modules[USER_MODULE])
    token = read_token_file(token_file)
    client = FailoverClient(addresses(coordinator), token)
    given = {"insecure_network_ok": True} if insecure_network_ok else {}
    status = join(flow, client, token, slot, partial(print, flush=True), given)
    raise_unless_ended_well(status)
    print(JobResult(status))
