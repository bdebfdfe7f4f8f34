"""The command `barrier-runtime`: run a flow, explain it, start a coordinator daemon, look at and steer its jobs.

Errors a person must fix are printed without a stack trace and exit with 2; a failed job exits with 1.
"""

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from state.errors import BarrierRuntimeError, InvalidJob, UserCodeError

if TYPE_CHECKING:
    from barrier_runtime.dataflow import Dataflow

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

Target = Annotated[str, typer.Argument(help="the file and the name of the flow in it: app.py:flow")]
Coordinator = Annotated[str, typer.Option(help="REST address of the daemon, http://host:port; of several with commas")]
TokenFile = Annotated[Path, typer.Option(help="file with the daemon's bearer token")]
_USER_MODULE = "barrier_runtime_user_app"


def load_flow(target: str) -> "Dataflow":
    """The flow named by `file.py:name`. Raises `InvalidJob` that says what is missing."""
    from barrier_runtime.dataflow import Dataflow

    file, _, name = target.rpartition(":")
    if not file or not name.isidentifier():
        raise InvalidJob(f"{target!r} names no flow: write it as file.py:name, for example app.py:flow")
    path = Path(file)
    if not path.is_file():
        raise InvalidJob(f"there is no file {file!r} (looked in {Path.cwd()})")
    spec = importlib.util.spec_from_file_location(_USER_MODULE, path)
    if spec is None or spec.loader is None:
        raise InvalidJob(f"{file!r} is no Python file: give one that ends in .py")
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
    return flow


def _user_line(error: Exception, path: Path) -> str:
    """Where in the user's file the mistake is."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == path.resolve()]
    return f"{path}, line {frames[-1].lineno}: {frames[-1].line}" if frames else str(path)


@app.command()
def run(
    target: Target,
    master: Annotated[str, typer.Option(help="Spark master: local[N], local-cluster[…], spark://…")] = "local[*]",
    parallelism: Annotated[int, typer.Option(help="number of slots")] = 2,
    checkpoints: Annotated[str | None, typer.Option(help="folder or URL (file://, s3://) of the checkpoints")] = None,
    restore: Annotated[str, typer.Option(help="latest, none, or the number of a retained checkpoint")] = "latest",
    interval: Annotated[float, typer.Option(help="seconds between checkpoints")] = 1.0,
    max_parallelism: Annotated[int, typer.Option(help="key groups; fixed for the life of the job")] = 128,
    allow_replay: Annotated[
        bool, typer.Option(help="restore something older than the last completed checkpoint")
    ] = False,
    allow_non_restored: Annotated[bool, typer.Option(help="drop state whose operator is gone")] = False,
    coordinator: Annotated[str | None, typer.Option(help="a running daemon, or several with commas")] = None,
    token_file: Annotated[Path | None, typer.Option(help="file with the daemon's bearer token")] = None,
    local: Annotated[bool, typer.Option("--local", help="run in this process, without Spark")] = False,
    conf: Annotated[list[str] | None, typer.Option(help="Spark setting key=value; may be repeated")] = None,
) -> None:
    """Run a flow until it ends."""
    flow = load_flow(target)
    common: dict[str, Any] = {
        "parallelism": parallelism,
        "max_parallelism": max_parallelism,
        "checkpoints": checkpoints,
        "checkpoint_interval": interval,
        "restore": restore,
        "allow_replay": allow_replay,
        "allow_non_restored": allow_non_restored,
    }
    settings = dict(_setting(entry) for entry in conf or [])
    try:
        if local:
            result = flow.run_local(**common)
        else:
            from barrier_runtime.spark.user_module import ship_by_value

            ship_by_value(sys.modules[_USER_MODULE])
            result = flow.run(
                **common, master=master, coordinator=coordinator, token_file=token_file, spark_conf=settings
            )
    except KeyboardInterrupt:
        print(
            f"interrupted: job {flow.name} was stopped; what its last checkpoint covers is committed", file=sys.stderr
        )
        raise typer.Exit(130) from None
    print(result)


@app.command()
def explain(target: Target, parallelism: Annotated[int, typer.Option(help="number of slots")] = 2) -> None:
    """Print chains, edges, effective settings and the delivery guarantee of each sink."""
    print(load_flow(target).explain(parallelism=parallelism))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def coordinator(context: typer.Context) -> None:
    """Run a coordinator daemon: --listen host:port --http host:port --storage URL --token-file FILE --lease SECONDS."""
    from coordinator.daemon import main as daemon_main

    raise typer.Exit(daemon_main(context.args))


@app.command()
def status(
    coordinator: Coordinator, token_file: TokenFile, job: Annotated[str | None, typer.Argument(help="one job")] = None
) -> None:
    """Print the state of one job, or the list of jobs, as JSON; and whether each gets on, in a line on stderr."""
    client = _client(coordinator, token_file)
    if job:
        one = client.status(job)
        _print_json(one)
        _print_condition(one)
    else:
        jobs = client.jobs()
        _print_json(jobs)
        for each in jobs:
            _print_condition(each)


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
) -> None:
    """Take a last checkpoint, commit it and stop the job."""
    _print_json(_client(coordinator, token_file).stop(job, "now" if now else "checkpoint"))


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
    from barrier_runtime.fsck_command import fsck as run_fsck

    try:
        code = run_fsck(url, job, delete=delete, min_age_s=min_age, form=form)
    except (BarrierRuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 3
    raise typer.Exit(code)


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
    from barrier_runtime.transactions_command import transactions as run_transactions

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
    from coordinator.failover_client import FailoverClient, addresses
    from coordinator.rest_token import read_token_file

    return FailoverClient(addresses(address), read_token_file(token_file))


def _print_json(answer: object) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())


def _print_condition(job: Any) -> None:
    from coordinator.progress import described

    print(f"job {job.job}: {described(job.condition, job.condition_reason)}", file=sys.stderr)


def _setting(entry: str) -> tuple[str, str]:
    key, separator, value = entry.partition("=")
    if not separator or not key:
        raise InvalidJob(f"--conf {entry!r}: write key=value")
    return key, value


def main() -> None:
    """Entry point: what a person must fix is said in one message, without a stack trace."""
    from barrier_runtime.job_result import JobFailed

    try:
        app()
    except JobFailed as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except BarrierRuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
