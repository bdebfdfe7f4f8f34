"""How `--help` looks: lists of whole names with their help, options by group. In rich's tables of six columns, which
typer makes, a terminal of 80 cuts the names."""

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

_F = TypeVar("_F", bound=Callable[..., Any])
_WHOLE = 10_000  # characters of a command's first sentence


class Command(TyperCommand):
    """A command with such a page."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(TyperCommand, self).format_help(ctx, formatter)  # passes over rich

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)


class Group(TyperGroup):
    """A group of commands with such a page."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(TyperGroup, self).format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(_WHOLE)) for name, each in commands if each is not None])


class Application(typer.Typer):
    """A group whose commands have such pages, and itself too."""

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
