"""Commands for jobs of a daemon."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import counted
from barrier_runtime.tools.commands.app import USER_MODULE, Target, app, load_flow
from barrier_runtime.tools.coordinators import Ca, Coordinator, TokenFile, all_jobs, client_of, client_once_known

Json = Annotated[bool, typer.Option("--json", help="for programs")]


@app.command()
def status(
    job: Annotated[str | None, typer.Argument(help="one job; default: all jobs")] = None,
    log: Annotated[int | None, typer.Option(help="a slot: print the last log records of its process")] = None,
    stacks: Annotated[int | None, typer.Option(help="a slot: print the stacks of its threads")] = None,
    rows: Annotated[str | None, typer.Option(help="a step: print some rows that the step sends on now")] = None,
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    json: Json = False,
) -> None:
    """Print the state of one job, or the list of jobs, as tables.

    `--json` prints everything, for programs, and on stderr a line for each job that says whether the job makes
    progress. `--log 3` and `--stacks 3` ask slot 3 of the job instead, `--rows STEP` a slot with the step.
    """
    if log is not None or stacks is not None or rows is not None:
        _print_lines(job, log, stacks, rows, lambda of: client_of(of, coordinator, token_file, ca), json)
        return
    if job is not None:
        client = client_of(job, coordinator, token_file, ca)
        answer = client.status(job)
    else:
        answer = all_jobs(coordinator, token_file, ca)
    if json:
        _print_json(answer)
        for each in [answer] if job else answer:
            _print_condition(each)
        return
    from rich.console import Console

    from barrier_runtime.tools.views import job_view, jobs_view

    Console(highlight=False).print(job_view(_with_subtasks(client, answer)) if job else jobs_view(answer))


def _print_lines(
    job: str | None, log: int | None, stacks: int | None, rows: str | None, client_for: Callable[[str], Any], json: bool
) -> None:
    if job is None:
        raise InvalidJob("--log, --stacks and --rows ask a slot of a job: name the job, as in `status flights --log 3`")
    if sum(each is not None for each in (log, stacks, rows)) > 1:
        raise InvalidJob("--log, --stacks and --rows are several questions: give one of them")
    client = client_for(job)
    if rows is not None:
        from barrier_runtime.coordinator.client.rest_types import RowsAsked

        answer = client.rows(job, RowsAsked(rows))
    else:
        answer = client.slot_lines(job, stacks if log is None else log, "stacks" if log is None else "log")
    if json:
        _print_json(answer)
    else:
        from barrier_runtime.coordinator.page.render import inert

        none = f"no {'rows' if rows is not None else 'lines'} so far" if stacks is None else "no threads"
        print(inert("\n".join(answer.lines)) if answer.lines else none)  # a log may hold escape sequences


@app.command()
def top(
    job: str,
    every: Annotated[float, typer.Option(help="seconds between two looks")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="look once and leave")] = False,
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Watch a job: rates, busy shares, latencies, checkpoints, slots and the bottleneck, until it ends or Ctrl-C."""
    from barrier_runtime.tools.views import watch

    if not 0.2 <= every <= 3600:
        raise InvalidJob(f"--every {every:g}: give 0.2 to 3600 seconds")
    client = client_of(job, coordinator, token_file, ca)
    watch(lambda: _with_subtasks(client, client.status(job)), every, once=once)


@app.command()
def page(job: str, coordinator: Coordinator = None, token_file: TokenFile = None, ca: Ca = None) -> None:
    """Print the address of a job's page as a link that logs in by itself, once, within an hour."""
    print(client_of(job, coordinator, token_file, ca).page_link(job))


