"""Commands for a flow, and the coordinator daemon."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from barrier_runtime.state.errors import InvalidJob, missing_extra
from barrier_runtime.tools.commands.app import USER_MODULE, Target, app, load_flow
from barrier_runtime.tools.options import Given, with_options

if TYPE_CHECKING:
    from barrier_runtime.api.dataflow import Dataflow
    from barrier_runtime.launch.outcome import JobResult


@app.command()
@with_options
def run(
    target: Target,
    local: Annotated[bool, typer.Option("--local", help="run in this process, without Spark")] = False,
    processes: Annotated[
        int | None, typer.Option(help="with --local: slots that run in processes of their own, each on a core")
    ] = None,
    *,
    given: Given,
) -> None:
    """Run a flow until it ends."""
    if processes is not None and not local:
        raise InvalidJob("--processes is for runs without Spark: give --local as well, or leave it out")
    options = given.for_run(local=local, apart=processes is not None)
    flow = load_flow(target)
    if "restore" in options:
        _tell_restore(flow, options, local)
    try:
        if local:
            _run_local(flow, options, processes)
        else:
            from barrier_runtime.spark.closure import ship_by_value

            ship_by_value(sys.modules[USER_MODULE])
            print(flow.run(**options))
    except KeyboardInterrupt as interrupted:
        print(f"interrupted: {interrupted}" if interrupted.args else "interrupted", file=sys.stderr)
        raise typer.Exit(130) from None


@app.command()
@with_options
def preflight(
    target: Annotated[str | None, typer.Argument(metavar="FILE:FLOW", help="a flow, for its options")] = None,
    local: Annotated[bool, typer.Option("--local", help="without Spark, with --processes")] = False,
    processes: Annotated[int | None, typer.Option(help="with --local: slots in processes of their own")] = None,
    *,
    given: Given,
) -> None:
    """Start the slots of a flow without the flow, and print what is wrong with their hosts. Exits with 1 for errors."""
    if local != (processes is not None):
        raise InvalidJob("--local and --processes belong together: give both, or --master for slots on Spark")
    if processes == 0:
        raise InvalidJob("--processes 0 starts no slot: a preflight needs at least 1")
    from barrier_runtime.tools.preflight import lines
    from barrier_runtime.tools.preflight import preflight as run_preflight

    flow = None if target is None else load_flow(target)
    found = run_preflight(flow, given.for_run(local=local, apart=local), processes)
    print(*lines(found), sep="\n")
    if any(each.severity == "error" for each in found.findings):
        raise typer.Exit(1)
    print(f"preflight: {sum(len(host.slots) for host in found.hosts)} slots can work together")


def _tell_restore(flow: "Dataflow", options: dict[str, Any], local: bool) -> None:
    """Prints the restore page of `explain`, for readers of this run's log."""
    from barrier_runtime.api.dataflow import preview_of_restore

    try:
        page, _ = preview_of_restore(flow, options, local=local)
    except InvalidJob as error:  # the start decides whether this is an error
        page = f"restore: {error}\n"
    print(page, end="", file=sys.stderr)


def _run_local(flow: "Dataflow", options: dict[str, Any], processes: int | None) -> None:
    from barrier_runtime.launch.display import progress_shown
    from barrier_runtime.launch.options import JobOptions

    chosen = JobOptions.for_local_run(options, flow.options, processes=processes)
    result: JobResult | None
    with progress_shown(plain=chosen.verbose) as show:
        if processes is None:
            from barrier_runtime.launch.local import run_until_terminated

            result, terminated = run_until_terminated(flow.plan, chosen, show)
        else:
            from barrier_runtime.launch import processes as in_processes
            from barrier_runtime.spark.closure import ship_by_value

            ship_by_value(sys.modules[USER_MODULE])
            result, terminated = in_processes.run_until_terminated(flow.plan, chosen, processes, show)
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
    defaults: Annotated[bool, typer.Option("--all", help="options at their defaults, too")] = False,
    *,
    given: Given,
) -> None:
    """Print chains, edges, the delivery guarantee of each sink, and options with where each value comes from.

    With --restore also what becomes of each operator's state; exits with 2 where `run` would refuse. Writes nothing.
    """
    options = given.for_run(local=local)
    flow = load_flow(target)
    from barrier_runtime.api.dataflow import explain_flow

    sources = {name: given.sources[name] for name in options}
    print(explain_flow(flow, options, sources, local=local, defaults=defaults))
    if "restore" in options:
        from barrier_runtime.api.dataflow import preview_of_restore

        page, starts = preview_of_restore(flow, options, local=local)
        print(page, end="")
        if not starts:
            raise typer.Exit(2)


@app.command()
def demo(
    rate: Annotated[float, typer.Option(help="orders per second")] = 2_000,
    orders: Annotated[int | None, typer.Option(help="end after so many; without it at Ctrl-C or SIGTERM")] = None,
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
    try:
        from barrier_runtime.coordinator.server.daemon import main as daemon_main
    except ImportError as error:
        raise missing_extra("the coordinator", "coordinator", error) from None
    raise typer.Exit(daemon_main(context.args))
