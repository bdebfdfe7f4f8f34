"""The methods of a user's class that take the rows of named inputs: looked for when the flow is written."""

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from barrier_runtime.operators.user_code import function_name
from barrier_runtime.state.errors import InvalidJob

TIMERS = {"on_timer": ("key", "timestamp_ms", "ctx"), "on_wall_timer": ("key", "due_ms", "ctx")}


def refuse_coroutines(function: Any, where: str, methods: Iterable[str] = ()) -> None:
    """Raises `InvalidJob` for a function, or one of these methods of a class or object, that is an `async def`."""
    for called in (function, *(getattr(function, name, None) for name in ("__call__", *methods))):
        if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
            raise InvalidJob(
                f"{where}: {function_name(called)} is an async def, and nobody awaits it here: write a plain function; "
                'what asks another system belongs in lookup("name", function, key=…), which runs coroutines'
            )
    for name in {"open", "close"}.intersection(methods):
        if inspect.isgeneratorfunction(getattr(function, name, None)):
            raise InvalidJob(
                f"{where}: {function_name(getattr(function, name))} yields, but rows go out only with a row or a "
                "timer: yield them there; when all input has ended every timer fires"
            )


def check_handlers(function: Any, handlers: Mapping[str, tuple[str, ...]], where: str) -> None:
    """`handlers`: name of a method to its parameters, of which each must be there. Raises `InvalidJob` for one that is
    missing or takes others, and for a method `on_…` that nothing calls."""
    said = function_name(function)[:-2]
    unknown = [
        name
        for name in dir(function)
        if name.startswith("on_") and name not in handlers and name not in TIMERS and callable(getattr(function, name))
    ]
    for name, takes in handlers.items():
        if not callable(getattr(function, name, None)):
            meant = difflib.get_close_matches(name, unknown, 1)
            hint = f"call {meant[0]}() so" if meant else "add it"
            raise InvalidJob(f"{where}: {said} has no method {name}(self, {', '.join(takes)}): {hint}")
    for name in unknown:
        meant = difflib.get_close_matches(name, [*handlers, *TIMERS], 1)
        hint = f"is {meant[0]}() meant? Else " if meant else ""
        raise InvalidJob(
            f"{where}: nothing calls {said}.{name}(): its inputs are {', '.join(handlers)}: {hint}let its name not "
            "begin with 'on_', or give connect() an input of that name"
        )
    refuse_coroutines(function, where, (*handlers, *TIMERS, "open", "close"))
    for name, takes in {**handlers, **TIMERS}.items():
        if callable(getattr(function, name, None)) and not takes_arguments(function, name, len(takes)):
            raise InvalidJob(
                f"{where}: {said}.{name}() takes {_shown(function, name)}: let it take (self, {', '.join(takes)})"
            )


def refuse_misspelt_timers(function: Any, where: str) -> None:
    """Raises `InvalidJob` for a method that is almost a handler of timers, where that is missing."""
    for name in dir(function):
        meant = difflib.get_close_matches(name, TIMERS, 1, 0.8) if name.startswith("on_") else []
        if meant and not hasattr(function, meant[0]) and callable(getattr(function, name)):
            raise InvalidJob(
                f"{where}: nothing calls {function_name(function)[:-2]}.{name}(): is {meant[0]}() meant? Else let its "
                "name not begin with 'on_'"
            )


def check_row_function(function: Any, where: str) -> None:
    """What `Stream.process` is given, which has no key."""

    from barrier_runtime.operators.functions.process import declared_states

    said = function_name(function)
    if not callable(getattr(function, "process", function)) or (
        isinstance(function, type) and not callable(getattr(function, "process", None))
    ):
        raise InvalidJob(
            f"{where}: {function!r} is neither a function of (row, ctx) nor has it process(self, row, ctx)"
        )
    refuse_coroutines(function, where, ("process", "open", "close"))
    states = declared_states(function)
    if states:
        raise InvalidJob(
            f"{where}: {said[:-2]} keeps state ({', '.join(states)}), and state belongs to a key: call .key_by(…) "
            "before it, and let process take (self, key, row, ctx)"
        )
    for name in TIMERS:
        if callable(getattr(function, name, None)):
            raise InvalidJob(
                f"{where}: {said[:-2]} has {name}(), and timers belong to a key: call .key_by(…) before it"
            )
    method = "process" if hasattr(function, "process") else None
    if not takes_arguments(function, method, 2):
        raise InvalidJob(
            f"{where}: {said} takes {_shown(function, method)}: a stream without key "
            "gives (row, ctx); for (key, row, ctx) call .key_by(…) before it"
        )


def require_arguments(function: Any, takes: tuple[str, ...], where: str) -> None:
    """Raises `InvalidJob` for a function that cannot be called with these arguments, by position."""
    if not takes_arguments(function, None, len(takes)):
        raise InvalidJob(
            f"{where}: {function_name(function)} takes {_shown(function, None)}: let it take ({', '.join(takes)})"
        )


def takes_arguments(function: Any, method: str | None, count: int) -> bool:
    """Whether `method` of the class or object (None: it itself) can be called with so many, beside `self`."""
    called = function if method is None else getattr(function, method)
    unbound = False
    if method is not None and isinstance(function, type):
        unbound = inspect.isfunction(inspect.getattr_static(function, method))
    try:
        inspect.signature(called).bind(*range(count + unbound))
    except TypeError:
        return False
    except ValueError:  # its signature is not known
        return True
    return True


def _shown(function: Any, method: str | None) -> str:
    called = function if method is None else getattr(function, method)
    return f"({', '.join(inspect.signature(called).parameters)})"
