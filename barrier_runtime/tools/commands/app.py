"""The application, shared arguments, and the flow of a command line.

Pages of `--help` are lists, because Typer's default, tables of six columns, cuts off names on a terminal of 80 columns.
"""

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, UserCodeError

if TYPE_CHECKING:
    from barrier_runtime.api.dataflow import Dataflow
from collections.abc import Callable
from typing import Any, TypeVar

from typer.core import TyperCommand, TyperGroup

_F = TypeVar("_F", bound=Callable[..., Any])
_WHOLE = 10_000  # longer than any first sentence of a command


class Command(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(TyperCommand, self).format_help(ctx, formatter)  # skips typer's rich help

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)


class Group(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(TyperGroup, self).format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(_WHOLE)) for name, each in commands if each is not None])


class Application(typer.Typer):
    """Group whose `--help` pages are lists."""

    def __init__(self, help: str) -> None:
        super().__init__(
            cls=Group,
            help=help,
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            context_settings={"max_content_width": 120},
        )

    def command(self, name: str | None = None, **more: Any) -> Callable[[_F], _F]:
        return super().command(name, cls=Command, **more)


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    for each in command.get_params(ctx):
        usual = "Arguments" if each.param_type_name == "argument" else "Options"
        if record := each.get_help_record(ctx):
            groups.setdefault(getattr(each, "rich_help_panel", None) or usual, []).append(record)
    for group, records in groups.items():
        if records:
            with formatter.section(group):
                formatter.write_dl(records)


HELP = """Run a flow, explain it, start a coordinator daemon, look at and steer its jobs.

Errors a person must fix are printed without a stack trace and exit with 2; a failed job exits with 1, one that was
interrupted with 130, and a local one that got SIGTERM with 143, after a last checkpoint.
"""
app = Application(HELP)


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


Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE:FLOW",
        help="a file and the name of the flow in it: app.py:flow; a file with a single flow needs no name",
    ),
]
Redact = Annotated[list[str] | None, typer.Option(help="a column whose values are hidden; may be repeated")]
USER_MODULE = "barrier_runtime_user_app"


def load_flow(target: str) -> "Dataflow":
    """Loads the flow named by `file.py:name`, or the only flow of `file.py`. Raises `InvalidJob`."""
    from barrier_runtime.api.dataflow import LOADED_PROGRAM, Dataflow

    file, _, name = target.rpartition(":")
    if not file and name.endswith(".py"):
        file, name = name, ""
    elif not file or not name.isidentifier():
        raise InvalidJob(f"{target!r} names no flow: write it as file.py:name, for example app.py:flow")
    path = Path(file)
    if not path.is_file():
        raise InvalidJob(f"there is no file {file!r} (looked in {Path.cwd()})")
    spec = importlib.util.spec_from_file_location(USER_MODULE, path)
    if spec is None or spec.loader is None:
        raise InvalidJob(f"{file!r} is not a Python file: give one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[USER_MODULE] = module
    sys.path.insert(0, str(path.resolve().parent))
    loaded = LOADED_PROGRAM.set(file)
    try:
        spec.loader.exec_module(module)
    except BarrierRuntimeError as error:
        raise InvalidJob(f"{error}\n  said of {_user_line(error, path)}") from error
    except Exception as error:
        from barrier_runtime.operators.user_code import user_traceback

        raise UserCodeError(f"{file} cannot be loaded: correct it, then start again", user_traceback(error)) from error
    finally:
        LOADED_PROGRAM.reset(loaded)
    flows = {key: value for key, value in vars(module).items() if isinstance(value, Dataflow)}
    if not name and len(set(map(id, flows.values()))) != 1:
        have = f": name one of them, such as {file}:{min(flows)}" if flows else ""
        raise InvalidJob(f"{file} has {len(flows)} flows in variables{have}")
    name = name or min(flows)
    if name not in flows:
        raise InvalidJob(f"{file} has no Dataflow called {name!r}; it has: {', '.join(flows) or 'none'}")
    flows[name].plan.program = f"{file}:{name}"
    return flows[name]


def _user_line(error: Exception, path: Path) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == path.resolve()]
    return f"{path}, line {frames[-1].lineno}: {frames[-1].line}" if frames else str(path)
