"""Commands for a flow, their flags (from the table of options), and the coordinator daemon."""

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from barrier_runtime.coordinator.option_table import GROUPS, OPTIONS, Option, allowed, shown_value, wanted_type
from barrier_runtime.state.errors import InvalidJob, missing_extra
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.tools.commands.app import USER_MODULE, Target, app, load_flow

P = ParamSpec("P")
R = TypeVar("R")
_NONE = "none"


@dataclass(frozen=True)
class Given:
    """Options of command line and environment, by name."""

    flags: dict[str, Any]
    variables: dict[str, Any]
    sources: dict[str, str]  # the flag or the variable

    def for_run(self, *, local: bool, apart: bool = False) -> dict[str, Any]:
        """Options for a run. If `local`, refuses flags for Spark, and omits such variables.

        `apart`: slots run in separate processes.
        """
        if not local:
            return self.variables | self.flags
        from barrier_runtime.launch.options import refuse_for_spark, usable_locally  # slow: not for --help

        flags = {name: self.sources[name] for name in self.flags}
        refuse_for_spark(flags, "run without --local", processes="--processes", apart=apart)
        return usable_locally(self.variables, apart=apart) | self.flags


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Lets a command take all options of the table as flags, and receive them as `given=`."""

    def called(*arguments: Any, context: typer.Context, **values: Any) -> None:
        flags = {name: values.pop(name) for name in _OFFERED}
        command(*arguments, given=_given(context, flags), **values)

    plain = inspect.signature(command)
    own = [each for each in plain.parameters.values() if each.name != "given"]
    parameters = [
        *own,
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *(_parameter(group, each) for group, options in GROUPS.items() for each in options if each.on_command_line),
    ]
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = plain.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    return called


_OFFERED = {name: option for name, option in OPTIONS.items() if option.on_command_line}


def _parameter(group: str, option: Option) -> inspect.Parameter:
    flag = f"{option.flag}/--no-{option.flag[2:]}" if option.plain_type is bool else option.flag
    notes = [option.help, *([values] if (values := allowed(option)) and not option.choices else [])]
    if option.optional and option.default is not None:
        notes.append(f"{_NONE}: {option.none}")
    if option.where in ("apart", "spark"):
        notes.append("not with --local" + (" alone" if option.where == "apart" else ""))
    info = typer.Option(
        flag,
        *option.flags,
        envvar=option.variable,
        help="; ".join(notes),
        metavar=_metavar(option),
        show_default=shown_value(option, option.default),
        rich_help_panel=group,
        show_envvar=False,
    )
    kinds: dict[Any, Any] = {bool: bool | None, dict[str, str]: list[str] | None}
    kind = kinds.get(option.plain_type, str | None)  # numbers are read here, so that errors are ours
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, info]
    )


def _metavar(option: Option) -> str | None:
    if option.plain_type is bool:
        return None
    if option.choices:
        return "|".join(option.choices)
    kinds = {str: "TEXT", dict[str, str]: "KEY=VALUE"}
    return {"s": "SECONDS", "MiB": "MIB"}.get(option.unit) or kinds.get(option.plain_type, "NUMBER")


def _given(context: typer.Context, values: dict[str, Any]) -> Given:
    given = Given({}, {}, {})
    for name, value in values.items():
        if value is None:
            continue
        option = OPTIONS[name]
        source = context.get_parameter_source(name)
        if source is not None and source.name == "ENVIRONMENT":
            given.sources[name] = option.variable
            given.variables[name] = read(option, option.variable, value)
        elif source is not None and source.name == "COMMANDLINE":
            given.sources[name] = option.short_flag
            given.flags[name] = read(option, option.short_flag, value)
    return given


def read(option: Option, said: str, value: Any) -> Any:
    """Raises an `InvalidJob` that names the flag or variable `said`."""
    kind = option.plain_type
    if isinstance(value, bool):
        return value
    if kind == dict[str, str]:
        return dict(_setting(said, entry) for entry in value)
    if option.optional and kind is not str and value.lower() == _NONE:
        return None
    if kind not in (int, float):
        return value
    try:
        return kind(value)
    except ValueError:
        raise InvalidJob(f"{said} {value!r}: {wanted_type(option).replace('None', _NONE)}") from None


def _setting(said: str, entry: str) -> tuple[str, str]:
    key, separator, value = entry.partition("=")
    if not separator or not key:
        raise InvalidJob(f"{said} {entry!r}: write key=value")
    return key, value


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


FILES = {
    "flow.py": "flow.py.txt",
    "test_flow.py": "test_flow.py.txt",
    "Makefile": "Makefile.txt",
    "compose.yaml": "compose.yaml.txt",
    ".gitignore": "gitignore.txt",
}


def new_project(name: str, where: Path) -> list[str]:
    """Returns lines for the user.

    Raises `InvalidJob` for an invalid name, and for a nonempty folder.
    """
    import importlib.resources  # slow: not for --help

    check_job_id(name, "the project's name, which is the job's as well,")
    folder = where / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidJob(f"{folder} is there and not empty: choose another name, or remove it")
    templates = importlib.resources.files("barrier_runtime.tools") / "project"
    try:
        folder.mkdir(exist_ok=True)
        for file, template in FILES.items():
            text = (templates / template).read_text(encoding="utf-8").replace("@NAME@", name)
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidJob(f"{folder} cannot be written ({error.strerror}): go to a folder of your own") from error
    return [
        f"{name}{os.sep}: {', '.join(FILES)}",
        f"cd {name}",
        "make run     # the flow, in one process, without Spark",
        "make test    # its tests (pip install pytest)",
    ]
