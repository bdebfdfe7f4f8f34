"""Writes `coordinator/option_types.py` and `docs/options.md` from the table of options, `coordinator/option_table.py`.

Run this file after a change of the table (`make tables`); `tests/test_options_table.py` fails when a written file is
stale.
"""

import textwrap
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from barrier_runtime.coordinator.option_table import (
    CHECKPOINTS,
    DAEMON,
    GROUPS,
    OPTIONS,
    RESTARTS,
    SAME,
    Option,
    allowed,
    shown_value,
)

ROOT = Path(__file__).resolve().parents[1]
TYPES = ROOT / "coordinator" / "option_types.py"
DOCUMENT = ROOT / "docs" / "options.md"
_WIDTH = 120

_HEAD = '''"""The options as types: what is stored of them, the keywords of `run` and `run_local`, and their values.

Written by `tests/options_table.py` from `coordinator/option_table.py`: change an option there, then `make tables`.
"""

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypedDict

import msgspec

'''

_STORED = '''
class {name}(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """{says} Times are milliseconds. See `coordinator.options.{check}`."""

'''

_STRUCTS: tuple[tuple[str, str, str, tuple[Option, ...]], ...] = (
    ("CheckpointOptions", "Stored with a job; they mean what Flink's do.", "validated", CHECKPOINTS),
    ("RestartOptions", "Stored with a job: when it restarts.", "validated_restart", RESTARTS),
)

_KEYWORDS = '''
class {name}({base}, total=False):
    """{says}"""

'''

_SLOT_VALUES = '''
@dataclass(frozen=True)
class SlotOptions:
    """The options that every slot gets, as the user gave them."""

'''

_VALUES = '''

@dataclass(frozen=True)
class OptionValues(SlotOptions):
    """The value of each option; checked by `barrier_runtime.launch.options.JobOptions`."""

'''


def spelled(kind: Any) -> str:
    """Spelling of a type in a source file."""
    if get_origin(kind) is Literal:
        return f"Literal[{', '.join(quoted(choice) for choice in get_args(kind))}]"
    if get_args(kind) and get_origin(kind) is not dict:
        return " | ".join(spelled(each) for each in get_args(kind))
    if kind is type(None):
        return "None"
    return "Any" if kind is Any else str(kind) if get_origin(kind) is dict else str(kind.__name__)


def quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def types() -> str:
    text = _HEAD
    for name, says, check, options in _STRUCTS:
        text += _STORED.format(name=name, says=says, check=check)
        text += "".join(f"    {_stored(option)}\n" for option in options if option.field) + "\n"
    anywhere = [option for option in OPTIONS.values() if option.where in ("everywhere", "apart")]
    on_spark = [option for option in OPTIONS.values() if option.where == "spark"]
    text += _KEYWORDS.format(name="LocalRunOptions", base="TypedDict", says="Keywords of `Dataflow.run_local`.")
    text += "".join(map(_keyword, anywhere)) + "\n"
    text += _KEYWORDS.format(
        name="RunOptions", base="LocalRunOptions", says="Keywords of `Dataflow`, its `run`, `start` and `explain`."
    )
    text += "".join(map(_keyword, on_spark)) + "\n"
    for head, slot in ((_SLOT_VALUES, True), (_VALUES, False)):
        text += head + "".join(f"    {_value(option)}\n" for option in OPTIONS.values() if option.slot is slot)
    return text


def _stored(option: Option) -> str:
    kind, value = option.type, option.stored(option.default)
    if option.in_ms:
        kind = int | None if option.optional else int
    if option.stored_default is not SAME:
        value = option.stored_default
        kind = kind if value is None else int
    return f"{option.field}: {spelled(kind)} = {quoted(value)}"


def _keyword(option: Option) -> str:
    kind = spelled(option.type)
    if option.also:
        kind = f"{kind.removesuffix(' | None')} | {option.also}{' | None' if option.optional else ''}"
    values = f" {allowed(option)}." if allowed(option) else ""
    says = f"{option.help}.{values} Default: {shown_value(option, option.default)}."
    [first, *more] = textwrap.wrap(f'"""{says}"""', _WIDTH - 4)
    lines = [f"{option.name}: {kind}", first, *more]
    return "".join(f"    {line}\n" for line in lines)


def _value(option: Option) -> str:
    value = quoted(option.default)
    if option.made:
        value = f"field(default_factory={option.made}{', repr=False' if option.name == 'spark_conf' else ''})"
    return f"{option.name}: {spelled(option.type)} = {value}"


def document() -> str:
    lines = [
        "# Options of a run",
        "",
        "Written by `tests/options_table.py` from `coordinator/option_table.py`.",
        "",
        "Options are keywords of `Dataflow(name, …)`, `run`, `start`, `run_local` and `explain`; times are seconds,",
        "or a `timedelta`. On the command line each option is a flag of `run` and `explain` (`checkpoint_interval`:",
        "`--checkpoint-interval`) or an environment variable (`BARRIER_RUNTIME_CHECKPOINT_INTERVAL`). A keyword or a",
        "flag has priority over the environment, the environment over keywords of `Dataflow(name, …)`, and those over",
        "the default. `barrier-runtime explain app.py:flow` shows each value that is set and its origin; `--all` shows",
        "defaults too.",
    ]
    for group, options in GROUPS.items():
        lines += ["", f"## {group}", "", "| option | default | values | |", "|---|---|---|---|"]
        lines += [_row(option) for option in options]
    lines += ["", "## The daemon", "", "Flags of `barrier-runtime coordinator`.", ""]
    lines += ["| flag | default | values | |", "|---|---|---|---|"]
    lines += [_row(option).replace(f"`{option.name}`", f"`{option.flag}`") for option in DAEMON]
    return "\n".join(lines) + "\n"


def _row(option: Option) -> str:
    notes = [option.help]
    if option.strategies and option.strategies != ("fixed_delay", "exponential_delay", "failure_rate"):
        notes.append(f"only with `restart` {' or '.join(f'`{name}`' for name in option.strategies)}")
    if option.where == "spark":
        notes.append("only on Spark")
    if option.where == "apart":
        notes.append("on Spark, and in local runs with `processes=`")
    if not option.on_command_line:
        notes.append("no flag")
    if option.flags:
        notes.append(f"also `{'`, `'.join(option.flags)}`")
    if option.optional and option.default is not None:
        notes.append(f"`None`: {option.none}")
    return f"| `{option.name}` | {shown_value(option, option.default)} | {allowed(option)} | {'; '.join(notes)} |"


if __name__ == "__main__":
    TYPES.write_text(types(), encoding="utf-8")
    DOCUMENT.write_text(document(), encoding="utf-8")
    print(f"{TYPES.relative_to(ROOT)} and {DOCUMENT.relative_to(ROOT)}: {len(OPTIONS)} options")
