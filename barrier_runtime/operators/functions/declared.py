"""Declarations of keyed functions: their methods and states."""

from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

from barrier_runtime.operators.functions.columns_read import attributes_read
from barrier_runtime.operators.state.handle import KeyedState
from barrier_runtime.operators.user_code import function_name
from barrier_runtime.state.errors import InvalidJob


def check_keyed_function(function: Any, where: str) -> None:
    if not callable(getattr(function, "process", function)):
        raise InvalidJob(f"{where}: {function!r} is not a function and has no process() method: pass one")
    if isinstance(function, type) and not callable(getattr(function, "process", None)):
        raise InvalidJob(f"{where}: class {function.__name__} has no method process(self, key, row, ctx): add it")


def declared_states(function: Any, extra: Mapping[str, KeyedState] | None = None) -> dict[str, KeyedState]:
    states = {name: value for name in dir(function) if isinstance(value := getattr(function, name, None), KeyedState)}
    if extra is not None and not isinstance(extra, Mapping):
        raise InvalidJob(f"state={extra!r}: give a dict, as in state={{'total': ValueState(int)}}")
    for name, value in (extra or {}).items():
        if name in states:
            raise InvalidJob(f"state {name!r} is declared in {function_name(function)} and in state=: keep one")
        if not isinstance(value, KeyedState):
            raise InvalidJob(f"state {name!r} is {value!r}: declare it as ValueState(type), or another kind of state")
        states[name] = value
    return states


def needs_time_of_rows(function: Any, states: Mapping[str, KeyedState], methods: Iterable[str]) -> bool:
    """Returns whether `methods`, whose last argument is `ctx`, or states may use the time of a row."""
    if any(_expires_in_event_time(state) for state in states.values()):
        return True
    return any(_may_read_time(getattr(function, method, function)) for method in methods)


def _may_read_time(method: Any) -> bool:
    method = getattr(method, "__func__", method)
    if type(method) is not FunctionType:
        return True
    read = attributes_read(method, method.__code__.co_argcount - 1)
    return read is None or "timestamp" in read


def _expires_in_event_time(state: KeyedState) -> bool:
    return state.ttl is not None and state.ttl.clock == "event"


def check_event_time_of_states(states: Mapping[str, KeyedState], event_time: str | None, where: str) -> list[str]:
    """States with a TTL in event time. Raises `InvalidJob` if the step has no event time for them."""
    names = [name for name, state in states.items() if _expires_in_event_time(state)]
    if names and event_time is None:
        raise InvalidJob(
            f"{where}: state {names[0]!r} has a TTL in event time, but the step does not know the time of its rows: "
            "pass event_time= to process(), or take TTL(…, clock='processing')"
        )
    return names
