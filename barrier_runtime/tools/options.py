"""Flags of `barrier-runtime run` and `explain`, from the table of options."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from barrier_runtime.coordinator.option_table import GROUPS, OPTIONS, Option, allowed, shown_value, wanted_type
from barrier_runtime.state.errors import InvalidJob

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
