"""The options in force and where each comes from, for people: what `explain` prints as settings.

An option is shown as it is in force, also where another one changes it. Text is shown only when its row in the table
says so: it may hold a secret.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from barrier_runtime.coordinator.option_table import CHECKPOINTS, OPTIONS, RESTARTS, Option, shown_value
from barrier_runtime.coordinator.options import describe_restart
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.restart_options import restart_options
from barrier_runtime.state.store.urls import shown

_MADE = ("run_id",)  # at random, unless given: nothing to show
_CHANGED_BY = {"checkpoint_interval": "min_pause", "max_concurrent": "min_pause"}


def effective(options: JobOptions, sources: Mapping[str, str], *, local: bool = False) -> dict[str, str]:
    """Each option with its value and, in brackets, where that comes from. `sources`: of what was given. `local`: only
    what means something in a local run."""
    values = _in_force(options) | {name: "" for name in _MADE if name not in sources}
    told = {}
    for name, option in OPTIONS.items():
        if local and option.where == "spark":
            continue
        given = getattr(options, name)
        source = sources.get(name, "default")
        if values[name] != given and name in _CHANGED_BY:
            source = f"follows from {_CHANGED_BY[name]}; {source}: {shown_value(option, given)}"
        told[name] = f"{_text(option, values[name], options)} [{source}]"
    told["restart"] = f"{describe_restart(restart_options(options))} [{sources.get('restart', 'default')}]"
    return told


def _in_force(options: JobOptions) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(options, name) for name in OPTIONS}
    checkpoints = msgspec.structs.asdict(options.checkpoint_options())
    values |= {option.name: option.unstored(checkpoints[option.field]) for option in CHECKPOINTS if option.field}
    restart = msgspec.structs.asdict(restart_options(options))
    values |= {option.name: option.unstored(restart[option.field]) for option in RESTARTS if _used(option, options)}
    values["progress_timeout"] = options.progress_timeout_ms() / 1000
    return values


def _used(option: Option, options: JobOptions) -> bool:
    if option.name == "aligned_timeout":
        return options.unaligned
    return not option.strategies or options.restart in option.strategies


def _text(option: Option, value: Any, options: JobOptions) -> str:
    if not _used(option, options):
        return (
            f"not used with {'unaligned=False' if option.name == 'aligned_timeout' else f'restart={options.restart}'}"
        )
    if not value or option.shown == "value":
        return shown_value(option, value)
    return shown(value) if option.shown == "url" else "given, not shown"
