"""The command `barrier-runtime`: run a flow, explain it, start a coordinator daemon, look at and steer its jobs.

Errors a person must fix are printed without a stack trace and exit with 2; a failed job exits with 1, one that was
interrupted with 130, and a local one that got SIGTERM with 143, after a last checkpoint.
"""

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, UserCodeError
from barrier_runtime.tools.options import Given, with_options

if TYPE_CHECKING:
    from barrier_runtime.api.dataflow import Dataflow

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"barrier-runtime {sys.modules['barrier_runtime'].__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and leave")
    ] = False,
) -> None:
    """The command line of barrier-runtime."""


savepoints = typer.Typer(no_args_is_help=True, help="Look at savepoints, delete them.")
app.add_typer(savepoints, name="savepoints")

state = typer.Typer(no_args_is_help=True, help="Read the state in checkpoints and savepoints, without the program.")
app.add_typer(state, name="state")

Target = Annotated[str, typer.Argument(help="the file and the name of the flow in it: app.py:flow")]
Coordinator = Annotated[str, typer.Option(help="REST address of the daemon, http://host:port; of several with commas")]
TokenFile = Annotated[Path, typer.Option(help="file with the daemon's bearer token")]
_USER_MODULE = "barrier_runtime_user_app"


def load_flow(target: str) -> "Dataflow":
    """The flow named by `file.py:name`. Raises `InvalidJob` that says what is missing."""
    from barrier_runtime.api.dataflow import Dataflow

    file, _, name = target.rpartition(":")
    if not file or not name.isidentifier():
        raise InvalidJob(f"{target!r} names no flow: write it as file.py:name, for example app.py:flow")
    path = Path(file)
    if not path.is_file():
        raise InvalidJob(f"there is no file {file!r} (looked in {Path.cwd()})")
    spec = importlib.util.spec_from_file_location(_USER_MODULE, path)
    if spec is None or spec.loader is None:
        raise InvalidJob(f"{file!r} is not a Python file: give one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_USER_MODULE] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except BarrierRuntimeError as error:
        raise InvalidJob(f"{error}\n  said of {_user_line(error, path)}") from error
    except Exception as error:
        from barrier_runtime.operators.user_code import user_traceback

        raise UserCodeError(f"{file} cannot be loaded: correct it, then start again", user_traceback(error)) from error
    flow = getattr(module, name, None)
    if not isinstance(flow, Dataflow):
        have = [key for key, value in vars(module).items() if isinstance(value, Dataflow)]
        raise InvalidJob(f"{file} has no Dataflow called {name!r}; it has: {', '.join(have) or 'none'}")
    flow.plan.program = target
    return flow


def _user_line(error: Exception, path: Path) -> str:
    """Where in the user's file the mistake is."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == path.resolve()]
    return f"{path}, line {frames[-1].lineno}: {frames[-1].line}" if frames else str(path)


@app.command()
@with_options
def run(
    target: Target,
    local: Annotated[bool, typer.Option("--local", help="run in this process, without Spark")] = False,
    *,
    given: Given,
) -> None:
    """Run a flow until it ends."""
    options = given.for_run(local=local)
    flow = load_flow(target)
    try:
        if local:
            _run_local(flow, options)
        else:
            from barrier_runtime.spark.closure import ship_by_value

            ship_by_value(sys.modules[_USER_MODULE])
            print(flow.run(**options))
    except KeyboardInterrupt:
        print(
            f"interrupted: job {flow.name} was stopped; what its last checkpoint covers is committed", file=sys.stderr
        )
        raise typer.Exit(130) from None


def _run_local(flow: "Dataflow", options: dict[str, Any]) -> None:
    from barrier_runtime.launch.local import run_until_terminated
    from barrier_runtime.launch.options import JobOptions

    result, terminated = run_until_terminated(flow.plan, JobOptions.for_local_run(options, flow.options))
    if result is not None:
        print(result)
    if terminated:
        last = "after a last checkpoint" if result is not None else "without a last checkpoint, which took too long"
        print(
            f"terminated: job {flow.name} was stopped {last}; what its last checkpoint covers is committed",
            file=sys.stderr,
        )
        raise typer.Exit(143)


@app.command()
@with_options
def explain(
    target: Target,
    local: Annotated[bool, typer.Option("--local", help="as a local run would see it")] = False,
    *,
    given: Given,
) -> None:
    """Print chains, edges, the delivery guarantee of each sink, and all options with where each value comes from.

    With --restore also what becomes of each operator's state; exits with 2 where `run` would refuse. Writes nothing.
    """
    options = given.for_run(local=local)
    flow = load_flow(target)
    from barrier_runtime.api.dataflow import explain_flow

    print(explain_flow(flow, options, {name: given.sources[name] for name in options}, local=local))
    if "restore" in options:
        from barrier_runtime.api.dataflow import preview_of_restore

        page, starts = preview_of_restore(flow, options, local=local)
        print(page, end="")
        if not starts:
            raise typer.Exit(2)


@app.command()
def demo(
    rate: Annotated[float, typer.Option(help="orders per second")] = 2_000,
    orders: Annotated[int | None, typer.Option(help="end after so many orders; without it at Ctrl-C")] = None,
    browser: Annotated[bool, typer.Option(help="open the page in a browser")] = True,
) -> None:
    """Run a small live flow with its page, from this package alone: no Spark, no Java. Kill parts of it and look."""
    from functools import partial

    from barrier_runtime.tools.demo import demo as run_demo

    on_terminal = sys.stdout.isatty()
    print(run_demo(rate, orders, browser=browser and on_terminal, say=partial(print, flush=True)))


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="of the project: its folder, and the job's name")],
) -> None:
    """Make a project: a flow that runs, its test, a Makefile, and a compose file with Kafka, PostgreSQL and S3."""
    from barrier_runtime.tools.new_project import new_project

    for line in new_project(name, Path.cwd()):
        print(line)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def coordinator(context: typer.Context) -> None:
    """Run a coordinator daemon: --listen host:port --http host:port --storage URL --token-file FILE --lease SECONDS."""
    from barrier_runtime.coordinator.server.daemon import main as daemon_main

    raise typer.Exit(daemon_main(context.args))


Json = Annotated[bool, typer.Option("--json", help="for programs")]


@app.command()
def status(
    coordinator: Coordinator,
    token_file: TokenFile,
    job: Annotated[str | None, typer.Argument(help="one job")] = None,
    json: Json = False,
) -> None:
    """Print the state of one job, or the list of jobs, as tables. `--json`: all of it, for programs; on stderr whether
    each job makes progress, in a line."""
    client = _client(coordinator, token_file)
    answer = client.status(job) if job else client.jobs()
    if json:
        _print_json(answer)
        for each in [answer] if job else answer:
            _print_condition(each)
        return
    from rich.console import Console

    from barrier_runtime.tools.views import job_view, jobs_view

    Console(highlight=False).print(job_view(_with_subtasks(client, answer)) if job else jobs_view(answer))


@app.command()
def top(
    coordinator: Coordinator,
    token_file: TokenFile,
    job: str,
    every: Annotated[float, typer.Option(help="seconds between two looks")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="look once and leave")] = False,
) -> None:
    """Watch a job: rates, busy shares, latencies, checkpoints, slots and the bottleneck, until it ends or Ctrl-C."""
    from barrier_runtime.tools.top import watch

    if not 0.2 <= every <= 3600:
        raise InvalidJob(f"--every {every:g}: give 0.2 to 3600 seconds")
    client = _client(coordinator, token_file)
    watch(lambda: _with_subtasks(client, client.status(job)), every, once=once)


@app.command()
def why(
    coordinator: Coordinator,
    token_file: TokenFile,
    job: str,
    checkpoint: Annotated[int | None, typer.Argument(help="number of a checkpoint; without it, of the job")] = None,
    json: Json = False,
) -> None:
    """Say why a checkpoint was slow or failed, or why the job does not start, shows nothing or got slow."""
    answer = _client(coordinator, token_file).why(job, checkpoint)
    if json:
        _print_json(answer)
    else:
        print(answer)


@app.command()
def checkpoint(coordinator: Coordinator, token_file: TokenFile, job: str) -> None:
    """Trigger a checkpoint now. Exits with 1 when the job cannot take one."""
    reply = _client(coordinator, token_file).trigger(job)
    _print_json(reply)
    if reply.answer == "refused":
        raise typer.Exit(1)


@app.command()
def stop(
    coordinator: Coordinator,
    token_file: TokenFile,
    job: str,
    now: Annotated[bool, typer.Option("--now", help="without a last checkpoint")] = False,
    savepoint: Annotated[
        str | None, typer.Option(help="folder or URL: the job ends with a savepoint there, which is waited for")
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="end the input first: windows and timers fire")] = False,
) -> None:
    """Take a last checkpoint, commit it and stop the job. Exits with 1 when the savepoint failed: the job goes on, but
    a drained one ends."""
    client = _client(coordinator, token_file)
    if drain and now:
        raise InvalidJob("--now does not wait for what --drain emits: leave one of them out")
    if savepoint is None:
        _print_json(client.stop(job, "now" if now else "drain" if drain else "checkpoint"))
        return
    if now:
        raise InvalidJob("--now takes no last checkpoint, so there can be no savepoint: leave one of them out")
    from barrier_runtime.tools.savepoints import stop_with

    _print_savepoint(lambda: stop_with(client, job, savepoint, drain))


@app.command("savepoint")
def take_savepoint(
    coordinator: Coordinator,
    token_file: TokenFile,
    job: str,
    to: Annotated[str, typer.Option(help="folder or URL of its own, seen by the coordinator")],
    timeout: Annotated[float | None, typer.Option(help="seconds to wait for it; default: as long as it takes")] = None,
) -> None:
    """Copy a running job's state to a folder that needs nothing else; start a job with it by --restore."""
    from barrier_runtime.tools.savepoints import take

    client = _client(coordinator, token_file)
    _print_savepoint(lambda: take(client, job, to, timeout))


def _print_savepoint(take: Callable[[], Any]) -> None:
    from barrier_runtime.launch.steering.savepoints import SavepointFailed

    try:
        taken = take()
    except SavepointFailed as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(f"savepoint {taken.url}: checkpoint {taken.checkpoint}, {taken.bytes:,} bytes")


@app.command()
def rescale(
    coordinator: Coordinator,
    token_file: TokenFile,
    job: str,
    parallelism: Annotated[int, typer.Option(help="slots to go on with, at most the job's max_parallelism")],
    timeout: Annotated[float, typer.Option(help="seconds for the new slots to come")] = 60.0,
) -> None:
    """Change a running job's number of slots. Exits with 1 when that failed: the job goes on as it was."""
    from barrier_runtime.launch.steering.rescaling import RescaleFailed
    from barrier_runtime.tools.rescaling import rescale as rescaled

    try:
        done = rescaled(_client(coordinator, token_file), job, parallelism, timeout)
    except RescaleFailed as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if done.checkpoint is None:
        print(f"job {job} has {done.parallelism} slots")
    else:
        print(
            f"job {job}: {done.before} -> {done.parallelism} slots at checkpoint {done.checkpoint}, {done.pause_ms} ms"
        )


@app.command()
def replace(
    target: Target,
    coordinator: Coordinator,
    token_file: TokenFile,
    job: Annotated[str, typer.Option(help="default: the one that is called as the flow is")] = "",
    timeout: Annotated[float, typer.Option(help="seconds for the new slots to come")] = 60.0,
    allow_non_restored: Annotated[
        bool, typer.Option("--allow-non-restored", help="drop state that the new program does not have")
    ] = False,
) -> None:
    """Go on with the program that is in app.py now, while the job runs; it is loaded by the program that runs the job,
    from the file that this was started with. Exits with 1 when that failed: the job goes on as it was."""
    from barrier_runtime.launch.steering.replacing import ReplaceFailed
    from barrier_runtime.tools.rescaling import replace as replaced

    try:
        job = job or load_flow(target).name
        done = replaced(_client(coordinator, token_file), job, target, timeout, allow_non_restored=allow_non_restored)
    except ReplaceFailed as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(f"job {job}: goes on with another program from checkpoint {done.checkpoint}, {done.pause_ms} ms")


@savepoints.command("describe")
def describe_savepoint(url: Annotated[str, typer.Argument(help="its folder or URL")]) -> None:
    """Say what a savepoint is of, and whether it is whole. Exits with 1 when files are missing."""
    from barrier_runtime.tools.savepoints import describe

    page, whole = describe(url)
    print(page)
    if not whole:
        raise typer.Exit(1)


@savepoints.command("delete")
def delete_savepoint(
    url: Annotated[str, typer.Argument(help="its folder or URL")],
    yes: Annotated[bool, typer.Option("--yes", help="really")] = False,
) -> None:
    """Delete a savepoint. Jobs that began with it have a copy of their own."""
    from barrier_runtime.tools.savepoints import delete

    print(delete(url, yes))


Redact = Annotated[list[str] | None, typer.Option(help="a column whose values are hidden; may be repeated")]
Stored = Annotated[str, typer.Argument(help="a savepoint, or with --job the folder or URL of checkpoints")]
OfJob = Annotated[str, typer.Option(help="the job whose checkpoints are in the folder")]
Number = Annotated[int | None, typer.Option(help="of a retained checkpoint; default: the newest")]
StateName = Annotated[str, typer.Argument(help="operator.state, as `state tables` lists it")]


@state.command("tables")
def state_tables(url: Stored, job: OfJob = "", checkpoint: Number = None) -> None:
    """List the states of every operator."""
    from barrier_runtime.tools.state import tables

    print(tables(url, job, checkpoint))


@state.command("show")
def state_show(
    url: Stored,
    name: StateName,
    job: OfJob = "",
    checkpoint: Number = None,
    key: Annotated[list[str] | None, typer.Option(help="column=value of the key; may be repeated")] = None,
    limit: Annotated[int, typer.Option(min=1, help="entries")] = 20,
    redact: Redact = None,
) -> None:
    """Print entries of a state, a line of JSON each; of a running job those of its last checkpoint, whose age is told
    on stderr. With the whole key given only its part is read."""
    from barrier_runtime.tools.state import show

    page, of = show(url, job, checkpoint, name, key or (), limit, redact or ())
    print(page)
    print(of, file=sys.stderr)


@state.command("diff")
def state_diff(
    before: Annotated[str, typer.Argument(help="number of a checkpoint of --job, or URL of a savepoint")],
    after: Annotated[str, typer.Argument(help="the same, of a later one")],
    url: Annotated[str, typer.Option("--checkpoints", help="folder or URL of the job's checkpoints")] = "",
    job: OfJob = "",
    name: Annotated[str, typer.Option("--state", help="only this step, or step.state")] = "",
    limit: Annotated[int, typer.Option(min=0, help="entries that are printed; all are counted")] = 100,
    redact: Redact = None,
) -> None:
    """Print what differs between two checkpoints or savepoints of a job: entries inserted, changed, deleted. Exits with
    1 when anything does."""
    from barrier_runtime.tools.state import differences

    sides = [(url, job, int(each)) if each.isdigit() else (each, "", None) for each in (before, after)]
    line = ""
    for line in differences(sides[0], sides[1], name, limit, redact or ()):
        print(line)
    if line != "0 inserted, 0 changed, 0 deleted":
        raise typer.Exit(1)


@state.command("export")
def state_export(
    url: Stored,
    name: StateName,
    to: Annotated[Path, typer.Option(help="a new Parquet file")],
    job: OfJob = "",
    checkpoint: Number = None,
) -> None:
    """Write a state to a Parquet file."""
    from barrier_runtime.tools.state import export

    print(export(url, job, checkpoint, name, to))


From = Annotated[str, typer.Option("--from", help="number of a kept checkpoint, URL of a savepoint, or 0: the start")]
Until = Annotated[str | None, typer.Option(help="number of a later checkpoint, or URL of a savepoint")]
Checkpoints = Annotated[
    str | None, typer.Option(help="folder or URL of the job's checkpoints; default: the flow's own option")
]


@app.command()
def replay(
    target: Target,
    after: From,
    operator: Annotated[str, typer.Option(help="the step to look at")],
    until: Until = None,
    key: Annotated[
        list[str] | None, typer.Option(help="value of the key, or column=value; may be repeated; default: all rows")
    ] = None,
    row: Annotated[
        str | None, typer.Option(help="split:number of one row of a source, for a step in one chain with it")
    ] = None,
    checkpoints: Checkpoints = None,
    stop: Annotated[bool, typer.Option("--pdb", help="stop at each row, in the step's function")] = False,
    redact: Redact = None,
) -> None:
    """Run a flow again between two checkpoints, in this process, and print what a step makes of each row of a key: its
    state before and after, what it emits. Sinks are not run, and nothing is written where the job is.

    Without --until it goes on until a function raises or no row comes any more. Exits with 1 when a function raised."""
    from barrier_runtime.tools.replaying import replayed

    flow = load_flow(target)
    code = replayed(flow, operator, key or (), after, until, checkpoints, row=row, stop=stop, redact=redact or ())
    raise typer.Exit(code)


@app.command()
def verify(
    target: Target, after: From, until: Until = None, checkpoints: Checkpoints = None, redact: Redact = None
) -> None:
    """Run a flow again between two checkpoints, in this process, and compare state and rows with what the job came to.
    Exits with 1 when something differs: then the flow is not deterministic, and the first difference is named."""
    from barrier_runtime.tools.replaying import verified

    page, same = verified(load_flow(target), after, until, checkpoints, redact or ())
    print(page)
    if not same:
        raise typer.Exit(1)


@app.command()
def report(
    job: str,
    to: Annotated[Path, typer.Option(help="HTML file to write; one that exists is replaced")],
    coordinator: Annotated[str | None, typer.Option(help="as of `status`, for a job that runs")] = None,
    token_file: Annotated[Path | None, typer.Option(help="file with the daemon's bearer token")] = None,
    checkpoints: Annotated[str | None, typer.Option(help="folder or URL, for a job that has ended")] = None,
) -> None:
    """Write the page of a job to one HTML file, for a bug report: no script, nothing fetched, secrets masked."""
    from barrier_runtime.tools.report import report as write_report

    print(f"{to}: {write_report(job, to, coordinator, token_file, checkpoints):,} bytes")


@app.command()
def fsck(
    url: Annotated[str, typer.Argument(help="folder or URL of the checkpoints, as in checkpoints=")],
    job: Annotated[str | None, typer.Option(help="only this job; default: every job there")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="delete orphans, as the jobs' own sweeps would")] = False,
    min_age: Annotated[float, typer.Option(help="seconds; younger objects are never orphans")] = 600.0,
    form: Annotated[str, typer.Option("--format", help="text or json")] = "text",
) -> None:
    """Verify logs, manifests and every hash; list orphans with the reason.

    Exits with 0 when clean, 1 with orphans only, 2 with damage, 3 when it could not be checked.
    """
    from barrier_runtime.tools.fsck import fsck as run_fsck

    try:
        code = run_fsck(url, job, delete=delete, min_age_s=min_age, form=form)
    except (BarrierRuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 3
    raise typer.Exit(code)


@app.command()
def compact(
    url: Annotated[str, typer.Argument(help="folder or URL that file sinks write to")],
    job: Annotated[str | None, typer.Option(help="of this job only")] = None,
    sink: Annotated[str | None, typer.Option(help="of this sink only")] = None,
    target: Annotated[int, typer.Option(help="MiB that a large file is to have")] = 128,
    keep: Annotated[float, typer.Option(help="seconds for which files that readers may have listed stay")] = 3_600.0,
) -> None:
    """Make large files of the small ones that file sinks have committed, while the job runs and readers read.

    Run it again and again, as every hour: each run goes on with what the one before began. Who reads through the sink's
    commit log notices nothing; who lists the folder misses rows for a moment, and sees none twice.
    """
    from barrier_runtime.connectors.files.sink.compaction import compact_files

    try:
        done = compact_files(url, job, sink, target_bytes=target << 20, keep_s=keep)
    except (BarrierRuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    for (of_job, of_sink), each in sorted(done.items()):
        print(
            f"{of_job}/{of_sink}: {each.merged} files became {each.made}; {each.shown} large files took the place of "
            f"their small ones in the folder, {each.waiting} will when {keep:g} s have passed"
        )
        for reason in each.skipped:
            print(f"{of_job}/{of_sink}: left as it is: {reason}", file=sys.stderr)


@app.command()
def transactions(
    job: str,
    action: Annotated[str, typer.Argument(help="list, commit or abort")],
    checkpoints: Annotated[str, typer.Option(help="folder or URL of the checkpoints, as in checkpoints=")],
    sink: Annotated[
        list[str] | None, typer.Option(help="a sink of your own: name=file.py:factory; may be repeated")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="setting of a sink: sink.key=value; may be repeated")
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="abort: drop decided transactions too; their rows are lost")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="settle although the job seems to run")] = False,
    form: Annotated[str, typer.Option("--format", help="text or json")] = "text",
) -> None:
    """Show or settle what a stopped job has decided and not made visible, from its checkpoints alone.

    list only looks. commit makes everything decided visible. abort drops what was never decided, after committing the
    rest. Passwords come from the environment. Exits with 1 when something could not be settled.
    """
    from barrier_runtime.tools.transactions import transactions as run_transactions

    code = run_transactions(
        job,
        action,
        checkpoints,
        sinks=sink or (),
        settings=setting or (),
        accept_loss=accept_loss,
        force=force,
        form=form,
    )
    raise typer.Exit(code)


def _client(address: str, token_file: Path) -> Any:
    from barrier_runtime.coordinator.client.failover import FailoverClient, addresses
    from barrier_runtime.coordinator.client.rest_token import read_token_file

    return FailoverClient(addresses(address), read_token_file(token_file))


def _with_subtasks(client: Any, status: Any) -> Any:
    """The status leaves out what says why a past checkpoint was slow."""
    import msgspec

    return msgspec.structs.replace(status, checkpoints=client.checkpoints(status.job))


def _print_json(answer: object) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())


def _print_condition(job: Any) -> None:
    from barrier_runtime.coordinator.status.health import described

    print(f"job {job.job}: {described(job.condition, job.condition_reason)}", file=sys.stderr)


def main() -> None:
    """Entry point: what a person must fix is said in one message, without a stack trace."""
    from barrier_runtime.launch.result import JobFailed

    try:
        app()
    except JobFailed as error:
        print(error.told, file=sys.stderr)
        sys.exit(1)
    except BarrierRuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