@app.command()
def why(
    job: str,
    checkpoint: Annotated[int | None, typer.Argument(help="number of a checkpoint; without it, of the job")] = None,
    json: Json = False,
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Say why a checkpoint was slow or failed, or why the job does not start, shows nothing or got slow."""
    answer = client_of(job, coordinator, token_file, ca).why(job, checkpoint)
    if json:
        _print_json(answer)
    else:
        print(answer)


@app.command()
def checkpoint(
    job: str, json: Json = False, coordinator: Coordinator = None, token_file: TokenFile = None, ca: Ca = None
) -> None:
    """Trigger a checkpoint now. Exits with 1 when the job cannot take one."""
    reply = client_of(job, coordinator, token_file, ca).trigger(job)
    _print_reply(reply, f"job {job}: a checkpoint is requested", json)


@app.command()
def stop(
    job: str,
    now: Annotated[bool, typer.Option("--now", help="without a last checkpoint")] = False,
    savepoint: Annotated[
        str | None, typer.Option(help="folder or URL: the job ends with a savepoint there, which is waited for")
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="end the input first: windows and timers fire")] = False,
    json: Json = False,
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Take a last checkpoint, commit it and stop the job.

    Exits with 1 if the job has ended already, and if the savepoint failed: the job continues, but a drained job ends.
    """
    client = client_of(job, coordinator, token_file, ca)
    if drain and now:
        raise InvalidJob("--now does not wait for what --drain emits: leave one of them out")
    if savepoint is None:
        reply = client.stop(job, "now" if now else "drain" if drain else "checkpoint")
        first = "" if now else " after the end of its input" if drain else " after a last checkpoint"
        _print_reply(reply, f"job {job}: it stops{first}", json)
        return
    if now:
        raise InvalidJob("--now takes no last checkpoint, so there can be no savepoint: leave one of them out")
    from barrier_runtime.tools.savepoints import stop_with

    _print_savepoint(lambda: stop_with(client, job, savepoint, drain))


@app.command("savepoint")
def take_savepoint(
    job: str,
    to: Annotated[str, typer.Option(help="folder or URL of its own, seen by the coordinator")],
    timeout: Annotated[float | None, typer.Option(help="seconds to wait for it; default: as long as it takes")] = None,
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Copy a running job's state to a folder that needs nothing else; start a job with it by --restore."""
    from barrier_runtime.tools.savepoints import take

    client = client_of(job, coordinator, token_file, ca)
    _print_savepoint(lambda: take(client, job, to, timeout))


def _print_savepoint(take: Callable[[], Any]) -> None:
    from barrier_runtime.launch.requests import SavepointFailed

    try:
        taken = take()
    except SavepointFailed as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(f"savepoint {taken.url}: checkpoint {taken.checkpoint}, {taken.bytes:,} bytes")


@app.command()
def rescale(
    job: str,
    parallelism: Annotated[int, typer.Option(help="slots to go on with, at most the job's max_parallelism")],
    timeout: Annotated[float, typer.Option(help="seconds for the new slots to come")] = 60.0,
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Change a running job's number of slots. Exits with 1 if that failed: the job continues unchanged."""
    from barrier_runtime.launch.requests import RescaleFailed
    from barrier_runtime.tools.rescaling import rescale as rescaled

    try:
        done = rescaled(client_of(job, coordinator, token_file, ca), job, parallelism, timeout)
    except RescaleFailed as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if done.checkpoint is None:
        print(f"job {job} has {counted(done.parallelism, 'slot')}")
    else:
        print(
            f"job {job}: {done.before} -> {counted(done.parallelism, 'slot')} at checkpoint {done.checkpoint}, "
            f"{done.pause_ms} ms"
        )


@app.command()
def leave(
    host: Annotated[str | None, typer.Option(help="host of slots; default: this machine, no coordinator")] = None,
    job: Annotated[str, typer.Option(help="a single job; default: all jobs of the daemon")] = "",
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Move slots off a host that is about to end: other processes take the slots at a barrier.

    Without `--host`: signals the slots of this user on this machine.
    """
    from barrier_runtime.tools.rescaling import signal_own_slots

    if host is None:
        print(f"signalled {counted(signal_own_slots(), 'slot')}")
        return
    if not job and coordinator is None:
        raise InvalidJob("which jobs: name one with --job, or a coordinator with --coordinator")
    for name, slots in sorted(client_of(job, coordinator, token_file, ca).leave(host, job).slots.items()):
        print(f"job {name}: {counted(slots, 'slot')} on {host}")


@app.command()
def replace(
    target: Target,
    job: Annotated[str, typer.Option(help="default: the one that is called as the flow is")] = "",
    timeout: Annotated[float, typer.Option(help="seconds for the new slots to come")] = 60.0,
    allow_non_restored: Annotated[
        bool, typer.Option("--allow-non-restored", help="drop state that the new program does not have")
    ] = False,
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Replace the program of a running job by the program that is now in app.py.

    The process that runs the job loads the program; the file and flow must be those with which the job was started.
    Exits with 1 if the replacement failed: the job continues unchanged.
    """
    from barrier_runtime.launch.requests import ReplaceFailed
    from barrier_runtime.tools.rescaling import replace as replaced

    try:
        job = job or load_flow(target).name
        done = replaced(
            client_of(job, coordinator, token_file, ca), job, target, timeout, allow_non_restored=allow_non_restored
        )
    except ReplaceFailed as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(f"job {job}: goes on with another program from checkpoint {done.checkpoint}, {done.pause_ms} ms")


@app.command()
def report(
    job: str,
    to: Annotated[Path, typer.Option(help="HTML file to write; one that exists is replaced")],
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    checkpoints: Annotated[str | None, typer.Option(help="folder or URL, for a job that has ended")] = None,
) -> None:
    """Write the page of a job to one HTML file, for a bug report: no script, nothing fetched, secrets masked."""
    from barrier_runtime.tools.views import report as write_report

    print(f"{to}: {write_report(job, to, coordinator, token_file, ca, checkpoints):,} bytes")


def _with_subtasks(client: Any, status: Any) -> Any:
    """Adds the checkpoints with subtasks, which explain slow checkpoints and are not in the status."""
    import msgspec

    return msgspec.structs.replace(status, checkpoints=client.checkpoints(status.job))


def _print_json(answer: object) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())


def _print_reply(reply: Any, accepted: str, json: bool) -> None:
    if json:
        _print_json(reply)
    elif reply.answer == "refused":
        print(f"error: {reply.reason}", file=sys.stderr)
    else:
        print(accepted)
    if reply.answer == "refused":
        raise typer.Exit(1)


def _print_condition(job: Any) -> None:
    from barrier_runtime.coordinator.status.health import described

    print(f"job {job.job}: {described(job.condition, job.condition_reason)}", file=sys.stderr)


@app.command()
def slot(
    target: Target,
    slot: Annotated[list[int], typer.Option(help="number of a slot to run here; may be repeated")],
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    insecure_network_ok: Annotated[
        bool, typer.Option("--insecure-network-ok", help="as in the program of the job: rows are not encrypted")
    ] = False,
    wait: Annotated[float, typer.Option(help="seconds to wait for the job, whose program may be starting", min=0)] = 60,
) -> None:
    """Run slots of a job of another program on this machine, without Spark, until the job ends.

    The job has more slots than its program starts (`processes=2, parallelism=4`: slots 2 and 3 are free). The file must
    be the program that runs the job. Exits with 1 if the job fails.
    """
    from barrier_runtime.launch.outcome import JobResult, raise_unless_ended_well
    from barrier_runtime.launch.processes import join
    from barrier_runtime.spark.closure import ship_by_value

    flow = load_flow(target)
    ship_by_value(sys.modules[USER_MODULE])
    say = partial(print, flush=True)
    client = client_once_known(flow.plan.name, wait, partial(say, file=sys.stderr), coordinator, token_file, ca)
    given = {"insecure_network_ok": True} if insecure_network_ok else {}
    status = join(flow, client, slot, say, given)
    raise_unless_ended_well(status)
    print(JobResult(status))
